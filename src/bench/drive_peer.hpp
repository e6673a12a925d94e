// What a file or block device can do without a pool: the limit of `gpu4fs bench drives`. Private to the tools.
#pragma once

#include <liburing.h>

#include <memory>
#include <string>

#include "base/types.hpp"

namespace gpu4fs::bench {

struct DriveLoad {
  bool writes = false;  // if so, it ends with a flush
  bool is_random = false;
  u64 file_bytes = 0;   // of the file, or of the device's front
  u64 total_bytes = 0;  // that are transferred, no place twice
  u64 block_bytes = 0;  // of one operation
  u32 depth = 1;        // operations in flight
};

struct DriveRate {
  double gb_per_s = 0;
  double cpu_s_per_gb = 0;  // of the process
};

// A program that reads and writes with io_uring and O_DIRECT.
class DrivePeer {
 public:
  virtual ~DrivePeer() = default;
  virtual const char* name() const = 0;
  // Nothing compares the bytes, and a write leaves bytes of any value. The file has all its blocks. std::runtime_error.
  virtual DriveRate run(const std::string& path, const DriveLoad& load) const = 0;
};

// `kind`: fio, or bare, a loop of this program, or auto: fio if it is installed. std::runtime_error: fio is not.
std::unique_ptr<DrivePeer> new_drive_peer(const std::string& kind);

// Writes all bytes of a new file, or of a device of this size, so that later writes find their blocks. None is zero.
void write_all_blocks(const std::string& path, u64 length_bytes);

// An io_uring of one thread. std::runtime_error if it is not allowed.
class BareRing {
 public:
  explicit BareRing(u32 depth);
  ~BareRing();
  BareRing(const BareRing&) = delete;
  BareRing& operator=(const BareRing&) = delete;

  io_uring* get() { return &ring_; }
  // Of the oldest operation that has completed; there is one.
  i32 take_result();

 private:
  io_uring ring_{};
};

// Memory for O_DIRECT.
class AlignedBytes {
 public:
  explicit AlignedBytes(u64 length_bytes);
  u8* data() { return bytes_.get(); }

 private:
  struct Release {
    void operator()(u8* bytes) const;
  };
  std::unique_ptr<u8, Release> bytes_;
};

}  // namespace gpu4fs::bench
