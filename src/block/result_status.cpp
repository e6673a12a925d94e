#include "block/result_status.hpp"

#include <cerrno>

#include "base/mutant.hpp"

namespace gpu4fs::block {

using device::IoOperation;

Status status_of_error(IoOperation operation, int error) {
  switch (error) {
    case 0:
      return Status::ok;
    // The system or the caller, and not the medium.
    case ENOMEM:
    case EFAULT:
    case EINVAL:
    case ECANCELED:
    case EAGAIN:
    case ENOBUFS:
      return Status::io_error;
    // A file system, or a disk that gets its blocks from others, has none left for a hole.
    case ENOSPC:
    case EDQUOT:
      if (operation != IoOperation::flush && operation != IoOperation::read) return Status::no_space;
      break;
    // The device is gone.
    case ENODEV:
    case ENXIO:
    case ESHUTDOWN:
    case ENOTCONN:
    case EBADF:
      return Status::device_failed;
    case EOPNOTSUPP:
      if (operation == IoOperation::discard) return Status::not_supported;
      break;
    default:
      break;
  }
  if (operation == IoOperation::read) return Status::medium_error;
  return GPU4FS_MUTANT(failed_write_is_done, Status::device_failed, Status::ok);
}

std::string place_text(const std::string& path, IoOperation operation, u64 offset, u64 length) {
  std::string text = path + ": " + device::io_operation_name(operation);
  if (operation != IoOperation::flush) {
    text += " of " + std::to_string(length) + " bytes at " + std::to_string(offset);
  }
  return text + " failed: ";
}

}  // namespace gpu4fs::block
