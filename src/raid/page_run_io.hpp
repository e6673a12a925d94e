// Reads and writes runs of whole pages of the logical space.
//
// Bytes, checks and descriptors are the same as for single pages (raid/page_io.hpp), with one translation for the run.
// On a warp the next page's bytes are loaded from the medium or the client while one page is hashed: loads in flight
// keep the bus full.
//
// A run lies in one chunk. All functions are uniform and synchronise the group, like those of page_io.
#pragma once

#include "base/mutant.hpp"
#include "base/trace.hpp"
#include "raid/page_io.hpp"
#include "raid/parity/row_read.hpp"

namespace gpu4fs::raid {
namespace detail {

struct RunPlan {
  Status status;
  u32 page_count;  // of the requested pages
  u32 copy;        // the copy that is read
  u32 copies;      // one bit for each copy that is written
  u8* memory;      // of the copy that is read, or of the first copy that is written; of a spread run: unused
  u32 is_spread;   // 1: the pages are not contiguous in memory
  u32 are_apart;   // 1: each page is announced too (pages_are_apart())
  PageLocation location;
};

// The beginning of the pages, which lie in one usable chunk.
GPU4FS_FN inline Status find_run(const LogicalSpace& space, u64 address, u64 page_count, PageLocation* location) {
  GPU4FS_TRY(find_page(space, address, location));
  GPU4FS_TRY(chunk_state(space, location->chunk));
  return page_count > space.chunks[location->chunk].page_count - location->page ? Status::corrupt_structure
                                                                                : Status::ok;
}

GPU4FS_FN inline RunPlan plan_run(const LogicalSpace& space, u64 address, u64 wanted) {
  RunPlan plan{};
  plan.status = find_run(space, address, wanted, &plan.location);
  if (plan.status != Status::ok) return plan;
  plan.are_apart = pages_are_apart(space) ? 1 : 0;
  plan.is_spread = plan.are_apart;
  const ChunkState& chunk = space.chunks[plan.location.chunk];
  const u64 together = plan.are_apart != 0 ? wanted : minimum(wanted, contiguous_pages(chunk, plan.location.page));
  plan.page_count = static_cast<u32>(minimum<u64>(together, run_page_max));
  GPU4FS_CHECK_GT(plan.page_count, 0u);
  return plan;
}

// Bits [page, page + count) of a bitmap, count <= 32.
GPU4FS_FN inline u32 run_bits(const u64* bitmap, u64 page, u32 count) {
  const u32 shift = page % 64;
  u64 bits = load<Order::relaxed, Scope::engine>(&bitmap[page / 64]) >> shift;
  if (shift + count > 64) {
    bits |= load<Order::relaxed, Scope::engine>(&bitmap[page / 64 + 1]) << (64 - shift);
  }
  return static_cast<u32>(bits) & static_cast<u32>((u64{1} << count) - 1);
}

// How many of the pages can be read in one run although they are not contiguous: up to the first one on a lost device;
// 0 if accesses are announced.
GPU4FS_FN inline u32 spread_pages(const LogicalSpace& space, const RunPlan& plan, u32 wanted) {
  if (space.chunks[plan.location.chunk].copy_count != 1 || is_stacked(space)) return 0;
  if (failed_devices(space) == 0) return wanted;
  u32 count = 0;
  while (count < wanted && copy_is_readable(space, {plan.location.chunk, 0, plan.location.page + count}, 0)) ++count;
  return count;
}

// If plan.are_apart, nothing is announced yet.
GPU4FS_FN inline RunPlan plan_run_to_read(const LogicalSpace& space, u64 address, u64 wanted) {
  RunPlan plan = plan_run(space, address, wanted);
  if (plan.status != Status::ok) return plan;
  plan.copy = copy_to_read(space, plan.location);
  if (plan.are_apart != 0) return plan;
  const u32 spread = spread_pages(space, plan, static_cast<u32>(minimum<u64>(wanted, run_page_max)));
  if (spread > plan.page_count) {
    plan.page_count = spread;
    plan.is_spread = 1;
  }
  plan.status = begin_copy_read(space, plan.location, plan.is_spread != 0 ? 1 : plan.page_count, plan.copy);
  if (plan.status == Status::ok) plan.memory = page_memory(space, plan.location, plan.copy);
  return plan;
}

template <class Group>
GPU4FS_FN RunPages<true, Group> pages_of_plan(Group g, const LogicalSpace& space, const RunPlan& plan) {
  return RunPages<true, Group>::make(g, space, plan.location, static_cast<u32>(low_bits(plan.page_count)), plan.copy);
}

// Returns how many pages were verified and copied; the next one is damaged. The caller handles the damage: calls inside
// the loop would take registers from the loads in flight.
template <bool is_spread, class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 read_planned(Group g, const LogicalSpace& space, const RunPlan& plan, u64 address,
                                           u8* destination, bool verifies) {
  const format::PageDescriptor* descriptors = &space.chunks[plan.location.chunk].descriptors[plan.location.page];
  static_assert(offsetof(format::PageDescriptor, checksum) == 0);
  u64 own = 0;
  if (Group::size() > 1 && g.rank() < plan.page_count) {
    own = load_shared_16(&descriptors[g.rank()]).low;
  }
  RunPages<true, Group> pages{};
  if constexpr (is_spread) pages = pages_of_plan(g, space, plan);
  const auto load_planned = [&](u32 index) {
    return load_aligned_page(g, is_spread ? pages.at(g, index) : plan.memory + u64{index} * page_size);
  };
  PageRegisters<Group> next = load_planned(0);
  for (u32 i = 0; i < plan.page_count; ++i) {
    PageRegisters<Group> page = next;
    if (i + 1 < plan.page_count) next = load_planned(i + 1);
    if (verifies) {
      const u64 checksum = Group::size() > 1 ? g.shuffle(own, i % Group::size()) : load_shared_16(&descriptors[i]).low;
      const u64 seed = address + i * page_size;
      if constexpr (Group::size() == 1) {
        // One pass over the page.
        if (!GPU4FS_MUTANT(run_unverified, verify_copy_page(g, destination + i * page_size, page.page, seed, checksum),
                           verify_copy_page(g, destination + i * page_size, page.page, seed, checksum) || true)) {
          return i;
        }
        continue;
      }
      if (xxh3_registers(g, page, seed) != checksum) return i;
    }
    store_mostly_whole_page(g, page, destination + i * page_size, whole_page());
  }
  return plan.page_count;
}

// The same for a spread run. Pages that are apart are read up to the first one that is refused.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 read_spread(Group g, const LogicalSpace& space, RunPlan& plan, u64 address,
                                          u8* destination, bool verifies) {
  const PinScope pins(g, space);
  if (plan.are_apart != 0) {
    const RunAnswer answer =
        begin_run_read(g, space, plan.location, static_cast<u32>(low_bits(plan.page_count)), plan.copy);
    if (GPU4FS_MUTANT(refused_page_read, answer.refused, 0u) != 0) {
      plan.page_count = count_trailing_zeros(u64{answer.refused});
      if (plan.page_count == 0) {
        plan.status = answer.status;
        return 0;
      }
    }
  }
  return read_planned<true>(g, space, plan, address, destination, verifies);
}

// Reads the page at `address`, which could not be read in a run for `reason`, separately, from any good copy.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status read_apart(Group g, const LogicalSpace& space, u64 address, u8* destination,
                                            PageUse use, Status reason) {
  PageLocation location{};
  const Status found = find_page(space, address, &location);
  if (found == Status::ok && has_other_copies(space, location, reason)) {
    return read_page(g, space, address, destination, use);
  }
  if (reason == Status::checksum_mismatch) on_leader(g, [&] { note_damage(space, address); });
  return reason;
}

