// read and seek.
//
// read holds the inode's lock shared. Each round looks up at most command_extent_capacity runs. Their pages are read
// directly from the medium into the caller's memory and verified. Holes and unwritten pages are filled with zeros. The
// runs are in c.extents (address no_address: zeros) but belong to the file, so c.extent_count stays 0.
#pragma once

#include "engine/device_poll.hpp"
#include "engine/handlers/access_time.hpp"
#include "engine/handlers/file_common.hpp"
#include "engine/read_ahead.hpp"
#include "raid/stage_pages.hpp"

namespace gpu4fs::engine {
namespace detail {

enum class ReadStage : u32 { start = 0, collect = 1, transfer = 2, access_time = 3 };

struct ReadState {
  u64 begin;  // bytes in the file: the range that the command reads,
  u64 end;
  u64 position;  // and the beginning of the round
  u64 round_end;
  u8* data;  // destination of byte `begin`
  u32 run_count;
  u32 is_staged;  // 1: the pages of the round have been loaded, or the loads have failed
};

// Pages of staged devices that a round transfers, and that are loaded together before it.
inline constexpr u32 staged_round_pages = 512;

// Looks up the runs of the next round.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status collect_runs(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  ReadState& state = scratch_of<ReadState>(c);
  GPU4FS_CHECK_LT(state.position, state.end);
  const u64 first = state.position / page_size;
  const u64 page_end = divide_up(state.end, page_size);
  const bool is_staged = raid::stages_pages(engine.fs.space);
  const u32 limit = is_staged ? 2 * staged_round_pages : round_pages_max;
  const u32 wanted = static_cast<u32>(minimum<u64>(page_end - first, limit));
  u32 done = 0;
  u32 count = 0;
  while (done < wanted && count < command_extent_capacity) {
    fs::MapRun run{};
    GPU4FS_TRY(fs::map_lookup(g, engine.fs, c.operation, ref, {first + done, first + wanted}, &run));
    GPU4FS_TRACE_POINT(map);
    const Status status = on_leader(g, [&] {
      u64 address = raid::no_address;
      if (run.kind == fs::MapKind::data) {
        address = run.address;
        GPU4FS_TRY(space::check_accessible(engine.fs, c.operation, address));
      }
      c.extents[count] = {address, static_cast<u32>(run.page_count), done};
      return Status::ok;
    });
    GPU4FS_TRY(status);
    GPU4FS_TRACE_POINT(translate);
    ++count;
    done += static_cast<u32>(run.page_count);
  }
  GPU4FS_CHECK_GT(done, 0u);
  on_leader(g, [&] {
    state.run_count = count;
    const u64 pages = is_staged ? minimum(done, staged_round_pages) : done;
    state.round_end = minimum(state.end, (first + pages) * page_size);
  });
  return Status::ok;
}

// Begins to load the pages of the round, and those of the next one and of the reads that may follow the command, for
// which nobody waits. Pages that others load are waited for as well. Status: as await_io(); then the pages of the round
// have been loaded, or their loads have failed, unless state.is_staged says that some have to be looked for again.
// again: likewise, and nobody tells when.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status load_round(Group g, Engine& engine, CommandState& c, ReadState& state) {
  if (!raid::stages_pages(engine.fs.space) || on_leader(g, [&] { return state.is_staged != 0; })) return Status::ok;
  const fs::RoundExtent& last = c.extents[state.run_count - 1];
  const u32 count = last.first_page() + last.page_count;
  const u32 of_round = static_cast<u32>(divide_up(state.round_end, page_size) - state.position / page_size);
  bool has_begun = false;
  bool is_untold = false;
  const auto begin_load = [&](u32 page) {
    u64 address = raid::no_address;
    if (page < count) {
      const u32 index = find_extent(c, state.run_count, page);
      if (c.extents[index].address != raid::no_address) address = extent_page(c, index, page);
      const bool has_tier = engine.fs.space.tier != nullptr;
      if (has_tier && address != raid::no_address && raid::has_copy(engine.fs.space, address)) {
        address = raid::no_address;
      }
    }
    const bool is_awaited = page < of_round;
    const device::PageLoad begun =
        raid::begin_page_loads(g, engine.fs.space, address, is_awaited ? c.index : device::no_io_owner);
    has_begun |= begun == device::PageLoad::begun;
    is_untold |= begun == device::PageLoad::untold;
    return is_awaited && (begun == device::PageLoad::begun || begun == device::PageLoad::joined);
  };
  bool looks_again = false;
  const Status status = wait_for_loads(g, engine, c, count, begin_load, [&] {
    // Also if the command waits for none of them.
    if (g.any(has_begun)) on_leader(g, [&] { raid::ring_staged(engine.fs.space); });
    looks_again = g.any(is_untold);
    if (looks_again) {
      (void)on_leader(g, [&] { return await_next_report(engine, c); });
      return;
    }
    on_leader(g, [&] { state.is_staged = 1; });
    const bool is_last = on_leader(g, [&] { return state.round_end == state.end; });
    const bool is_followed = GPU4FS_MUTANT(command_not_followed, is_last, false);
    if (is_followed) follow_read(g, engine, {c.command.inode, state.begin, state.end});
  });
  return status == Status::ok && looks_again ? Status::again : status;
}

