#include "device/memory/mapped_file.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"
#include "device/memory/file_blocks.hpp"
#include "device/stack/device_stack.hpp"

namespace gpu4fs::device {
namespace {

std::string file_type(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISCHR(mode)) return "a character device";
  return "no regular file";
}

// The size of a disk in sectors of 512 bytes may end with a part of a page, which is not used.
u64 block_device_size(int descriptor, const std::string& path) {
  const off_t end = lseek(descriptor, 0, SEEK_END);
  if (end < 0) fail_medium(path, "cannot find its size", errno);
  const u64 size_bytes = align_down(static_cast<u64>(end), u64{page_size});
  if (size_bytes == 0) fail_medium(path, "is a block device without a page: it has no medium", 0);
  return size_bytes;
}

u64 checked_size(int descriptor, const std::string& path) {
  struct stat status;
  if (fstat(descriptor, &status) != 0) fail_medium(path, "cannot read its size", errno);
  if (S_ISBLK(status.st_mode)) return block_device_size(descriptor, path);
  if (!S_ISREG(status.st_mode)) {
    fail_medium(path, "is " + file_type(status.st_mode) + "; a memory device is a regular file or a block device", 0);
  }
  const u64 size_bytes = static_cast<u64>(status.st_size);
  if (size_bytes == 0) fail_medium(path, "is empty", 0);
  if (!is_aligned(size_bytes, page_size)) {
    fail_medium(path, "its size of " + std::to_string(size_bytes) + " bytes is not a multiple of 4096", 0);
  }
  return size_bytes;
}

std::pair<MediumKind, u64> find_medium(int descriptor, const std::string& path) {
  const u64 system_page = static_cast<u64>(sysconf(_SC_PAGESIZE));
  struct stat state;
  // The file system of a block device is that of its name, not that of its content.
  if (fstat(descriptor, &state) == 0 && S_ISBLK(state.st_mode)) return {MediumKind::block, system_page};
  struct statfs status;
  if (fstatfs(descriptor, &status) != 0) fail_medium(path, "cannot find its file system", errno);
  switch (static_cast<u32>(status.f_type)) {
    case TMPFS_MAGIC:
      return {MediumKind::tmpfs, system_page};
    case HUGETLBFS_MAGIC:
      return {MediumKind::hugetlbfs, static_cast<u64>(status.f_bsize)};
    default:
      return {MediumKind::file, system_page};
  }
}

}  // namespace

const char* medium_name(MediumKind kind) {
  switch (kind) {
    case MediumKind::tmpfs:
      return "tmpfs";
    case MediumKind::hugetlbfs:
      return "hugetlbfs";
    case MediumKind::file:
      return "file";
    case MediumKind::block:
      return "block device";
    case MediumKind::anonymous:
      return "anonymous";
    case MediumKind::drive:
      return "NVMe drive";
  }
  return "unknown";
}

MappedFile MappedFile::open(const std::string& path, OpenOptions options) {
  return adopt(open_medium(path, options.read_only, options.lock), path, options);
}

MappedFile MappedFile::adopt(int descriptor, const std::string& path, OpenOptions options) {
  GPU4FS_CHECK_GE(descriptor, 0);
  MappedFile file;
  file.descriptor_ = descriptor;
  file.path_ = path;
  file.read_only_ = options.read_only;
  if (options.lock) lock_medium(descriptor, path, options.read_only);
  if (options.drive != nullptr) {
    file.drive_ = std::move(options.drive);
    file.medium_ = MediumKind::drive;
    file.size_bytes_ = file.drive_->size_bytes();
    file.page_bytes_ = page_size;
    return file;
  }
  file.size_bytes_ = checked_size(descriptor, path);
  const auto [medium, page_bytes] = find_medium(descriptor, path);
  file.medium_ = medium;
  file.page_bytes_ = page_bytes;
  const int protection = options.read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  void* base = mmap(nullptr, file.size_bytes_, protection, MAP_SHARED, descriptor, 0);
  if (base == MAP_FAILED) fail_medium(path, "cannot be mapped", errno);
  file.base_ = static_cast<u8*>(base);
  file.put_under(std::move(options.stack));
  return file;
}

