// write.
//
// The inode's lock is held exclusively. There are three ways, tried in this order:
// inline     the file stays within 128 bytes and has no blocks: the bytes are written into the inode, in the gate;
// in place   a few pages, all of which are data without a reference from a checkpoint: they are overwritten in the
//            gate;
// rounds     copy on write: new pages are allocated and filled, partial first and last pages are merged with the old
//            content, and a commit enters the pages into the map. Unwritten pages of the file are filled in place: a
//            reader sees zeros meanwhile, and so does a recovery after a crash. If a class with parities has no whole
//            stripe left, a round gets pages of one row that also contains pages of others (file_write_rows.hpp).
// After each commit the file is consistent. A failure in a later round causes a short write.
#pragma once

#include "base/mutant.hpp"
#include "engine/device_poll.hpp"
#include "engine/handlers/file_write_rows.hpp"
#include "raid/write_behind.hpp"

namespace gpu4fs::engine {
namespace detail {

// Bytes [from, to) of a file.
struct FileBytes {
  u64 from;
  u64 to;
  const u8* data;
};

// Gate: the record contains the written bytes.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void record_bytes(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                            FileBytes bytes) {
  format::LogRecord record = file_record_of(c, format::LogOpcode::write_bytes, ref.number);
  record.offset = bytes.from;
  record.size = bytes.to - bytes.from;
  record.data_length = static_cast<u32>(bytes.to - bytes.from);
  append_record(g, engine, c, record, bytes.data);
}

// Whether an append-only file accepts the write. A command that has appended a part continues with the rest. Kernels
// send FUSE servers the offset and not the flag, so the front end has to check how the file was opened.
GPU4FS_FN inline bool is_append(const Engine& engine, const CommandState& c, const fs::InodeRef& ref) {
  if ((c.command.flags & wire::command_flag_append) != 0 || c.progress != 0) return true;
  return session_is_trusted(engine, c) && c.command.offset >= ref.inode->size_bytes;
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status start_write(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  WriteState& state = scratch_of<WriteState>(c);
  if (on_leader(g, [&] { return state.started != 0; })) return Status::ok;
  if (has_flags(c, ref, format::inode_flag_append_only) && !is_append(engine, c, ref)) return Status::permission;
  u8* data = nullptr;
  if (!replays_extents(c)) GPU4FS_TRY(resolve(g, engine, c, c.command.data, c.command.length, &data));
  const bool appends = (c.command.flags & wire::command_flag_append) != 0;
  const u64 begin = appends ? ref.inode->size_bytes : c.command.offset;
  if (begin >= fs::file_size_max) return Status::file_too_large;
  if (c.command.length != 0) GPU4FS_TRY(drop_capability(g, engine, c, ref));
  const u64 length = minimum(c.command.length, fs::file_size_max - begin);
  on_leader(g, [&] {
    state = WriteState{};
    state.started = 1;
    state.begin = begin;
    state.end = begin + length;
    state.position = begin;
    state.data = data;
  });
  return Status::ok;
}

// Gate: updates size and times. The file's size is then at least `end`.
template <class Group>
GPU4FS_FN void stamp_written(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref, u64 end) {
  on_leader(g, [&] {
    if (ref.inode->size_bytes < end) ref.inode->size_bytes = end;
    stamp_change(c, *ref.inode);
  });
  fs::mark_inode_dirty(g, engine.fs, c.operation, ref);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_inline(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  const WriteState& state = scratch_of<WriteState>(c);
  GPU4FS_TRY(fs::reserve_metadata(g, engine.fs, c.operation, {1, 0, 0}));
  GPU4FS_TRY(reserve_record(g, engine, c, state.end - state.begin));
  GPU4FS_TRY(enter_gate(g, engine, c));
  on_leader(g, [&] {
    if (ref.inode->is_inline()) return;
    clear_inline(*ref.inode);
    ref.inode->flags |= format::inode_flag_inline;
  });
  GPU4FS_CHECK_LE(state.end, u64{format::inode_inline_capacity});
  copy_bytes(g, ref.inode->inline_data() + state.begin, state.data, state.end - state.begin);
  g.sync();
  stamp_written(g, engine, c, ref, state.end);
  record_bytes(g, engine, c, ref, {state.begin, state.end, ref.inode->inline_data() + state.begin});
  return Status::ok;
}

// Tests whether the whole write is on data pages that may be overwritten. Their runs are stored in c.extents without
// ownership (c.extent_count stays 0). *run_count 0: no.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status find_unstable_runs(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                    u32* run_count) {
  const WriteState& state = scratch_of<WriteState>(c);
  const u64 first = state.begin / page_size;
  const u64 wanted = divide_up(state.end, page_size) - first;
  *run_count = 0;
  if (wanted > engine.config.inline_transfer_pages) return Status::ok;
  if (fs::log_is_on(engine.fs) && state.end - state.begin > log_in_place_bytes_max) return Status::ok;
  u32 count = 0;
  for (u64 done = 0; done < wanted;) {
    fs::MapRun run{};
    GPU4FS_TRY(fs::map_lookup(g, engine.fs, c.operation, ref, {first + done, first + wanted}, &run));
    if (run.kind != fs::MapKind::data || count == command_extent_capacity) return Status::ok;
    const Status status = on_leader(g, [&] {
      GPU4FS_TRY(space::check_accessible(engine.fs, c.operation, run.address));
      if (!fs::has_profile_of(engine.fs, *ref.inode, run.address)) return Status::exists;
      for (u64 i = 0; i < run.page_count; ++i) {
        if (!fs::may_overwrite(engine.fs, run.address + i * page_size)) return Status::exists;
      }
      c.extents[count] = {run.address, static_cast<u32>(run.page_count), static_cast<u32>(done)};
      return Status::ok;
    });
    if (status == Status::exists) return Status::ok;
    GPU4FS_TRY(status);
    ++count;
    done += run.page_count;
  }
  *run_count = count;
  return Status::ok;
}

// Gate: overwrites page `page` of the write in place.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status overwrite_page(Group g, Engine& engine, const CommandState& c, const WriteState& state,
                                                u32 run_count, u32 page) {
  const u64 file_page = state.begin / page_size + page;
  const ByteRange range = range_in_page(file_page, state.begin, state.end);
  GPU4FS_CHECK_LT(range.from, range.to);
  GPU4FS_CHECK_EQ(c.extent_count, 0u);
  const u64 address = extent_page(c, find_extent(c, run_count, page), page);
  const u8* source = state.data + (file_page * page_size + range.from - state.begin);
  const Status status =
      raid::write_page_merged(g, engine.fs.space, {address, address, range, source, raid::PageUse::data});
  return with_owner(g, engine, c.command.inode, status, address, 1);
}

// Whether pages of staged devices, of which `page_count` were stored, begin their way to the media at once.
template <class Group>
GPU4FS_FN bool is_written_behind(Group g, const Engine& engine, u32 page_count) {
  constexpr u32 long_write_pages = 8;
  const raid::LogicalSpace& space = engine.fs.space;
  if (!raid::stages_pages(space)) return false;
  return page_count >= long_write_pages ||
         device::has_many_dirty_frames(g, *space.staged, raid::device_count_of(space));
}

// *done: the whole write was carried out in place. Partial pages come first, because only their old content can prove
// to be damaged.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_in_place(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                bool* done) {
  const WriteState& state = scratch_of<WriteState>(c);
  *done = false;
  u32 run_count = 0;
  GPU4FS_TRY(find_unstable_runs(g, engine, c, ref, &run_count));
  if (run_count == 0) return Status::ok;
  GPU4FS_TRY(fs::reserve_metadata(g, engine.fs, c.operation, {1, 0, 0}));
  if (fs::log_is_on(engine.fs)) GPU4FS_TRY(reserve_record(g, engine, c, state.end - state.begin));
  GPU4FS_TRY(enter_gate(g, engine, c));
  // If a checkpoint ran before this command entered the gate, it has made the pages stable.
  const bool unstable = on_leader(g, [&] {
    for (u32 i = 0; i < run_count; ++i) {
      for (u32 p = 0; p < c.extents[i].page_count; ++p) {
        if (!fs::may_overwrite(engine.fs, c.extents[i].address + u64{p} * page_size)) return false;
      }
    }
    return true;
  });
  if (!unstable) {
    leave_gate(g, engine, c);
    return Status::ok;
  }
  const u32 last = static_cast<u32>(divide_up(state.end, page_size) - state.begin / page_size) - 1;
  GPU4FS_TRY(overwrite_page(g, engine, c, state, run_count, 0));
  if (last > 0) GPU4FS_TRY(overwrite_page(g, engine, c, state, run_count, last));
  for (u32 page = 1; page < last; ++page) {
    GPU4FS_TRY(overwrite_page(g, engine, c, state, run_count, page));
  }
  stamp_written(g, engine, c, ref, state.end);
  record_bytes(g, engine, c, ref, {state.begin, state.end, state.data});
  if (is_written_behind(g, engine, last + 1)) {
    for (u32 i = 0; i < run_count; ++i) {
      raid::begin_write_behind(g, engine.fs.space, c.extents[i].address, c.extents[i].page_count);
    }
  }
  *done = true;
  return Status::ok;
}