// Reads pages [from, to) of the round.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status read_round(Group g, Engine& engine, const CommandState& c, const ReadState& state,
                                            u32 from, u32 to) {
  const u64 first = state.position / page_size;
  GPU4FS_CHECK_LT(from, to);
  GPU4FS_CHECK_LE(state.round_end, state.end);
  u32 index = find_extent(c, state.run_count, from);
  for (u32 page = from; page < to;) {
    while (page - c.extents[index].first_page() >= c.extents[index].page_count) ++index;
    const fs::RoundExtent& extent = c.extents[index];
    const u32 run_end = minimum(to, extent.first_page() + extent.page_count);
    const u64 page_begin = (first + page) * page_size;
    const u64 low = maximum(page_begin, state.position);
    const u64 run_high = minimum((first + run_end) * page_size, state.round_end);
    GPU4FS_CHECK_LT(low, run_high);
    u8* destination = state.data + (low - state.begin);
    if (extent.address == raid::no_address) {
      fill_bytes(g, destination, 0, run_high - low);
      page = run_end;
      continue;
    }
    const u64 address = extent_page(c, index, page);
    const u32 whole = low == page_begin ? static_cast<u32>((run_high - low) / page_size) : 0;
    if (whole != 0) {
      const Status read = raid::read_pages(g, engine.fs.space, address, whole, destination, raid::PageUse::data);
      GPU4FS_TRY(with_owner(g, engine, c.command.inode, read, address, whole));
      page += whole;
      continue;
    }
    const u64 high = minimum(page_begin + page_size, run_high);
    const ByteRange range{static_cast<u32>(low - page_begin), static_cast<u32>(high - page_begin)};
    const Status read = raid::read_page_range(g, engine.fs.space, address, range, destination, raid::PageUse::data);
    GPU4FS_TRY(with_owner(g, engine, c.command.inode, read, address, 1));
    ++page;
  }
  g.sync();
  return Status::ok;
}

