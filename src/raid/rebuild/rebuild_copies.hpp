// Filling devices that are being rebuilt: pages of mirrors.
//
// Only pages are copied to which the durable checkpoint or a record of the log refers. Such pages are not written, and
// they are not reused before a checkpoint is published, which waits (begin_repairs() in raid/repair_pages.hpp).
// Unwritten blocks that are filled in place are an exception, see rebuild_todo.hpp. Pages that become stable with the
// checkpoint being written may still be in flight, so chunks of this checkpoint are left for later.
//
// A page that has a checksum and does not match it is not stored. Uniform.
#pragma once

#include "base/mutant.hpp"
#include "raid/rebuild/rebuild_todo.hpp"
#include "raid/repair_pages.hpp"
#include "wire/rebuild_format.hpp"

namespace gpu4fs::raid {

inline constexpr u32 rebuild_task_pages = 64;

// Adds up like wire::rebuild_count(). Pages that have to wait for a later round keep their bits.
struct RebuildOutcome {
  u64 counts;
};

GPU4FS_FN inline void count_rebuilt(RebuildOutcome& outcome, wire::RebuildCount which, u32 pages) {
  outcome.counts += wire::rebuild_one(which) * pages;
}

namespace detail {

// Bits of those pages [page, page + 64) that the durable checkpoint or the log protects from writes; 0 while a
// checkpoint writes pages of the chunk. The caller is counted by begin_repairs() for as long as it uses them.
GPU4FS_FN GPU4FS_NOINLINE inline u64 settled_pages(const ChunkState& chunk, u64 page) {
  const u64 stable = bitmap_bits_64(chunk, chunk.bitmaps.stable, page);
  const u64 committed = bitmap_bits_64(chunk, chunk.bitmaps.committed, page);
  fence<Order::seq_cst, Scope::engine>();
  return load<Order::acquire, Scope::engine>(&chunk.staged_changed) != 0 ? 0 : stable & committed;
}

// Consecutive pages, at most 64 and at most run_page_max if they are apart.
struct CopyRun {
  PageLocation first;
  u32 count;
  u32 are_apart;  // pages_are_apart() when the run was chosen
};

struct CopyTargets {
  u32 copies;  // one bit each: those on devices that are being rebuilt
  u32 source;  // the copy that is read
};

GPU4FS_FN inline CopyTargets find_targets(const LogicalSpace& space, const PageLocation& location) {
  CopyTargets targets{0, copy_to_read(space, location)};
  for (u32 copy = 0; copy < space.chunks[location.chunk].copy_count; ++copy) {
    if (is_rebuilding(space, page_place(space, location, copy).device)) targets.copies |= 1u << copy;
  }
  return targets;
}

// Announces the write of `count` pages of the target copies. Returns the copies that accept it.
GPU4FS_FN GPU4FS_NOINLINE inline u32 begin_targets(const LogicalSpace& space, const PageLocation& location, u64 count,
                                                   u32 copies) {
  u32 begun = 0;
  for (u32 left = copies; left != 0; left &= left - 1) {
    const u32 copy = count_trailing_zeros(left);
    if (begin_copy_write(space, location, count, copy) == Status::ok) {
      begun |= 1u << copy;
    } else {
      (void)tolerates_write_error(space, page_place(space, location, copy).device);
    }
  }
  return begun;
}

GPU4FS_FN inline void end_targets(const LogicalSpace& space, const PageLocation& location, u64 count, u32 copies) {
  for (u32 left = copies; left != 0; left &= left - 1) {
    end_copy_write(space, location, count, count_trailing_zeros(left));
  }
}

GPU4FS_FN inline void cancel_targets(const LogicalSpace& space, const PageLocation& location, u64 count, u32 copies) {
  for (u32 left = copies; left != 0; left &= left - 1) {
    cancel_copy_write(space, location, count, count_trailing_zeros(left));
  }
}

// The same for the pages of a run. Copies that do not accept all of them are not announced afterwards; their devices
// have been given up.
template <class Group>
GPU4FS_FN u32 begin_run_targets(Group g, const LogicalSpace& space, const CopyRun& run, u32 copies) {
  if (run.are_apart == 0) return on_leader(g, [&] { return begin_targets(space, run.first, run.count, copies); });
  const u32 pages = static_cast<u32>(low_bits(run.count));
  u32 own = copies;
  for_each_page(g, pages, [&](u32 index) { own &= begin_targets(space, page_behind(run.first, index), 1, copies); });
  const u32 accepted = g.reduce(own, [](u32 a, u32 b) { return a & b; });
  if (accepted != copies) {
    for_each_page(g, pages,
                  [&](u32 index) { cancel_targets(space, page_behind(run.first, index), 1, copies & ~accepted); });
  }
  return accepted;
}

// `failed`: pages that were not stored, one bit each.
template <class Group>
GPU4FS_FN void end_run_targets(Group g, const LogicalSpace& space, const CopyRun& run, u32 copies, u64 failed) {
  if (run.are_apart == 0) return on_leader(g, [&] { end_targets(space, run.first, run.count, copies); });
  for_each_page(g, static_cast<u32>(low_bits(run.count)), [&](u32 index) {
    const PageLocation page = page_behind(run.first, index);
    if (GPU4FS_MUTANT(failed_copy_ended, failed >> index & 1, u64{0}) != 0) {
      cancel_targets(space, page, 1, copies);
    } else {
      end_targets(space, page, 1, copies);
    }
  });
}

template <bool is_spread, class Group>
GPU4FS_FN RunPages<is_spread, Group> source_pages(Group g, const LogicalSpace& space, const PageLocation& first,
                                                  u32 count, u32 copy) {
  if constexpr (is_spread) {
    return RunPages<true, Group>::make(g, space, first, static_cast<u32>(low_bits(count)), copy);
  } else {
    return {page_memory(space, first, copy)};
  }
}

// Copies the pages [location.page, + count), which are contiguous in every copy or in a spread run, from `source` to
// the target copies. Returns those that did not match, one bit each. The loop calls no functions, because the next page
// is being loaded.
template <bool is_spread, class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 copy_verified_run(Group g, const LogicalSpace& space, const PageLocation& location,
                                                u32 count, CopyTargets targets, bool verifies) {
  const ChunkState& chunk = space.chunks[location.chunk];
  const auto from = source_pages<is_spread>(g, space, location, count, targets.source);
  const auto memory = RunCopies<is_spread, Group>::make(g, space, location, count, targets.copies);
  const format::PageDescriptor* descriptors = &chunk.descriptors[location.page];
  const u64 address = chunk.base_address + location.page * page_size;
  u64 failed = 0;
  u64 own = 0;
  PageRegisters<Group> next = load_aligned_page(g, from.at(g, 0));
  for (u32 i = 0; i < count; ++i) {
    const PageRegisters<Group> page = next;
    if (i + 1 < count) next = load_aligned_page(g, from.at(g, i + 1));
    u64 checksum = 0;
    if constexpr (Group::size() > 1) {
      if (i % warp_size == 0 && i + g.rank() < count) own = load_shared_16(&descriptors[i + g.rank()]).low;
      checksum = g.shuffle(own, i % warp_size);
    } else {
      checksum = load_shared_16(&descriptors[i]).low;
    }
    if (verifies && xxh3_registers(g, page, address + u64{i} * page_size) != checksum) {
      failed |= u64{1} << i;
      continue;
    }
    for (u32 left = targets.copies; left != 0; left &= left - 1) {
      store_page(g, page, memory.at(g, first_copy(left), i));
    }
  }
  g.sync();
  return failed;
}

// Copies a page whose preferred copy is bad from any good copy.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void rebuild_one_copy(Group g, const LogicalSpace& space, const PageLocation& location,
                                                u32 copies, bool verifies, RebuildOutcome& outcome) {
  const ChunkState& chunk = space.chunks[location.chunk];
  const PinScope pins(g, space);
  bool was_read = false;
  for (u32 copy = 0; copy < chunk.copy_count; ++copy) {
    const bool readable = on_leader(g, [&] { return begin_copy_read(space, location, 1, copy) == Status::ok; });
    if (!readable) continue;
    was_read = true;
    const u32 begun = on_leader(g, [&] { return begin_targets(space, location, 1, copies); });
    if (begun == 0) return;
    const u64 failed = copy_verified_run<false>(g, space, location, 1, {begun, copy}, verifies);
    on_leader(g, [&] {
      if (failed != 0) return cancel_targets(space, location, 1, begun);
      end_targets(space, location, 1, begun);
    });
    if (failed != 0) continue;
    count_rebuilt(outcome, wire::RebuildCount::written, 1);
    return;
  }
  if (was_read) {
    count_rebuilt(outcome, wire::RebuildCount::unverified, 1);
    return;
  }
  count_rebuilt(outcome, wire::RebuildCount::unreadable, 1);
  on_leader(g, [&] { set_rebuild_todo(chunk, location.page); });
}

// Whether the present content of copy `copy`, on a device that is being rebuilt, can be read.
template <class Group>
GPU4FS_FN bool begin_run_known_read(Group g, const LogicalSpace& space, const CopyRun& run, u32 copy) {
  const auto begin = [&](const PageLocation& first, u32 count) {
    const DevicePlace place = page_place(space, first, copy);
    return device::begin_known_read(space.devices[place.device], place.offset, count * page_size);
  };
  if (run.are_apart == 0) return on_leader(g, [&] { return begin(run.first, run.count) == Status::ok; });
  return begin_each_page(g, static_cast<u32>(low_bits(run.count)), [&](u32 index) {
           return begin(page_behind(run.first, index), 1);
         }).refused == 0;
}

// Those pages of the run that the target copies do not have yet, one bit each.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 pages_lacking(Group g, const LogicalSpace& space, const CopyRun& run, u32 copies,
                                            bool verifies) {
  const ChunkState& chunk = space.chunks[run.first.chunk];
  const u64 all = low_bits(run.count);
  if (!verifies) return all;
  const format::PageDescriptor* descriptors = &chunk.descriptors[run.first.page];
  const u64 address = chunk.base_address + run.first.page * page_size;
  u64 lacking = 0;
  for (u32 left = copies; left != 0; left &= left - 1) {
    const u32 copy = first_copy(left);
    if (!begin_run_known_read(g, space, run, copy)) return all;
    lacking |= run.are_apart != 0 ? mismatches_in_run(g, source_pages<true>(g, space, run.first, run.count, copy),
                                                      descriptors, address, all)
                                  : mismatches_in_run(g, source_pages<false>(g, space, run.first, run.count, copy),
                                                      descriptors, address, all);
  }
  return lacking;
}

