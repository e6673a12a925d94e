#include "nvme/emulated/data_walk.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/access.hpp"
#include "base/atomics.hpp"

namespace gpu4fs::nvme {
namespace {

constexpr u64 walk_page = 4096;

class Walk {
 public:
  Walk(const EmulatedBus& bus, u64 bytes) : bus_(bus), left_(bytes) {}

  DataWalk take() { return std::move(result_); }

  void follow_prp(u64 first, u64 second) {
    if ((first & 3) != 0) return refuse(StatusCode::invalid_prp_offset);
    add(first, walk_page - first % walk_page);
    if (left_ == 0) return;
    if (left_ <= walk_page) return add_page(second);
    // PRP2 is a list. A list may begin inside of a page; its last entry in the page leads on if data is left.
    u64 place = second;
    if ((place & 7) != 0) return refuse(StatusCode::invalid_prp_offset);
    while (left_ > 0 && is_good()) {
      u64 entry = 0;
      if (!read_entry(place, entry)) return;
      const bool is_last_of_page = (place + 8) % walk_page == 0;
      if (is_last_of_page && left_ > walk_page) {
        if (entry % walk_page != 0) return refuse(StatusCode::invalid_prp_offset);
        place = entry;
        continue;
      }
      add_page(entry);
      place += 8;
    }
  }

  void follow_sgl(const SglDescriptor& first) {
    if (first.type == SglType::data_block) {
      add(first.address, first.length);
      if (left_ > 0) refuse(StatusCode::invalid_field);
      return;
    }
    SglDescriptor segment = first;
    while (is_good()) {
      const bool is_last = segment.type == SglType::last_segment;
      if (!is_last && segment.type != SglType::segment) return refuse(StatusCode::invalid_field);
      const u8* const list = bus_.at(segment.address, segment.length);
      if (list == nullptr || segment.length == 0 || segment.length % 16 != 0) {
        return refuse(StatusCode::data_transfer_error);
      }
      bool has_next = false;
      for (u32 at = 0; at < segment.length && left_ > 0; at += 16) {
        SglDescriptor descriptor;
        const Vector16 value = load_shared_16(list + at);
        std::memcpy(&descriptor, &value, sizeof(descriptor));
        if (!is_last && at + 16 == segment.length) {
          segment = descriptor;
          has_next = true;
          break;
        }
        if (descriptor.type != SglType::data_block) return refuse(StatusCode::invalid_field);
        add(descriptor.address, descriptor.length);
      }
      if (!has_next) break;
    }
    if (left_ > 0) refuse(StatusCode::invalid_field);
  }

 private:
  bool is_good() const { return result_.status == StatusCode::success; }
  void refuse(StatusCode status) {
    if (is_good()) result_.status = status;
  }
  bool read_entry(u64 place, u64& entry) {
    const u8* const memory = bus_.at(place, 8);
    if (memory == nullptr) {
      refuse(StatusCode::data_transfer_error);
      return false;
    }
    entry = load<Order::relaxed, Scope::system>(reinterpret_cast<const u64*>(memory));
    return true;
  }
  void add_page(u64 address) {
    if (address % walk_page != 0) return refuse(StatusCode::invalid_prp_offset);
    add(address, walk_page);
  }
  void add(u64 address, u64 bytes_max) {
    const u64 bytes = std::min(left_, bytes_max);
    u8* const memory = bus_.at(address, bytes);
    if (memory == nullptr) return refuse(StatusCode::data_transfer_error);
    result_.parts.push_back({memory, bytes});
    left_ -= bytes;
  }

  const EmulatedBus& bus_;
  u64 left_;
  DataWalk result_;
};

}  // namespace

DataWalk walk_data(const EmulatedBus& bus, const SubmissionEntry& entry, u64 bytes) {
  Walk walk(bus, bytes);
  switch (entry.flags & 0xc0u) {
    case 0x00:
      walk.follow_prp(entry.data.prp.first, entry.data.prp.second);
      break;
    case 0x40:
      walk.follow_sgl(entry.data.sgl);
      break;
    default:
      return {StatusCode::invalid_field, {}};
  }
  return walk.take();
}

}  // namespace gpu4fs::nvme
