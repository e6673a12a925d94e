// fallocate: allocate (unwritten blocks), punch a hole, zero a range; with and without FALLOC_FL_KEEP_SIZE.
//
// A command that fits into one commit makes one commit with one record. A larger one is a series of smaller operations
// with a commit each. A hole grows from the end of its range backwards. Blocks are allocated, or replaced by unwritten
// ones, from the beginning of the range. The last operation of the series changes the file's size. command.offset and
// command.length hold the remaining range.
//
// To zero a range, the new blocks need pages while the file still has the old ones. If there are not enough, the range
// first becomes a hole, in commits of its own. It gets its blocks when the pages are free.
//
// Before the first commit that is shortened by a lack of pages, the command tests whether it can get all pages that it
// needs. So a command that can only end with ENOSPC changes nothing, unless other commands take the pages meanwhile.
#pragma once

#include "base/mutant.hpp"
#include "engine/allocation_mode.hpp"
#include "engine/handlers/file_truncate.hpp"

namespace gpu4fs::engine {
namespace detail {

// The plan of one commit.
struct AllocateRound {
  u64 begin;  // bytes
  u64 end;
  u64 first;  // pages that contain these bytes
  u64 page_end;
  u32 is_part;      // other operations follow, and the last one changes the size
  u32 is_short;     // a part because pages are lacking
  u32 fresh_first;  // c.extents[fresh_first, + fresh_count): unwritten blocks
  u32 fresh_count;
  ZeroPlan head;  // pages that are only partly in the range
  ZeroPlan tail;
  fs::MapCost cost;
  fs::FoundAttribute capability;
};

GPU4FS_FN inline bool zeroes(const CommandState& c) {
  return (c.command.mode & fallocate_zero_range) != 0;
}
// Bits of CommandState::progress.
inline constexpr u64 allocate_made_room = 1;  // the range has become a hole
inline constexpr u64 allocate_saw_room = 2;   // there were enough pages for the whole range
GPU4FS_FN inline bool has_seen(const CommandState& c, u64 bit) {
  return (c.progress & bit) != 0;
}
GPU4FS_FN inline bool replays_allocation(const CommandState& c) {
  return is_replay(c) && (c.operation.replay->opcode == format::LogOpcode::fallocate ||
                          c.operation.replay->opcode == format::LogOpcode::allocate);
}

// Gate: sets size, mode and times. A part only makes the changes that its zeros require.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void stamp_allocated(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                               u64 end, bool is_part) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  on_leader(g, [&] {
    format::Inode& inode = *ref.inode;
    const u32 mode = c.command.mode;
    const bool grows = !is_part && (mode & fallocate_keep_size) == 0 && inode.size_bytes < end;
    if (grows) inode.size_bytes = end;
    if (grows || (mode & ~fallocate_keep_size) != 0) {
      stamp_change(c, inode);
    } else if (!is_part) {
      store<Order::relaxed, Scope::engine>(&inode.change_time, c.operation.now);
      drop_set_id(c, inode);
    }
  });
  fs::mark_inode_dirty(g, engine.fs, c.operation, ref);
}

// Gate.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void record_allocation(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                 const AllocateRound& round) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  GPU4FS_CHECK_LT(round.begin, round.end);
  format::LogRecord record = file_record_of(c, format::LogOpcode::fallocate, ref.number);
  record.offset = round.begin;
  record.size = round.end - round.begin;
  record.mode = c.command.mode;
  record.mask = round.is_part != 0 ? u32{format::log_allocate_part} : 0;
  append_unwritten_record(g, engine, c, record, round.fresh_first, round.fresh_count);
}

// The file stays in its inode.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status allocate_inline(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                 u64 begin, u64 end) {
  GPU4FS_CHECK_LT(begin, end);
  GPU4FS_CHECK_LE(ref.inode->size_bytes, u64{format::inode_inline_capacity});
  AllocateRound round{};
  round.begin = begin;
  round.end = end;
  GPU4FS_TRY(find_capability(g, engine, c, ref, &round.capability));
  GPU4FS_TRY(fs::reserve_metadata(g, engine.fs, c.operation, {1, capability_pages(round.capability), 0}));
  GPU4FS_TRY(reserve_record(g, engine, c));
  GPU4FS_TRY(enter_gate(g, engine, c));
  const bool punches = (c.command.mode & fallocate_punch_hole) != 0;
  on_leader(g, [&] {
    const u64 stop = minimum(end, ref.inode->size_bytes);
    if ((punches || zeroes(c)) && begin < stop) __builtin_memset(ref.inode->inline_data() + begin, 0, stop - begin);
  });
  stamp_allocated(g, engine, c, ref, end, false);
  if (punches) {
    record_zeros(g, engine, c, ref, begin, end - begin);
  } else {
    record_allocation(g, engine, c, ref, round);
  }
  commit_capability_drop(g, engine, c, ref, round.capability);
  return Status::ok;
}

