// Reading and writing single pages of the logical space.
//
// Each page has a descriptor in engine memory with the XXH3-64 of its bytes, seeded with its
// logical address. Reading verifies it before a byte is given out, so neither damaged nor
// misdirected pages become data. Writing computes it from the bytes that were stored, while they
// are copied: memory is read once. A page whose write did not finish has a descriptor that does not
// match, which nobody reads: no committed pointer leads there.
//
// All functions are uniform. They synchronise the group: what was written before the call by any
// rank is seen, and the result is visible to every rank after it. Other groups see a written page
// after the usual release and acquire (lock, gate, completion).
//
// With `data_checksums` off, pages accessed as PageUse::data carry no checksum; a page must be read
// with the use that it was written with. Metadata always has one.
//
// A page with several copies is written to all of them; one that is bad when it is read is replaced
// by another (raid/copies.hpp).
//
// Status: checksum_mismatch (the destination of a read is untouched), corrupt_structure for an
// address that no page has and for a write to a free page, chunk_not_mapped (chunk_of() names the chunk),
// device_failed, medium_error.
#pragma once

#include "base/access.hpp"
#include "base/config.hpp"
#include "base/copy.hpp"
#include "base/group.hpp"
#include "base/status.hpp"
#include "base/types.hpp"
#include "base/xxh3.hpp"
#include "raid/copies.hpp"
#include "raid/damage.hpp"
#include "raid/page_access.hpp"
#include "raid/page_merge.hpp"
#include "raid/raid_types.hpp"
#include "raid/translate.hpp"

