// Files and anonymous memory as memory devices. Host only.
//
// A MappedFile owns a shared mapping of a whole regular file, the descriptor it came from, and a
// lock that keeps a second mount away. What the medium is decides three things:
//
//   medium     flush()              GPU registration
//   tmpfs      nothing to do        possible
//   hugetlbfs  nothing to do        possible
//   anonymous  nothing to do        possible
//   file       msync(MS_SYNC)       only when mapped read-only
//
// A device with a stack (device/stack/device_stack.hpp) is flushed whatever its medium, because its layers want to
// know, and never registered with a GPU, which would touch it unseen.
//
// A driver cannot pin pages of a disk file that it may write, because the file system has to know
// who dirties them.
//
// msync(MS_SYNC) is the call for which POSIX promises that stores through a mapping reach the
// medium; on Linux it runs fdatasync of the file behind the mapping, the device's cache flush
// included.
//
// The lock is an open file description lock (fcntl F_OFD_SETLK) over the whole file: exclusive for
// writing, shared for reading, gone with the last descriptor, so a killed process leaves none
// behind. It belongs to the description, not to the process: two mounts in one process exclude each
// other too.
//
// A file that another process cuts short while it is mapped turns accesses beyond its end into
// SIGBUS; so does an access to a hole of a sparse file on a full medium, which reserve_blocks() and
// reserve_range() rule out beforehand.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "base/types.hpp"
#include "device/device_types.hpp"

namespace gpu4fs::device {

// Names the device and what failed; `error_number` is the errno behind it, 0 if none.
class DeviceError : public std::runtime_error {
 public:
  DeviceError(const std::string& message, int error_number)
      : std::runtime_error(message), error_number_(error_number) {}
  int error_number() const { return error_number_; }

 private:
  int error_number_;
};

enum class MediumKind { tmpfs, hugetlbfs, file, anonymous };
const char* medium_name(MediumKind kind);

struct OpenOptions {
  bool read_only = false;
  bool lock = true;
  std::shared_ptr<DeviceStack> stack = nullptr;
};

struct GpuRegistration {
  bool possible;
  std::string reason;  // a sentence, empty when possible
};

class MappedFile {
 public:
  // Opens, locks and maps. DeviceError: cannot be opened, not a regular file, empty or not a whole
  // number of pages, in use (EBUSY), cannot be mapped.
  static MappedFile open(const std::string& path, OpenOptions options = {});
  // The same for an open descriptor, which is taken over (closed even on failure); `path` is for
  // messages. The descriptor must be open for writing unless options.read_only is set.
  static MappedFile adopt(int descriptor, const std::string& path, OpenOptions options = {});
  // Stands for a device that is not there: its Device is marked as failed and has no memory.
  static MappedFile absent(const std::string& name, bool read_only);
  // Zeroed memory without a file.
  static MappedFile anonymous(u64 size_bytes, std::shared_ptr<DeviceStack> stack = nullptr);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  bool is_absent() const { return base_ == nullptr; }
  u8* base() const { return base_; }
  u64 size_bytes() const { return size_bytes_; }
  MediumKind medium() const { return medium_; }
  u64 page_bytes() const { return page_bytes_; }  // of the mapping; a huge page on hugetlbfs
  bool read_only() const { return read_only_; }
  bool needs_flush() const { return (medium_ == MediumKind::file || stack_ != nullptr) && !read_only_; }
  // Stores take blocks of the medium as they come: those of tmpfs, whose files are not reserved whole.
  bool grows_with_use() const { return medium_ == MediumKind::tmpfs && !read_only_; }
  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }  // -1: anonymous

  // Every store made before is durable afterwards, as far as the medium is. DeviceError on failure,
  // after which the state of what was not flushed is unknown. Any thread, also while others store.
  void flush() const;

  // Allocates the file's holes. DeviceError with ENOSPC when the medium has no room. A file system
  // that cannot do it (EOPNOTSUPP) is left as it is, as are anonymous memory and what is mapped
  // read-only.
  void reserve_blocks() const;
  // The same for the holes in [offset, + length), which lies inside the file.
  void reserve_range(u64 offset, u64 length) const;
  // Its pages are present and mapped for writing, holes of a tmpfs filled; what they hold stays. False: not all, for
  // want of room, or the system does not do that ahead (Linux before 5.14); pages that are not there are faulted in
  // when touched.
  bool populate_range(u64 offset, u64 length) const;
  // Whether the file has no data in [offset, + length); false also where the system does not say.
  bool is_hole(u64 offset, u64 length) const;
  // Gives the blocks of the range back to the medium; it reads as zeros then, and its layers see these written. Where
  // the system cannot, nothing happens.
  void release_range(u64 offset, u64 length) const;
  // Bytes that the medium still has room for, as far as it says; ~0: it does not.
  u64 room_bytes() const;

  GpuRegistration gpu_registration() const;

  // As the engine sees it; `base` is this process's address, which the server replaces by the
  // GPU's.
  Device device(u32 index) const;

 private:
  MappedFile() = default;
  void release() noexcept;
  void put_under(std::shared_ptr<DeviceStack> stack);
  bool fill_holes(u64 offset, u64 length) const;

  std::string path_;
  u8* base_ = nullptr;
  u64 size_bytes_ = 0;
  u64 page_bytes_ = 0;
  MediumKind medium_ = MediumKind::anonymous;
  bool read_only_ = false;
  int descriptor_ = -1;
  std::shared_ptr<DeviceStack> stack_;
};

}  // namespace gpu4fs::device
