// Reads of pages that have copies in faster memory, and copies of those that deserve one (device/tier/page_tier.hpp).
//
// A copy may be replaced at any time, and nothing is pinned: its bytes are loaded as such that others change, and go on
// only if they match the page's checksum. A copy that does not match says nothing about the page, so it is dropped and
// the page is read where it is.
//
// Only for pages of data in a space with a tier, which has checksums of all pages. Uniform, unless something else is
// said.
#pragma once

#include "base/group.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"
#include "base/page_registers.hpp"
#include "base/racy_access.hpp"
#include "base/xxh3.hpp"
#include "device/tier/page_tier.hpp"
#include "raid/page_access.hpp"

namespace gpu4fs::raid {

// What a reader finds of a page's copy.
struct CopyLook {
  const u8* memory;   // nullptr: there is no copy
  bool deserves_one;  // promote_page() may make one
};

namespace detail {

// Where a page's copies belong to: to the copy of the page on one of its devices that is read first.
struct CopiedPage {
  const device::Device* device;  // nullptr: there are no copies of this page
  u64 page;
};

// The stack of a device in memory sees every access.
GPU4FS_FN inline CopiedPage copied_page(const LogicalSpace& space, const PageLocation& location, u32 copy) {
  const DevicePlace place = page_place(space, location, copy);
  const device::Device& device = space.devices[place.device];
  const bool is_seen = device.kind != device::DeviceKind::staged && device.stack != nullptr;
  if (device.tier == nullptr || is_seen || !device::is_readable(device)) return {nullptr, 0};
  return {&device, place.offset / page_size};
}

GPU4FS_FN GPU4FS_NOINLINE inline CopiedPage copied_page_at(const LogicalSpace& space, u64 address,
                                                           PageLocation* location) {
  if (find_page(space, address, location) != Status::ok) return {nullptr, 0};
  if (chunk_state(space, location->chunk) != Status::ok) return {nullptr, 0};
  return copied_page(space, *location, copy_to_read(space, *location));
}

// Where the page itself is, without an announcement; nullptr: it is in no frame.
GPU4FS_FN inline const u8* peek_original(const CopiedPage& page) {
  if (page.device->kind != device::DeviceKind::staged) {
    return device::memory_at(*page.device, page.page * page_size, page_size);
  }
  return device::look_at_frame(*page.device, page.page).memory;
}

GPU4FS_FN inline u64 checksum_of(const LogicalSpace& space, const PageLocation& location) {
  static_assert(offsetof(format::PageDescriptor, checksum) == 0);
  return load_shared_16(&space.chunks[location.chunk].descriptors[location.page]).low;
}

// A copy that is being made.
struct BegunCopy {
  u32 line;          // no_line: none is
  const u8* source;  // nullptr: the page has left its frame
  u64 checksum;
};

GPU4FS_FN GPU4FS_NOINLINE inline BegunCopy begin_promotion(const LogicalSpace& space, u64 address) {
  PageLocation location{};
  const CopiedPage page = copied_page_at(space, address, &location);
  if (page.device == nullptr) return {cache::no_line, nullptr, 0};
  const u32 line = cache::begin_copy(space.tier->cache, {page.device->index, page.page});
  if (line == cache::no_line) return {line, nullptr, 0};
  return {line, peek_original(page), checksum_of(space, location)};
}

}  // namespace detail

// The copy of a page, as far as it is known now. Counts as a read of the page. One rank.
GPU4FS_FN GPU4FS_NOINLINE inline CopyLook look_for_copy(const LogicalSpace& space, const PageLocation& location,
                                                        u32 copy) {
  const detail::CopiedPage page = detail::copied_page(space, location, copy);
  if (page.device == nullptr) return {nullptr, false};
  const u8* const memory = cache::look_at_copy(space.tier->cache, {page.device->index, page.page});
  if (memory != nullptr) return {memory, false};
  return {nullptr, device::deserves_copy(*page.device, page.page)};
}

// Whether a read would find a copy. It does not count as a read. One rank.
GPU4FS_FN GPU4FS_NOINLINE inline bool has_copy(const LogicalSpace& space, u64 address) {
  PageLocation location{};
  const detail::CopiedPage page = detail::copied_page_at(space, address, &location);
  if (page.device == nullptr) return false;
  const cache::FoundLine found = cache::find(Lane{}, space.tier->cache, {page.device->index, page.page});
  return found.line != cache::no_line && found.word.is_usable();
}

// Copies a page from where it is now. Returns the copy, which may be replaced at any time; nullptr: none was made.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE const u8* promote_page(Group g, const LogicalSpace& space, u64 address) {
  const detail::BegunCopy begun = on_leader(g, [&] { return detail::begin_promotion(space, address); });
  if (begun.line == cache::no_line) return nullptr;
  // All ranks read the page after the line was taken.
  g.sync();
  u8* const frame = cache::frame_of(space.tier->cache, begun.line);
  bool is_good = false;
  if (begun.source != nullptr) {
    alignas(16) u8 lane_copy[Group::size() == 1 ? page_size : 16];
    PageRegisters<Group> page = load_racy_page(g, begun.source, lane_copy);
    is_good = GPU4FS_MUTANT(copy_made_unverified, xxh3_registers(g, page, address) == begun.checksum, true);
    if (is_good) store_page(g, page, frame);
  }
  g.sync();
  const bool has_entered = on_leader(g, [&] {
    const bool entered = cache::finish_copy(space.tier->cache, begun.line, is_good);
    if (!entered) add<Scope::engine>(&space.tier->failed, u64{1});
    return entered;
  });
  return has_entered ? frame : nullptr;
}