namespace gpu4fs::raid {

enum class PageUse : u32 { metadata = 0, data = 1 };

namespace detail {

struct ReadPlan {
  Status status;
  u32 copy;
  const u8* memory;
  u64 checksum;
  PageLocation location;
};

inline constexpr u32 any_copy = copy_count_max;

GPU4FS_FN inline ReadPlan plan_read(const LogicalSpace& space, u64 address, u32 wanted_copy = any_copy) {
  ReadPlan plan{};
  plan.status = find_page(space, address, &plan.location);
  if (plan.status == Status::ok) plan.status = chunk_state(space, plan.location.chunk);
  if (plan.status != Status::ok) return plan;
  plan.copy = wanted_copy != any_copy ? wanted_copy
                                      : preferred_copy(space.chunks[plan.location.chunk], plan.location.page);
  const CopyPlan copy = plan_copy(space, plan.location, plan.copy);
  plan.status = copy.status;
  plan.memory = copy.memory;
  plan.checksum = copy.checksum;
  return plan;
}

// True if a page that could not be read for `reason` may have another copy that can.
GPU4FS_FN inline bool has_other_copies(const LogicalSpace& space, const PageLocation& location, Status reason) {
  const bool is_copys_fault = reason == Status::checksum_mismatch || reason == Status::medium_error ||
                              reason == Status::device_failed;
  return is_copys_fault && location.chunk != no_chunk && space.chunks[location.chunk].copy_count > 1;
}

// Another copy takes the place of the planned one, which could not be read for `reason`.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status use_other_copy(Group g, const LogicalSpace& space, ReadPlan* plan, Status reason,
                                                bool verifies) {
  if (!has_other_copies(space, plan->location, reason)) {
    if (reason == Status::checksum_mismatch) {
      const ChunkState& chunk = space.chunks[plan->location.chunk];
      serial(g, [&] { note_damage(space, chunk.base_address + plan->location.page * page_size); });
    }
    return reason;
  }
  const CopyPlan good = find_good_copy(g, space, plan->location, plan->copy, reason, verifies, true);
  plan->status = good.status;
  plan->copy = good.copy;
  plan->memory = good.memory;
  plan->checksum = good.checksum;
  return good.status;
}

// Brings the other copies of pages whose copy 0 has just been written in line. Inside begin and
// end_page_write().
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void mirror_pages(Group g, const LogicalSpace& space, const PageLocation& location,
                                            u64 page_count) {
  g.sync();
  const u8* source = page_memory(space, location, 0);
  for (u32 copy = 1; copy < space.chunks[location.chunk].copy_count; ++copy) {
    copy_bytes(g, page_memory(space, location, copy), source, page_count * page_size);
  }
  g.sync();
}

template <class Group>
GPU4FS_FN void mirror_page(Group g, const LogicalSpace& space, const PageLocation& location) {
  if (space.chunks[location.chunk].copy_count > 1) mirror_pages(g, space, location, 1);
}

struct WritePlan {
  Status status;
  u32 birth_epoch;
  u8* memory;
  PageLocation location;
};

// Of a page whose descriptor will be changed; nothing is announced yet.
GPU4FS_FN inline WritePlan plan_description(const LogicalSpace& space, u64 address) {
  WritePlan plan{};
  plan.status = find_page(space, address, &plan.location);
  if (plan.status == Status::ok) plan.status = chunk_state(space, plan.location.chunk);
  if (plan.status != Status::ok) return plan;
  const ChunkState& chunk = space.chunks[plan.location.chunk];
  // An unwritten block is filled where it is; on a damaged medium another map may name it too and have freed it.
  if (!page_bit(chunk.bitmaps.busy, plan.location.page)) {
    plan.status = Status::corrupt_structure;
    return plan;
  }
  GPU4FS_CHECK_EQ(space.devices[chunk.columns[0].device].read_only, 0u);
  plan.memory = page_memory(space, plan.location);
  // A stable page is written by the checkpoint that made it stable, whose epoch is the one before
  // the open one, or it is an unwritten block being filled, for which one epoch less does no harm.
  const u64 epoch = load<Order::relaxed, Scope::engine>(&space.epoch_open);
  GPU4FS_CHECK_GT(epoch, u64{1});
  plan.birth_epoch =
      static_cast<u32>(page_bit(chunk.bitmaps.stable, plan.location.page) ? epoch - 1 : epoch);
  return plan;
}

// finish_write() or end_page_write() must follow if the status is ok.
GPU4FS_FN inline WritePlan plan_write(const LogicalSpace& space, u64 address) {
  WritePlan plan = plan_description(space, address);
  if (plan.status == Status::ok) plan.status = begin_page_write(space, plan.location, 1);
  return plan;
}

// After the page's bytes: the dirty bit is set last, so that a checkpoint that sees it sees the
// descriptor.
GPU4FS_FN inline void put_descriptor(LogicalSpace& space, const WritePlan& plan, u64 checksum) {
  ChunkState& chunk = space.chunks[plan.location.chunk];
  const u64 page = plan.location.page;
  GPU4FS_CHECK_LT(page, chunk.page_count);
  static_assert(offsetof(format::PageDescriptor, checksum) == 0);
  static_assert(offsetof(format::PageDescriptor, birth_epoch) == 8);
  store_shared_16(&chunk.descriptors[page], Vector16{checksum, u64{plan.birth_epoch}});
  const u64 descriptor_page = page / format::descriptors_per_page;
  const u64 bit = u64{1} << (descriptor_page % 64);
  fetch_or<Order::release, Scope::engine>(&chunk.descriptor_dirty[descriptor_page / 64], bit);
}

GPU4FS_FN inline void finish_write(LogicalSpace& space, const WritePlan& plan, u64 checksum) {
  end_page_write(space, plan.location, 1);
  put_descriptor(space, plan, checksum);
}

GPU4FS_FN inline bool has_checksum(const LogicalSpace& space, PageUse use) {
  return use == PageUse::metadata || space.data_checksums != 0;
}

}  // namespace detail

// Verifies the page at `address` and copies its bytes [from, to) to `destination`, any alignment.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status read_page_range(Group g, const LogicalSpace& space, u64 address,
                                                 u32 from, u32 to, void* destination,
                                                 PageUse use = PageUse::metadata) {
  GPU4FS_CHECK_LE(from, to);
  GPU4FS_CHECK_LE(to, page_size);
  detail::ReadPlan plan = serial(g, [&] { return detail::plan_read(space, address); });
  const bool verifies = detail::has_checksum(space, use);
  if (plan.status != Status::ok) {
    GPU4FS_TRY(detail::use_other_copy(g, space, &plan, plan.status, verifies));
  }
  for (u32 attempt = 0;; ++attempt) {
    bool verified = true;
    if (verifies) {
      verified = verify_copy_page(g, destination, plan.memory, address, plan.checksum, from, to);
    } else {
      copy_bytes(g, destination, plan.memory + from, to - from);
    }
    g.sync();
    if (verified) return Status::ok;
    if (attempt == copy_count_max) return Status::checksum_mismatch;
    GPU4FS_TRY(detail::use_other_copy(g, space, &plan, Status::checksum_mismatch, verifies));
  }
}