template <class Group>
GPU4FS_FN bool begin_run_source(Group g, const LogicalSpace& space, const CopyRun& run, u32 copy) {
  if (run.are_apart != 0)
    return begin_run_read(g, space, run.first, static_cast<u32>(low_bits(run.count)), copy).refused == 0;
  return on_leader(g, [&] { return begin_copy_read(space, run.first, run.count, copy) == Status::ok; });
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void rebuild_run(Group g, const LogicalSpace& space, const CopyRun& run, bool verifies,
                                           RebuildOutcome& outcome) {
  CopyTargets targets = on_leader(g, [&] { return find_targets(space, run.first); });
  if (targets.copies == 0) return;
  // Reads are announced first.
  const bool is_readable = begin_run_source(g, space, run, targets.source);
  targets.copies = begin_run_targets(g, space, run, targets.copies);
  if (targets.copies == 0) return;
  u64 failed = low_bits(run.count);
  if (is_readable) {
    failed = run.are_apart != 0 ? copy_verified_run<true>(g, space, run.first, run.count, targets, verifies)
                                : copy_verified_run<false>(g, space, run.first, run.count, targets, verifies);
  }
  end_run_targets(g, space, run, targets.copies, failed);
  count_rebuilt(outcome, wire::RebuildCount::written, run.count - static_cast<u32>(popcount(failed)));
  for (; failed != 0; failed &= failed - 1) {
    const PageLocation page = page_behind(run.first, count_trailing_zeros(failed));
    rebuild_one_copy(g, space, page, targets.copies, verifies, outcome);
  }
}

// Lengths of runs of set bits, from the lowest on.
struct BitRun {
  u32 first;
  u32 count;
};
GPU4FS_FN constexpr BitRun first_run(u64 bits, u32 count_max) {
  const u32 first = static_cast<u32>(count_trailing_zeros(bits));
  const u64 rest = ~(bits >> first);
  const u32 count = rest == 0 ? 64 - first : minimum(static_cast<u32>(count_trailing_zeros(rest)), 64 - first);
  return {first, minimum(count, count_max)};
}
GPU4FS_FN constexpr u64 without_run(u64 bits, const BitRun& run) {
  const u32 end = run.first + run.count;
  return end == 64 ? 0 : bits & (~u64{0} << end);
}

// Leader: the pages of [page, page + 64) that can be copied at this time; their bits are cleared. Free pages need no
// copy.
GPU4FS_FN GPU4FS_NOINLINE inline u64 take_copies_to_rebuild(const ChunkState& chunk, u64 page, u64 wanted) {
  const u64 todo = bitmap_bits_64(chunk, chunk.rebuild_todo, page) & wanted;
  if (todo == 0) return 0;
  const u64 free = todo & ~bitmap_bits_64(chunk, chunk.bitmaps.busy, page);
  const u64 settled = todo & settled_pages(chunk, page) & ~free;
  clear_rebuild_todo_bits(chunk, page, free | settled);
  return GPU4FS_MUTANT(rebuild_page_skipped, settled, settled & (settled - 1));
}

}  // namespace detail

