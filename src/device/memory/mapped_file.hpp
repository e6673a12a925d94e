// Files, block devices and anonymous memory as media of devices. Host only.
//
// A MappedFile owns a shared mapping of a whole regular file or block device, its descriptor, and a lock that excludes
// a second mount. After unmap() a controller reads and writes the medium instead (block/controller.hpp). The medium
// determines two properties:
//
//   medium        flush()              GPU registration
//   tmpfs         nothing to do        possible
//   hugetlbfs     nothing to do        possible
//   anonymous     nothing to do        possible
//   file          msync(MS_SYNC)       only when mapped read-only
//   block device  msync(MS_SYNC)       only when mapped read-only
//   drive         by the drive         never: it is not mapped
//
// A device with a stack (device/stack/device_stack.hpp) is flushed on every medium, because its layers must see the
// flush. It is never registered with a GPU, which would access it unseen.
//
// A driver cannot pin writable pages of a disk file, because the file system has to know who dirties them. For the same
// reason it cannot pin those of a block device.
//
// POSIX promises that stores through a mapping reach the medium with msync(MS_SYNC). On Linux it executes fdatasync of
// the mapped file, including the cache flush of the device. On a block device it waits for the dirty pages and then
// sends a flush to the device (vfs_fsync_range, blkdev_fsync), so a volatile cache of the drive is flushed too. A file
// that is not mapped is flushed by fdatasync.
//
// The pages of a block device are all its whole pages; a rest at its end is not used. It has no holes, so there is
// nothing to reserve.
//
// A block device that is opened for writing and locked is opened with O_EXCL. The kernel then refuses everyone who asks
// for exclusive use as well: mount(2), swapon(2), mkfs and fsck of other file systems, device mappers, md. A disk and
// its partitions exclude each other too. The claim belongs to the open file description like the lock, so a descriptor
// that open() of the pool's layer has claimed can be adopted here.
//
// The lock is an open file description lock (fcntl F_OFD_SETLK) over the whole file: exclusive for writing, shared for
// reading. It vanishes with the last descriptor, so a killed process leaves none behind. It belongs to the description
// and not to the process, so two mounts in one process exclude each other too.
//
// If another process truncates a mapped file, accesses beyond its end cause SIGBUS. So does an access to a page that
// the medium cannot read, or to a hole of a sparse file on a full medium; reserve_blocks() and reserve_range() prevent
// the latter.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/types.hpp"
#include "device/device_types.hpp"
#include "device/host_drive.hpp"
#include "device/medium_file.hpp"

namespace gpu4fs::device {

enum class MediumKind { tmpfs, hugetlbfs, file, block, anonymous, drive };
const char* medium_name(MediumKind kind);

struct OpenOptions {
  bool read_only = false;
  bool lock = true;
  std::shared_ptr<DeviceStack> stack = nullptr;
  // The descriptor stands for this drive, which is not mapped.
  std::shared_ptr<HostDrive> drive = nullptr;
};

struct GpuRegistration {
  bool possible;
  std::string reason;  // a sentence, empty if it is possible
};

class MappedFile {
 public:
  // Opens, locks and maps. DeviceError: the file cannot be opened, is neither a regular file nor a block device, is
  // empty or (a file) not a whole number of pages, is in use (EBUSY), or cannot be mapped.
  static MappedFile open(const std::string& path, OpenOptions options = {});
  // The same for an open descriptor, which the object takes over (and closes even on failure); `path` is for messages.
  // The descriptor must be open for writing unless options.read_only is set.
  static MappedFile adopt(int descriptor, const std::string& path, OpenOptions options = {});
  // Represents an absent device: its Device is marked as failed and has no memory.
  static MappedFile absent(const std::string& name, bool read_only);
  // Zeroed memory without a file.
  static MappedFile anonymous(u64 size_bytes, std::shared_ptr<DeviceStack> stack = nullptr);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  bool is_absent() const { return base_ == nullptr && descriptor_ < 0; }
  bool is_mapped() const { return base_ != nullptr; }
  u8* base() const { return base_; }  // null: not mapped
  u64 size_bytes() const { return size_bytes_; }
  MediumKind medium() const { return medium_; }
  u64 page_bytes() const { return page_bytes_; }  // of the mapping; a huge page on hugetlbfs
  bool read_only() const { return read_only_; }
  bool needs_flush() const { return (is_on_disk() || stack_ != nullptr) && !read_only_; }
  // Writes allocate blocks of the medium when they happen: on tmpfs, whose files are not allocated as a whole, and in
  // files that are thin.
  bool grows_with_use() const { return (medium_ == MediumKind::tmpfs || is_thin_) && !read_only_; }
  // The file may have holes from now on. For files on disk; any thread.
  void make_thin() { is_thin_ = true; }
  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }  // -1: anonymous
  const std::shared_ptr<DeviceStack>& stack() const { return stack_; }
  const std::shared_ptr<HostDrive>& drive() const { return drive_; }  // null: a file or a block device

