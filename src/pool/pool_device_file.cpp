#include "pool/pool_device_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "device/memory/mapped_file.hpp"
#include "device/stack/device_stack.hpp"
#include "nvme/held_drive.hpp"
#include "pool/block_devices.hpp"
#include "pool/lock_holder.hpp"
#include "pool/lock_wait.hpp"
#include "pool/own_mounts.hpp"
#include "pool/pool_error.hpp"

namespace gpu4fs::pool {

namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what, int error) {
  const Status status = error == ENOENT   ? Status::no_device
                        : error == EACCES ? Status::access
                        : error == EPERM  ? Status::permission
                        : error == ENOSPC ? Status::no_space
                        : error == EROFS  ? Status::read_only
                                          : Status::io_error;
  throw PoolError(status, fmt::format("{}: {}: {}", path, what, std::strerror(error)));
}

// Called before the device is opened.
void refuse_own(const device::DeviceSpec& spec) {
  std::vector<std::string> paths = {spec.path};
  for (const device::LayerSpec& layer : spec.layers) {
    if (layer.name == "record") paths.push_back(layer.argument);
  }
  for (const std::string& path : paths) {
    const std::string directory = find_own_mount(path);
    if (directory.empty()) continue;
    throw PoolError(
        Status::invalid_argument,
        fmt::format("{}: lies in {}, where this pool itself is mounted; a device cannot lie in its own pool", path,
                    directory));
  }
}

constexpr std::size_t zero_buffer_bytes = 256 * 1024;

}  // namespace

DeviceFile::DeviceFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

DeviceFile::DeviceFile(DeviceFile&& other) noexcept {
  *this = std::move(other);
}

DeviceFile& DeviceFile::operator=(DeviceFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(medium_bytes_, other.medium_bytes_);
  std::swap(huge_page_bytes_, other.huge_page_bytes_);
  std::swap(device_number_, other.device_number_);
  std::swap(inode_number_, other.inode_number_);
  std::swap(regular_, other.regular_);
  std::swap(stack_, other.stack_);
  std::swap(drive_, other.drive_);
  return *this;
}

DeviceFile::~DeviceFile() {
  if (fd_ >= 0) ::close(fd_);
}

device::DeviceSpec parse_device(const std::string& text) {
  try {
    return device::parse_device_spec(text);
  } catch (const device::DeviceError& error) {
    throw PoolError(Status::invalid_argument, error.what());
  }
}

std::string absolute_device_path(const std::string& text) {
  parse_device(text);
  try {
    return device::absolute_device(text);
  } catch (const device::DeviceError& error) {
    throw PoolError(Status::not_found, error.what());
  }
}

void DeviceFile::put_under(const device::DeviceSpec& spec) {
  try {
    stack_ = device::make_stack(spec);
  } catch (const device::DeviceError& error) {
    throw PoolError(Status::invalid_argument, error.what());
  }
  if (stack_ != nullptr && size_bytes_ != 0) stack_->attach(size_bytes_);
}

DeviceFile DeviceFile::open_null(const device::DeviceSpec& spec) {
  const int fd = ::memfd_create("gpu4fs null", MFD_CLOEXEC);
  if (fd < 0) fail(spec.path, "no memory for it", errno);
  DeviceFile file(fd, spec.path);
  if (::ftruncate(fd, static_cast<off_t>(spec.null_bytes)) != 0) fail(spec.path, "no memory for it", errno);
  file.inspect();
  file.put_under(spec);
  return file;
}

DeviceFile DeviceFile::open(const std::string& text, Access access, Locking locking) {
  if (locking != Locking::lock) return open_now(text, access, locking);
  return wait_for_locks({}, [&] { return open_now(text, access, Locking::lock_at_once); });
}

