#include "block/stacked_medium.hpp"

#include <unistd.h>

#include <cerrno>
#include <vector>

#include "base/check.hpp"
#include "base/group.hpp"
#include "base/racy_access.hpp"
#include "device/stack/device_stack.hpp"

namespace gpu4fs::block {

using device::DeviceStack;
using device::IoOperation;

namespace {

int error_of(Status status) {
  switch (status) {
    case Status::ok:
      return 0;
    case Status::medium_error:
      return EIO;
    default:
      return ENODEV;
  }
}

template <class Call>
int move_all(u64 length, Call&& call) {
  for (u64 done = 0; done < length;) {
    const ssize_t moved = call(done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return errno;
    if (moved == 0) return EIO;
    done += static_cast<u64>(moved);
  }
  return 0;
}

int read_part(const BlockMedium& medium, u64 offset, const iovec& part) {
  u8* const bytes = static_cast<u8*>(part.iov_base);
  const int error = move_all(part.iov_len, [&](u64 done) {
    return ::pread(medium.descriptor(), bytes + done, part.iov_len - done, static_cast<off_t>(offset + done));
  });
  return error != 0 ? error : error_of(medium.stack()->read(offset, bytes, part.iov_len));
}

// The engine may store into the memory meanwhile; the layers see one state of it.
int write_part(const BlockMedium& medium, u64 offset, const iovec& part) {
  std::vector<u8> bytes(part.iov_len);
  for (u64 i = 0; i < part.iov_len; i += page_size) {
    (void)load_racy_page(Lane{}, static_cast<const u8*>(part.iov_base) + i, &bytes[i]);
  }
  int error = 0;
  const auto store = [&](u64 at, const u8* stored, u64 count) {
    if (error != 0) return;
    error = move_all(count, [&](u64 done) {
      return ::pwrite(medium.descriptor(), stored + done, count - done, static_cast<off_t>(at + done));
    });
  };
  const Status status = medium.stack()->write(offset, bytes.data(), bytes.size(), store);
  return status != Status::ok ? error_of(status) : error;
}

int flush_stacked(const BlockMedium& medium) {
  DeviceStack& stack = *medium.stack();
  if (stack.begin_flush() != Status::ok) return EIO;
  const int error = medium.flush();
  if (error == 0) stack.end_flush();
  return error;
}

// The layers see a write of zeros.
int clear_stacked(const RequestGroup& group, const BlockMedium& medium) {
  const std::vector<u8> zeros(group.length);
  int error = 0;
  const Status status =
      medium.stack()->write(group.offset, zeros.data(), zeros.size(), [&](u64 at, const u8*, u64 count) {
        if (error != 0) return;
        error = group.operation == IoOperation::discard ? medium.discard(at, count) : medium.write_zeroes(at, count);
      });
  return status != Status::ok ? error_of(status) : error;
}

}  // namespace

int carry_out_stacked(const RequestGroup& group, const BlockMedium& medium) {
  GPU4FS_CHECK(medium.stack() != nullptr);
  if (group.operation == IoOperation::flush) return flush_stacked(medium);
  if (!device::moves_bytes(group.operation)) return clear_stacked(group, medium);
  u64 offset = group.offset;
  for (const iovec& part : group.parts) {
    const int error =
        group.operation == IoOperation::read ? read_part(medium, offset, part) : write_part(medium, offset, part);
    if (error != 0) return error;
    offset += part.iov_len;
  }
  return 0;
}

}  // namespace gpu4fs::block