// Takes the file's own unwritten pages: as many as are in one run become pages of the round, from its page `round_page`
// on.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Allocated take_unwritten(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                   fs::PageRange range, u32 round_page) {
  fs::MapRun run{};
  const Status found = fs::map_lookup(g, engine.fs, c.operation, ref, range, &run);
  if (found != Status::ok) return {found, 0};
  GPU4FS_CHECK_EQ(run.kind, fs::MapKind::unwritten);
  const u32 page_count = static_cast<u32>(run.page_count);
  const Status status = on_leader(g, [&] {
    GPU4FS_TRY(space::check_accessible(engine.fs, c.operation, run.address));
    if (!fs::pages_in_use(engine.fs, run.address, page_count)) return Status::corrupt_structure;
    c.extents[c.extent_count++] = {run.address, page_count, round_page | fs::RoundExtent::in_place_bit};
    return Status::ok;
  });
  return {status, status == Status::ok ? page_count : 0};
}

// Allocates the round's pages, or takes the file's unwritten ones. *covered: the number of pages from range.first on.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status find_round_pages(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                  fs::PageRange range, u32* covered) {
  const WriteState& state = scratch_of<WriteState>(c);
  const u64 first = range.first;
  const u32 wanted = static_cast<u32>(range.page_count());
  const u64 left = on_leader(g, [&] { return state.end - state.position; });
  u32 done = 0;
  Status status = Status::ok;
  while (done < wanted && on_leader(g, [&] { return c.extent_count; }) < command_extent_capacity) {
    fs::MapStretch next{};
    GPU4FS_TRY(fs::map_stretch(g, engine.fs, c.operation, ref, {first + done, range.end}, &next));
    u32 asked = 0;
    if (!next.unwritten) {
      // Adjacent stretches of one kind are allocated together to get long runs.
      u64 total = next.page_count;
      while (total < wanted - done && !next.unwritten) {
        GPU4FS_TRY(fs::map_stretch(g, engine.fs, c.operation, ref, {first + done + total, range.end}, &next));
        if (!next.unwritten) total += next.page_count;
      }
      asked = static_cast<u32>(total);
    }
    GPU4FS_CHECK_LE(asked, wanted - done);
    const bool is_named = left > log_inline_bytes_max(engine.fs);
    const Allocated taken =
        asked != 0 ? allocate_extents(g, engine, c, ref, {first + done, done, asked, is_named})
                   : take_unwritten(g, engine, c, ref, {first + done, first + done + next.page_count}, done);
    status = taken.status;
    done += taken.page_count;
    if (status != Status::ok || taken.page_count < asked) break;
  }
  *covered = done;
  return done > 0 && status == Status::no_space ? Status::ok : status;
}