// One commit that zeroes bytes [begin, end) and makes their whole pages a hole, from the end backwards. It stays in the
// gate. *end becomes the end of the remaining range; `begin`: nothing remains.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status try_punch(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref, u64 begin,
                                           u64* end) {
  GPU4FS_CHECK_LT(begin, *end);
  GPU4FS_CHECK_EQ(c.in_gate, 0u);
  GPU4FS_CHECK(holds_lock(c, ref.number, LockMode::exclusive));
  fs::FileSystem& fs = engine.fs;
  on_leader(g, [&] { c.operation.emergency_use = space::EmergencyUse::all; });
  const u64 first = GPU4FS_MUTANT(hole_too_wide, divide_up(begin, page_size), begin / page_size);
  const u64 stop = minimum(*end / page_size, fs::map_page_max);
  const u32 head_from = static_cast<u32>(begin % page_size);
  const u32 tail_to = static_cast<u32>(*end % page_size);
  const bool in_one_page = first > *end / page_size;
  fs::MapRemoval removal{{first, stop}, map_pages_per_round(engine), {}};
  if (first < stop) GPU4FS_TRY(fs::map_prepare_remove(g, fs, c.operation, ref, &removal));
  const u64 from = removal.range.first;
  const bool is_last = from <= first;
  const bool has_head = is_last && head_from != 0;
  const bool has_tail = tail_to != 0 && !in_one_page;
  ZeroPlan head{};
  ZeroPlan tail{};
  if (has_tail) {
    tail = zero_plan(*end / page_size, 0, tail_to, 0);
    GPU4FS_TRY(prepare_zero(g, engine, c, ref, !has_head, &tail));
  }
  if (has_head) {
    head =
        zero_plan(begin / page_size, head_from, in_one_page ? tail_to : static_cast<u32>(page_size), extents_of(tail));
    GPU4FS_TRY(prepare_zero(g, engine, c, ref, !has_tail, &head));
  }
  fs::FoundAttribute capability{};
  GPU4FS_TRY(find_capability(g, engine, c, ref, &capability));
  const fs::MapCost cost = removal.cost + head.cost + tail.cost;
  GPU4FS_TRY(fs::reserve_metadata(g, fs, c.operation, {1, cost.changed + capability_pages(capability), cost.fresh}));
  GPU4FS_TRY(reserve_record(g, engine, c));
  GPU4FS_TRY(enter_gate(g, engine, c));
  GPU4FS_TRY(commit_zero(g, engine, c, ref, tail));
  GPU4FS_TRY(commit_zero(g, engine, c, ref, head));
  on_leader(g, [&] { c.extent_count = 0; });
  if (from < stop) fs::map_remove(g, fs, c.operation, ref, removal.range);
  on_leader(g, [&] { stamp_change(c, *ref.inode); });
  fs::mark_inode_dirty(g, fs, c.operation, ref);
  const u64 left = is_last ? begin : from * page_size;
  record_zeros(g, engine, c, ref, left, *end - left);
  *end = left;
  commit_capability_drop(g, engine, c, ref, capability);
  return Status::ok;
}

// With any status but ok the command owns no pages: after a park the pages at the ends are prepared again.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status punch_once(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                            u64 begin, u64* end) {
  const Status status = try_punch(g, engine, c, ref, begin, end);
  if (status != Status::ok) abandon_extents(g, engine, c);
  return status;
}

// Sets range->first to the first page that is a hole, or to range->end.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status find_hole(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                           fs::PageRange* range) {
  GPU4FS_CHECK_LE(range->first, range->end);
  while (range->first < range->end) {
    fs::MapRun run{};
    GPU4FS_TRY(fs::map_lookup(g, engine.fs, c.operation, ref, *range, &run));
    if (run.kind == fs::MapKind::hole) break;
    range->first += run.page_count;
  }
  return Status::ok;
}