DeviceFile DeviceFile::open_now(const std::string& text, Access access, Locking locking) {
  const device::DeviceSpec spec = parse_device(text);
  if (spec.is_null()) return open_null(spec);
  if (spec.is_drive()) return open_drive(spec, access, locking);
  refuse_own(spec);
  const std::string& path = spec.path;
  const bool writable = access == Access::read_write;
  const bool claims = writable && locking != Locking::none && block_device_number(path) != 0;
  // With O_NONBLOCK the open of a pipe does not wait for its other end; inspect() then refuses it.
  const int flags = (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK;
  const int fd = ::open(path.c_str(), flags | (claims ? O_EXCL : 0));
  if (fd < 0 && errno == EBUSY) refuse_busy(path);
  if (fd < 0) fail(path, writable ? "cannot open for writing" : "cannot open", errno);
  DeviceFile file(fd, path);
  file.inspect();
  if (locking != Locking::none) file.lock(writable);
  // Only root may do this. A failed write of older data of others is not a reason to refuse the device.
  if (claims) (void)::ioctl(fd, BLKFLSBUF, 0);
  file.put_under(spec);
  return file;
}

DeviceFile DeviceFile::open_drive(const device::DeviceSpec& spec, Access access, Locking locking) {
  std::shared_ptr<device::HostDrive> drive;
  try {
    drive = nvme::open_drive_namespace(spec.drive_address, spec.drive_namespace);
  } catch (const nvme::DriveOpenError& error) {
    if (error.status() == Status::already_mounted) throw DeviceInUse(error.what(), error.is_being_released());
    throw PoolError(error.status(), error.what());
  }
  const bool writable = access == Access::read_write;
  const int fd = drive->open_stand_in(!writable);
  if (fd < 0) fail(spec.path, "cannot open", errno);
  DeviceFile file(fd, spec.path);
  file.drive_ = std::move(drive);
  file.inspect();
  if (locking != Locking::none) file.lock(writable);
  return file;
}

DeviceFile DeviceFile::create(const std::string& text, u64 size_bytes) {
  const device::DeviceSpec spec = parse_device(text);
  GPU4FS_CHECK(!spec.is_drive());
  const std::string& path = spec.path;
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) fail(path, "cannot create", errno);
  DeviceFile file(fd, path);
  try {
    file.inspect();
    file.lock(true);
    file.resize(size_bytes);
    file.put_under(spec);
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
  return file;
}

DeviceFile DeviceFile::open_joining(const std::string& text) {
  return open(text, Access::read_only, Locking::none);
}

// The kernel does not say who has claimed a block device. A gpu4fs process has locked it as well. Between the end of
// that lock and the end of the claim the system writes what it has cached.
void DeviceFile::refuse_busy(const std::string& path) {
  const std::string user = find_block_device_user(block_device_number(path));
  if (!user.empty()) throw PoolError(Status::already_mounted, fmt::format("{}: in use: it is {}", path, user));
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const DeviceFile look(fd, path);
  const bool is_locked = fd < 0 || !lock_is_being_released(fd);
  throw DeviceInUse(fmt::format("{}: in use: {}", path,
                                is_locked ? "mounted or being made by another process" : "claimed by another program"),
                    !is_locked);
}

void DeviceFile::leave_locked_file() {
  const std::string link = fmt::format("/proc/self/fd/{}", fd_);
  const int flags = ::fcntl(fd_, F_GETFL);
  if (flags < 0) fail(path_, "cannot read the flags of its descriptor", errno);
  const int own = ::open(link.c_str(), (flags & O_ACCMODE) | O_CLOEXEC | O_NONBLOCK);
  if (own < 0) fail(path_, "cannot be opened for direct access", errno);
  ::close(std::exchange(fd_, own));
}

void DeviceFile::inspect() {
  struct stat state {};
  if (::fstat(fd_, &state) != 0) fail(path_, "cannot stat", errno);
  if (!S_ISREG(state.st_mode) && !S_ISBLK(state.st_mode)) {
    throw PoolError(Status::invalid_argument, fmt::format("{}: neither a regular file nor a block device", path_));
  }
  regular_ = S_ISREG(state.st_mode);
  device_number_ = regular_ ? state.st_dev : state.st_rdev;
  inode_number_ = regular_ ? state.st_ino : 0;
  if (drive_ != nullptr) {
    regular_ = false;
    medium_bytes_ = size_bytes_ = drive_->size_bytes();
    return;
  }
  const off_t end = ::lseek(fd_, 0, SEEK_END);
  if (end < 0) fail(path_, "cannot find the size", errno);
  medium_bytes_ = static_cast<u64>(end);
  size_bytes_ = regular_ ? medium_bytes_ : align_down(medium_bytes_, u64{page_size});
  struct statfs file_system {};
  if (regular_ && ::fstatfs(fd_, &file_system) == 0 &&
      static_cast<unsigned long>(file_system.f_type) == HUGETLBFS_MAGIC) {
    huge_page_bytes_ = static_cast<u64>(file_system.f_bsize);
  }
}

void DeviceFile::lock(bool exclusive) const {
  if (::flock(fd_, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0) return;
  if (errno == EWOULDBLOCK) {
    throw DeviceInUse(fmt::format("{}: in use: mounted or being made by another process", path_),
                      lock_is_being_released(fd_));
  }
  fail(path_, "cannot lock", errno);
}

void DeviceFile::resize(u64 size_bytes) {
  if (huge_page_bytes_ != 0 && !is_aligned(size_bytes, huge_page_bytes_)) {
    throw PoolError(Status::invalid_argument,
                    fmt::format("{}: size {} is no multiple of the file system's huge pages of {}", path_, size_bytes,
                                huge_page_bytes_));
  }
  if (::ftruncate(fd_, static_cast<off_t>(size_bytes)) != 0) {
    fail(path_, fmt::format("cannot set the size to {}", size_bytes), errno);
  }
  size_bytes_ = medium_bytes_ = size_bytes;
  if (stack_ != nullptr && size_bytes != 0) stack_->attach(size_bytes);
}

void DeviceFile::read_at(u64 offset, void* data, std::size_t length) const {
  read_medium(offset, data, length);
  if (stack_ != nullptr && stack_->read(offset, static_cast<u8*>(data), length) != Status::ok) {
    fail(path_, fmt::format("cannot read {} bytes at {}", length, offset), EIO);
  }
}

void DeviceFile::read_medium(u64 offset, void* data, std::size_t length) const {
  auto* to = static_cast<u8*>(data);
  if (fd_ < 0) throw PoolError(Status::no_device, fmt::format("{}: is not there", path_));
  if (drive_ != nullptr) {
    const Status status = drive_->read(offset, data, length);
    if (status == Status::ok) return;
    if (status == Status::out_of_range) {
      throw PoolError(Status::io_error, fmt::format("{}: ends before byte {}", path_, offset + length));
    }
    throw PoolError(Status::io_error,
                    fmt::format("{}: cannot read {} bytes at {}: {}", path_, length, offset, status_text(status)));
  }
  while (length > 0) {
    const ssize_t count = ::pread(fd_, to, length, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path_, fmt::format("cannot read {} bytes at {}", length, offset), errno);
    if (count == 0) {
      throw PoolError(Status::io_error, fmt::format("{}: ends before byte {}", path_, offset + length));
    }
    to += count;
    offset += static_cast<u64>(count);
    length -= static_cast<std::size_t>(count);
  }
}

void DeviceFile::write_at(u64 offset, const void* data, std::size_t length) {
  if (stack_ == nullptr) {
    write_medium(offset, data, length);
    return;
  }
  const Status status = stack_->write(offset, static_cast<const u8*>(data), length,
                                      [this](u64 at, const u8* bytes, u64 count) { write_medium(at, bytes, count); });
  if (status != Status::ok) fail(path_, fmt::format("cannot write {} bytes at {}", length, offset), EIO);
}

void DeviceFile::write_medium(u64 offset, const void* data, std::size_t length) {
  if (huge_page_bytes_ != 0) {
    write_mapped(offset, data, length);
    return;
  }
  if (drive_ != nullptr) {
    if ((::fcntl(fd_, F_GETFL) & O_ACCMODE) == O_RDONLY) fail(path_, "is open for reading", EBADF);
    const Status status = drive_->write(offset, data, length);
    if (status == Status::ok) return;
    throw PoolError(Status::io_error,
                    fmt::format("{}: cannot write {} bytes at {}: {}", path_, length, offset, status_text(status)));
  }
  const auto* from = static_cast<const u8*>(data);
  while (length > 0) {
    const ssize_t count = ::pwrite(fd_, from, length, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      fail(path_, fmt::format("cannot write {} bytes at {}", length, offset), count < 0 ? errno : EIO);
    }
    from += count;
    offset += static_cast<u64>(count);
    length -= static_cast<std::size_t>(count);
  }
}

void DeviceFile::write_mapped(u64 offset, const void* data, std::size_t length) {
  const u64 begin = align_down(offset, huge_page_bytes_);
  const u64 end = align_up(offset + length, huge_page_bytes_);
  void* mapping = ::mmap(nullptr, end - begin, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, static_cast<off_t>(begin));
  if (mapping == MAP_FAILED) {
    fail(path_, fmt::format("cannot map {} bytes at {}", end - begin, begin), errno);
  }
  std::memcpy(static_cast<u8*>(mapping) + (offset - begin), data, length);
  ::munmap(mapping, end - begin);
}

void DeviceFile::zero_range(u64 offset, u64 length) {
  const std::vector<u8> zeros(std::min<u64>(length, zero_buffer_bytes));
  while (length > 0) {
    const u64 part = std::min<u64>(length, zeros.size());
    write_at(offset, zeros.data(), part);
    offset += part;
    length -= part;
  }
}

void DeviceFile::clear_end() {
  if (regular_) return;
  const u64 length = std::min<u64>(size_bytes_, 1 << 20);
  zero_range(size_bytes_ - length, length);
  const std::vector<u8> rest(medium_bytes_ - size_bytes_);
  write_medium(size_bytes_, rest.data(), rest.size());
}

void DeviceFile::reserve_range(u64 offset, u64 length) {
  if (!regular_ || length == 0) return;
  int result;
  do {
    result = ::fallocate(fd_, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(length));
  } while (result != 0 && errno == EINTR);
  if (result == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return;
  fail(path_, fmt::format("no room for {} bytes at {}", length, offset), errno);
}

void DeviceFile::free_blocks() {
  if (!regular_) return;
  (void)::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(size_bytes_));
}

void DeviceFile::flush() {
  if (stack_ != nullptr && stack_->begin_flush() != Status::ok) fail(path_, "cannot flush", EIO);
  if (drive_ != nullptr) {
    const Status status = drive_->flush();
    if (status == Status::ok) return;
    throw PoolError(Status::io_error, fmt::format("{}: cannot flush: {}", path_, status_text(status)));
  }
  // hugetlbfs answers EINVAL: it is memory and needs no flush.
  if (::fsync(fd_) != 0 && !(huge_page_bytes_ != 0 && errno == EINVAL)) {
    fail(path_, "cannot flush", errno);
  }
  if (stack_ != nullptr) stack_->end_flush();
}

std::vector<std::string> split_device_list(const std::string& list) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin <= list.size()) {
    const std::size_t end = device::end_of_device(list, begin);
    if (end > begin) parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace gpu4fs::pool
