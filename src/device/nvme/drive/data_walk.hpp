// A controller's view of the memory of a command: follows PRP entries or SGL descriptors as the specification has it
// (NVM Express Base Specification 2.0, clauses 4.1.1 and 4.1.2). It shares nothing with device/nvme/prp.hpp.
#pragma once

#include "base/access.hpp"
#include "base/bits.hpp"
#include "base/config.hpp"
#include "base/group.hpp"
#include "base/types.hpp"
#include "device/nvme/spec/commands.hpp"
#include "device/nvme/spec/queue_entries.hpp"

namespace gpu4fs::nvme {

// A list of SGL segments ends somewhere, whatever the host has written.
inline constexpr u32 sgl_segments_max = 64;

namespace detail {

// Bus::at(bus_address, bytes) is the memory there, or null. Visit(memory, bytes) gets each part on all ranks.
template <class Group, class Bus, class Visit>
class DataWalk {
 public:
  GPU4FS_FN DataWalk(Group g, const Bus& bus, u64 bytes, Visit& visit)
      : g_(g), bus_(bus), left_(bytes), visit_(visit) {}

  GPU4FS_FN StatusCode status() const { return status_; }

  GPU4FS_FN void follow_prp(u64 first, u64 second) {
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

  GPU4FS_FN void follow_sgl(const SglDescriptor& first) {
    if (first.type == SglType::data_block) {
      add(first.address, first.length);
      if (left_ > 0) refuse(StatusCode::invalid_field);
      return;
    }
    SglDescriptor segment = first;
    bool has_next = true;
    for (u32 count = 0; has_next && is_good() && count < sgl_segments_max; ++count) has_next = follow_segment(segment);
    if (left_ > 0) refuse(StatusCode::invalid_field);
  }

 private:
  static constexpr u64 walk_page = 4096;

  GPU4FS_FN bool is_good() const { return status_ == StatusCode::success; }
  GPU4FS_FN void refuse(StatusCode status) {
    if (is_good()) status_ = status;
  }
  // The host may change a list meanwhile, so all ranks go by what rank 0 has read.
  GPU4FS_FN bool read_entry(u64 place, u64& entry) {
    const u8* const memory = bus_.at(place, 8);
    if (memory == nullptr) {
      refuse(StatusCode::data_transfer_error);
      return false;
    }
    entry = g_.broadcast(load<Order::relaxed, Scope::system>(reinterpret_cast<const u64*>(memory)));
    return true;
  }
  // True: `segment` is the next one.
  GPU4FS_FN bool follow_segment(SglDescriptor& segment) {
    const bool is_last = segment.type == SglType::last_segment;
    const u8* const list = bus_.at(segment.address, segment.length);
    if (!is_last && segment.type != SglType::segment) {
      refuse(StatusCode::invalid_field);
      return false;
    }
    if (list == nullptr || segment.length == 0 || segment.length % 16 != 0 || segment.address % 16 != 0) {
      refuse(StatusCode::data_transfer_error);
      return false;
    }
    const u32 length = segment.length;
    for (u32 at = 0; at < length && left_ > 0 && is_good(); at += 16) {
      const Vector16 value = g_.broadcast(load_shared_16(list + at));
      SglDescriptor descriptor;
      __builtin_memcpy(&descriptor, &value, sizeof(descriptor));
      if (!is_last && at + 16 == length) {
        segment = descriptor;
        return true;
      }
      if (descriptor.type != SglType::data_block) {
        refuse(StatusCode::invalid_field);
        return false;
      }
      add(descriptor.address, descriptor.length);
    }
    return false;
  }
  GPU4FS_FN void add_page(u64 address) {
    if (address % walk_page != 0) return refuse(StatusCode::invalid_prp_offset);
    add(address, walk_page);
  }
  GPU4FS_FN void add(u64 address, u64 bytes_max) {
    const u64 bytes = minimum(left_, bytes_max);
    u8* const memory = bus_.at(address, bytes);
    if (memory == nullptr) return refuse(StatusCode::data_transfer_error);
    visit_(memory, bytes);
    left_ -= bytes;
  }

  Group g_;
  const Bus& bus_;
  u64 left_;
  Visit& visit_;
  StatusCode status_ = StatusCode::success;
};

}  // namespace detail

// Collective. Visits the memory of the first `bytes` of the command's data, in the order of the data. What was visited
// before an error has been visited.
template <class Group, class Bus, class Visit>
GPU4FS_FN StatusCode walk_data(Group g, const Bus& bus, const SubmissionEntry& entry, u64 bytes, Visit&& visit) {
  detail::DataWalk<Group, Bus, Visit> walk(g, bus, bytes, visit);
  switch (static_cast<DataPointerKind>(entry.flags & 0xc0u)) {
    case DataPointerKind::prp:
      walk.follow_prp(entry.data.prp.first, entry.data.prp.second);
      break;
    case DataPointerKind::sgl:
      walk.follow_sgl(entry.data.sgl);
      break;
    default:
      return StatusCode::invalid_field;
  }
  return walk.status();
}

}  // namespace gpu4fs::nvme
