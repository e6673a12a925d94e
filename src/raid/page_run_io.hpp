// Reading and writing runs of whole pages of the logical space.
//
// Same bytes, checks and descriptors as reading and writing page by page (raid/page_io.hpp), with one
// translation for the run and, on a warp, the next page's bytes on their way from the medium or the
// client while one page is hashed: what keeps the bus full is loads in flight.
//
// A run lies in one chunk. All functions are uniform and synchronise the group, as those of page_io.
#pragma once

#include "raid/page_io.hpp"

namespace gpu4fs::raid {
namespace detail {

// Pages that are planned at once: one descriptor a rank of a warp.
inline constexpr u32 run_page_max = warp_size;

struct RunPlan {
  Status status;
  u32 page_count;   // of the wanted ones: those that follow each other in memory
  u32 copy;         // that is read
  u32 reserved;
  u8* memory;       // of the copy that is read; copy 0 for writing
  PageLocation location;
};

GPU4FS_FN inline RunPlan plan_run(const LogicalSpace& space, u64 address, u64 wanted) {
  RunPlan plan{};
  plan.status = find_page(space, address, &plan.location);
  if (plan.status == Status::ok) plan.status = chunk_state(space, plan.location.chunk);
  if (plan.status != Status::ok) return plan;
  const ChunkState& chunk = space.chunks[plan.location.chunk];
  const u64 page = plan.location.page;
  if (wanted > chunk.page_count - page) {
    plan.status = Status::corrupt_structure;
    return plan;
  }
  plan.page_count = static_cast<u32>(minimum<u64>(minimum(wanted, pages_together(chunk, page)), run_page_max));
  GPU4FS_CHECK_GT(plan.page_count, 0u);
  plan.memory = page_memory(space, plan.location);
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

GPU4FS_FN inline RunPlan plan_run_to_read(const LogicalSpace& space, u64 address, u64 wanted) {
  RunPlan plan = plan_run(space, address, wanted);
  if (plan.status != Status::ok) return plan;
  plan.copy = preferred_copy(space.chunks[plan.location.chunk], plan.location.page);
  if (plan.copy != 0) plan.memory = page_memory(space, plan.location, plan.copy);
  plan.status = begin_copy_read(space, plan.location, plan.page_count, plan.copy);
  return plan;
}

template <class Group>
GPU4FS_FN void store_whole_page(Group g, PageRegisters<Group>& page, u8* destination) {
  if (is_aligned(destination, 16)) {
    store_page(g, page, destination);
  } else {
    store_page_range(g, page, destination, 0, static_cast<u32>(page_size));
  }
}

// How many pages were verified and given out; the one behind them is damaged. What becomes of that is the
// caller's: calls inside the loop would cost registers of the loads in flight.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 read_planned(Group g, const LogicalSpace& space, const RunPlan& plan,
                                            u64 address, u8* destination, bool verifies) {
  const format::PageDescriptor* descriptors =
      &space.chunks[plan.location.chunk].descriptors[plan.location.page];
  static_assert(offsetof(format::PageDescriptor, checksum) == 0);
  u64 own = 0;
  if (Group::size() > 1 && g.rank() < plan.page_count) {
    own = load_shared_16(&descriptors[g.rank()]).low;
  }
  PageRegisters<Group> next = load_page(g, plan.memory);
  for (u32 i = 0; i < plan.page_count; ++i) {
    PageRegisters<Group> page = next;
    if (i + 1 < plan.page_count) next = load_page(g, plan.memory + (i + 1) * page_size);
    if (verifies) {
      const u64 checksum =
          Group::size() > 1 ? g.shuffle(own, i % Group::size()) : load_shared_16(&descriptors[i]).low;
      if (xxh3_registers(g, page, address + i * page_size) != checksum) return i;
    }
    store_whole_page(g, page, destination + i * page_size);
  }
  return plan.page_count;
}

// The page at `address`, which could not be read as part of a run for `reason`, on its own, from whatever copy
// is good.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status read_apart(Group g, const LogicalSpace& space, u64 address, u8* destination,
                                            PageUse use, Status reason) {
  PageLocation location{};
  const Status found = find_page(space, address, &location);
  if (found == Status::ok && has_other_copies(space, location, reason)) {
    return read_page(g, space, address, destination, use);
  }
  if (reason == Status::checksum_mismatch) serial(g, [&] { note_damage(space, address); });
  return reason;
}

// One page, from any alignment; the hash is that of the bytes written, whatever becomes of the source.
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

// The same page, as it was stored, into its other copies.
template <class Group>
GPU4FS_FN void write_other_copies(Group g, PageRegisters<Group>& page, const LogicalSpace& space,
                                  const RunPlan& plan, u32 index) {
  for (u32 copy = 1; copy < space.chunks[plan.location.chunk].copy_count; ++copy) {
    u8* memory = page_memory(space, plan.location, copy) + u64{index} * page_size;
    if constexpr (Group::size() == 1) {
      (void)page;
      copy_bytes(g, memory, plan.memory + u64{index} * page_size, page_size);
    } else {
      store_page(g, page, memory);
    }
  }
}

// As plan_write() has it: a stable page is an unwritten block being filled.
struct RunBirth {
  u64 epoch;
  u32 stable;  // a bit a page
  u32 reserved;
};

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void write_planned(Group g, LogicalSpace& space, const RunPlan& plan, u64 address,
                                             const u8* source, bool hashes) {
  ChunkState& chunk = space.chunks[plan.location.chunk];
  const u64 first = plan.location.page;
  const RunBirth birth = serial(g, [&] {
    return RunBirth{load<Order::relaxed, Scope::engine>(&space.epoch_open),
                    run_bits(chunk.bitmaps.stable, first, plan.page_count), 0};
  });
  GPU4FS_CHECK_GT(birth.epoch, u64{1});
  format::PageDescriptor* descriptors = &chunk.descriptors[first];
  const bool mirrors = chunk.copy_count > 1;
  PageRegisters<Group> next = load_page(g, source);
  for (u32 i = 0; i < plan.page_count; ++i) {
    PageRegisters<Group> page = next;
    if (i + 1 < plan.page_count) next = load_page(g, source + (i + 1) * page_size);
    const u64 checksum = write_one(g, page, plan.memory + i * page_size, address + i * page_size, hashes);
    if (mirrors) write_other_copies(g, page, space, plan, i);
    if (g.leader()) {
      const u32 birth_epoch = static_cast<u32>(birth.epoch - ((birth.stable >> i) & 1));
      store_shared_16(&descriptors[i], Vector16{checksum, u64{birth_epoch}});
    }
  }
  serial(g, [&] {
    end_page_write(space, plan.location, plan.page_count);
    const u64 last = (first + plan.page_count - 1) / format::descriptors_per_page;
    for (u64 at = first / format::descriptors_per_page; at <= last; ++at) {
      fetch_or<Order::release, Scope::engine>(&chunk.descriptor_dirty[at / 64], u64{1} << (at % 64));
    }
  });
}

}  // namespace detail

