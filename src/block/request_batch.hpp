// Requests that a controller has taken, and the operations of the medium that carry them out. Host only; one thread at
// a time.
//
// The requests that are there when the batch before is used up are sorted by device, operation and offset. Those that
// follow each other on the medium become one operation, and so do flushes of one device. Requests that come later wait
// for the next batch, so none is passed over for ever.
#pragma once

#include <sys/uio.h>

#include <vector>

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
  u64 size() const { return sorted_.size() - begin_ + arrived_.size(); }
  // False: there is none.
  bool next(RequestGroup* group);

 private:
  struct Entry {
    device::IoRequest request;
    u32 slot;
  };
  static bool is_before(const Entry& a, const Entry& b);
  bool follows(const RequestGroup& group, const device::IoRequest& request) const;
  static void append(RequestGroup* group, const Entry& entry);

  u64 merge_bytes_max_;
  std::vector<Entry> sorted_;
  u64 begin_ = 0;  // in sorted_
  std::vector<Entry> arrived_;
};

}  // namespace gpu4fs::block