// The pages from an address on, as far as they were looked at.
struct CopiesRead {
  u32 given;     // pages that were copied to the destination
  u32 uncopied;  // pages behind them that have to be read where they are
};

namespace detail {

// Verifies a copy and gives its range.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool give_copy(Group g, const u8* copy, u64 address, u64 checksum, ByteRange range,
                                         u8* destination) {
  alignas(16) u8 lane_copy[Group::size() == 1 ? page_size : 16];
  PageRegisters<Group> page = load_racy_page(g, copy, lane_copy);
  const bool matches = xxh3_registers(g, page, address) == checksum;
  if (!GPU4FS_MUTANT(copy_believed, matches, true)) return false;
  store_mostly_whole_page(g, page, destination, range);
  return true;
}

GPU4FS_FN GPU4FS_NOINLINE inline void drop_bad_copy(const LogicalSpace& space, u64 address) {
  PageLocation location{};
  const CopiedPage page = copied_page_at(space, address, &location);
  if (page.device != nullptr) (void)cache::drop_copy(space.tier->cache, {page.device->index, page.page});
}

}  // namespace detail

// Reads the pages at the beginning of a run that have copies or get one now, at most `page_count` > 0, each verified.
// `range`: of a single page. The ranks look for a copy each, and then all of them move one copy after the other.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE CopiesRead read_copies(Group g, const LogicalSpace& space, u64 address, u32 page_count,
                                                 u8* destination, ByteRange range = whole_page()) {
  struct Run {
    PageLocation first;
    u32 count;  // 0: its pages cannot be looked for
  };
  const Run run = on_leader(g, [&] {
    Run found{};
    if (find_page(space, address, &found.first) != Status::ok) return found;
    if (chunk_state(space, found.first.chunk) != Status::ok) return found;
    const u64 left = space.chunks[found.first.chunk].page_count - found.first.page;
    found.count = static_cast<u32>(minimum(minimum<u64>(left, page_count), u64{Group::size()}));
    return found;
  });
  if (run.count == 0) return {0, page_count};
  CopyLook look{nullptr, false};
  u64 checksum = 0;
  if (g.rank() < run.count) {
    const PageLocation location{run.first.chunk, 0, run.first.page + g.rank()};
    look = look_for_copy(space, location, copy_to_read(space, location));
    checksum = detail::checksum_of(space, location);
  }
  for (u32 left = g.ballot(look.deserves_one); left != 0; left &= left - 1) {
    const u32 index = count_trailing_zeros(left);
    const u8* const copy = promote_page(g, space, address + u64{index} * page_size);
    if (g.rank() == index) look.memory = copy;
  }
  const u32 present = g.ballot(look.memory != nullptr);
  u32 given = 0;
  while (given < run.count && (present >> given & 1) != 0) {
    const u64 behind = u64{given} * page_size;
    // Nothing is pinned, so the frame may have another page by now. Its checksum tells.
    const u8* const copy = reinterpret_cast<const u8*>(g.shuffle(reinterpret_cast<u64>(look.memory), given));
    if (!detail::give_copy(g, copy, address + behind, g.shuffle(checksum, given), range, destination + behind)) {
      on_leader(g, [&] { detail::drop_bad_copy(space, address + behind); });
      return {given, 1};
    }
    ++given;
  }
  g.sync();
  const u32 others = given < run.count ? present >> given : 0;
  const u32 uncopied = others != 0 ? count_trailing_zeros(others) : run.count - given;
  return {given, uncopied};
}

}  // namespace gpu4fs::raid
