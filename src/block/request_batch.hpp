// Requests that a controller has taken, and the operations of the medium that carry them out. Host only; one thread at
// a time.
//
// The requests that are there when the batch before is used up are sorted by device, operation and offset. Those that
// follow each other on the medium become one operation, and so do flushes of one device. Requests that come later wait
// for the next batch, so none is passed over for ever.
//
// While the medium is busy, short operations at the end of a stream are held back, so that they grow by the requests
// that follow. A stream is known by a request that begins where the operation before ended, or by two that follow each
// other. Single requests at random places are never held back.
#pragma once

#include <sys/uio.h>

#include <array>
#include <vector>

#include "base/limits.hpp"
#include "base/types.hpp"
#include "device/queue/io_request.hpp"

namespace gpu4fs::block {

// An operation of the medium. Its vectors keep their memory.
struct RequestGroup {
  device::IoOperation operation = device::IoOperation::read;
  u32 device = 0;
  u64 offset = 0;
  u64 length = 0;
  std::vector<u32> slots;
  std::vector<iovec> parts;  // memory, in the order of the medium; ranges that follow each other are one
};

class RequestBatch {
 public:
  // `merge_bytes_max`: of operations that move bytes; a longer request is one alone.
  explicit RequestBatch(u64 merge_bytes_max) : merge_bytes_max_(merge_bytes_max) {}

  void add(u32 slot, const device::IoRequest& request) { arrived_.push_back({request, slot}); }
  u64 size() const { return sorted_.size() - begin_ + arrived_.size() + held_.size(); }
  u64 held_size() const { return held_.size(); }  // requests of operations that next() has held back
  // `collects`: the medium is busy. Operations that may grow are held back until a call without it, or until requests
  // follow that fill them up. False: there is none that is not held back.
  bool next(RequestGroup* group, bool collects = false);

 private:
  struct Entry {
    device::IoRequest request;
    u32 slot;
  };
  static bool is_before(const Entry& a, const Entry& b);
  bool follows(const RequestGroup& group, const device::IoRequest& request) const;
  static void append(RequestGroup* group, const Entry& entry);
  bool begin_batch(bool collects);
  bool is_full(const RequestGroup& group) const;
  bool is_held_back(const RequestGroup& group);
  u64& end_before(const RequestGroup& group);

  u64 merge_bytes_max_;
  std::vector<Entry> sorted_;
  u64 begin_ = 0;  // in sorted_
  std::vector<Entry> arrived_;
  std::vector<Entry> held_;
  std::array<std::array<u64, 2>, device_count_max> ends_{};  // of the last operation of each device: reads, writes
};

}  // namespace gpu4fs::block