// The number of pages of the run at `page` that get new blocks. 0: none, and *passed pages of the run stay.
GPU4FS_FN inline u64 pages_to_replace(const CommandState& c, const AllocateRound& round, const fs::MapRun& run,
                                      u64 page, u64* passed) {
  GPU4FS_CHECK_GT(run.page_count, 0u);
  *passed = run.page_count;
  if (run.kind == fs::MapKind::hole) return run.page_count;
  if (run.kind != fs::MapKind::data || !zeroes(c)) return 0;
  const u64 whole_first = divide_up(round.begin, page_size);
  const u64 whole_end = round.end / page_size;
  if (page >= whole_first && page < whole_end) return minimum(run.page_count, whole_end - page);
  *passed = 1;
  return 0;
}

// Allocates the round's pages as far as space and extents allow. The round may end earlier than requested.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status allocate_blocks(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                 AllocateRound& round) {
  GPU4FS_CHECK_LE(round.first, round.page_end);
  u64 page = round.first;
  while (page < round.page_end) {
    fs::MapRun run{};
    GPU4FS_TRY(fs::map_lookup(g, engine.fs, c.operation, ref, {page, round.page_end}, &run));
    u64 passed = 0;
    const u64 wanted = pages_to_replace(c, round, run, page, &passed);
    if (wanted == 0) {
      page += passed;
      continue;
    }
    // One extent is reserved for the page at the end.
    constexpr u32 extent_max = command_extent_capacity - 1;
    if (on_leader(g, [&] { return c.extent_count; }) == extent_max) break;
    const Allocated allocated = allocate_extents(
        g, engine, c, ref, {page, static_cast<u32>(page - round.first), static_cast<u32>(wanted), true, extent_max});
    const bool has_none = allocated.status == Status::no_space && page > round.first;
    if (!has_none) GPU4FS_TRY(allocated.status);
    page += allocated.page_count;
    if (allocated.page_count < wanted) {
      round.is_short = on_leader(g, [&] { return c.extent_count < extent_max ? 1u : 0u; });
      break;
    }
  }
  round.fresh_count = on_leader(g, [&] { return c.extent_count; }) - round.fresh_first;
  if (page < round.page_end) {
    round.page_end = page;
    round.end = page * page_size;
    round.is_part = 1;
  }
  return Status::ok;
}

// Replay: takes the extents of the record for the round. The log is untrusted.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status adopt_blocks(Group g, Engine& engine, CommandState& c, AllocateRound& round) {
  GPU4FS_CHECK(is_replay(c));
  GPU4FS_CHECK_LE(round.first, round.page_end);
  return on_leader(g, [&] {
    const format::LogRecord& record = *c.operation.replay;
    const bool has_places = record.opcode == format::LogOpcode::fallocate;
    if (u32{record.extent_count} > allocate_extent_max) return Status::corrupt_structure;
    const format::LogExtent* extents = fs::record_extents(record);
    const u64 pages = round.page_end - round.first;
    u64 behind = 0;
    for (u32 i = 0; i < record.extent_count; ++i) {
      const format::LogExtent extent = extents[i];
      const u64 page = has_places ? extent.page : behind;
      if (page < behind || page > pages || extent.page_count > pages - page) return Status::corrupt_structure;
      if (page >= fs::RoundExtent::in_place_bit) return Status::corrupt_structure;
      c.extents[c.extent_count++] = {extent.address, extent.page_count, static_cast<u32>(page)};
      behind = page + extent.page_count;
    }
    round.fresh_count = record.extent_count;
    round.is_part = has_places ? c.command.mask & u32{format::log_allocate_part} : 1;
    return check_adopted_extents(engine, c);
  });
}

