#include "block/request_batch.hpp"

#include <limits.h>

#include <algorithm>
#include <tuple>

#include "base/mutant.hpp"

namespace gpu4fs::block {

using device::IoOperation;
using device::IoRequest;

bool RequestBatch::is_before(const Entry& a, const Entry& b) {
  return std::tie(a.request.device, a.request.operation, a.request.offset) <
         std::tie(b.request.device, b.request.operation, b.request.offset);
}

bool RequestBatch::follows(const RequestGroup& group, const IoRequest& request) const {
  if (request.operation != group.operation || request.device != group.device) return false;
  const u64 end = group.offset + group.length;
  if (!GPU4FS_MUTANT(requests_merged_over_gap, request.offset == end, request.offset >= end)) return false;
  if (!device::moves_bytes(request.operation)) return true;
  return group.length + request.length <= merge_bytes_max_ && group.parts.size() < IOV_MAX;
}

void RequestBatch::append(RequestGroup* group, const Entry& entry) {
  group->slots.push_back(entry.slot);
  group->length += entry.request.length;
  if (!device::moves_bytes(entry.request.operation)) return;
  if (!group->parts.empty()) {
    iovec& last = group->parts.back();
    if (static_cast<u8*>(last.iov_base) + last.iov_len == entry.request.memory) {
      last.iov_len += entry.request.length;
      return;
    }
  }
  group->parts.push_back({entry.request.memory, entry.request.length});
}

u64& RequestBatch::end_before(const RequestGroup& group) {
  return ends_[group.device][group.operation == IoOperation::read ? 0 : 1];
}

bool RequestBatch::is_full(const RequestGroup& group) const {
  return group.length >= merge_bytes_max_ || group.parts.size() >= IOV_MAX;
}

// Requests that follow it are not there yet.
bool RequestBatch::is_held_back(const RequestGroup& group) {
  if (!device::moves_bytes(group.operation) || is_full(group)) return false;
  if (begin_ != sorted_.size()) {
    const IoRequest& after = sorted_[begin_].request;
    // It did not fit.
    if (after.device == group.device && after.operation == group.operation &&
        after.offset == group.offset + group.length) {
      return false;
    }
  }
  const bool is_stream = group.offset == end_before(group);
  return is_stream || group.slots.size() > 1;
}

// Sorts what is there. False: nothing, or nothing new since operations were held back.
bool RequestBatch::begin_batch(bool collects) {
  sorted_.clear();
  begin_ = 0;
  if (arrived_.empty() && (collects || held_.empty())) return false;
  sorted_.swap(arrived_);
  sorted_.insert(sorted_.end(), held_.begin(), held_.end());
  held_.clear();
  if (!std::is_sorted(sorted_.begin(), sorted_.end(), is_before)) {
    std::sort(sorted_.begin(), sorted_.end(), is_before);
  }
  return true;
}

bool RequestBatch::next(RequestGroup* group, bool collects) {
  for (;;) {
    if (begin_ == sorted_.size() && !begin_batch(collects)) return false;
    const u64 first = begin_;
    const IoRequest& request = sorted_[first].request;
    group->operation = request.operation;
    group->device = request.device;
    group->offset = request.offset;
    group->length = 0;
    group->slots.clear();
    group->parts.clear();
    do {
      append(group, sorted_[begin_]);
      ++begin_;
    } while (begin_ != sorted_.size() && follows(*group, sorted_[begin_].request));
    if (collects && is_held_back(*group)) {
      held_.insert(held_.end(), sorted_.begin() + static_cast<i64>(first), sorted_.begin() + static_cast<i64>(begin_));
      continue;
    }
    if (device::moves_bytes(group->operation)) end_before(*group) = group->offset + group->length;
    return true;
  }
}

}  // namespace gpu4fs::block