// Pages of a round of a write. Those of staged devices, with their redundancy, find room among what may be on its way
// to the media after others have found these not busy (await_media()). Longer rounds would fill the page cache with
// pages that are written one by one when their frames are needed. New pages are in whole stripes. So rounds that are
// followed by another one fill these, if there is room for one: the rest of a stripe would be stranded, and parities of
// rows that are not whole are changed by each of their pages.
GPU4FS_FN inline u32 write_round_pages(const Engine& engine, const format::Inode& inode, fs::PageRange left) {
  constexpr u32 least_pages = 64;
  const raid::LogicalSpace& space = engine.fs.space;
  const u32 pages = round_pages(engine, left.first, left.page_count());
  if (!raid::stages_pages(space)) return pages;
  const u32 limit = maximum(space.staged->detached_max / 4, least_pages);
  if (pages <= limit) return pages;
  const u32 stripe = space.page_cost[space::effective_profile(engine.fs, inode.profile) - 1];
  return GPU4FS_MUTANT(round_ends_in_stripe, limit - limit % minimum(stripe, limit), limit);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status try_plan_round(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  WriteState& state = scratch_of<WriteState>(c);
  on_leader(g,
            [&] { c.operation.emergency_use = is_replay(c) ? space::EmergencyUse::all : space::EmergencyUse::none; });
  const u64 first = state.position / page_size;
  const u64 page_end = divide_up(state.end, page_size);
  const u32 wanted = on_leader(g, [&] { return write_round_pages(engine, *ref.inode, {first, page_end}); });
  GPU4FS_TRY(reserve_map_change(g, engine, c, ref, {first, first + wanted}));
  GPU4FS_TRACE_POINT(reserve);
  u32 covered = 0;
  GPU4FS_TRY(find_round_pages(g, engine, c, ref, {first, first + wanted}, &covered));
  GPU4FS_CHECK_GT(covered, 0u);
  u64 old_first = raid::no_address;
  u64 old_last = raid::no_address;
  GPU4FS_TRY(find_old_page(g, engine, c, ref, first, &old_first));
  if (covered > 1) GPU4FS_TRY(find_old_page(g, engine, c, ref, first + covered - 1, &old_last));
  GPU4FS_TRACE_POINT(claim);
  on_leader(g, [&] {
    state.round = {first, covered, 0, old_first, old_last};
    state.row.is_used = 0;
    state.round_end = minimum(state.end, (first + covered) * page_size);
  });
  return Status::ok;
}

// Checks that extents that were filled in place are unwritten blocks of the file at their pages. The log is untrusted.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status check_in_place(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                u64 first) {
  const u32 count = c.extent_count;
  for (u32 i = 0; i < count; ++i) {
    const fs::RoundExtent extent = c.extents[i];
    if (!extent.is_in_place()) continue;
    fs::MapRun run{};
    GPU4FS_TRY(fs::map_lookup(g, engine.fs, c.operation, ref,
                              {first + extent.first_page(), first + extent.first_page() + extent.page_count}, &run));
    const bool same =
        run.kind == fs::MapKind::unwritten && run.address == extent.address && run.page_count >= extent.page_count;
    if (!same) return Status::corrupt_structure;
  }
  return Status::ok;
}

