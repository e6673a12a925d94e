#include "block/block_medium.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <utility>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"

namespace gpu4fs::block {

using device::fail_medium;

namespace {

template <class Call>
int error_of(Call&& call) {
  int result;
  do {
    result = call();
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

// A number that the kernel tells about a block device; 0: it does not.
u64 number_of_disk(dev_t device, std::initializer_list<const char*> places) {
  const std::string folder =
      "/sys/dev/block/" + std::to_string(major(device)) + ":" + std::to_string(minor(device)) + "/";
  for (const char* const place : places) {
    std::ifstream file(folder + place);
    u64 number = 0;
    if (file >> number) return number;
  }
  return 0;
}

using Page = std::unique_ptr<void, void (*)(void*)>;

int write_pages_of_zeros(int descriptor, u64 offset, u64 length) {
  constexpr u64 piece = u64{1} << 20;
  const u64 size = std::min(piece, length);
  const Page zeros(std::aligned_alloc(page_size, size), &std::free);
  if (zeros == nullptr) return ENOMEM;
  std::memset(zeros.get(), 0, size);
  for (u64 done = 0; done < length;) {
    const ssize_t written =
        ::pwrite(descriptor, zeros.get(), std::min(size, length - done), static_cast<off_t>(offset + done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return ENOSPC;
    done += static_cast<u64>(written);
  }
  return 0;
}

}  // namespace

// Unit 0 may lie before the medium's first byte, in part.
ByteRange DiscardUnits::inside(u64 offset, u64 length) const {
  const u64 last = offset + length;
  const u64 begin = (offset + bytes - first + GPU4FS_MUTANT(discard_rounded_outwards, bytes - 1, u64{0})) / bytes;
  const u64 end = (last + bytes - first) / bytes;
  if (end <= begin) return {offset, 0};
  return {begin * bytes + first - bytes, (end - begin) * bytes};
}

BlockMedium BlockMedium::open(const std::string& path, MediumOptions options) {
  return adopt(device::open_medium(path, options.read_only, options.lock), path, options);
}

BlockMedium BlockMedium::adopt(int descriptor, const std::string& path, MediumOptions options) {
  GPU4FS_CHECK_GE(descriptor, 0);
  BlockMedium medium;
  medium.path_ = path;
  medium.descriptor_ = descriptor;
  medium.read_only_ = options.read_only;
  medium.stack_ = std::move(options.stack);
  if (options.drive != nullptr) {
    medium.drive_ = std::move(options.drive);
    medium.size_bytes_ = medium.drive_->size_bytes();
    medium.logical_block_bytes_ = medium.drive_->block_bytes();
    medium.is_direct_ = true;
    medium.can_discard_ = !options.read_only && medium.drive_->can_discard();
    if (options.lock) device::lock_medium(descriptor, path, options.read_only);
    return medium;
  }
  medium.find_size();
  if (options.lock) device::lock_medium(descriptor, path, options.read_only);
  medium.make_direct();
  medium.find_block_size();
  medium.try_direct_read(options);
  medium.find_discard();
  return medium;
}

void BlockMedium::find_size() {
  struct stat status;
  if (::fstat(descriptor_, &status) != 0) fail_medium(path_, "cannot read its size", errno);
  is_block_device_ = S_ISBLK(status.st_mode);
  if (!is_block_device_ && !S_ISREG(status.st_mode)) {
    fail_medium(path_, "is neither a regular file nor a block device", 0);
  }
  const off_t end = is_block_device_ ? ::lseek(descriptor_, 0, SEEK_END) : status.st_size;
  if (end < 0) fail_medium(path_, "cannot find its size", errno);
  size_bytes_ = align_down(static_cast<u64>(end), u64{page_size});
  if (size_bytes_ == 0) fail_medium(path_, "has no page of 4096 bytes", 0);
}

// A file system that cannot do it refuses the flag with EINVAL (open(2)).
void BlockMedium::make_direct() {
  const int flags = ::fcntl(descriptor_, F_GETFL);
  if (flags < 0) fail_medium(path_, "cannot read the flags of its descriptor", errno);
  // Without O_NONBLOCK, which was for its open: io_uring takes it as "do not wait for the medium".
  const int wanted = flags & ~O_NONBLOCK;
  is_direct_ = stack_ == nullptr && ::fcntl(descriptor_, F_SETFL, wanted | O_DIRECT) == 0;
  if (is_direct_) return;
  if (stack_ == nullptr && errno != EINVAL) fail_medium(path_, "cannot be accessed directly", errno);
  if (::fcntl(descriptor_, F_SETFL, wanted) != 0) fail_medium(path_, "cannot set the flags of its descriptor", errno);
}

// Some file systems accept the flag and refuse the accesses. Other errors are those of the page.
void BlockMedium::try_direct_read(const MediumOptions& options) {
  if (!is_direct_) return;
  const Page page(std::aligned_alloc(page_size, page_size), &std::free);
  if (page == nullptr || options.read(descriptor_, page.get(), page_size, 0) >= 0) return;
  if (GPU4FS_MUTANT(direct_refusal_ignored, errno != EINVAL && errno != EOPNOTSUPP, true)) return;
  const int flags = ::fcntl(descriptor_, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor_, F_SETFL, flags & ~O_DIRECT) != 0) {
    fail_medium(path_, "cannot set the flags of its descriptor", errno);
  }
  is_direct_ = false;
}

void BlockMedium::find_block_size() {
  logical_block_bytes_ = 512;
  if (is_block_device_) {
    int bytes = 0;
    if (::ioctl(descriptor_, BLKSSZGET, &bytes) != 0) fail_medium(path_, "cannot read its block size", errno);
    logical_block_bytes_ = static_cast<u32>(bytes);
  }
#if defined(STATX_DIOALIGN)
  struct statx status {};
  if (!is_block_device_ && ::statx(descriptor_, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0) {
    // 0: such accesses are not direct, whatever the flag says (for example of encrypted files).
    if (status.stx_dio_offset_align == 0) is_direct_ = false;
    logical_block_bytes_ = std::max({u32{512}, status.stx_dio_offset_align, status.stx_dio_mem_align});
  }
#endif
  if (!is_power_of_two(logical_block_bytes_) || logical_block_bytes_ > page_size) {
    fail_medium(path_,
                "direct accesses need an alignment of " + std::to_string(logical_block_bytes_) +
                    " bytes, and at most 4096 are supported; the mount option access=mapped does without them",
                0);
  }
}

void BlockMedium::find_discard() {
  if (read_only_) return;
  if (is_block_device_) {
    struct stat status;
    if (::fstat(descriptor_, &status) != 0) return;
    // Queue limits are those of the disk, also for its partitions.
    const u64 most = number_of_disk(status.st_rdev, {"queue/discard_max_bytes", "../queue/discard_max_bytes"});
    const u64 unit = number_of_disk(status.st_rdev, {"queue/discard_granularity", "../queue/discard_granularity"});
    can_discard_ = most != 0;
    if (unit <= page_size) return;
    discard_units_ = {unit, number_of_disk(status.st_rdev, {"discard_alignment"}) % unit};
    return;
  }
  // Beyond the end there is nothing to discard, so this only asks.
  const off_t end = static_cast<off_t>(align_up(size_bytes_ + page_size, u64{page_size}));
  can_discard_ = error_of([&] {
                   return ::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, end, page_size);
                 }) == 0;
}

int BlockMedium::flush() const {
  if (drive_ != nullptr) return to_errno(drive_->flush());
  return error_of([&] { return ::fdatasync(descriptor_); });
}

int BlockMedium::discard(u64 offset, u64 length) const {
  if (!can_discard_) return EOPNOTSUPP;
  if (drive_ != nullptr) return to_errno(drive_->discard(offset, length));
  if (is_block_device_) {
    u64 range[2] = {offset, length};
    return error_of([&] { return ::ioctl(descriptor_, BLKDISCARD, range); });
  }
  return error_of([&] {
    return ::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                       static_cast<off_t>(length));
  });
}

int BlockMedium::write_zeroes(u64 offset, u64 length) const {
  int error = 0;
  if (drive_ != nullptr) return to_errno(drive_->write_zeroes(offset, length));
  if (is_block_device_) {
    u64 range[2] = {offset, length};
    error = error_of([&] { return ::ioctl(descriptor_, BLKZEROOUT, range); });
  } else {
    error = error_of([&] {
      return ::fallocate(descriptor_, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                         static_cast<off_t>(length));
    });
  }
  return error == EOPNOTSUPP ? write_pages_of_zeros(descriptor_, offset, length) : error;
}

BlockMedium::BlockMedium(BlockMedium&& other) noexcept {
  *this = std::move(other);
}

BlockMedium& BlockMedium::operator=(BlockMedium&& other) noexcept {
  if (this == &other) return *this;
  release();
  path_ = std::move(other.path_);
  descriptor_ = std::exchange(other.descriptor_, -1);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  logical_block_bytes_ = other.logical_block_bytes_;
  is_block_device_ = other.is_block_device_;
  is_direct_ = other.is_direct_;
  read_only_ = other.read_only_;
  can_discard_ = other.can_discard_;
  discard_units_ = other.discard_units_;
  stack_ = std::move(other.stack_);
  drive_ = std::move(other.drive_);
  return *this;
}

BlockMedium::~BlockMedium() {
  release();
}

void BlockMedium::release() noexcept {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
  drive_.reset();
}

}  // namespace gpu4fs::block
