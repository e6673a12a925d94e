// check: the phases of a check of the pool (wire/check_format.hpp), as tasks for all workers.
#pragma once

#include "engine/handlers/check_names.hpp"
#include "raid/verify_pages.hpp"
#include "space/chunk_load.hpp"

namespace gpu4fs::engine {
namespace detail {

using wire::CheckPhase;

inline constexpr u64 check_task_pages = raid::verify_page_max;  // of phase verify
inline constexpr u64 check_leak_words = 64;                     // of phase leaks, in a task
inline constexpr u64 check_table_inodes = 1024;

GPU4FS_FN inline wire::CheckCounts& check_counts(CommandState& c) {
  static_assert(sizeof(wire::CheckCounts) <= command_scratch_size);
  return *reinterpret_cast<wire::CheckCounts*>(c.scratch);
}

GPU4FS_FN constexpr bool takes_inode_pages(CheckPhase phase) {
  return phase == CheckPhase::walk || phase == CheckPhase::owners || phase == CheckPhase::names;
}
GPU4FS_FN constexpr bool takes_chunk(CheckPhase phase) {
  return phase == CheckPhase::load || phase == CheckPhase::verify || phase == CheckPhase::leaks;
}

// The size of the phase's output: counts and records, or words.
GPU4FS_FN inline u64 check_output_bytes(const wire::Command& command, CheckPhase phase) {
  if (phase == CheckPhase::leaks) return divide_up(command.aux, u64{64}) * sizeof(u64);
  if (phase == CheckPhase::table) return command.aux * sizeof(wire::CheckInode);
  return command.length;
}

GPU4FS_FN inline Status check_arguments(const Engine& engine, const wire::Command& command) {
  if (command.mode >= static_cast<u32>(CheckPhase::count)) return Status::invalid_argument;
  const auto phase = static_cast<CheckPhase>(command.mode);
  if (engine.check.inodes == nullptr || engine.fs.read_only == 0) return Status::not_supported;
  if (command.aux == 0 || command.aux > u64{1} << 40) return Status::invalid_argument;
  if (takes_chunk(phase) && command.inode >= raid::chunk_count_of(engine.fs.space)) return Status::out_of_range;
  if (phase == CheckPhase::verify || phase == CheckPhase::leaks) {
    const u64 page_count = engine.fs.space.chunks[command.inode].page_count;
    if (command.offset % 64 != 0 || command.offset >= page_count || command.aux > page_count - command.offset) {
      return Status::out_of_range;
    }
  }
  if (phase == CheckPhase::table &&
      (command.offset >= engine.check.inode_count || command.aux > engine.check.inode_count - command.offset)) {
    return Status::out_of_range;
  }
  if (takes_inode_pages(phase) && command.aux % sizeof(wire::CheckInodePage) != 0) return Status::invalid_argument;
  const bool counts = takes_inode_pages(phase) || phase == CheckPhase::verify;
  return counts && command.length < sizeof(wire::CheckCounts) ? Status::invalid_argument : Status::ok;
}

GPU4FS_FN inline u64 check_task_count(const wire::Command& command) {
  GPU4FS_CHECK_GT(command.aux, 0u);
  switch (static_cast<CheckPhase>(command.mode)) {
    case CheckPhase::verify:
      return divide_up(command.aux, check_task_pages);
    case CheckPhase::leaks:
      return divide_up(command.aux, check_leak_words * 64);
    case CheckPhase::table:
      return divide_up(command.aux, check_table_inodes);
    default:
      return command.aux / sizeof(wire::CheckInodePage);
  }
}

// Collective. Regions without an allocated page are marked as unreachable, unless `all` is set. Reads there are
// refused, like reads of an unreachable chunk.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void mark_reached_regions(Group g, raid::ChunkState& chunk, bool all) {
  using namespace fs::detail;
  const u32 region_count = space::region_count_of(chunk);
  u32 marked = 0;
  for (u32 w = g.rank(); w < divide_up(region_count, 64u); w += g.size()) {
    u64 bits = 0;
    for (u32 region = w * 64; !all && region < minimum(w * 64 + 64, region_count); ++region) {
      const u64 first = u64{region} * space::region_words;
      u64 allocated = 0;
      for (u64 i = first; i < minimum(first + space::region_words, space::bitmap_words(chunk)); ++i)
        allocated |= chunk.bitmaps.committed[i];
      if (allocated == 0) bits |= u64{1} << (region % 64);
    }
    chunk.unbacked[w] = bits;
    marked += popcount(bits);
  }
  marked = g.reduce(marked, [](u32 a, u32 b) { return a + b; });
  on_leader(g, [&] { chunk.unbacked_pages = marked * space::region_pages; });
}

// Loads the bitmaps of a check into the chunk. With check_mask_reach the chunk's pages also become reachable and its
// descriptors are loaded. An unreachable chunk occupies none of its memory. A read through a pointer into it ends with
// chunk_not_mapped.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step load_checked_chunk(Group g, Engine& engine, CommandState& c) {
  GPU4FS_CHECK_LT(c.command.inode, raid::chunk_count_of(engine.fs.space));
  const u32 index = static_cast<u32>(c.command.inode);
  raid::ChunkState& chunk = engine.fs.space.chunks[index];
  const u64 words = divide_up(chunk.page_count, u64{64});
  u8* input = nullptr;
  if (c.command.aux != 2 * words * sizeof(u64)) return Step::end(Status::invalid_argument);
  GPU4FS_STEP_TRY(resolve(g, engine, c, c.command.data, c.command.aux, &input));
  const bool is_wanted = (c.command.mask & wire::check_mask_reach) != 0;
  if (is_wanted && on_leader(g, [&] { return !raid::is_accessible(chunk); })) {
    return Step::end(on_leader(g, [&] { return space::want_chunk(c.operation, index, Status::chunk_not_mapped); }));
  }
  const raid::ChunkBitmaps& maps = chunk.bitmaps;
  copy_bytes(g, maps.committed, input, words * sizeof(u64));
  copy_bytes(g, maps.staged, input + words * sizeof(u64), words * sizeof(u64));
  for (u64* const map : {maps.busy, maps.stable, maps.freed_now, maps.freed_old}) {
    fill_bytes(g, map, 0, words * sizeof(u64));
  }
  g.sync();
  if (is_wanted) {
    mark_reached_regions(g, chunk, (c.command.mask & wire::check_mask_reach_all) != 0);
    const u64 epoch = on_leader(g, [&] { return engine.fs.epoch_durable; });
    GPU4FS_STEP_TRY(space::load_chunk_descriptors(g, engine.fs, index, epoch));
  }
  g.sync();
  on_leader(g, [&] { fetch_or<Order::release, Scope::engine>(&chunk.presence, raid::chunk_loaded); });
  return Step::complete();
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void check_page_task(Group g, Engine& engine, CommandState& c, u32 index,
                                               const CheckSink& sink) {
  u8* input = nullptr;
  GPU4FS_CHECK_OK(resolve(g, engine, c, c.command.data, c.command.aux, &input));
  const wire::CheckInodePage page = on_leader(g, [&] {
    wire::CheckInodePage copy{};
    __builtin_memcpy(&copy, input + u64{index} * sizeof(copy), sizeof(copy));
    return copy;
  });
  if (page.index >= engine.check.inode_count / format::inodes_per_page) return;
  const u32 buffer = on_leader(g, [&] { return take_check_buffer(engine.check); });
  const auto phase = static_cast<CheckPhase>(c.command.mode);
  const bool marks = (c.command.mask & wire::check_mask_verify_data) != 0;
  const CheckTask task{engine,
                       sink,
                       engine.check.buffers[buffer],
                       phase == CheckPhase::owners,
                       marks && engine.fs.space.data_checksums != 0,
                       marks,
                       phase == CheckPhase::walk};
  if (phase == CheckPhase::names) {
    check_names_page(g, task, page);
  } else {
    check_inode_page(g, task, page);
  }
  g.sync();
  on_leader(g, [&] { put_check_buffer(engine.check, buffer); });
}

// Pages that cannot be read at all count as damaged. The caller reads them again to describe the damage.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void check_verify_task(Group g, Engine& engine, CommandState& c, u32 index,
                                                 const CheckSink& sink) {
  GPU4FS_CHECK_LT(u64{index} * check_task_pages, c.command.aux);
  const u32 chunk_index = static_cast<u32>(c.command.inode);
  const raid::ChunkState& chunk = engine.fs.space.chunks[chunk_index];
  const u64 page = c.command.offset + u64{index} * check_task_pages;
  const u64 count = minimum(check_task_pages, c.command.aux - u64{index} * check_task_pages);
  const u64 wanted = on_leader(g, [&] {
    return load<Order::relaxed, Scope::engine>(&chunk.bitmaps.freed_now[page / 64]) & word_mask(page, page + count);
  });
  if (wanted == 0) return;
  const Status reached = on_leader(g, [&] {
    const Status state = raid::chunk_state(engine.fs.space, chunk_index);
    return state != Status::ok ? state : raid::begin_copies_read(engine.fs.space, {chunk_index, 0, page}, count);
  });
  u64 damaged = reached == Status::ok ? 0 : wanted;
  if (reached == Status::ok) {
    for (u32 copy = 0; copy < chunk.copy_count; ++copy) {
      damaged |= raid::find_mismatches(g, engine.fs.space, chunk_index, copy, page, wanted);
    }
  }
  on_leader(g, [&] {
    add<Scope::engine>(&sink.counts->verified, u64{popcount(wanted)});
    if (damaged == 0) return;
    add<Scope::engine>(&sink.counts->found, u64{popcount(damaged)});
    fetch_or<Order::relaxed, Scope::engine>(&chunk.bitmaps.freed_old[page / 64], damaged);
  });
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void check_leaks_task(Group g, Engine& engine, CommandState& c, u32 index, u8* output,
                                                const CheckSink& sink) {
  GPU4FS_CHECK(output != nullptr);
  const raid::ChunkState& chunk = engine.fs.space.chunks[c.command.inode];
  const u64 first = u64{index} * check_leak_words;
  const u64 last = minimum(first + check_leak_words, divide_up(c.command.aux, u64{64}));
  const u64 begin = c.command.offset / 64;
  u64 found = 0;
  for (u64 i = first + g.rank(); i < last; i += Group::size()) {
    const u64 page = (begin + i) * 64;
    const u64 leaked = load<Order::relaxed, Scope::engine>(&chunk.bitmaps.committed[begin + i]) &
                       ~load<Order::relaxed, Scope::engine>(&chunk.bitmaps.staged[begin + i]) &
                       word_mask(page, c.command.offset + c.command.aux);
    if (leaked == 0) continue;
    store<Order::relaxed, Scope::system>(reinterpret_cast<u64*>(output) + i, leaked);
    found += popcount(leaked);
  }
  if (found != 0) add<Scope::engine>(&sink.counts->found, found);
}

}  // namespace detail