// The record's pages are already filled and make the only round.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status adopt_round(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  WriteState& state = scratch_of<WriteState>(c);
  const u32 pages = adopt_extents(g, c);
  GPU4FS_TRY(check_in_place(g, engine, c, ref, state.position / page_size));
  GPU4FS_TRY(on_leader(g, [&] { return check_adopted_extents(engine, c); }));
  return on_leader(g, [&] {
    state.round = {state.position / page_size, pages, 0, raid::no_address, raid::no_address};
    state.round_end = state.end;
    const u64 needed = divide_up(state.end, page_size) - state.position / page_size;
    return pages == needed ? Status::ok : Status::corrupt_structure;
  });
}

// Plans and prepares the next round. With any status but ok the command owns no pages.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status plan_round(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  const Status status = replays_extents(c) ? adopt_round(g, engine, c, ref) : try_plan_round(g, engine, c, ref);
  if (status != Status::ok) abandon_extents(g, engine, c);
  return status;
}

// Fills pages [from, to) of the round.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_round(Group g, Engine& engine, const CommandState& c, const WriteState& state,
                                             u32 from, u32 to) {
  const u64 first = state.position / page_size;
  GPU4FS_CHECK_LT(from, to);
  GPU4FS_CHECK_LE(to, state.round.page_count);
  u32 index = find_extent(c, c.extent_count, from);
  for (u32 page = from; page < to;) {
    while (page - c.extents[index].first_page() >= c.extents[index].page_count) ++index;
    const ByteRange range = range_in_page(first + page, state.position, state.round_end);
    const u8* source = state.data + ((first + page) * page_size + range.from - state.begin);
    const u32 run_end = minimum(to, c.extents[index].first_page() + c.extents[index].page_count);
    const u64 run_bytes = minimum((first + run_end) * page_size, state.round_end) - (first + page) * page_size;
    const u32 whole = range.from == 0 ? static_cast<u32>(run_bytes / page_size) : 0;
    if (whole != 0) {
      GPU4FS_TRY(
          raid::write_pages(g, engine.fs.space, extent_page(c, index, page), whole, source, raid::PageUse::data));
      page += whole;
      continue;
    }
    const u64 old = state.round.old_address(page);
    const u64 target = extent_page(c, index, page);
    const Status merged =
        raid::write_page_merged(g, engine.fs.space, {target, old, range, source, raid::PageUse::data});
    GPU4FS_TRY(with_owner(g, engine, c.command.inode, merged, old, 1));
    ++page;
  }
  return Status::ok;
}

