// copy_range: copies bytes from one file to another (or within one) through the engine.
//
// A command copies one round: the result may be short, as copy_file_range(2) allows. If source and destination have the
// same offset in their pages, tasks copy whole pages from medium to medium and verify them. Other pages are copied
// through c.buffer in the step. Inodes are locked in the order of their numbers, the source shared and the destination
// exclusive.
#pragma once

#include "engine/handlers/file_round.hpp"

namespace gpu4fs::engine {
namespace detail {

inline constexpr u32 copy_shifted_pages_max = 256;

// The round's pages are the destination's. Its old runs are the source's, and may begin at another offset.
struct CopyState {
  Round round;
  u64 source;  // bytes in the files
  u64 destination;
  u64 length;
  u64 source_first_page;  // page 0 of the runs
};

struct CopyFiles {
  fs::InodeRef source;
  fs::InodeRef destination;
};

GPU4FS_FN constexpr bool copies_whole_pages(const CopyState& state) {
  return state.source % page_size == state.destination % page_size;
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status lock_copy(Group g, Engine& engine, CommandState& c, CopyFiles* files) {
  const u64 from = c.command.inode;
  const u64 to = c.command.second_inode;
  if (from < to) {
    GPU4FS_TRY(lock_file(g, engine, c, from, {LockMode::shared, fs::may_read}, &files->source));
  }
  GPU4FS_TRY(lock_file(g, engine, c, to, {LockMode::exclusive, fs::may_write}, &files->destination));
  GPU4FS_TRY(check_changeable(c, files->destination));
  if (from > to) {
    GPU4FS_TRY(lock_file(g, engine, c, from, {LockMode::shared, fs::may_read}, &files->source));
  }
  if (from == to) {
    files->source = files->destination;
    GPU4FS_TRY(require_access(g, engine, c, files->source, fs::may_read));
  }
  return Status::ok;
}

// The length that one round can copy. *length 0: the end of the source is reached.
GPU4FS_FN inline Status find_copy_length(const Engine& engine, const CommandState& c, const CopyFiles& files,
                                         u64* length) {
  const u64 source = c.command.offset;
  const u64 destination = c.command.aux;
  *length = 0;
  if (destination >= fs::file_size_max) return Status::file_too_large;
  const u64 size = files.source.inode->size_bytes;
  if (source >= size) return Status::ok;
  u64 wanted = minimum(c.command.length, size - source);
  wanted = minimum(wanted, fs::file_size_max - destination);
  if (files.source.number == files.destination.number && wanted != 0) {
    const u64 distance = source < destination ? destination - source : source - destination;
    if (distance < wanted) return Status::invalid_argument;
  }
  const bool whole = source % page_size == destination % page_size;
  const u64 pages = whole ? round_page_limit(engine) : copy_shifted_pages_max;
  *length = minimum(wanted, pages * page_size - destination % page_size);
  return Status::ok;
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status find_source_runs(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                  u64 length) {
  GPU4FS_CHECK_GT(length, 0u);
  CopyState& state = scratch_of<CopyState>(c);
  const u64 first = c.command.offset / page_size;
  const u32 wanted = static_cast<u32>(divide_up(c.command.offset + length, page_size) - first);
  u32 done = 0;
  u32 count = 0;
  while (done < wanted && count < round_runs_max) {
    fs::MapRun run{};
    GPU4FS_TRY(fs::map_lookup(g, engine.fs, c.operation, ref, {first + done, first + wanted}, &run));
    const u64 address = run.kind == fs::MapKind::data ? run.address : u64{raid::no_address};
    const u32 pages = static_cast<u32>(run.page_count);
    const Status status = on_leader(g, [&] {
      c.extents[round_runs_base + count] = {address, pages, done};
      return address == raid::no_address ? Status::ok : space::check_accessible(engine.fs, c.operation, address);
    });
    GPU4FS_TRY(status);
    ++count;
    done += pages;
  }
  const u64 reached = minimum(length, (first + done) * page_size - c.command.offset);
  on_leader(g, [&] {
    state.source = c.command.offset;
    state.destination = c.command.aux;
    state.source_first_page = first;
    state.round.run_count = count;
    state.length = reached;
  });
  return Status::ok;
}

// Allocates the destination's pages and finds the old content of partial ones. Shortens the round to the allocated
// pages.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status find_copy_target(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  CopyState& state = scratch_of<CopyState>(c);
  const u64 first = state.destination / page_size;
  const u32 wanted = static_cast<u32>(divide_up(state.destination + state.length, page_size) - first);
  GPU4FS_TRY(reserve_map_change(g, engine, c, ref, {first, first + wanted}));
  const Allocated allocated = allocate_extents(g, engine, c, ref, {first, 0, wanted, true, round_runs_base});
  GPU4FS_TRY(allocated.status);
  u64 old_first = raid::no_address;
  u64 old_last = raid::no_address;
  GPU4FS_TRY(data_page_of(g, engine, c, ref, first, &old_first));
  if (allocated.page_count > 1) {
    GPU4FS_TRY(data_page_of(g, engine, c, ref, first + allocated.page_count - 1, &old_last));
  }
  on_leader(g, [&] {
    state.round = {first, allocated.page_count, state.round.run_count, old_first, old_last};
    state.length = minimum(state.length, (first + allocated.page_count) * page_size - state.destination);
  });
  return Status::ok;
}

// Copies source bytes [from, from + length) to the command's buffer: at most a page, from any offset.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status gather_source(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                               u64 from, u32 length) {
  const CopyState& state = scratch_of<CopyState>(c);
  u8* const buffer = c.buffer;
  GPU4FS_CHECK_LE(length, page_size);
  if (ref.inode->is_inline()) {
    GPU4FS_CHECK_LE(from + length, u64{format::inode_inline_capacity});
    copy_bytes(g, buffer, ref.inode->inline_data() + from, length);
    g.sync();
    return Status::ok;
  }
  u32 done = 0;
  while (done < length) {
    const u64 at = from + done;
    const u32 inside = static_cast<u32>(at % page_size);
    const u32 here = minimum(length - done, static_cast<u32>(page_size) - inside);
    const u64 address = old_page(c, state.round, static_cast<u32>(at / page_size - state.source_first_page));
    if (address == raid::no_address) {
      fill_bytes(g, buffer + done, 0, here);
    } else {
      const Status read = raid::read_page_range(g, engine.fs.space, address, {inside, inside + here}, buffer + done,
                                                raid::PageUse::data);
      GPU4FS_TRY(with_owner(g, engine, c.command.inode, read, address, 1));
    }
    done += here;
  }
  g.sync();
  return Status::ok;
}

// Whether destination page `page` of the round is a copy of one whole source page.
GPU4FS_FN constexpr bool is_whole_copy(const CopyState& state, u32 page) {
  const u64 begin = (state.destination / page_size + page) * page_size;
  return copies_whole_pages(state) && begin >= state.destination &&
         begin + page_size <= state.destination + state.length;
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status copy_whole_page(Group g, Engine& engine, const CommandState& c, const CopyState& state,
                                                 u32 page) {
  GPU4FS_CHECK_LT(page, state.round.page_count);
  const u64 target = new_page(c, page);
  const u64 address = old_page(c, state.round, page);
  const Status status =
      raid::write_page_merged(g, engine.fs.space, {target, address, {0, 0}, nullptr, raid::PageUse::data});
  return with_owner(g, engine, c.command.inode, status, address, 1);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status copy_part(Group g, Engine& engine, CommandState& c, const CopyState& state,
                                           const fs::InodeRef& ref, u32 page) {
  GPU4FS_CHECK_LT(page, state.round.page_count);
  const u64 page_begin = (state.destination / page_size + page) * page_size;
  const u64 low = maximum(page_begin, state.destination);
  const u64 high = minimum(page_begin + page_size, state.destination + state.length);
  const u64 from = state.source + (low - state.destination);
  GPU4FS_CHECK_LT(low, high);
  const u32 length = static_cast<u32>(high - low);
  GPU4FS_TRY(gather_source(g, engine, c, ref, from, length));
  const u64 target = new_page(c, page);
  const u64 old = state.round.old_address(page);
  const ByteRange range{static_cast<u32>(low - page_begin), static_cast<u32>(high - page_begin)};
  const Status status =
      raid::write_page_merged(g, engine.fs.space, {target, old, range, c.buffer, raid::PageUse::data});
  return with_owner(g, engine, c.command.second_inode, status, old, 1);
}

// Copies in the step the pages that are no whole copies, or all pages if they are few. *tasks: the tasks for the rest.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status copy_in_step(Group g, Engine& engine, CommandState& c, const fs::InodeRef& source,
                                              u32* tasks) {
  const CopyState& state = scratch_of<CopyState>(c);
  const bool few = state.round.page_count <= engine.config.inline_transfer_pages;
  const bool inline_source = source.inode->is_inline();
  *tasks = 0;
  for (u32 page = 0; page < state.round.page_count; ++page) {
    const bool whole = !inline_source && is_whole_copy(state, page);
    if (!whole) {
      GPU4FS_TRY(copy_part(g, engine, c, state, source, page));
    } else if (few) {
      GPU4FS_TRY(copy_whole_page(g, engine, c, state, page));
    } else {
      *tasks = page_task_count(engine, state.round.page_count);
      // The pages between the first and the last one are whole too.
      if (page + 1 < state.round.page_count) page = maximum(page, state.round.page_count - 2);
    }
  }
  return Status::ok;
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status commit_copy(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  GPU4FS_CHECK(holds_lock(c, ref.number, LockMode::exclusive));
  GPU4FS_CHECK_EQ(c.in_gate, 0u);
  const CopyState& state = scratch_of<CopyState>(c);
  fs::FileSystem& fs = engine.fs;
  const u64 first = state.round.first_page;
  GPU4FS_TRY(reserve_map_change(g, engine, c, ref, state.round.pages()));
  GPU4FS_TRY(reserve_record(g, engine, c, 0, c.extent_count));
  GPU4FS_TRY(enter_gate(g, engine, c));
  format::LogRecord record = file_record_of(c, format::LogOpcode::write_extents, ref.number);
  record.offset = state.destination;
  record.size = state.length;
  append_extent_record(g, engine, c, record);
  commit_extents(g, engine, c, ref, {first, fs::MapKind::data, true});
  on_leader(g, [&] {
    const u64 end = state.destination + state.length;
    if (ref.inode->size_bytes < end) ref.inode->size_bytes = end;
    stamp_change(c, *ref.inode);
  });
  fs::mark_inode_dirty(g, fs, c.operation, ref);
  return Status::ok;
}

// Runs the copy up to its commit. *tasks != 0: fan out, then call again.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status advance_copy(Group g, Engine& engine, CommandState& c, const CopyFiles& files,
                                              u64 length, u32* tasks) {
  *tasks = 0;
  if (is_at(c, RoundStage::plan)) {
    GPU4FS_TRY(drop_capability(g, engine, c, files.destination));
    if (files.destination.inode->is_inline()) GPU4FS_TRY(spill_inline(g, engine, c, files.destination));
  }
  GPU4FS_TRY(prepare_round(g, engine, c, tasks, [&](u32* wanted) {
    GPU4FS_TRY(find_source_runs(g, engine, c, files.source, length));
    GPU4FS_TRY(find_copy_target(g, engine, c, files.destination));
    return copy_in_step(g, engine, c, files.source, wanted);
  }));
  return *tasks != 0 ? Status::ok : commit_copy(g, engine, c, files.destination);
}

}  // namespace detail

// Copies from inode/offset to second_inode/aux. Result: bytes copied, 0 at the end of the source.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_copy_range(Group g, Engine& engine, CommandState& c) {
  if (engine.fs.read_only != 0) return Step::end(Status::read_only);
  if (c.command.mode != 0) return Step::end(Status::invalid_argument);
  detail::CopyFiles files{};
  u64 length = 0;
  Status status = detail::lock_copy(g, engine, c, &files);
  if (status == Status::ok && detail::is_at(c, detail::RoundStage::plan)) {
    status = detail::find_copy_length(engine, c, files, &length);
    if (status == Status::ok && length == 0) return Step::complete(0);
  }
  u32 tasks = 0;
  if (status == Status::ok) status = detail::advance_copy(g, engine, c, files, length, &tasks);
  if (status != Status::ok) return detail::leave_with(g, engine, c, status);
  if (tasks != 0) return Step::fan_out(tasks);
  return Step::complete(detail::scratch_of<detail::CopyState>(c).length);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void task_copy_range(Group g, Engine& engine, CommandState& c, u32 task) {
  const detail::CopyState& state = detail::scratch_of<detail::CopyState>(c);
  const detail::TaskPages pages = detail::pages_of_task(engine, state.round.page_count, task);
  for (u32 page = pages.from; page < pages.to; ++page) {
    if (!detail::is_whole_copy(state, page)) continue;
    const Status status = detail::copy_whole_page(g, engine, c, state, page);
    if (status != Status::ok) return fail_task(g, c, status);
  }
}

}  // namespace gpu4fs::engine