// One page of any alignment. The hash is that of the bytes written, even if the source changes meanwhile.
template <class Group>
GPU4FS_FN u64 write_one(Group g, PageRegisters<Group>& page, u8* memory, u64 address, bool hashes) {
  if constexpr (Group::size() == 1) {
    if (hashes) return xxh3_copy_page(g, memory, page.page, address);
    copy_bytes(g, memory, page.page, page_size);
    return 0;
  } else {
    store_page(g, page, memory);
    return hashes ? xxh3_registers(g, page, address) : 0;
  }
}

// Writes the same page, as it was stored at `first`, to its other copies.
template <class Group, class Copies>
GPU4FS_FN void write_other_copies(Group g, const PageRegisters<Group>& page, const u8* first, const Copies& copies,
                                  const RunPlan& plan, u32 index) {
  for (u32 left = plan.copies & (plan.copies - 1); left != 0; left &= left - 1) {
    u8* memory = copies.at(g, first_copy(left), index);
    if constexpr (Group::size() == 1) {
      (void)page;
      copy_bytes(g, memory, first, page_size);
    } else {
      (void)first;
      store_page(g, page, memory);
    }
  }
}

// As in plan_write(): a stable page belongs to an unwritten block that is being filled.
struct RunBirth {
  u64 epoch;
  u32 stable;  // one bit for each page
  u32 reserved;
};

