// A file or a block device whose pages threads of the host read and write with calls of the system. Host only.
//
// Accesses bypass the page cache of the kernel (O_DIRECT) where the file system can do that: it accepts the flag, and a
// first read of a page. is_direct() tells; nothing else depends on it, but without it the kernel keeps a second copy of
// each page.
//
// A medium with a stack of layers (device/stack/device_stack.hpp) is accessed through the page cache of the kernel, and
// its layers see each access.
//
// A block device that is opened for writing is claimed (O_EXCL), and a file or block device is locked, both as in
// device/memory/mapped_file.hpp. The claim and the lock end with the object.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "base/limits.hpp"
#include "base/types.hpp"
#include "device/device_types.hpp"
#include "device/host_drive.hpp"
#include "device/medium_file.hpp"

namespace gpu4fs::block {

using device::DeviceError;

struct ByteRange {
  u64 offset;
  u64 length;
};

// What a medium can forget: ranges of `bytes`, the first of which begins at `first`.
struct DiscardUnits {
  u64 bytes;
  u64 first;
  // The units that lie in the range as a whole; the length may be 0.
  ByteRange inside(u64 offset, u64 length) const;
};

struct MediumOptions {
  bool read_only = false;
  bool lock = true;  // false: the caller has claimed and locked the medium
  std::shared_ptr<device::DeviceStack> stack = nullptr;
  // The descriptor stands for this drive, which is accessed by its functions.
  std::shared_ptr<device::HostDrive> drive = nullptr;
  ssize_t (*read)(int descriptor, void* memory, size_t bytes, off_t offset) = ::pread;  // of the first read; for tests
};

class BlockMedium {
 public:
  // DeviceError, which names path and reason: it cannot be opened, is neither a regular file nor a block device, has no
  // whole page, is in use (EBUSY), or cannot transfer single pages of 4096 bytes.
  static BlockMedium open(const std::string& path, MediumOptions options = {});
  // The same for an open descriptor, which the object takes over (and closes even on failure); `path` is for messages.
  // All descriptors of the same open file access it directly afterwards.
  static BlockMedium adopt(int descriptor, const std::string& path, MediumOptions options = {});

  BlockMedium(BlockMedium&& other) noexcept;
  BlockMedium& operator=(BlockMedium&& other) noexcept;
  BlockMedium(const BlockMedium&) = delete;
  BlockMedium& operator=(const BlockMedium&) = delete;
  ~BlockMedium();

  // Nothing is in flight. Later accesses fail (EBADF).
  void close() noexcept { release(); }

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  u64 size_bytes() const { return size_bytes_; }                    // whole pages; a rest at the end is not used
  u32 logical_block_bytes() const { return logical_block_bytes_; }  // of direct accesses; divides page_size
  bool is_block_device() const { return is_block_device_; }
  bool is_direct() const { return is_direct_; }
  bool read_only() const { return read_only_; }
  bool can_discard() const { return can_discard_; }  // as far as the system tells
  // The part of the range that the medium can forget: whole units, which the kernel names for a block device
  // (discard_granularity and discard_alignment). The length may be 0.
  ByteRange discardable(u64 offset, u64 length) const { return discard_units_.inside(offset, length); }
  device::DeviceStack* stack() const { return stack_.get(); }                 // null: none
  const std::shared_ptr<device::HostDrive>& drive() const { return drive_; }  // null: a file or a block device

  // These return 0 or an errno; any thread. The range lies in the medium and consists of whole pages.
  int flush() const;
  int discard(u64 offset, u64 length) const;  // EOPNOTSUPP if it cannot
  int write_zeroes(u64 offset, u64 length) const;

 private:
  BlockMedium() = default;
  void release() noexcept;
  void find_size();
  void find_block_size();
  void find_discard();
  void make_direct();
  void try_direct_read(const MediumOptions& options);

  std::string path_;
  int descriptor_ = -1;
  u64 size_bytes_ = 0;
  u32 logical_block_bytes_ = 0;
  bool is_block_device_ = false;
  bool is_direct_ = false;
  bool read_only_ = false;
  bool can_discard_ = false;
  DiscardUnits discard_units_{page_size, 0};
  std::shared_ptr<device::DeviceStack> stack_;
  std::shared_ptr<device::HostDrive> drive_;
};

}  // namespace gpu4fs::block