// Leader, for a round that was just planned: the number of tasks that fill it. 0: fill_round() does it.
GPU4FS_FN inline u32 tasks_to_fill(const Engine& engine, const CommandState& c, const WriteState& state) {
  if (state.row.is_used != 0 || replays_extents(c)) return 0;
  return state.round.page_count > engine.config.inline_transfer_pages ? page_task_count(engine, state.round.page_count)
                                                                      : 0;
}

// Pages [from, to) of the round, which are stored.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void write_behind(Group g, Engine& engine, CommandState& c, u32 from, u32 to) {
  if (!is_written_behind(g, engine, scratch_of<WriteState>(c).round.page_count)) return;
  u32 index = find_extent(c, c.extent_count, from);
  for (u32 page = from; page < to; ++index) {
    const fs::RoundExtent& extent = c.extents[index];
    const u32 end = minimum(to, extent.first_page() + extent.page_count);
    raid::begin_write_behind(g, engine.fs.space, extent_page(c, index, page), end - page);
    page = end;
  }
}

// Fills the pages of the round, or ends what its tasks have done. The pages of a row are filled by its record.
template <class Group>
GPU4FS_FN Status fill_round(Group g, Engine& engine, CommandState& c) {
  const WriteState& state = scratch_of<WriteState>(c);
  if (on_leader(g, [&] { return state.row.is_used != 0; })) {
    go_to(g, c, RoundStage::fill);
    GPU4FS_TRY(fill_row(g, engine, c));
    write_behind(g, engine, c, 0, state.round.page_count);
  } else if (is_at(c, RoundStage::fill)) {
    GPU4FS_TRY(task_result(g, c));
  } else if (!replays_extents(c)) {
    GPU4FS_TRY(write_round(g, engine, c, state, 0, state.round.page_count));
    GPU4FS_TRACE_POINT(transfer);
    write_behind(g, engine, c, 0, state.round.page_count);
  }
  go_to(g, c, RoundStage::commit);
  return Status::ok;
}

// Commits the round. The map pages are loaded again, because a checkpoint may have run since the plan.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status commit_round(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  WriteState& state = scratch_of<WriteState>(c);
  const u64 first = state.position / page_size;
  GPU4FS_TRY(reserve_map_change(g, engine, c, ref, state.round.pages()));
  const bool by_bytes = !replays_extents(c) && state.row.is_used == 0 &&
                        state.round_end - state.position <= log_inline_bytes_max(engine.fs);
  const u64 byte_count = by_bytes ? state.round_end - state.position : 0;
  GPU4FS_TRY(reserve_record(g, engine, c, byte_count, by_bytes ? 0 : c.extent_count));
  GPU4FS_TRACE_POINT(reserve);
  GPU4FS_TRY(enter_gate(g, engine, c));
  if (on_leader(g, [&] {
        return state.row.is_used != 0 && !space::stripe_stays(engine.fs, state.row.chunk, state.row.row);
      })) {
    leave_gate(g, engine, c);
    return Status::retry_after_checkpoint;
  }
  if (ref.inode->is_inline()) {
    // The write replaces the whole inline content, otherwise the content would have been spilled.
    g.sync();
    on_leader(g, [&] { clear_inline(*ref.inode); });
  }
  if (by_bytes) {
    record_bytes(g, engine, c, ref, {state.position, state.round_end, state.data + (state.position - state.begin)});
  } else {
    format::LogRecord record = file_record_of(c, format::LogOpcode::write_extents, ref.number);
    record.offset = state.position;
    record.size = state.round_end - state.position;
    append_extent_record(g, engine, c, record);
  }
  commit_extents(g, engine, c, ref, {first, fs::MapKind::data, !by_bytes});
  stamp_written(g, engine, c, ref, state.round_end);
  GPU4FS_TRACE_POINT(commit);
  on_leader(g, [&] {
    GPU4FS_CHECK_GT(state.round_end, state.position);
    GPU4FS_CHECK_LE(state.round_end, state.end);
    // A restart after a checkpoint continues after this round. If it wrote the same bytes again, it could need another
    // checkpoint each time, without end, when space is short.
    const u64 bytes = state.round_end - state.position;
    c.command.offset = state.round_end;
    c.command.length = state.end - state.round_end;
    c.command.data += bytes;
    c.progress += bytes;
    state.position = state.round_end;
    state.row.is_used = 0;
    c.operation.emergency_use = is_replay(c) ? space::EmergencyUse::all : space::EmergencyUse::none;
    c.stage = static_cast<u32>(RoundStage::plan);
    c.command.flags = static_cast<u16>(c.command.flags & ~wire::command_flag_append);
  });
  if (state.position < state.end) leave_gate(g, engine, c);
  return Status::ok;
}