// With an aligned source a warp loads the next page meanwhile and calls no function.
template <bool is_aligned_source, class Group>
GPU4FS_FN PageRegisters<Group> load_source(Group g, const u8* source) {
  if constexpr (is_aligned_source) {
    return load_aligned_page(g, source);
  } else {
    return load_page(g, source);
  }
}

template <bool is_spread, bool is_aligned_source, class Group>
GPU4FS_FN GPU4FS_NOINLINE void write_planned(Group g, LogicalSpace& space, const RunPlan& plan, u64 address,
                                             const u8* source, bool hashes) {
  ChunkState& chunk = space.chunks[plan.location.chunk];
  const u64 first = plan.location.page;
  const RunBirth birth = on_leader(g, [&] {
    return RunBirth{load<Order::relaxed, Scope::engine>(&space.epoch_open),
                    run_bits(chunk.bitmaps.stable, first, plan.page_count), 0};
  });
  GPU4FS_CHECK_GT(birth.epoch, u64{1});
  format::PageDescriptor* descriptors = &chunk.descriptors[first];
  const bool mirrors = (plan.copies & (plan.copies - 1)) != 0;
  const auto copies = RunCopies<is_spread, Group>::make(g, space, plan.location, plan.page_count, plan.copies);
  PageRegisters<Group> next = load_source<is_aligned_source>(g, source);
  for (u32 i = 0; i < plan.page_count; ++i) {
    PageRegisters<Group> page = next;
    if (i + 1 < plan.page_count) next = load_source<is_aligned_source>(g, source + (i + 1) * page_size);
    u8* memory = is_spread ? copies.at(g, first_copy(plan.copies), i) : plan.memory + i * page_size;
    const u64 checksum = write_one(g, page, memory, address + i * page_size, hashes);
    if (mirrors) write_other_copies(g, page, memory, copies, plan, i);
    if (g.leader()) {
      const u32 birth_epoch = static_cast<u32>(birth.epoch - ((birth.stable >> i) & 1));
      store_shared_16(&descriptors[i], Vector16{checksum, u64{birth_epoch}});
    }
  }
  if constexpr (is_spread) end_run_write(g, space, plan.location, static_cast<u32>(low_bits(plan.page_count)));
  on_leader(g, [&] {
    if constexpr (!is_spread) end_page_write(space, plan.location, plan.page_count);
    const u64 last = (first + plan.page_count - 1) / format::descriptors_per_page;
    for (u64 at = first / format::descriptors_per_page; at <= last; ++at) {
      fetch_or<Order::release, Scope::engine>(&chunk.descriptor_dirty[at / 64], u64{1} << (at % 64));
    }
    if (birth.stable != 0) note_rewritten_pages(space, chunk, first, plan.page_count);
  });
}

// True if the pages are read by rows: devices are lost and the chunk has parities.
GPU4FS_FN inline bool reads_rows(const LogicalSpace& space, u64 address) {
  PageLocation location{};
  return failed_devices(space) != 0 && find_page(space, address, &location) == Status::ok &&
         space.chunks[location.chunk].parity_count != 0;
}