// The whole page, 4096 bytes.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status read_page(Group g, const LogicalSpace& space, u64 address,
                                           void* destination, PageUse use = PageUse::metadata) {
  return read_page_range(g, space, address, 0, static_cast<u32>(page_size), destination, use);
}

// Writes the 4096 bytes at `source` (any alignment; they may change meanwhile, the page stays
// consistent) to the page at `address`, which the caller has allocated.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_page(Group g, LogicalSpace& space, u64 address,
                                            const void* source, PageUse use = PageUse::metadata) {
  GPU4FS_CHECK(source != nullptr);
  const detail::WritePlan plan = serial(g, [&] { return detail::plan_write(space, address); });
  if (plan.status != Status::ok) return plan.status;
  u64 checksum = 0;
  if (detail::has_checksum(space, use)) {
    checksum = xxh3_copy_page(g, plan.memory, source, address);
  } else {
    copy_bytes(g, plan.memory, source, page_size);
  }
  detail::mirror_page(g, space, plan.location);
  serial(g, [&] { detail::finish_write(space, plan, checksum); });
  return Status::ok;
}

// The page at `address`, whose bytes someone else has put on the medium, gets the descriptor that fits them.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status describe_page(Group g, LogicalSpace& space, u64 address, u64* checksum) {
  const detail::WritePlan plan = serial(g, [&] {
    detail::WritePlan place = detail::plan_description(space, address);
    if (place.status == Status::ok) place.status = begin_copy_read(space, place.location, 1, 0);
    return place;
  });
  if (plan.status != Status::ok) return plan.status;
  *checksum = detail::has_checksum(space, PageUse::data) ? xxh3_page(g, plan.memory, address) : 0;
  const u64 stored = *checksum;
  serial(g, [&] { detail::put_descriptor(space, plan, stored); });
  return Status::ok;
}

// Writes to `address` the page at `old_address` (no_address: zeros) with its bytes [from, to)
// replaced by those at `source` (any alignment; nullptr: zeros). `old_address` may equal `address`.
// The old page is verified unless all of it is replaced; on checksum_mismatch the page at `address`
// has undefined content, or, if it is the old one, is unchanged.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_page_merged(Group g, LogicalSpace& space, u64 address,
                                                   u64 old_address, u32 from, u32 to,
                                                   const void* source,
                                                   PageUse use = PageUse::metadata) {
  GPU4FS_CHECK_LE(from, to);
  GPU4FS_CHECK_LE(to, page_size);
  const bool whole = from == 0 && to == page_size;
  if (whole && source != nullptr) return write_page(g, space, address, source, use);
  const bool has_old = old_address != no_address && !whole;
  const bool in_place = old_address == address;
  detail::ReadPlan read{};
  if (has_old) {
    // What is replaced where it stands is merged into copy 0.
    read = serial(g, [&] { return detail::plan_read(space, old_address, in_place ? 0 : detail::any_copy); });
    if (read.status != Status::ok) {
      GPU4FS_TRY(detail::use_other_copy(g, space, &read, read.status, detail::has_checksum(space, use)));
    }
  }
  const detail::WritePlan plan = serial(g, [&] { return detail::plan_write(space, address); });
  if (plan.status != Status::ok) return plan.status;
  const detail::MergeTarget target{plan.memory, address, detail::has_checksum(space, use)};
  for (u32 attempt = 0;; ++attempt) {
    // The copies have been repaired if there was anything to repair, so copy 0 is as good as the one found.
    const u8* old_memory = in_place ? plan.memory : read.memory;
    const detail::OldPage old = has_old ? detail::OldPage{old_memory, old_address, read.checksum} : detail::OldPage{};
    const detail::MergeResult result =
        detail::merge_page(g, target, old, from, to, static_cast<const u8*>(source));
    g.sync();
    if (result.is_verified) {
      detail::mirror_page(g, space, plan.location);
      serial(g, [&] { detail::finish_write(space, plan, result.checksum); });
      return Status::ok;
    }
    Status repaired = Status::checksum_mismatch;
    if (attempt < copy_count_max) {
      repaired = detail::use_other_copy(g, space, &read, repaired, target.has_checksum);
      if (in_place) read.copy = 0;
    }
    if (repaired != Status::ok) {
      serial(g, [&] { end_page_write(space, plan.location, 1); });
      return repaired;
    }
  }
}

}  // namespace gpu4fs::raid
