// A medium that is no file of the system: a drive that this process drives itself. Host only.
//
// Code of the host reads and writes it through this object. What needs an open file, for locks and to tell devices
// apart, gets one that stands for the drive.
#pragma once

#include "base/status.hpp"
#include "base/types.hpp"

namespace gpu4fs::device {

// All functions may be called by any thread. A drive that has failed answers device_failed for ever.
class HostDrive {
 public:
  virtual ~HostDrive() = default;

  virtual u64 size_bytes() const = 0;   // whole pages
  virtual u32 block_bytes() const = 0;  // 512 or 4096
  virtual bool can_discard() const = 0;

  // Any range inside of the drive. A part of a block is written by reading the block before.
  virtual Status read(u64 offset, void* memory, u64 bytes) = 0;
  virtual Status write(u64 offset, const void* memory, u64 bytes) = 0;
  // Whole pages.
  virtual Status discard(u64 offset, u64 bytes) = 0;
  virtual Status write_zeroes(u64 offset, u64 bytes) = 0;
  virtual Status flush() = 0;

  // A new open file: empty, never written, and the same file for all users of the drive. Returns -1 with errno.
  virtual int open_stand_in(bool read_only) const = 0;
};

}  // namespace gpu4fs::device
