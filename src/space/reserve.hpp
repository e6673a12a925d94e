// Reservation of space: here a lack of space becomes an answer (docs/internals/architecture.md, section 5, "Space").
//
// A command reserves pages while it prepares; afterwards allocate_run() always has a page for it. Plain functions,
// called by one rank.
#pragma once

#include "base/mutant.hpp"
#include "base/status.hpp"
#include "raid/device_loss.hpp"
#include "space/space_counters.hpp"
#include "space/space_types.hpp"

namespace gpu4fs::space {

// Pages kept back for commands that free space: 1 %, but enough for 128 to 1024 reservations of a page, each of which
// costs `page_cost`. Removing a file may dirty about 75 metadata pages, so with less a full small pool could not be
// emptied.
GPU4FS_FN constexpr u64 emergency_pages(u64 total, u64 page_cost = 1) {
  return maximum<u64>(minimum<u64>(total / 100, 1024 * page_cost), 128 * page_cost);
}
// The same for chunks that hold only data: the amount that truncation inside of a page needs.
GPU4FS_FN constexpr u64 data_emergency_pages(u64 total, u64 page_cost) {
  return minimum<u64>(total / 100, 32 * page_cost);
}

// The number of pages that a class of `total` pages keeps back.
GPU4FS_FN constexpr u64 kept_back_pages(u64 total, u64 page_cost, bool has_metadata) {
  const u64 pages = has_metadata ? emergency_pages(total, page_cost) : data_emergency_pages(total, page_cost);
  return page_cost == 1 ? pages : minimum(pages, total / 8);
}
GPU4FS_FN inline u64 kept_back_pages(const SpaceState& state, u32 page_class, u64 total) {
  return kept_back_pages(total, state.space.page_cost[page_class], page_class == state.space.metadata_class);
}

// Pages of metadata that must be reserved for a small write although it uses few of them: those of its inode, of its
// map and all above.
inline constexpr u64 pages_promised_to_a_write = 48;

// The room of a class for content of files: without the reserve for commands that free space, and without the pages for
// the content's own metadata. `metadata_pages` are the remaining pages in the class of metadata, without its reserve;
// `shares`: metadata lies in this class. A reserved page takes `page_cost`, a reserved page of metadata
// `metadata_cost`.
struct RoomForContent {
  u64 pages;
  u64 stranded;  // pages that only content can use
  u64 page_cost;
  u64 metadata_pages;
  u64 metadata_cost;
  bool shares;
};
GPU4FS_FN constexpr u64 content_pages(const RoomForContent& room) {
  const u64 metadata_pages = room.shares ? room.pages : room.metadata_pages;
  const u64 usable = metadata_pages - minimum(metadata_pages, pages_promised_to_a_write * room.metadata_cost);
  if (usable == 0) return 0;
  // A page of the map has the pointers of 512 pages.
  if (!room.shares) {
    // Some pages of the last stripes may be in flight when a write needs them.
    const u64 pages = room.pages + room.stranded;
    const u64 unsure = room.page_cost == 1 ? 0 : minimum(pages, 4 * room.page_cost);
    return minimum(pages - unsure, usable * format::slots_per_block);
  }
  return usable - divide_up(usable, u64{format::slots_per_block} + 1) + room.stranded;
}

// Whether stranded pages of the class may be taken at all at this time (space/partial_stripes.hpp).
GPU4FS_FN inline bool takes_partial_rows(const SpaceState& state, u32 page_class) {
  GPU4FS_CHECK_LT(page_class, format::profile_max);
  return state.has_log != 0 && state.read_only == 0 && (state.space.striped_classes >> page_class & 1) != 0 &&
         raid::failed_devices(state.space) == 0;
}

// Stranded pages of the class that could be taken, including those in chunks that the engine does not reach yet.
GPU4FS_FN GPU4FS_NOINLINE inline u64 stranded_pages_of(const SpaceState& state, u32 page_class) {
  if (!takes_partial_rows(state, page_class)) return 0;
  u64 sum = 0;
  for (u32 i = 0; i < raid::chunk_count_of(state.space); ++i) {
    const raid::ChunkState& chunk = state.space.chunks[i];
    if (chunk.page_class != page_class || is_frozen(chunk)) continue;
    if (!raid::is_loaded(chunk)) continue;
    sum += load<Order::relaxed, Scope::engine>(&chunk.stranded_pages);
  }
  return sum;
}

// Pages of a class, including those of chunks that could still be created if no other class got any.
struct ClassRoom {
  u64 total;
  u64 free;       // for the next command
  u64 available;  // without the reserve for commands that free space
  u64 stranded;   // part of both: for writes of file data only
};
GPU4FS_FN GPU4FS_NOINLINE inline ClassRoom room_of(const SpaceState& state, u32 page_class) {
  GPU4FS_CHECK_LT(page_class, format::profile_max);
  const SpaceCounters& counters = state.counters[page_class];
  const u64 free = load<Order::relaxed, Scope::engine>(&counters.free);
  const u64 reserved = load<Order::relaxed, Scope::engine>(&counters.reserved);
  const u64 pending = load<Order::relaxed, Scope::engine>(&counters.freed_pending);
  const u64 total = load<Order::relaxed, Scope::engine>(&counters.total);
  const u64 unallocated_pages = load<Order::relaxed, Scope::engine>(&counters.unallocated_pages);
  const u64 stranded = stranded_pages_of(state, page_class);
  const u64 whole = minimum(total, free - minimum(free, reserved) + pending) + unallocated_pages;
  u64 kept_back = load<Order::relaxed, Scope::engine>(&counters.emergency);
  const u64 reachable = total + unallocated_pages;
  if (unallocated_pages != 0) kept_back = maximum(kept_back, kept_back_pages(state, page_class, reachable));
  const u64 available = whole - minimum(whole, kept_back);
  return {reachable, minimum(reachable, whole + stranded), available + stranded, stranded};
}

// The pages of the class that statfs reports as available to files.
GPU4FS_FN GPU4FS_NOINLINE inline u64 room_for_content(const SpaceState& state, u32 page_class) {
  const u32 metadata_class = state.space.metadata_class;
  const ClassRoom room = room_of(state, page_class);
  const ClassRoom metadata = page_class == metadata_class ? room : room_of(state, metadata_class);
  return content_pages({room.available - room.stranded, room.stranded, state.space.page_cost[page_class],
                        metadata.available - metadata.stranded, state.space.page_cost[metadata_class],
                        page_class == metadata_class});
}

namespace detail {

GPU4FS_FN inline bool take_available(SpaceCounters& counters, u64 page_count, u64 kept_back) {
  u64 available = load<Order::acquire, Scope::engine>(&counters.available);
  for (;;) {
    if (available < kept_back || available - kept_back < page_count) return false;
    if (compare_exchange<Order::acq_rel, Scope::engine>(&counters.available, available, available - page_count)) {
      return true;
    }
  }
}

GPU4FS_FN inline bool count_accessible_chunks(SpaceState& state) {
  bool counted = false;
  for (u32 i = 0; i < raid::chunk_count_of(state.space); ++i) counted |= count_chunk(state, state.space.chunks[i]);
  return counted;
}

GPU4FS_FN inline u64 devices_of(const ChunkState& chunk) {
  static_assert(device_count_max <= 64);
  u64 devices = 0;
  for (u32 i = 0; i < chunk.column_count; ++i) devices |= u64{1} << chunk.columns[i].device;
  return devices;
}

// Pages of the class that are reserved for other commands and not used yet: they return if the commands do not need
// them. The next checkpoint uses up the reservations of dirty frames.
GPU4FS_FN GPU4FS_NOINLINE inline u64 promised_to_others(const SpaceState& state, const SpaceRequest& request,
                                                        u32 page_class) {
  u64 known = page_class == class_of(state, request) ? request.pages_reserved : 0;
  if (page_class == state.space.metadata_class) {
    known += u64{request.dirty_reserved} + load<Order::relaxed, Scope::engine>(&state.dirty.count);
  }
  const u64 reserved = load<Order::relaxed, Scope::engine>(&state.counters[page_class].reserved);
  return reserved - minimum(reserved, known * state.space.page_cost[page_class]);
}

// Pages of the class that the next checkpoint releases. The result is never too small, and 0 if there is nothing to
// write, so waits for it end. A freed page may be the last one of its stripe. Every dirty page of a class with stripes
// has a reservation, of which a checkpoint uses up few.
GPU4FS_FN GPU4FS_NOINLINE inline u64 comes_back(const SpaceState& state, u32 page_class) {
  u64 pages = load<Order::relaxed, Scope::engine>(&state.counters[page_class].freed_pending);
  const u64 cost = state.space.page_cost[page_class];
  if (page_class == state.space.metadata_class) {
    pages += load<Order::relaxed, Scope::engine>(cost == 1 ? &state.dirty.replacing : &state.dirty.count);
  }
  return pages * cost;
}

// Why `needed` pages of the class are not available, and what would help. The only place that decides that a class is
// full.
GPU4FS_FN GPU4FS_NOINLINE inline Status explain_shortage(SpaceState& state, SpaceRequest& request, u32 page_class,
                                                         u64 needed) {
  const SpaceCounters& counters = state.counters[page_class];
  u64 in_reach = load<Order::relaxed, Scope::engine>(&counters.available);
  u32 wanted_chunk = raid::no_chunk;
  u32 wanted_pages = 0;
  for (u32 i = 0; i < raid::chunk_count_of(state.space); ++i) {
    const ChunkState& chunk = state.space.chunks[i];
    if (chunk.page_class != page_class) continue;
    if (!raid::is_loaded(chunk)) continue;
    const u32 value = load<Order::relaxed, Scope::engine>(&chunk.free_pages);
    if ((value & frozen_bit) != 0 || (devices_of(chunk) & request.refused_devices) != 0) continue;
    const u32 out_of_reach = ((value & counted_bit) == 0 ? value : 0) + unbacked_pages_of(chunk);
    in_reach += out_of_reach;
    if (out_of_reach > wanted_pages) {
      wanted_pages = out_of_reach;
      wanted_chunk = i;
    }
  }
  if (wanted_chunk != raid::no_chunk && in_reach >= needed) {
    return want_chunk(request, wanted_chunk, Status::chunk_not_mapped);
  }
  const u64 pending = comes_back(state, page_class);
  if (in_reach + pending >= needed) return Status::retry_after_checkpoint;
  const bool was_refused = (request.refused_classes >> page_class & 1) != 0;
  if (was_refused || load<Order::acquire, Scope::engine>(&counters.unallocated_pages) == 0) {
    if (in_reach + pending + promised_to_others(state, request, page_class) >= needed)
      request.blocked_by_reservations = 1;
    return Status::no_space;
  }
  return want_new_chunk(request, page_class);
}

}  // namespace detail

// Reserves `page_count` pages of the class, as reserve_pages() below.
GPU4FS_FN GPU4FS_NOINLINE inline Status promise_pages(SpaceState& state, SpaceRequest& request, u32 page_class,
                                                      u64 page_count) {
  if (state.read_only != 0) return Status::read_only;
  GPU4FS_CHECK_LT(page_class, format::profile_max);
  SpaceCounters& counters = state.counters[page_class];
  const u64 emergency = load<Order::relaxed, Scope::engine>(&counters.emergency);
  // Removing a file may need some 75 pages.
  const u64 for_removing = minimum(emergency, maximum(emergency / 2, u64{96} * state.space.page_cost[page_class]));
  const bool keeps_all = GPU4FS_MUTANT(emergency_given_out, request.emergency_use == EmergencyUse::none, false);
  const u64 kept_back = keeps_all ? emergency : request.emergency_use == EmergencyUse::all ? 0 : for_removing;
  if (page_count > load<Order::relaxed, Scope::engine>(&counters.total)) return Status::no_space;
  const u64 cost = page_count * state.space.page_cost[page_class];
  while (!detail::take_available(counters, cost, kept_back)) {
    if (!detail::count_accessible_chunks(state))
      return detail::explain_shortage(state, request, page_class, cost + kept_back);
  }
  add<Scope::engine>(&counters.reserved, cost);
  return Status::ok;
}

GPU4FS_FN GPU4FS_NOINLINE inline void return_promise(SpaceState& state, u32 page_class, u64 page_count) {
  GPU4FS_CHECK_LT(page_class, format::profile_max);
  SpaceCounters& counters = state.counters[page_class];
  const u64 cost = page_count * state.space.page_cost[page_class];
  const u64 old = fetch_sub<Order::relaxed, Scope::engine>(&counters.reserved, cost);
  GPU4FS_CHECK_GE(old, cost);
  fetch_add<Order::release, Scope::engine>(&counters.available, cost);
}

// Pages of the class that can eventually be reserved for a command that has none of it: existing ones, those that the
// next checkpoint releases, and those of chunks that can be created. Without the reserve and without stranded pages.
GPU4FS_FN GPU4FS_NOINLINE inline u64 pages_to_come(const SpaceState& state, const SpaceRequest& request,
                                                   u32 page_class) {
  const ClassRoom room = room_of(state, page_class);
  const u64 unallocated_pages = load<Order::relaxed, Scope::engine>(&state.counters[page_class].unallocated_pages);
  const bool was_refused = (request.refused_classes >> page_class & 1) != 0;
  u64 pages = room.available - room.stranded;
  if (was_refused) pages -= minimum(pages, unallocated_pages);
  // The old places of dirty pages; room_of() has the freed pages.
  if (page_class == state.space.metadata_class) pages += load<Order::relaxed, Scope::engine>(&state.dirty.replacing);
  return pages;
}

// Reserves `page_count` more pages of profile op.profile for the command. Status:
//   no_space                the free pages, minus the reserve for commands that free space, do not suffice;
//                           op.blocked_by_reservations: with the reservations of others they would
//   retry_after_checkpoint  with the pages that the next checkpoint releases they would
//   chunk_not_mapped        they may suffice with those of chunk op.wanted_chunk, which the engine cannot reach yet, or
//                           not completely
//   needs_new_chunk         they may suffice with those of a new chunk of class op.wanted_class
//   read_only
GPU4FS_FN GPU4FS_NOINLINE inline Status reserve_pages(SpaceState& state, SpaceRequest& request, u64 page_count) {
  if (page_count == 0) return Status::ok;
  GPU4FS_TRY(promise_pages(state, request, class_of(state, request), page_count));
  request.pages_reserved += page_count;
  return Status::ok;
}

// The server has no room for the memory of chunk op.wanted_chunk. True: the command tries again, and takes its space
// elsewhere if it needed space. False: it already knew this.
GPU4FS_FN inline bool refuse_wanted_chunk(const SpaceState& state, SpaceRequest& request) {
  GPU4FS_CHECK_LT(request.wanted_chunk, raid::known_chunk_count(state.space));
  const u64 devices = detail::devices_of(state.space.chunks[request.wanted_chunk]);
  const bool is_new = (devices & ~request.refused_devices) != 0;
  request.refused_devices |= devices;
  return is_new;
}

// No other chunk could be created for the command: it uses the existing space.
GPU4FS_FN inline void refuse_growth(SpaceRequest& request) {
  GPU4FS_CHECK_LT(request.wanted_class, format::profile_max);
  request.refused_classes |= u64{1} << request.wanted_class;
}

// Returns reserved pages that the command did not allocate.
GPU4FS_FN GPU4FS_NOINLINE inline void unreserve_pages(SpaceState& state, SpaceRequest& request, u64 page_count) {
  GPU4FS_CHECK_GE(request.pages_reserved, page_count);
  request.pages_reserved -= page_count;
  return_promise(state, class_of(state, request), page_count);
}

}  // namespace gpu4fs::space