void MappedFile::put_under(std::shared_ptr<DeviceStack> stack) {
  if (stack == nullptr) return;
  stack_ = std::move(stack);
  stack_->attach(size_bytes_);
  stack_->map(base_, !read_only_);
}

MappedFile MappedFile::absent(const std::string& name, bool read_only) {
  MappedFile file;
  file.path_ = name;
  file.read_only_ = read_only;
  return file;
}

MappedFile MappedFile::anonymous(u64 size_bytes, std::shared_ptr<DeviceStack> stack) {
  MappedFile file;
  file.path_ = "anonymous memory";
  if (size_bytes == 0 || !is_aligned(size_bytes, page_size)) {
    fail_medium(file.path_, "its size is not a positive multiple of 4096", 0);
  }
  void* base = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) fail_medium(file.path_, "cannot be mapped", errno);
  file.base_ = static_cast<u8*>(base);
  file.size_bytes_ = size_bytes;
  file.page_bytes_ = static_cast<u64>(sysconf(_SC_PAGESIZE));
  file.put_under(std::move(stack));
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept {
  *this = std::move(other);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this == &other) return *this;
  release();
  path_ = std::move(other.path_);
  base_ = std::exchange(other.base_, nullptr);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  page_bytes_ = other.page_bytes_;
  medium_ = other.medium_;
  read_only_ = other.read_only_;
  is_thin_ = other.is_thin_.load();
  descriptor_ = std::exchange(other.descriptor_, -1);
  stack_ = std::move(other.stack_);
  drive_ = std::move(other.drive_);
  return *this;
}

MappedFile::~MappedFile() {
  release();
}

void MappedFile::release() noexcept {
  if (stack_ != nullptr) stack_->map(nullptr, false);
  stack_.reset();
  drive_.reset();
  if (is_mapped()) munmap(base_, size_bytes_);
  if (descriptor_ >= 0) close(descriptor_);
  base_ = nullptr;
  descriptor_ = -1;
}

void MappedFile::unmap() {
  GPU4FS_CHECK_GE(descriptor_, 0);
  if (!is_mapped()) return;
  if (stack_ != nullptr) stack_->map(nullptr, false);
  munmap(base_, size_bytes_);
  base_ = nullptr;
}

void MappedFile::flush() const {
  if (!needs_flush()) return;
  GPU4FS_CHECK(!is_absent());
  if (stack_ != nullptr && stack_->begin_flush() != Status::ok) {
    fail_medium(path_, "cannot be flushed: its stack of devices failed it", 0);
  }
  if (drive_ != nullptr) {
    const Status status = drive_->flush();
    if (status != Status::ok) fail_medium(path_, std::string("cannot be flushed: ") + status_text(status), 0);
  } else if (is_on_disk() && (is_mapped() ? msync(base_, size_bytes_, MS_SYNC) : fdatasync(descriptor_)) != 0) {
    fail_medium(path_, "cannot be flushed", errno);
  }
  if (stack_ != nullptr) stack_->end_flush();
}

void MappedFile::reserve_blocks() const {
  if (fill_holes(0, size_bytes_)) return;
  fail_medium(path_, "its medium has no room for all of it", errno);
}

void MappedFile::reserve_range(u64 offset, u64 length) const {
  GPU4FS_CHECK_LE(offset, size_bytes_);
  GPU4FS_CHECK_LE(length, size_bytes_ - offset);
  if (length == 0 || fill_holes(offset, length)) return;
  fail_medium(path_,
              "its medium has no room for bytes " + std::to_string(offset) + " to " + std::to_string(offset + length),
              errno);
}

bool MappedFile::populate_range(u64 offset, u64 length) const {
  GPU4FS_CHECK_LE(offset, size_bytes_);
  GPU4FS_CHECK_LE(length, size_bytes_ - offset);
  if (length == 0) return true;
  if (!is_mapped()) return false;
  const u64 begin = align_down(offset, page_bytes_);
  return madvise(base_ + begin, offset + length - begin, read_only_ ? MADV_POPULATE_READ : MADV_POPULATE_WRITE) == 0;
}

bool MappedFile::is_hole(u64 offset, u64 length) const {
  if (!has_file()) return false;
  const off_t data = lseek(descriptor_, static_cast<off_t>(offset), SEEK_DATA);
  return data < 0 ? errno == ENXIO : static_cast<u64>(data) >= offset + length;
}

