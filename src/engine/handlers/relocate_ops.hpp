// relocate: moves pages of files and of metadata to other places while the pool is in use. It is used to empty chunks,
// to give files another profile, and to defragment them (wire/relocate_format.hpp).
//
// A command moves one stretch of a file under the file's exclusive lock. It finds blocks of one kind and allocates new
// ones. It copies the content, verified and repaired if necessary, and enters the new blocks into the map. The old ones
// are freed as by an overwrite. A page that cannot be read from any copy stays in place: the stretch ends before it,
// and the next one begins after it. Content, size and times do not change. Holes stay holes and unwritten blocks stay
// unwritten.
//
// The operation log does not contain relocations. Records name pages of data by address, and a replay begins with the
// durable checkpoint:
//   - Pages that the checkpoint or a record names are `stable`. After a move they keep their content, and are not
//     allocated before a checkpoint without them is durable. So the pages that a replay reads exist, and after the
//     replay the file's map leads to the old places again.
//   - The new places were free, so neither the checkpoint nor a record names them. A later record would name one only
//     if a moved unwritten block were filled in place, and a replay would not find the block there. So a command that
//     moves unwritten blocks keeps the file locked until the checkpoint that contains them is durable. Chunks with
//     parities are exempt: there unwritten blocks are not filled but replaced.
//
// Metadata is not copied. If a page's frame is marked, the next checkpoint writes it elsewhere.
#pragma once

#include "engine/handlers/file_round.hpp"
#include "engine/handlers/relocate_metadata.hpp"
#include "wire/relocate_format.hpp"

namespace gpu4fs::engine {
namespace detail {

inline constexpr u32 relocate_lookups_max = 1024;  // of the map in one command
// Limit for one command, unless there is a block of 1 GiB. Other commands have to wait for the file during that time.
inline constexpr u64 relocate_pages_max = 16384;

struct RelocateState {
  Round round;  // the stretch that moves
  u64 next;     // where the next command continues if this one moves nothing
  u64 stayed;
  u64 epoch;  // to wait for after the commit, 0: none
  fs::MapKind kind;
  u32 old_pieces;
  u32 bad_page;  // atomic: a page of the stretch that could not be read; page_count: none
  u32 limit;     // in pages, 0: none. The page after them cannot be read
};

GPU4FS_FN constexpr bool stays_in_place(Status status) {
  return status == Status::checksum_mismatch || status == Status::corrupt_structure ||
         status == Status::device_failed || status == Status::medium_error;
}

// Leader: whether a run of blocks is to be moved. `wanted_class`: the class of new blocks of the file.
GPU4FS_FN inline bool is_to_move(const fs::FileSystem& fs, const fs::MapRun& run, u32 wanted_class, u32 mask) {
  GPU4FS_CHECK_LT(wanted_class, u32{format::profile_max});
  if (run.kind == fs::MapKind::hole) return false;
  if ((mask & wire::relocate_scattered) != 0) return true;
  raid::PageLocation location{};
  if (raid::find_page(fs.space, run.address, &location) != Status::ok) return false;
  const raid::ChunkState& chunk = fs.space.chunks[location.chunk];
  if ((mask & wire::relocate_frozen) != 0 && space::is_frozen(chunk)) return true;
  return (mask & wire::relocate_class) != 0 && chunk.page_class != wanted_class;
}

struct FoundRun {
  fs::MapRun run;
  bool moves;
  bool is_damaged;  // the run is a part of the map that cannot be read, or leads to free pages
};

// Finds the run at the beginning of the range. Status: control codes only.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status look_at_run(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                             fs::PageRange range, FoundRun* found) {
  GPU4FS_CHECK_GT(range.page_count(), 0u);
  fs::FileSystem& fs = engine.fs;
  *found = {};
  const Status status = fs::map_lookup(g, fs, c.operation, ref, range, &found->run);
  if (stays_in_place(status)) {
    const u64 span = fs::map_span(1);
    found->run = {fs::MapKind::hole, 0, 0, minimum(range.end, align_down(range.first, span) + span) - range.first};
    found->is_damaged = true;
    return Status::ok;
  }
  GPU4FS_TRY(status);
  const fs::MapRun run = found->run;
  const u32 answer = on_leader(g, [&] {
    if (!is_to_move(fs, run, space::effective_profile(fs, ref.inode->profile) - 1, c.command.mask)) return 0u;
    return fs::pages_in_use(fs, run.address, run.page_count) ? 1u : 2u;
  });
  found->moves = answer == 1;
  found->is_damaged = answer == 2;
  return Status::ok;
}

// Leader: limit of the pages of the stretch that begins with `run` at `page`. The stretch ends at block boundaries.
GPU4FS_FN GPU4FS_NOINLINE inline u64 stretch_limit(const Engine& engine, const CommandState& c,
                                                   const RelocateState& state, const fs::MapRun& run, u64 page,
                                                   u64 end) {
  GPU4FS_CHECK_LT(page, end);
  const bool is_giant =
      run.page_count >= pages_per_block_1g && page % pages_per_block_1g == 0 && is_aligned(run.address, block_size_1g);
  if (state.limit != 0) return minimum<u64>(state.limit, end - page);
  if ((c.command.mask & wire::relocate_scattered) != 0) {
    return minimum(end - page, pages_per_block_2m - page % pages_per_block_2m);
  }
  u64 limit = relocate_pages_max;
  if (c.command.length != 0) limit = minimum(limit, maximum(c.command.length, u64{pages_per_block_2m}));
  if (is_giant) limit = pages_per_block_1g;
  limit = minimum(limit, u64{round_pages(engine, page, end - page)});
  const u64 border = align_down(page + limit, u64{pages_per_block_2m});
  return minimum(border > page ? border - page : limit, end - page);
}

// Collects the old runs of the stretch that begins with `found`, at the beginning of the range.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status gather_runs(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                             fs::PageRange range, FoundRun found) {
  GPU4FS_CHECK(found.moves);
  GPU4FS_CHECK_LT(range.first, range.end);
  const u64 page = range.first;
  RelocateState& state = scratch_of<RelocateState>(c);
  const u64 limit = on_leader(g, [&] { return stretch_limit(engine, c, state, found.run, page, range.end); });
  const fs::MapKind kind = found.run.kind;
  u32 done = 0;
  u32 count = 0;
  for (;;) {
    const u32 pages = static_cast<u32>(minimum(found.run.page_count, limit - done));
    const u64 address = found.run.address;
    GPU4FS_TRY(on_leader(g, [&] {
      c.extents[round_runs_base + count] = {address, pages, done};
      return kind == fs::MapKind::data ? space::check_accessible(engine.fs, c.operation, address) : Status::ok;
    }));
    ++count;
    done += pages;
    if (done == limit || count == round_runs_max) break;
    GPU4FS_TRY(look_at_run(g, engine, c, ref, {page + done, page + limit}, &found));
    if (!found.moves || found.run.kind != kind) break;
  }
  on_leader(g, [&] {
    const bool is_block = done == pages_per_block_2m && page % pages_per_block_2m == 0;
    const bool is_aligned_there = is_aligned(c.extents[round_runs_base].address, block_size_2m);
    state.round = {page, done, count, raid::no_address, raid::no_address};
    state.kind = kind;
    state.old_pieces = count + (is_block && !is_aligned_there ? 1 : 0);
    state.next = page + done;
    state.bad_page = done;
  });
  return Status::ok;
}

