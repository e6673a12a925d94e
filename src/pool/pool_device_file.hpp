// One member of a pool as a file: a regular file (disk, tmpfs, hugetlbfs), a block device or an NVMe drive that this
// process drives itself, opened, locked and measured.
//
// While a DeviceFile opened for writing lives, no other open of this library succeeds on the same
// file, in any process; readers exclude writers only (flock). All failures are PoolErrors that name
// the path, the operation and the offset.
//
// A block device that is opened for writing and locked is also claimed (O_EXCL), so that others cannot mount or format
// it, and one that is mounted, swap space or part of another device is refused. Its whole pages are used. What the
// system has cached of it is written and dropped at that time: a disk and its partitions have caches of their own.
//
// Every path may have a stack of layers (device/stack/stack_spec.hpp); reads and writes then go through the stack. A
// device `null=SIZE:` is memory of its own.
//
// A drive `nvme:ADDRESS` is opened by VFIO, which one process at a time can do, also for reading. Its file is empty and
// has the lock; its bytes are read and written by the driver (nvme/held_drive.hpp).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "device/host_drive.hpp"
#include "device/stack/stack_spec.hpp"

namespace gpu4fs::pool {

class DeviceFile {
 public:
  enum class Access { read_only, read_write };
  // lock: a device in use is an error (DeviceInUse), but a process that has ended may take some seconds to release it;
  // lock_at_once: the caller waits for such processes.
  enum class Locking { none, lock, lock_at_once };

  // Opens an existing file. Directories, pipes and character devices are refused without blocking. A file in a mount
  // that this process serves is refused before it is opened.
  static DeviceFile open(const std::string& path, Access access, Locking locking);
  // A file that will become a device of a mounted pool, for a first look: neither locked nor writable.
  static DeviceFile open_joining(const std::string& path);
  // Creates a file of `size_bytes` zeros that did not exist before, opens it for writing and locks it.
  static DeviceFile create(const std::string& path, u64 size_bytes);
  // Represents an absent device: reads fail, and fd() is -1. `name` is for messages.
  static DeviceFile absent(const std::string& name) { return DeviceFile(-1, name); }

  // Its own accesses go to an open file of their own from now on. A duplicate of fd() as it was keeps the lock and the
  // claim, and may be used for direct access. PoolError: it cannot be opened again.
  void leave_locked_file();

  DeviceFile(DeviceFile&& other) noexcept;
  DeviceFile& operator=(DeviceFile&& other) noexcept;
  ~DeviceFile();

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }  // without its stack
  // Null if it has none.
  const std::shared_ptr<device::DeviceStack>& stack() const { return stack_; }
  // Null if it is a file or a block device.
  const std::shared_ptr<device::HostDrive>& drive() const { return drive_; }
  u64 size_bytes() const { return size_bytes_; }
  bool is_regular() const { return regular_; }
  // With a rest of a block device that is no whole page.
  u64 medium_bytes() const { return medium_bytes_; }
  bool is_same_file(const DeviceFile& other) const {
    return device_number_ == other.device_number_ && inode_number_ == other.inode_number_;
  }

  // Reads exactly `length` bytes; a short file is an error.
  void read_at(u64 offset, void* data, std::size_t length) const;
  // The same without the stack, up to medium_bytes().
  void read_medium(u64 offset, void* data, std::size_t length) const;
  // Writes exactly `length` bytes. hugetlbfs has no write(2), so the range is mapped temporarily.
  void write_at(u64 offset, const void* data, std::size_t length);
  void zero_range(u64 offset, u64 length);
  // Block devices: zeros the last MiB, where disk arrays and partition tables have a part of their signatures.
  void clear_end();
  // Regular files: allocates blocks for holes in the range, so it can be written through a mapping. Does nothing if the
  // file system does not support it.
  void reserve_range(u64 offset, u64 length);
  // Regular files: the whole file becomes a hole of zeros, if the file system supports it.
  void free_blocks();
  // The data is durable afterwards, as far as the medium supports it.
  void flush();
  // Regular files only: sets the size and fills growth with zeros.
  void resize(u64 size_bytes);

 private:
  DeviceFile(int fd, std::string path);
  static DeviceFile open_now(const std::string& text, Access access, Locking locking);
  static DeviceFile open_null(const device::DeviceSpec& spec);
  static DeviceFile open_drive(const device::DeviceSpec& spec, Access access, Locking locking);
  static void refuse_busy(const std::string& path);
  void put_under(const device::DeviceSpec& spec);
  void inspect();
  void lock(bool exclusive) const;
  void write_medium(u64 offset, const void* data, std::size_t length);
  void write_mapped(u64 offset, const void* data, std::size_t length);

  int fd_ = -1;
  std::string path_;
  u64 size_bytes_ = 0;
  u64 medium_bytes_ = 0;
  u64 huge_page_bytes_ = 0;  // of hugetlbfs, else 0
  dev_t device_number_ = 0;
  ino_t inode_number_ = 0;
  bool regular_ = false;
  std::shared_ptr<device::DeviceStack> stack_;
  std::shared_ptr<device::HostDrive> drive_;
};

// As device::parse_device_spec and absolute_device, but with PoolErrors.
device::DeviceSpec parse_device(const std::string& text);
std::string absolute_device_path(const std::string& text);

// Splits "a:b:c" into its parts without empty ones; the colons of a stack are not separators. In this form one string
// names all devices of a pool.
std::vector<std::string> split_device_list(const std::string& list);

}  // namespace gpu4fs::pool
