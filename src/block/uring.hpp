// An io_uring with registered memory and files. One thread makes and uses it. Host only.
#pragma once

#include <liburing.h>

#include <string>
#include <vector>

#include "base/types.hpp"
#include "block/controller.hpp"

namespace gpu4fs::block {

class Uring {
 public:
  // DeviceError, as UringController. `files`: by device; -1: none.
  Uring(u32 entry_count, const std::vector<MemoryRange>& memory, const std::vector<int>& files);
  ~Uring();
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  io_uring* get() { return &ring_; }

  // There is always an entry: the caller has at most entry_count operations in flight.
  io_uring_sqe* next_entry();
  // The registered buffer that has the whole range; -1: none.
  int buffer_of(const void* begin, u64 length) const;
  // The entry is for this file of this device.
  void set_file(io_uring_sqe* entry, u32 device, int descriptor) const;

  // The file of this device, if one is registered, is not used any more. No operation of it is in flight. False: the
  // kernel does not release it, and it stays open as long as the ring is there.
  bool unregister_file(u32 device);

  // What could not be registered and why, for people; "" if everything was.
  const std::string& remarks() const { return remarks_; }

 private:
  void open(u32 entry_count);
  void register_memory(const std::vector<MemoryRange>& memory);
  void register_files(const std::vector<int>& files);

  io_uring ring_{};
  std::vector<iovec> buffers_;  // sorted
  std::vector<int> files_;      // by device: as registered
  std::string remarks_;
};

}  // namespace gpu4fs::block