// Plans the page at the end of the range, if the round reaches it.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status plan_tail(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                           AllocateRound& round) {
  GPU4FS_CHECK_LT(round.first, round.page_end);
  const u32 to = static_cast<u32>(round.end % page_size);
  const bool is_head = round.head.to != 0 && round.head.file_page == round.page_end - 1;
  if (to == 0 || is_head) return Status::ok;
  const u32 extent = round.fresh_first + round.fresh_count;
  round.tail = zero_plan(round.page_end - 1, 0, to, extent);
  const Status status = prepare_zero(g, engine, c, ref, round.head.to == 0, &round.tail);
  if (status != Status::no_space || round.page_end - 1 == round.first) return status;
  round.tail = ZeroPlan{};
  --round.page_end;
  round.end = round.page_end * page_size;
  round.is_part = 1;
  round.is_short = 1;
  return Status::ok;
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status plan_allocation(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                 AllocateRound& round) {
  fs::FileSystem& fs = engine.fs;
  const bool replays = replays_allocation(c);
  const u64 stop = divide_up(round.end, page_size);
  round.first = round.begin / page_size;
  if (!zeroes(c) && !replays) {
    fs::PageRange holes{round.first, stop};
    GPU4FS_TRY(find_hole(g, engine, c, ref, &holes));
    // A round has a non-empty range, even if it needs no pages.
    const u64 hole = minimum(holes.first, stop - 1);
    if (hole > round.first) round.begin = hole * page_size;
    round.first = hole;
  }
  round.page_end = replays ? stop : round.first + round_pages(engine, round.first, stop - round.first);
  if (round.page_end < stop) {
    round.end = round.page_end * page_size;
    round.is_part = 1;
  }
  GPU4FS_TRY(fs::map_prepare(g, fs, c.operation, ref, {round.first, round.page_end}, &round.cost));
  const u32 head_from = static_cast<u32>(round.begin % page_size);
  const u32 head_to = static_cast<u32>(minimum(round.end - round.first * page_size, page_size));
  if (zeroes(c) && head_from != 0) {
    const bool has_tail = round.end % page_size != 0 && round.page_end - 1 != round.first;
    round.head = zero_plan(round.first, head_from, head_to, 0);
    GPU4FS_TRY(prepare_zero(g, engine, c, ref, !has_tail, &round.head));
  }
  round.fresh_first = extents_of(round.head);
  GPU4FS_TRY(replays ? adopt_blocks(g, engine, c, round) : allocate_blocks(g, engine, c, ref, round));
  return zeroes(c) ? plan_tail(g, engine, c, ref, round) : Status::ok;
}

// One commit that allocates and zeroes. It stays in the gate.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status try_allocate(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                              AllocateRound& round) {
  GPU4FS_CHECK_EQ(c.in_gate, 0u);
  GPU4FS_CHECK(holds_lock(c, ref.number, LockMode::exclusive));
  fs::FileSystem& fs = engine.fs;
  // A command that has made room frees as many pages as it takes, one checkpoint later.
  on_leader(g, [&] {
    const auto use = has_seen(c, allocate_made_room) ? space::EmergencyUse::half : space::EmergencyUse::none;
    c.operation.emergency_use = is_replay(c) ? space::EmergencyUse::all : use;
  });
  GPU4FS_TRY(plan_allocation(g, engine, c, ref, round));
  if (round.is_short != 0 && on_leader(g, [&] { return c.progress == 0; })) return Status::no_space;
  GPU4FS_TRY(find_capability(g, engine, c, ref, &round.capability));
  const ZeroPlan& head = round.head;
  const ZeroPlan& tail = round.tail;
  const fs::MapCost cost = round.cost + head.cost + tail.cost;
  GPU4FS_TRY(
      fs::reserve_metadata(g, fs, c.operation, {1, cost.changed + capability_pages(round.capability), cost.fresh}));
  GPU4FS_TRY(reserve_record(g, engine, c, 0, round.fresh_count));
  GPU4FS_TRY(enter_gate(g, engine, c));
  GPU4FS_TRY(commit_zero(g, engine, c, ref, head));
  GPU4FS_TRY(commit_zero(g, engine, c, ref, tail));
  record_allocation(g, engine, c, ref, round);
  for (u32 i = 0; i < round.fresh_count; ++i) {
    commit_one_extent(g, engine, c, ref, round.fresh_first + i, {round.first, fs::MapKind::unwritten, true});
  }
  g.sync();
  on_leader(g, [&] { c.extent_count = 0; });
  stamp_allocated(g, engine, c, ref, round.end, round.is_part != 0);
  commit_capability_drop(g, engine, c, ref, round.capability);
  return Status::ok;
}

// With any status but ok the command owns no pages.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status allocate_once(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                               AllocateRound& round) {
  const Status status = try_allocate(g, engine, c, ref, round);
  if (status != Status::ok) abandon_extents(g, engine, c);
  return status;
}

// A part of the command is done. [begin, end) remains for the next step.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status go_on_with(Group g, Engine& engine, CommandState& c, u64 begin, u64 end) {
  GPU4FS_CHECK_LT(begin, end);
  on_leader(g, [&] {
    c.command.offset = begin;
    c.command.length = end - begin;
  });
  leave_gate(g, engine, c);
  return end_round(g, engine, c);
}