  // The file is not accessed by loads and stores any more. Anonymous memory cannot do without its mapping.
  void unmap();

  // Every earlier store is durable afterwards, as far as the medium is. DeviceError on failure; then the state of data
  // that was not flushed is unknown. Any thread, also while others store.
  void flush() const;

  // Allocates the file's holes. DeviceError with ENOSPC if the medium has no room; nothing is taken then, as far as the
  // medium tells its room. Does nothing if the file system does not support it (EOPNOTSUPP), for block devices, for
  // anonymous memory, and for read-only mappings.
  void reserve_blocks() const;
  // The same for the holes in [offset, + length), which lies inside the file.
  void reserve_range(u64 offset, u64 length) const;
  // Bytes of the range that have no blocks (device/memory/file_blocks.hpp).
  u64 missing_bytes(u64 offset, u64 length) const;
  // Makes its pages present and mapped for writing, with holes of a tmpfs filled; their content stays. False: not all
  // of them, because there is no room or the system does not support it (Linux before 5.14). Pages that are not present
  // are faulted in when they are touched.
  bool populate_range(u64 offset, u64 length) const;
  // Whether the file has no data in [offset, + length); false also if the system does not tell.
  bool is_hole(u64 offset, u64 length) const;
  // Returns the blocks of the range to the medium. The range then reads as zeros, and its layers see a write of zeros.
  // Does nothing if the system does not support it, and for block devices.
  void release_range(u64 offset, u64 length) const;
  // Bytes of the blocks that the file has; 0 for anonymous memory and block devices.
  u64 allocated_bytes() const;
  // Free bytes of the medium for this process, as far as it reports them; ~0: it does not.
  u64 room_bytes() const;

  GpuRegistration gpu_registration() const;

  // The engine's view of the device. `base` is an address of this process; the server replaces it by the GPU's. A file
  // that is not mapped is a staged device, whose frames the caller adds.
  Device device(u32 index) const;

 private:
  MappedFile() = default;
  void release() noexcept;
  void put_under(std::shared_ptr<DeviceStack> stack);
  bool fill_holes(u64 offset, u64 length) const;
  bool is_on_disk() const {
    return medium_ == MediumKind::file || medium_ == MediumKind::block || medium_ == MediumKind::drive;
  }
  // Its system knows its blocks.
  bool has_file() const { return descriptor_ >= 0 && medium_ != MediumKind::drive; }

  std::string path_;
  u8* base_ = nullptr;
  u64 size_bytes_ = 0;
  u64 page_bytes_ = 0;
  MediumKind medium_ = MediumKind::anonymous;
  bool read_only_ = false;
  std::atomic<bool> is_thin_{false};
  int descriptor_ = -1;
  std::shared_ptr<DeviceStack> stack_;
  std::shared_ptr<HostDrive> drive_;
};

}  // namespace gpu4fs::device
