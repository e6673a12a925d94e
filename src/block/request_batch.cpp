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

bool RequestBatch::next(RequestGroup* group) {
  if (begin_ == sorted_.size()) {
    sorted_.clear();
    begin_ = 0;
    sorted_.swap(arrived_);
    if (sorted_.empty()) return false;
    if (!std::is_sorted(sorted_.begin(), sorted_.end(), is_before)) {
      std::sort(sorted_.begin(), sorted_.end(), is_before);
    }
  }
  const IoRequest& first = sorted_[begin_].request;
  group->operation = first.operation;
  group->device = first.device;
  group->offset = first.offset;
  group->length = 0;
  group->slots.clear();
  group->parts.clear();
  do {
    append(group, sorted_[begin_]);
    ++begin_;
  } while (begin_ != sorted_.size() && follows(*group, sorted_[begin_].request));
  return true;
}

}  // namespace gpu4fs::block