// Finds the next stretch to move. state.round.page_count 0: there is none before state.next.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status find_stretch(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  RelocateState& state = scratch_of<RelocateState>(c);
  const bool has_map = !ref.inode->is_inline() && ref.inode->height <= fs::map_height_max;
  const u64 end = has_map ? fs::map_capacity(ref.inode->height) : 0;
  u64 page = c.command.offset;
  u64 stayed = 0;
  for (u32 i = 0; i < relocate_lookups_max && page < end; ++i) {
    FoundRun found{};
    GPU4FS_TRY(look_at_run(g, engine, c, ref, {page, end}, &found));
    if (found.moves) {
      GPU4FS_TRY(gather_runs(g, engine, c, ref, {page, end}, found));
      if (on_leader(g, [&] { return (c.command.mask & wire::relocate_scattered) == 0 || state.old_pieces > 1; })) {
        on_leader(g, [&] { state.stayed = stayed; });
        return Status::ok;
      }
      page = on_leader(g, [&] { return state.next; });
      continue;
    }
    if (found.is_damaged) stayed += found.run.kind == fs::MapKind::hole ? 1 : found.run.page_count;
    page += found.run.page_count;
  }
  on_leader(g, [&] {
    state.round.page_count = 0;
    state.next = page < end ? page : wire::relocate_end;
    state.stayed = stayed;
  });
  return Status::ok;
}

// Leader: the number of pieces that the new pages form.
GPU4FS_FN inline u32 count_new_pieces(const CommandState& c, const RelocateState& state) {
  GPU4FS_CHECK_GT(c.extent_count, 0u);
  const bool is_block =
      state.round.page_count == pages_per_block_2m && state.round.first_page % pages_per_block_2m == 0;
  return c.extent_count + (is_block && !is_aligned(c.extents[0].address, block_size_2m) ? 1 : 0);
}