// The requested pages of the target, each from any readable source; `address` is that of the target's first page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status read_row_by_pages(Group g, const LogicalSpace& space, u64 address,
                                                   const RowTarget& target, u64 row, PageUse use) {
  const RowView view = on_leader(g, [&] { return row_view(space, target.chunk, row); });
  const SlotRange range = covered_slots(view, target.first, target.count);
  for (u32 slot = range.low; slot < range.high; ++slot) {
    const u64 behind = (row_page(view, slot) - target.first) * page_size;
    GPU4FS_TRY(read_page(g, space, address + behind, target.bytes + behind, use));
  }
  return Status::ok;
}

struct RowsPlan {
  Status status;
  PageLocation location;
};

// As read_pages().
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status read_in_rows(Group g, const LogicalSpace& space, u64 address, u64 page_count,
                                              u8* destination, PageUse use) {
  const RowsPlan plan = on_leader(g, [&] {
    RowsPlan found{};
    found.status = find_run(space, address, page_count, &found.location);
    return found;
  });
  GPU4FS_TRY(plan.status);
  const u32 index = plan.location.chunk;
  const u64 first = plan.location.page;
  const RowTarget target{index, has_checksum(space, use) ? 1u : 0u, first, page_count, destination};
  const RowRange range = on_leader(g, [&] { return rows_of_pages(space, index, first, page_count); });
  for (u64 row = range.first; row < range.end;) {
    const RowsRead done = read_rows(g, space, target, row, range.end);
    for (u32 failed = done.failed; failed != 0; failed &= failed - 1) {
      GPU4FS_TRY(read_row_by_pages(g, space, address, target, row + count_trailing_zeros(failed), use));
    }
    row += done.row_count;
  }
  g.sync();
  return Status::ok;
}

}  // namespace detail

// Reads `page_count` > 0 pages from `address` on to `destination` (any alignment). Each page is verified before it is
// copied there. Status as for read_page; after checksum_mismatch, pages before the damaged one may have been copied.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status read_pages(Group g, const LogicalSpace& space, u64 address, u32 page_count,
                                            u8* destination, PageUse use) {
  GPU4FS_CHECK_GT(page_count, 0u);
  if (space.parity != nullptr && on_leader(g, [&] { return detail::reads_rows(space, address); })) {
    return detail::read_in_rows(g, space, address, page_count, destination, use);
  }
  const bool has_copies = space.tier != nullptr && use == PageUse::data;
  u32 planned_end = has_copies ? 0 : page_count;  // up to here the pages have to be read where they are
  for (u32 done = 0; done < page_count;) {
    if (done == planned_end) {
      const CopiesRead copies = read_copies(g, space, address + u64{done} * page_size, page_count - done,
                                            destination + u64{done} * page_size);
      done += copies.given;
      planned_end = done + copies.uncopied;
      if (copies.uncopied == 0) continue;
    }
    const u64 here = address + u64{done} * page_size;
    detail::RunPlan plan = on_leader(g, [&] { return detail::plan_run_to_read(space, here, planned_end - done); });
    GPU4FS_TRACE_POINT(translate);
    u32 verified = 0;
    if (plan.status == Status::ok) {
      const bool verifies = detail::has_checksum(space, use);
      u8* to = destination + u64{done} * page_size;
      verified = plan.is_spread != 0 ? detail::read_spread(g, space, plan, here, to, verifies)
                                     : detail::read_planned<false>(g, space, plan, here, to, verifies);
      if (verified != plan.page_count) plan.status = Status::checksum_mismatch;
    }
    done += verified;
    if (plan.status == Status::ok) continue;
    GPU4FS_TRY(detail::read_apart(g, space, address + u64{done} * page_size, destination + u64{done} * page_size, use,
                                  plan.status));
    ++done;
  }
  g.sync();
  return Status::ok;
}

