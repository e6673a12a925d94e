// Data pointers of commands: which memory a transfer moves.
//
// The memory is a row of frames of 4 KiB that may lie anywhere on the bus. As PRP entries (NVM Express Base
// Specification 2.0, clause 4.1.1) the first frame may begin at an offset. All others are whole, but the last. Two
// frames need no list. More are named by a list in pages that the caller has set aside. As an SGL (clause 4.1.2) the
// ranges have any place and length, and one descriptor needs no list.
//
// The ranks of a group fill a list together. What they stored is visible to the controller after g.sync() and the
// submission of the command (device/nvme/submit.hpp). Lists are not changed until the command has ended.
#pragma once

#include "base/access.hpp"
#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"
#include "base/types.hpp"
#include "device/nvme/spec/queue_entries.hpp"

namespace gpu4fs::nvme {

// The memory pages of controllers (CC.MPS) are the pages of this program.
inline constexpr u64 memory_page_bytes = page_size;
inline constexpr u32 prp_entries_per_page = static_cast<u32>(memory_page_bytes / prp_entry_bytes);
inline constexpr u32 sgl_entries_per_page = static_cast<u32>(memory_page_bytes / sizeof(SglDescriptor));

// Pages for the list of one command: consecutive for the engine and on the bus, aligned to pages.
struct ListPages {
  u8* memory;
  u64 bus_address;
  u32 page_count;
};

// Frames that a transfer of `bytes` touches from `offset` in the first one on.
GPU4FS_FN constexpr u64 frames_of(u64 offset, u64 bytes) {
  return divide_up(offset + bytes, memory_page_bytes);
}

// List pages for so many frames. All list pages but the last name one frame less: their last entry leads to the next
// page.
GPU4FS_FN constexpr u32 prp_list_pages(u64 frame_count) {
  if (frame_count <= 2) return 0;
  const u64 entries = frame_count - 1;
  if (entries <= prp_entries_per_page) return 1;
  return static_cast<u32>(divide_up(entries - 1, prp_entries_per_page - 1));
}
static_assert(prp_list_pages(2) == 0 && prp_list_pages(3) == 1 && prp_list_pages(513) == 1);
static_assert(prp_list_pages(514) == 2 && prp_list_pages(1 + 511 + 512) == 2 && prp_list_pages(1 + 511 + 513) == 3);

GPU4FS_FN constexpr u32 sgl_list_pages(u64 range_count) {
  return range_count <= 1 ? 0 : static_cast<u32>(divide_up(range_count, sgl_entries_per_page));
}

// Collective. `frame_address(i)` is the bus address of frame i, aligned to pages; any rank calls it for any frame.
// `offset` in the first frame is a multiple of 4.
template <class Group, class FrameAddress>
GPU4FS_FN DataPointer build_prp(Group g, const ListPages& list, u32 offset, u64 bytes, FrameAddress&& frame_address) {
  GPU4FS_CHECK_LT(offset, memory_page_bytes);
  GPU4FS_CHECK(is_aligned(u64{offset}, 4) && bytes > 0);
  const u64 frame_count = frames_of(offset, bytes);
  const u32 page_count = prp_list_pages(frame_count);
  GPU4FS_CHECK_LE(page_count, list.page_count);
  DataPointer pointer{};
  pointer.prp.first = frame_address(u64{0}) + offset;
  if (frame_count == 2) pointer.prp.second = frame_address(u64{1});
  if (page_count == 0) return pointer;
  pointer.prp.second = list.bus_address;
  constexpr u32 per_page = prp_entries_per_page - 1;
  u64* const entries = reinterpret_cast<u64*>(list.memory);
  for (u64 i = 1 + g.rank(); i < frame_count; i += Group::size()) {
    const u64 page = minimum((i - 1) / per_page, u64{page_count} - 1);
    const u64 address = frame_address(i);
    GPU4FS_CHECK(is_aligned(address, memory_page_bytes));
    store<Order::relaxed, Scope::system>(&entries[page * prp_entries_per_page + (i - 1 - page * per_page)], address);
  }
  for (u32 page = g.rank(); page + 1 < page_count; page += Group::size()) {
    const u64 next = GPU4FS_MUTANT(nvme_list_not_chained, u64{page} + 1, u64{page});
    store<Order::relaxed, Scope::system>(&entries[u64{page} * prp_entries_per_page + per_page],
                                         list.bus_address + next * memory_page_bytes);
  }
  return pointer;
}

struct BusRange {
  u64 bus_address;
  u32 bytes;
};

// Collective. `range(i)` is range i of the transfer; any rank calls it for any range. The command's `flags` get
// DataPointerKind::sgl.
template <class Group, class Range>
GPU4FS_FN DataPointer build_sgl(Group g, const ListPages& list, u32 range_count, Range&& range) {
  GPU4FS_CHECK_GT(range_count, 0u);
  GPU4FS_CHECK_LE(sgl_list_pages(range_count), list.page_count);
  const auto data_block = [&](u32 i) {
    const BusRange part = range(i);
    return SglDescriptor{part.bus_address, part.bytes, {}, SglType::data_block};
  };
  DataPointer pointer{};
  if (range_count == 1) {
    pointer.sgl = data_block(0);
    return pointer;
  }
  for (u32 i = g.rank(); i < range_count; i += Group::size()) {
    const SglDescriptor descriptor = data_block(i);
    Vector16 value;
    __builtin_memcpy(&value, &descriptor, sizeof(value));
    store_shared_16(list.memory + u64{i} * sizeof(SglDescriptor), value);
  }
  const u32 list_bytes = range_count * static_cast<u32>(sizeof(SglDescriptor));
  pointer.sgl = {list.bus_address, list_bytes, {}, SglType::last_segment};
  return pointer;
}

}  // namespace gpu4fs::nvme