// Finds the stretch to move and allocates its new places. With state.round.page_count 0 the command owns nothing.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status plan_relocation(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  RelocateState& state = scratch_of<RelocateState>(c);
  GPU4FS_TRY(find_stretch(g, engine, c, ref));
  const u64 first = state.round.first_page;
  const u32 wanted = on_leader(g, [&] { return state.round.page_count; });
  if (wanted == 0) return Status::ok;
  GPU4FS_TRY(reserve_map_change(g, engine, c, ref, {first, first + wanted}));
  // A small number of pages shares a stripe with others, in chunks with stripes.
  const bool whole_stripes = wanted * page_size > log_inline_bytes_max(engine.fs);
  const Allocated allocated = allocate_extents(g, engine, c, ref, {first, 0, wanted, whole_stripes, round_runs_base});
  const bool tidies = (c.command.mask & wire::relocate_scattered) != 0;
  // No data is lost if the blocks stay in place.
  const bool no_room = tidies && allocated.status == Status::no_space;
  if (!no_room) GPU4FS_TRY(allocated.status);
  const bool gives_up =
      no_room || on_leader(g, [&] {
        return tidies && (allocated.page_count < wanted || count_new_pieces(c, state) >= state.old_pieces);
      });
  if (gives_up) abandon_extents(g, engine, c);
  on_leader(g, [&] {
    state.round.page_count = gives_up ? 0 : allocated.page_count;
    state.bad_page = state.round.page_count;
    if (!gives_up) state.next = first + allocated.page_count;
  });
  return Status::ok;
}

// A separate function, because nvcc 13 cannot translate an atomic access to the command inside the loop.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void note_bad_page(Group g, u32* bad_page, u32 page) {
  on_leader(g, [&] { store<Order::relaxed, Scope::engine>(bad_page, page); });
}

// Copies pages [from, to) of the stretch, or the pages before one that cannot be read, and notes that page. A failed
// write to a new place does not mean that the old page is damaged. It is an error of the command.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status copy_old_pages(Group g, Engine& engine, CommandState& c, u32 from, u32 to) {
  GPU4FS_CHECK_LE(from, to);
  RelocateState& state = scratch_of<RelocateState>(c);
  for (u32 page = from; page < to; ++page) {
    struct Places {
      u64 source;
      u64 target;
    };
    const Places places = on_leader(g, [&] { return Places{old_page(c, state.round, page), new_page(c, page)}; });
    bool source_is_bad = false;
    const raid::PageMerge copy{places.target, places.source, {0, 0}, nullptr, raid::PageUse::data};
    const Status copied = raid::write_page_merged(g, engine.fs.space, copy, &source_is_bad);
    if (copied == Status::ok) continue;
    if (!source_is_bad || !stays_in_place(copied)) return copied;
    (void)with_owner(g, engine, c.command.inode, copied, places.source, 1);
    note_bad_page(g, &state.bad_page, page);
    return Status::ok;
  }
  return Status::ok;
}

// Handles a page that cannot be read. True: there are pages to move before it, and the command restarts with them. This
// repeats if they include another such page. False: the page stays, because it is the first one or because scattered
// pages are put together.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool give_way_to_damage(Group g, Engine& engine, CommandState& c) {
  GPU4FS_CHECK_EQ(c.in_gate, 0u);
  RelocateState& state = scratch_of<RelocateState>(c);
  abandon_extents(g, engine, c);
  return on_leader(g, [&] {
    const u64 stayed = state.stayed;
    const u64 first = state.round.first_page;
    const u32 bad = state.bad_page;
    state = {};
    if (bad != 0 && (c.command.mask & wire::relocate_scattered) == 0) {
      state.limit = bad;
      return true;
    }
    state.next = first + bad + 1;
    state.stayed = stayed + 1;
    return false;
  });
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status commit_relocation(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  GPU4FS_CHECK(holds_lock(c, ref.number, LockMode::exclusive));
  GPU4FS_CHECK_EQ(c.in_gate, 0u);
  RelocateState& state = scratch_of<RelocateState>(c);
  fs::FileSystem& fs = engine.fs;
  const u64 first = state.round.first_page;
  GPU4FS_TRY(reserve_map_change(g, engine, c, ref, state.round.pages()));
  GPU4FS_TRY(enter_gate(g, engine, c));
  const bool is_refilled = on_leader(g, [&] {
    return state.kind == fs::MapKind::unwritten && fs::log_is_on(fs) && !fs::is_written_once(fs, c.extents[0].address);
  });
  commit_extents(g, engine, c, ref, {first, state.kind, false});
  on_leader(g, [&] {
    state.epoch = is_refilled ? load<Order::relaxed, Scope::engine>(&fs.epoch_open) : 0;
    // No other command may access the file before the checkpoint is durable, however long that takes.
    if (is_refilled) store<Order::relaxed, Scope::engine>(&c.deadline_ns, u64{0});
    c.stage = static_cast<u32>(RoundStage::committed);
  });
  return Status::ok;
}