namespace detail {

// True if all pages of [page, page + count) are allocated.
GPU4FS_FN inline bool all_busy(const ChunkState& chunk, u64 page, u64 count) {
  for (u64 done = 0; done < count; done += run_page_max) {
    const u32 here = static_cast<u32>(minimum<u64>(count - done, run_page_max));
    if (run_bits(chunk.bitmaps.busy, page + done, here) != static_cast<u32>((u64{1} << here) - 1)) return false;
  }
  return true;
}

// The beginning of a run in a chunk with parities; status exists: the chunk has none.
GPU4FS_FN inline WritePlan plan_rows(const LogicalSpace& space, u64 address, u64 page_count) {
  WritePlan plan = plan_description(space, address);
  if (plan.status != Status::ok) return plan;
  const ChunkState& chunk = space.chunks[plan.location.chunk];
  if (chunk.parity_count == 0) {
    plan.status = Status::exists;
  } else if (page_count > chunk.page_count - plan.location.page || !all_busy(chunk, plan.location.page, page_count)) {
    plan.status = Status::corrupt_structure;
  }
  return plan;
}

// If plan.are_apart, nothing is announced yet.
GPU4FS_FN GPU4FS_NOINLINE inline RunPlan plan_run_to_write(LogicalSpace& space, u64 address, u64 wanted) {
  RunPlan plan = plan_run(space, address, wanted);
  if (plan.status != Status::ok) return plan;
  const ChunkState& chunk = space.chunks[plan.location.chunk];
  if (run_bits(chunk.bitmaps.busy, plan.location.page, plan.page_count) !=
      static_cast<u32>(low_bits(plan.page_count))) {
    plan.status = Status::corrupt_structure;
    return plan;
  }
  GPU4FS_CHECK_EQ(space.devices[chunk.columns[0].device].read_only, 0u);
  if (plan.are_apart != 0) return plan;
  plan.status = begin_page_write(space, plan.location, plan.page_count);
  if (plan.status != Status::ok) return plan;
  plan.copies = copies_to_write(space, plan.location);
  plan.memory = page_memory(space, plan.location, first_copy(plan.copies));
  return plan;
}

template <bool is_spread, class Group>
GPU4FS_FN void write_run(Group g, LogicalSpace& space, const RunPlan& plan, u64 address, const u8* source,
                         bool hashes) {
  if (Group::size() > 1 && is_aligned(source, 16)) {
    write_planned<is_spread, Group::size() != 1>(g, space, plan, address, source, hashes);
  } else {
    write_planned<is_spread, false>(g, space, plan, address, source, hashes);
  }
}

// For pages that are apart: up to the first one that is refused, but at least one.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_spread(Group g, LogicalSpace& space, RunPlan& plan, u64 address,
                                              const u8* source, bool hashes) {
  const PinScope pins(g, space);
  const RunAnswer answer = begin_run_write(g, space, plan.location, plan.page_count);
  if (answer.refused != 0) plan.page_count = count_trailing_zeros(u64{answer.refused});
  if (plan.page_count == 0) return answer.status;
  plan.copies = on_leader(g, [&] { return copies_to_write(space, plan.location); });
  write_run<true>(g, space, plan, address, source, hashes);
  return Status::ok;
}

}  // namespace detail

// Writes `page_count` > 0 pages from `source` to `address`. `source` has any alignment and may change meanwhile; the
// pages stay consistent. The caller has allocated them. Status as for write_page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_pages(Group g, LogicalSpace& space, u64 address, u32 page_count,
                                             const u8* source, PageUse use) {
  GPU4FS_CHECK_GT(page_count, 0u);
  GPU4FS_CHECK(source != nullptr);
  if (space.parity != nullptr) {
    const detail::WritePlan rows = on_leader(g, [&] { return detail::plan_rows(space, address, page_count); });
    if (rows.status == Status::ok) return detail::write_in_rows(g, space, rows.location, page_count, source, use);
    if (rows.status != Status::exists) return rows.status;
  }
  for (u32 done = 0; done < page_count;) {
    const u64 here = address + u64{done} * page_size;
    detail::RunPlan plan = on_leader(g, [&] { return detail::plan_run_to_write(space, here, page_count - done); });
    if (plan.status != Status::ok) return plan.status;
    const u8* from = source + u64{done} * page_size;
    const bool hashes = detail::has_checksum(space, use);
    if (plan.are_apart != 0) {
      GPU4FS_TRY(detail::write_spread(g, space, plan, here, from, hashes));
    } else {
      detail::write_run<false>(g, space, plan, here, from, hashes);
    }
    done += plan.page_count;
  }
  return Status::ok;
}

}  // namespace gpu4fs::raid