// Pages [page, page + count) of a chunk without parities, at most 64: those that have their bit.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE RebuildOutcome rebuild_copies(Group g, const LogicalSpace& space, u32 index, u64 page,
                                                        u32 count, bool is_fresh) {
  const ChunkState& chunk = space.chunks[index];
  GPU4FS_CHECK_LE(count, rebuild_task_pages);
  GPU4FS_CHECK_EQ(chunk.parity_count, 0u);
  struct Taken {
    u64 pages;
    u32 counter;
    u32 are_apart;
  };
  const u64 wanted = count == 64 ? ~u64{0} : (u64{1} << count) - 1;
  const Taken taken = on_leader(g, [&] {
    Taken found{};
    found.counter = begin_repairs(space);
    found.pages = detail::take_copies_to_rebuild(chunk, page, wanted);
    found.are_apart = pages_are_apart(space) ? 1 : 0;
    return found;
  });
  RebuildOutcome outcome{};
  count_rebuilt(outcome, wire::RebuildCount::looked_at, static_cast<u32>(popcount(taken.pages)));
  const bool verifies = space.data_checksums != 0;
  const u32 run_max = taken.are_apart != 0 ? detail::run_page_max : rebuild_task_pages;
  u64 pages = taken.pages;
  for (u64 bits = pages; bits != 0 && !is_fresh;) {
    const detail::BitRun at = detail::first_run(bits, run_max);
    const detail::CopyRun run{{index, 0, page + at.first}, at.count, taken.are_apart};
    const PinScope pins(g, space);
    const u32 copies = on_leader(g, [&] { return detail::find_targets(space, run.first).copies; });
    const u64 lacking = copies == 0 ? 0 : detail::pages_lacking(g, space, run, copies, verifies);
    pages &= ~(low_bits(at.count) << at.first);
    pages |= lacking << at.first;
    bits = detail::without_run(bits, at);
  }
  while (pages != 0) {
    const detail::BitRun at = detail::first_run(pages, run_max);
    const detail::CopyRun run{{index, 0, page + at.first}, at.count, taken.are_apart};
    const PinScope pins(g, space);
    detail::rebuild_run(g, space, run, verifies, outcome);
    pages = detail::without_run(pages, at);
  }
  g.sync();
  on_leader(g, [&] { end_repairs(space, taken.counter); });
  return outcome;
}

}  // namespace gpu4fs::raid