// Handles a write that fits into the inode or can overwrite pages, and prepares any other write for rounds. *done:
// complete.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_without_rounds(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                      bool* done) {
  const WriteState& state = scratch_of<WriteState>(c);
  *done = false;
  const u64 size = ref.inode->size_bytes;
  const bool fits = maximum(size, state.end) <= format::inode_inline_capacity && !replays_extents(c);
  if (fits && fs::map_is_empty(g, ref)) {
    *done = true;
    return write_inline(g, engine, c, ref);
  }
  if (ref.inode->is_inline()) {
    const bool replaces = state.begin == 0 && state.end >= size;
    return replaces ? Status::ok : spill_inline(g, engine, c, ref);
  }
  if (state.position != state.begin || replays_extents(c)) return Status::ok;
  return write_in_place(g, engine, c, ref, done);
}

// The round restarts, or the command ends. Meanwhile another command may write the log, and it may be waiting for this
// one.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void give_up_round(Group g, Engine& engine, CommandState& c) {
  abandon_extents(g, engine, c);
  on_leader(g, [&] { abandon_log_flush(engine, c); });
}

// Committed bytes count, even over restarts (c.progress): an error after them causes a short write.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step end_write(Group g, Engine& engine, CommandState& c, Status status) {
  const WriteState& state = scratch_of<WriteState>(c);
  if (status == Status::ok) return Step::complete(c.progress + (state.end - state.position));
  if (keeps_extents(status)) return Step::end(status);
  give_up_round(g, engine, c);
  if (!is_control(status) && c.progress != 0) return Step::complete(c.progress);
  return Step::end(status);
}

// Before a round: a write waits while the media are busy. A recovery does not, because nobody would restart it.
GPU4FS_FN inline Status await_turn(Engine& engine, CommandState& c) {
  return is_replay(c) ? Status::ok : await_media(engine, c);
}

}  // namespace detail

// Result: bytes written. Status: file_too_large, no_space, read_only ...
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_write(Group g, Engine& engine, CommandState& c) {
  detail::WriteState& state = detail::scratch_of<detail::WriteState>(c);
  if (engine.fs.read_only != 0) return detail::end_write(g, engine, c, Status::read_only);
  fs::InodeRef ref{};
  // Nobody waits for the lock meanwhile.
  Status status = on_leader(g, [&] { return c.lock_count == 0 ? detail::await_turn(engine, c) : Status::ok; });
  if (status == Status::ok) {
    status = detail::lock_file(g, engine, c, c.command.inode, {LockMode::exclusive, fs::may_write}, &ref);
  }
  if (status == Status::ok) status = detail::start_write(g, engine, c, ref);
  GPU4FS_TRACE_POINT(checks);
  while (status == Status::ok && state.position < state.end) {
    if (detail::is_at(c, detail::RoundStage::plan)) {
      bool done = false;
      if (state.position != state.begin) status = on_leader(g, [&] { return detail::await_turn(engine, c); });
      if (status != Status::ok) break;
      status = detail::write_without_rounds(g, engine, c, ref, &done);
      if (status != Status::ok || done) break;
      status = detail::plan_round(g, engine, c, ref);
      if (status == Status::no_space) status = detail::plan_row_round(g, engine, c, ref);
      if (status != Status::ok) break;
      const u32 tasks = on_leader(g, [&] { return detail::tasks_to_fill(engine, c, state); });
      if (tasks != 0) {
        detail::go_to(g, c, detail::RoundStage::fill);
        return Step::fan_out(tasks);
      }
    }
    if (!detail::is_at(c, detail::RoundStage::commit)) status = detail::fill_round(g, engine, c);
    if (status != Status::ok) break;
    status = detail::commit_round(g, engine, c, ref);
  }
  return detail::end_write(g, engine, c, status);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void task_write(Group g, Engine& engine, CommandState& c, u32 task) {
  const detail::WriteState& state = detail::scratch_of<detail::WriteState>(c);
  const detail::TaskPages pages =
      on_leader(g, [&] { return detail::rows_of_task(engine, c, c.extent_count, state.round.page_count, task); });
  if (pages.from == pages.to) return;
  const Status status = detail::write_round(g, engine, c, state, pages.from, pages.to);
  if (status != Status::ok) return fail_task(g, c, status);
  detail::write_behind(g, engine, c, pages.from, pages.to);
}

}  // namespace gpu4fs::engine