// Internal, in an engine that was built for a check (CheckTables). Fields: wire::CheckPhase. Result: the number of
// pages found for phase leaks, else 0. Status: not_supported, invalid_argument, out_of_range, bad_address. Phase load
// also: chunk_not_mapped and the errors of mapping the chunk, device_failed, medium_error.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_check(Group g, Engine& engine, CommandState& c) {
  GPU4FS_STEP_TRY(detail::check_arguments(engine, c.command));
  const auto phase = static_cast<wire::CheckPhase>(c.command.mode);
  if (phase == wire::CheckPhase::load) return detail::load_checked_chunk(g, engine, c);
  u8* output = nullptr;
  GPU4FS_STEP_TRY(resolve(g, engine, c, c.command.output, detail::check_output_bytes(c.command, phase), &output));
  if (!is_aligned(output, alignof(u64))) return Step::end(Status::unaligned);
  if (detail::takes_inode_pages(phase)) {
    u8* input = nullptr;
    GPU4FS_STEP_TRY(resolve(g, engine, c, c.command.data, c.command.aux, &input));
  }
  if (on_leader(g, [&] { return c.stage == 0; })) {
    on_leader(g, [&] {
      detail::check_counts(c) = wire::CheckCounts{};
      c.stage = 1;
    });
    return Step::fan_out(static_cast<u32>(detail::check_task_count(c.command)));
  }
  GPU4FS_STEP_TRY(task_result(g, c));
  const bool has_words = phase == wire::CheckPhase::leaks || phase == wire::CheckPhase::table;
  return Step::complete(on_leader(g, [&] {
    if (has_words) return detail::check_counts(c).found;
    __builtin_memcpy(output, &detail::check_counts(c), sizeof(wire::CheckCounts));
    return u64{0};
  }));
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void task_check(Group g, Engine& engine, CommandState& c, u32 task) {
  const auto phase = static_cast<wire::CheckPhase>(c.command.mode);
  u8* output = nullptr;
  GPU4FS_CHECK_OK(resolve(g, engine, c, c.command.output, detail::check_output_bytes(c.command, phase), &output));
  CheckSink sink{&detail::check_counts(c), reinterpret_cast<wire::CheckRecord*>(output + sizeof(wire::CheckCounts)), 0};
  switch (phase) {
    case wire::CheckPhase::walk:
    case wire::CheckPhase::owners:
    case wire::CheckPhase::names:
      sink.capacity = (c.command.length - sizeof(wire::CheckCounts)) / sizeof(wire::CheckRecord);
      return detail::check_page_task(g, engine, c, task, sink);
    case wire::CheckPhase::verify:
      return detail::check_verify_task(g, engine, c, task, sink);
    case wire::CheckPhase::leaks:
      return detail::check_leaks_task(g, engine, c, task, output, sink);
    case wire::CheckPhase::table: {
      const u64 first = u64{task} * detail::check_table_inodes;
      const u64 count = minimum(detail::check_table_inodes, c.command.aux - first);
      copy_bytes(g, output + first * sizeof(wire::CheckInode), engine.check.inodes + c.command.offset + first,
                 count * sizeof(wire::CheckInode));
      return;
    }
    default:
      GPU4FS_UNREACHABLE("a phase of a check that has no tasks");
  }
}

}  // namespace gpu4fs::engine