void MappedFile::release_range(u64 offset, u64 length) const {
  GPU4FS_CHECK_LE(offset, size_bytes_);
  GPU4FS_CHECK_LE(length, size_bytes_ - offset);
  if (!has_file() || read_only_ || length == 0 || medium_ == MediumKind::block) return;
  const auto punch = [this](u64 begin, u64 count) {
    (void)fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                    static_cast<off_t>(count));
  };
  if (stack_ == nullptr) return punch(offset, length);
  if (!is_mapped()) {
    const std::vector<u8> zeros(length);
    (void)stack_->write(offset, zeros.data(), length, [&](u64 at, const u8*, u64 count) { punch(at, count); });
    return;
  }
  if (stack_->begin_write(offset, length) != Status::ok) return;
  punch(offset, length);
  stack_->end_write(offset, length);
}

// False, with errno set, if the medium refused. A request for more than there is would take what is left before it
// fails. Some file systems need room also for a range that has all its blocks.
bool MappedFile::fill_holes(u64 offset, u64 length) const {
  if (!has_file() || read_only_ || medium_ == MediumKind::block) return true;
  if (medium_ == MediumKind::file) {
    const FileBlocks blocks = FileBlocks::find(descriptor_, offset, length);
    const u64 missing = blocks.missing_bytes(offset, length);
    if (missing == 0) return true;
    if (blocks.is_exact() && GPU4FS_MUTANT(takes_the_last_blocks, missing > room_bytes(), false)) {
      errno = ENOSPC;
      return false;
    }
  }
  int result;
  do {
    result = fallocate(descriptor_, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(length));
  } while (result != 0 && errno == EINTR);
  return result == 0 || errno == EOPNOTSUPP || errno == ENOSYS;
}

u64 MappedFile::missing_bytes(u64 offset, u64 length) const {
  if (!has_file() || medium_ == MediumKind::block) return 0;
  return FileBlocks::find(descriptor_, offset, length).missing_bytes(offset, length);
}

u64 MappedFile::allocated_bytes() const {
  struct stat status;
  if (!has_file() || fstat(descriptor_, &status) != 0) return 0;
  return static_cast<u64>(status.st_blocks) * 512;
}

u64 MappedFile::room_bytes() const {
  struct statfs medium;
  if (!has_file() || medium_ == MediumKind::block || fstatfs(descriptor_, &medium) != 0) return ~u64{0};
  // A tmpfs without a limit has no blocks.
  if (medium.f_blocks == 0) return ~u64{0};
  // Some of it is for the administrator.
  const u64 blocks = static_cast<u64>(geteuid() == 0 ? medium.f_bfree : medium.f_bavail);
  return blocks * static_cast<u64>(medium.f_bsize);
}

GpuRegistration MappedFile::gpu_registration() const {
  if (drive_ != nullptr) {
    return {false, path_ + ": a drive that gpu4fs drives itself works with the CPU engine only: -o engine=cpu"};
  }
  if (stack_ != nullptr) {
    return {false, path_ + ": a device under layers like 'record' or 'fault' works with the CPU engine only"};
  }
  if (!needs_flush()) return {true, {}};
  const char* const what = medium_ == MediumKind::block ? "a block device" : "a file on a disk file system";
  return {false, path_ + ": a writable mapping of " + what +
                     " cannot be registered with the GPU; a file on tmpfs or hugetlbfs can, and the CPU engine works "
                     "with any"};
}

Device MappedFile::device(u32 index) const {
  if (is_absent()) {
    return Device{
        DeviceKind::memory, index, ~u64{0} & ~u64{page_size - 1}, nullptr, 0, read_only_ ? 1u : 0u, nullptr, 1};
  }
  const DeviceKind kind = is_mapped() ? DeviceKind::memory : DeviceKind::staged;
  // The stack of a device that is not mapped sees the accesses of the controller.
  return Device{kind,
                index,
                size_bytes_,
                base_,
                needs_flush() ? 1u : 0u,
                read_only_ ? 1u : 0u,
                is_mapped() ? stack_.get() : nullptr};
}

}  // namespace gpu4fs::device