GPU4FS_FN inline u32 round_page_count(u64 position, u64 round_end) {
  return static_cast<u32>(divide_up(round_end, page_size) - position / page_size);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step finish_read(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                           u64 result) {
  go_to_stage(g, c, static_cast<u32>(ReadStage::access_time));
  GPU4FS_STEP_TRY(update_access_time(g, engine, c, ref));
  return Step::complete(result);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status start_read(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  u8* data = nullptr;
  GPU4FS_TRY(resolve(g, engine, c, c.command.data, c.command.length, &data));
  const u64 size = ref.inode->size_bytes;
  const u64 begin = minimum(c.command.offset, size);
  const u64 end = begin + minimum(c.command.length, size - begin);
  on_leader(g, [&] {
    scratch_of<ReadState>(c) = {begin, end, begin, begin, data, 0, 0};
    c.stage = static_cast<u32>(ReadStage::collect);
  });
  return Status::ok;
}

}  // namespace detail

// Result: bytes read, fewer than requested only at the end of the file.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_read(Group g, Engine& engine, CommandState& c) {
  using detail::ReadStage;
  detail::ReadState& state = detail::scratch_of<detail::ReadState>(c);
  fs::InodeRef ref{};
  GPU4FS_STEP_TRY(detail::lock_file(g, engine, c, c.command.inode, {LockMode::shared, fs::may_read}, &ref));
  if (c.stage == static_cast<u32>(ReadStage::start)) GPU4FS_STEP_TRY(detail::start_read(g, engine, c, ref));
  GPU4FS_TRACE_POINT(checks);
  if (ref.inode->is_inline() && c.stage == static_cast<u32>(ReadStage::collect)) {
    GPU4FS_CHECK_LE(state.end, u64{format::inode_inline_capacity});
    copy_bytes(g, state.data, ref.inode->inline_data() + state.begin, state.end - state.begin);
    g.sync();
    return detail::finish_read(g, engine, c, ref, state.end - state.begin);
  }
  if (c.stage == static_cast<u32>(ReadStage::transfer)) {
    const Status moved = task_result(g, c);
    on_leader(g, [&] {
      if (moved == Status::ok) state.position = state.round_end;
      state.is_staged = 0;
      c.stage = static_cast<u32>(ReadStage::collect);
    });
    GPU4FS_STEP_TRY(moved);
  }
  while (c.stage == static_cast<u32>(ReadStage::collect) && state.position < state.end) {
    GPU4FS_STEP_TRY(detail::collect_runs(g, engine, c, ref));
    GPU4FS_STEP_TRY(detail::load_round(g, engine, c, state));
    const u32 page_count = detail::round_page_count(state.position, state.round_end);
    if (page_count > engine.config.inline_transfer_pages) {
      detail::go_to_stage(g, c, static_cast<u32>(ReadStage::transfer));
      return Step::fan_out(detail::page_task_count(engine, page_count));
    }
    GPU4FS_STEP_TRY(detail::read_round(g, engine, c, state, 0, page_count));
    GPU4FS_TRACE_POINT(transfer);
    on_leader(g, [&] {
      state.position = state.round_end;
      state.is_staged = 0;
    });
  }
  return detail::finish_read(g, engine, c, ref, state.end - state.begin);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void task_read(Group g, Engine& engine, CommandState& c, u32 task) {
  const detail::ReadState& state = detail::scratch_of<detail::ReadState>(c);
  const u32 page_count = detail::round_page_count(state.position, state.round_end);
  const detail::TaskPages pages =
      on_leader(g, [&] { return detail::rows_of_task(engine, c, state.run_count, page_count, task); });
  if (pages.from == pages.to) return;
  const Status status = detail::read_round(g, engine, c, state, pages.from, pages.to);
  if (status != Status::ok) fail_task(g, c, status);
}

namespace detail {

inline constexpr u32 seek_data = 3;  // SEEK_DATA and SEEK_HOLE in Linux
inline constexpr u32 seek_hole = 4;
inline constexpr u32 seek_lookups_per_step = 1024;

struct SeekState {
  u64 page;
  u32 started;
  u32 reserved;
};

}  // namespace detail

// Result: the offset found. Status: no_such_data for an offset beyond the end, and for a search for data after the last
// data.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_seek(Group g, Engine& engine, CommandState& c) {
  detail::SeekState& state = detail::scratch_of<detail::SeekState>(c);
  fs::InodeRef ref{};
  if (c.command.mode != detail::seek_data && c.command.mode != detail::seek_hole) {
    return Step::end(Status::invalid_argument);
  }
  GPU4FS_STEP_TRY(detail::lock_file(g, engine, c, c.command.inode, {LockMode::shared, 0}, &ref));
  const bool wants_data = c.command.mode == detail::seek_data;
  const u64 size = ref.inode->size_bytes;
  const u64 offset = c.command.offset;
  if (offset >= size) return Step::end(Status::no_such_data);
  if (ref.inode->is_inline()) return Step::complete(wants_data ? offset : size);
  if (c.stage == 0) {
    on_leader(g, [&] {
      state = {offset / page_size, 1, 0};
      c.stage = 1;
    });
  }
  fs::MapSeek seek{{state.page, divide_up(size, page_size)}, wants_data, false};
  GPU4FS_STEP_TRY(fs::map_seek(g, engine.fs, c.operation, ref, detail::seek_lookups_per_step, &seek));
  const u64 page = seek.range.first;
  if (seek.found) return Step::complete(minimum(size, maximum(offset, page * page_size)));
  if (page >= seek.range.end) {
    return wants_data ? Step::end(Status::no_such_data) : Step::complete(size);
  }
  on_leader(g, [&] { state.page = page; });
  return Step::again();
}

}  // namespace gpu4fs::engine