// Reads `page_count` > 0 pages from `address` on to `destination` (any alignment), each verified before it is
// given out. Status as read_page; on checksum_mismatch pages before the damaged one may have been given out.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status read_pages(Group g, const LogicalSpace& space, u64 address, u32 page_count,
                                            u8* destination, PageUse use) {
  GPU4FS_CHECK_GT(page_count, 0u);
  for (u32 done = 0; done < page_count;) {
    const u64 here = address + u64{done} * page_size;
    const detail::RunPlan plan =
        serial(g, [&] { return detail::plan_run_to_read(space, here, page_count - done); });
    u32 verified = 0;
    Status status = plan.status;
    if (status == Status::ok) {
      verified = detail::read_planned(g, space, plan, here, destination + u64{done} * page_size,
                                      detail::has_checksum(space, use));
      if (verified != plan.page_count) status = Status::checksum_mismatch;
    }
    done += verified;
    if (status == Status::ok) continue;
    GPU4FS_TRY(detail::read_apart(g, space, address + u64{done} * page_size, destination + u64{done} * page_size,
                                  use, status));
    ++done;
  }
  g.sync();
  return Status::ok;
}

// Writes `page_count` > 0 pages from `source` (any alignment; it may change meanwhile, the pages stay
// consistent) to `address` on; the caller has allocated them. Status as write_page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_pages(Group g, LogicalSpace& space, u64 address, u32 page_count,
                                             const u8* source, PageUse use) {
  GPU4FS_CHECK_GT(page_count, 0u);
  GPU4FS_CHECK(source != nullptr);
  for (u32 done = 0; done < page_count;) {
    const u64 here = address + u64{done} * page_size;
    const detail::RunPlan plan = serial(g, [&] {
      detail::RunPlan found = detail::plan_run(space, here, page_count - done);
      if (found.status != Status::ok) return found;
      const ChunkState& chunk = space.chunks[found.location.chunk];
      const u32 all = static_cast<u32>((u64{1} << found.page_count) - 1);
      if (detail::run_bits(chunk.bitmaps.busy, found.location.page, found.page_count) != all) {
        found.status = Status::corrupt_structure;
        return found;
      }
      GPU4FS_CHECK_EQ(space.devices[chunk.columns[0].device].read_only, 0u);
      found.status = begin_page_write(space, found.location, found.page_count);
      return found;
    });
    if (plan.status != Status::ok) return plan.status;
    detail::write_planned(g, space, plan, here, source + u64{done} * page_size,
                          detail::has_checksum(space, use));
    done += plan.page_count;
  }
  return Status::ok;
}

}  // namespace gpu4fs::raid