// Ends with no_space if the holes of the range need more pages than will be available. Other pages are already
// unwritten, or free as many pages as they take. The exception is the pages at the ends, which still hold data.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status look_for_room(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                               u64 begin, u64 end) {
  GPU4FS_CHECK_LT(begin, end);
  constexpr u32 look_up_max = 1024;
  const u64 stop = divide_up(end, page_size);
  const u64 whole_first = divide_up(begin, page_size);
  const u64 whole_stop = end / page_size;
  u64 wanted = 0;
  u64 page = begin / page_size;
  for (u32 i = 0; i < look_up_max && page < stop; ++i) {
    fs::MapRun run{};
    GPU4FS_TRY(fs::map_lookup(g, engine.fs, c.operation, ref, {page, stop}, &run));
    if (run.kind == fs::MapKind::hole) wanted += run.page_count;
    if (run.kind == fs::MapKind::data && zeroes(c)) {
      const bool has_head = page < whole_first;
      const bool has_tail = page + run.page_count > whole_stop && !(has_head && run.page_count == 1);
      wanted += (has_head ? 1 : 0) + (has_tail ? 1 : 0);
    }
    page += run.page_count;
  }
  return on_leader(g, [&] {
    const u32 page_class = space::effective_profile(engine.fs, ref.inode->profile) - 1;
    if (wanted > space::pages_to_come(engine.fs, c.operation, page_class)) return Status::no_space;
    c.progress |= allocate_saw_room;
    return Status::ok;
  });
}

// There are not enough pages to zero the range, so the range becomes a hole, once in each command. A checkpoint frees
// its pages. The next attempt to allocate waits for this checkpoint.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status make_room(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref, u64 begin,
                                           u64 end) {
  GPU4FS_CHECK_LT(begin, end);
  GPU4FS_TRY(punch_once(g, engine, c, ref, begin, &end));
  on_leader(g, [&] {
    if (end == begin) c.progress |= allocate_made_room;
  });
  leave_gate(g, engine, c);
  return end_round(g, engine, c);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status run_allocate(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  const u64 begin = c.command.offset;
  const u64 end = begin + c.command.length;
  GPU4FS_CHECK_LT(begin, end);
  GPU4FS_CHECK_LE(end, fs::file_size_max);
  const bool punches = (c.command.mode & fallocate_punch_hole) != 0;
  const bool names_pages = replays_allocation(c) && c.operation.replay->extent_count != 0;
  if (ref.inode->is_inline()) {
    if (punches || (end <= format::inode_inline_capacity && !names_pages)) {
      return allocate_inline(g, engine, c, ref, begin, end);
    }
    GPU4FS_TRY(spill_inline(g, engine, c, ref));
  }
  if (punches) {
    u64 left = end;
    GPU4FS_TRY(punch_once(g, engine, c, ref, begin, &left));
    return left == begin ? Status::ok : go_on_with(g, engine, c, begin, left);
  }
  AllocateRound round{};
  round.begin = begin;
  round.end = end;
  const Status status = allocate_once(g, engine, c, ref, round);
  if (status == Status::no_space && !is_replay(c)) {
    const u64 seen = on_leader(g, [&] { return c.progress; });
    if (seen == 0) {
      GPU4FS_TRY(look_for_room(g, engine, c, ref, begin, end));
      return end_round(g, engine, c);
    }
    if (zeroes(c) && (seen & allocate_made_room) == 0) return make_room(g, engine, c, ref, begin, end);
  }
  GPU4FS_TRY(status);
  return round.is_part == 0 || is_replay(c) ? Status::ok : go_on_with(g, engine, c, round.end, end);
}

}  // namespace detail

// mode: FALLOC_FL_*; not_supported for collapse, insert and unshare. A failed command may have done a part, see above.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_fallocate(Group g, Engine& engine, CommandState& c) {
  if (!is_known_allocation(c.command.mode)) return Step::end(Status::not_supported);
  if (engine.fs.read_only != 0) return Step::end(Status::read_only);
  if (c.command.length == 0) return Step::end(Status::invalid_argument);
  const bool fits = c.command.offset <= fs::file_size_max && c.command.length <= fs::file_size_max - c.command.offset;
  if (!fits) return Step::end(Status::file_too_large);
  fs::InodeRef ref{};
  Status status = detail::lock_file(g, engine, c, c.command.inode, {LockMode::exclusive, fs::may_write}, &ref);
  // Existing content stays: an append-only file may get pages and may become longer.
  const bool only_adds = (c.command.mode & ~fallocate_keep_size) == 0;
  if (status == Status::ok && !only_adds) status = check_changeable(c, ref);
  if (status == Status::ok) status = detail::run_allocate(g, engine, c, ref);
  if (status != Status::ok) return detail::leave_with(g, engine, c, status);
  put_attributes(g, engine, c, ref);
  return Step::complete();
}

}  // namespace gpu4fs::engine