// Plans the round, and copies its pages if they are few. Unwritten pages have no content.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status begin_relocation(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                  u32* tasks) {
  const RelocateState& state = scratch_of<RelocateState>(c);
  GPU4FS_TRY(plan_relocation(g, engine, c, ref));
  const u32 page_count = on_leader(g, [&] { return state.kind == fs::MapKind::data ? state.round.page_count : 0u; });
  if (page_count <= engine.config.inline_transfer_pages) return copy_old_pages(g, engine, c, 0, page_count);
  *tasks = page_task_count(engine, page_count);
  return Status::ok;
}

// Runs the relocation up to the commit. *tasks != 0: fan out, then call again.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status advance_relocation(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                    u32* tasks) {
  const RelocateState& state = scratch_of<RelocateState>(c);
  GPU4FS_TRY(
      prepare_round(g, engine, c, tasks, [&](u32* wanted) { return begin_relocation(g, engine, c, ref, wanted); }));
  if (*tasks != 0 || on_leader(g, [&] { return state.round.page_count == 0; })) return Status::ok;
  if (on_leader(g, [&] { return state.bad_page < state.round.page_count; })) {
    return give_way_to_damage(g, engine, c) ? Status::again : Status::ok;
  }
  return commit_relocation(g, engine, c, ref);
}

template <class Group>
GPU4FS_FN Step end_relocation(Group g, CommandState& c, u8* output) {
  const RelocateState& state = scratch_of<RelocateState>(c);
  on_leader(g, [&] {
    *reinterpret_cast<wire::RelocateReport*>(output) = {state.next, state.round.page_count, state.stayed};
  });
  return Step::complete();
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step relocate_data(Group g, Engine& engine, CommandState& c) {
  RelocateState& state = scratch_of<RelocateState>(c);
  u8* output = nullptr;
  Status status = resolve(g, engine, c, c.command.data, sizeof(wire::RelocateReport), &output);
  if (status == Status::ok && !is_aligned(output, 8)) status = Status::unaligned;
  const auto waits = [&] { return on_leader(g, [&] { return is_at(c, RoundStage::committed); }); };
  if (status == Status::ok && !waits()) {
    fs::InodeRef ref{};
    u32 tasks = 0;
    status = lock_any(g, engine, c, c.command.inode, LockMode::exclusive, &ref);
    if (status == Status::ok && !fs::is_regular(ref.inode->mode)) {
      on_leader(g, [&] { state.next = wire::relocate_end; });
      return end_relocation(g, c, output);
    }
    if (status == Status::ok) status = advance_relocation(g, engine, c, ref, &tasks);
    if (tasks != 0) return Step::fan_out(tasks);
  }
  if (status == Status::ok && waits()) {
    const u64 epoch = on_leader(g, [&] { return state.epoch; });
    if (epoch != 0) status = await_epoch(g, engine, c, epoch);
  }
  if (status != Status::ok) return leave_with(g, engine, c, status);
  return end_relocation(g, c, output);
}

}  // namespace detail

// Internal. mode: wire::RelocateStep, which describes the other fields. Status: stale (no such inode), no_space,
// read_only, out_of_range, invalid_argument.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_relocate(Group g, Engine& engine, CommandState& c) {
  const auto step = static_cast<wire::RelocateStep>(c.command.mode);
  if ((c.command.mask & ~u32{wire::relocate_known}) != 0) return Step::end(Status::invalid_argument);
  const bool changes = step != wire::RelocateStep::usage && step != wire::RelocateStep::next_inode;
  if (changes && engine.fs.read_only != 0) return Step::end(Status::read_only);
  switch (step) {
    case wire::RelocateStep::data:
      return detail::relocate_data(g, engine, c);
    case wire::RelocateStep::metadata:
      return detail::relocate_metadata(g, engine, c);
    case wire::RelocateStep::next_inode:
      return detail::find_next_inode(g, engine, c);
    case wire::RelocateStep::freeze:
    case wire::RelocateStep::unfreeze:
      return detail::freeze_while_stopped(g, engine, c);
    case wire::RelocateStep::usage:
      return detail::list_chunk_usage(g, engine, c);
  }
  return Step::end(Status::invalid_argument);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void task_relocate(Group g, Engine& engine, CommandState& c, u32 task) {
  const detail::RelocateState& state = detail::scratch_of<detail::RelocateState>(c);
  const detail::TaskPages pages = detail::pages_of_task(engine, state.round.page_count, task);
  const Status status = detail::copy_old_pages(g, engine, c, pages.from, pages.to);
  if (status != Status::ok) fail_task(g, c, status);
}

}  // namespace gpu4fs::engine
