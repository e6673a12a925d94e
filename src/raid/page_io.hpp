// Reads and writes single pages of the logical space.
//
// Each page has a descriptor in engine memory with the XXH3-64 of its bytes, seeded with its logical address. A read
// verifies it before it returns any byte, so neither damaged nor misdirected pages are taken for data. A write computes
// it from the stored bytes while they are copied, so memory is read once. An unfinished write leaves a descriptor that
// does not match. Nobody reads such a page, because no committed pointer leads to it.
//
// All functions are uniform. They synchronise the group: they see writes that any rank made before the call, and every
// rank sees the result after it. Other groups see a written page after the usual release and acquire (lock, gate,
// completion).
//
// With `data_checksums` off, pages accessed as PageUse::data have no checksum. A page must be read with the use with
// which it was written. Metadata always has a checksum.
//
// A page with several copies is written to all of them. A copy that is found bad by a read is replaced by another one
// (raid/copies.hpp). A page of a row with parities is written together with them, and computed from the rest of the row
// if it is bad (raid/parity).
//
// Status: checksum_mismatch (no part of the page is at the destination of a read), corrupt_structure for an address
// that no page has and for a write to a free page, chunk_not_mapped (chunk_of() names the chunk), device_failed,
// medium_error, and for writes of data in chunks with parities retry_after_checkpoint.
#pragma once

#include "base/access.hpp"
#include "base/config.hpp"
#include "base/copy.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "base/status.hpp"
#include "base/types.hpp"
#include "base/xxh3.hpp"
#include "raid/copies.hpp"
#include "raid/damage.hpp"
#include "raid/page_access.hpp"
#include "raid/page_copies.hpp"
#include "raid/page_merge.hpp"
#include "raid/parity/reconstruct.hpp"
#include "raid/parity/row_write.hpp"
#include "raid/pin_scope.hpp"
#include "raid/raid_types.hpp"
#include "raid/run_pages.hpp"
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
  u32 scratch;  // the page with `memory`, or no_scratch; end_read() returns it
  u32 reserved;
};

inline constexpr u32 any_copy = copy_count_max;

GPU4FS_FN inline ReadPlan plan_read(const LogicalSpace& space, u64 address, u32 wanted_copy = any_copy) {
  ReadPlan plan{};
  plan.scratch = no_scratch;
  plan.status = find_page(space, address, &plan.location);
  if (plan.status == Status::ok) plan.status = chunk_state(space, plan.location.chunk);
  if (plan.status != Status::ok) return plan;
  plan.copy = wanted_copy != any_copy ? wanted_copy : copy_to_read(space, plan.location);
  const CopyPlan copy = plan_copy(space, plan.location, plan.copy);
  plan.status = copy.status;
  plan.memory = copy.memory;
  plan.checksum = copy.checksum;
  return plan;
}

// True if the content of a page that could not be read for `reason` may come from elsewhere.
GPU4FS_FN inline bool has_other_copies(const LogicalSpace& space, const PageLocation& location, Status reason) {
  const bool copy_is_at_fault =
      reason == Status::checksum_mismatch || reason == Status::medium_error || reason == Status::device_failed;
  if (!copy_is_at_fault || location.chunk == no_chunk) return false;
  const ChunkState& chunk = space.chunks[location.chunk];
  return chunk.copy_count > 1 || chunk.parity_count != 0;
}

GPU4FS_FN inline void end_read(const LogicalSpace& space, const ReadPlan& plan) {
  if (plan.scratch != no_scratch) return_scratch(space, plan.scratch);
}

// Computes the page from the rest of its row, uses it instead of the planned one and writes it over the bad page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status use_rest_of_row(Group g, const LogicalSpace& space, ReadPlan* plan, Status reason,
                                                 bool verifies) {
  if (plan->scratch == no_scratch) plan->scratch = on_leader(g, [&] { return take_scratch(space); });
  u8* page = scratch_memory(space, plan->scratch);
  const Status status = reconstruct_page(g, space, plan->location, verifies, reason, page);
  if (status != Status::ok) {
    if (reason != Status::checksum_mismatch) return status;
    const ChunkState& chunk = space.chunks[plan->location.chunk];
    on_leader(g, [&] { note_damage(space, chunk.base_address + plan->location.page * page_size); });
    return status;
  }
  repair_copy(g, space, plan->location, 0, page);
  plan->memory = page;
  plan->status = Status::ok;
  plan->checksum = on_leader(
      g, [&] { return load_shared_16(&space.chunks[plan->location.chunk].descriptors[plan->location.page]).low; });
  return Status::ok;
}

// Uses another copy instead of the planned one, which could not be read for `reason`.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status use_other_copy(Group g, const LogicalSpace& space, ReadPlan* plan, Status reason,
                                                bool verifies) {
  if (!has_other_copies(space, plan->location, reason)) {
    if (reason == Status::checksum_mismatch) {
      const ChunkState& chunk = space.chunks[plan->location.chunk];
      on_leader(g, [&] { note_damage(space, chunk.base_address + plan->location.page * page_size); });
    }
    return reason;
  }
  if (space.chunks[plan->location.chunk].parity_count != 0) {
    return use_rest_of_row(g, space, plan, reason, verifies);
  }
  const CopyPlan good = find_good_copy(g, space, plan->location, {plan->copy, reason}, verifies, true);
  plan->status = good.status;
  plan->copy = good.copy;
  plan->memory = good.memory;
  plan->checksum = good.checksum;
  return good.status;
}

struct WritePlan {
  Status status;
  u32 birth_epoch;
  u8* memory;  // of the first of `copies`
  PageLocation location;
  u32 copies;  // one bit for each copy that is written
  u32 reserved;
};

// Writes a page whose first copy has just been written to its other copies. Between begin_page_write() and
// end_page_write().
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void mirror_copies(Group g, const LogicalSpace& space, const WritePlan& plan) {
  g.sync();
  for (u32 left = plan.copies & (plan.copies - 1); left != 0; left &= left - 1) {
    copy_bytes(g, page_memory(space, plan.location, first_copy(left)), plan.memory, page_size);
  }
  g.sync();
}

template <class Group>
GPU4FS_FN void mirror_page(Group g, const LogicalSpace& space, const WritePlan& plan) {
  if (GPU4FS_MUTANT(second_copy_missing, (plan.copies & (plan.copies - 1)) != 0, false)) mirror_copies(g, space, plan);
}

// For a page whose descriptor will change; nothing is announced yet, so `memory` is not known.
GPU4FS_FN inline WritePlan plan_description(const LogicalSpace& space, u64 address) {
  WritePlan plan{};
  plan.status = find_page(space, address, &plan.location);
  if (plan.status == Status::ok) plan.status = chunk_state(space, plan.location.chunk);
  if (plan.status != Status::ok) return plan;
  const ChunkState& chunk = space.chunks[plan.location.chunk];
  // An unwritten block is filled in place; on a damaged medium another map may also name it and have freed it.
  if (!page_bit(chunk.bitmaps.busy, plan.location.page)) {
    plan.status = Status::corrupt_structure;
    return plan;
  }
  GPU4FS_CHECK_EQ(space.devices[chunk.columns[0].device].read_only, 0u);
  if (chunk.parity_count == 0) plan.copies = copies_to_write(space, plan.location);
  // A stable page is written either by the checkpoint that made it stable, whose epoch is the one before the open one,
  // or as a part of an unwritten block that is being filled. For the latter one epoch less does no harm.
  const u64 epoch = load<Order::relaxed, Scope::engine>(&space.epoch_open);
  GPU4FS_CHECK_GT(epoch, u64{1});
  plan.birth_epoch = static_cast<u32>(page_bit(chunk.bitmaps.stable, plan.location.page) ? epoch - 1 : epoch);
  return plan;
}

GPU4FS_FN inline bool is_in_rows(const LogicalSpace& space, const WritePlan& plan) {
  return plan.status == Status::ok && space.chunks[plan.location.chunk].parity_count != 0;
}

// Unless the page is in rows, whose code announces its own accesses, finish_write() or cancel_page_write() must follow
// if the status is ok.
GPU4FS_FN inline WritePlan plan_write(const LogicalSpace& space, u64 address) {
  WritePlan plan = plan_description(space, address);
  if (plan.status != Status::ok || is_in_rows(space, plan)) return plan;
  plan.status = begin_page_write(space, plan.location, 1);
  if (plan.status != Status::ok) return plan;
  plan.copies = copies_to_write(space, plan.location);
  plan.memory = page_memory(space, plan.location, first_copy(plan.copies));
  return plan;
}

// Called after the page's bytes are written. The dirty bit is set last, so a checkpoint that sees it also sees the
// descriptor.
GPU4FS_FN inline void put_descriptor(LogicalSpace& space, const WritePlan& plan, u64 checksum, u32 flags = 0) {
  ChunkState& chunk = space.chunks[plan.location.chunk];
  const u64 page = plan.location.page;
  GPU4FS_CHECK_LT(page, chunk.page_count);
  store_shared_16(&chunk.descriptors[page], make_descriptor(checksum, plan.birth_epoch, flags));
  const u64 descriptor_page = page / format::descriptors_per_page;
  const u64 bit = GPU4FS_MUTANT(descriptors_not_written, u64{1} << (descriptor_page % 64), u64{0});
  fetch_or<Order::release, Scope::engine>(&chunk.descriptor_dirty[descriptor_page / 64], bit);
  note_rewritten_pages(space, chunk, page, 1);
}

GPU4FS_FN inline void finish_write(LogicalSpace& space, const WritePlan& plan, u64 checksum) {
  end_page_write(space, plan.location, 1);
  put_descriptor(space, plan, checksum);
}

GPU4FS_FN inline ReadPlan plan_old_page(const LogicalSpace& space, u64 address, bool in_place) {
  if (!in_place) return plan_read(space, address);
  const WritePlan target = plan_description(space, address);
  if (target.status != Status::ok) return plan_read(space, address);
  return plan_read(space, address, first_copy(target.copies));
}

GPU4FS_FN inline bool has_checksum(const LogicalSpace& space, PageUse use) {
  return use == PageUse::metadata || space.data_checksums != 0;
}

}  // namespace detail

namespace detail {

template <class Group>
GPU4FS_FN Status write_in_rows(Group g, LogicalSpace& space, const PageLocation& location, u64 count,
                               const void* source, PageUse use) {
  const RowSource rows{
      location.chunk, has_checksum(space, use) ? 1u : 0u, use == PageUse::metadata ? 1u : 0u, 0, location.page,
      count,          static_cast<const u8*>(source)};
  return write_rows(g, space, rows);
}

}  // namespace detail

// Verifies the page at `address` and copies the range of it to `destination`, which has any alignment.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status read_page_range(Group g, const LogicalSpace& space, u64 address, ByteRange range,
                                                 void* destination, PageUse use = PageUse::metadata) {
  GPU4FS_CHECK_LE(range.from, range.to);
  GPU4FS_CHECK_LE(range.to, page_size);
  if (space.tier != nullptr && use == PageUse::data) {
    if (read_copies(g, space, address, 1, static_cast<u8*>(destination), range).given != 0) return Status::ok;
  }
  const PinScope pins(g, space);
  detail::ReadPlan plan = on_leader(g, [&] { return detail::plan_read(space, address); });
  const bool verifies = detail::has_checksum(space, use);
  Status status = plan.status;
  if (status != Status::ok) status = detail::use_other_copy(g, space, &plan, status, verifies);
  for (u32 attempt = 0; status == Status::ok; ++attempt) {
    bool verified = true;
    if (verifies) {
      verified =
          GPU4FS_MUTANT(page_unverified, verify_copy_page(g, destination, plan.memory, address, plan.checksum, range),
                        verify_copy_page(g, destination, plan.memory, address, plan.checksum, range) || true);
    } else {
      copy_bytes(g, destination, plan.memory + range.from, range.to - range.from);
    }
    g.sync();
    if (verified) break;
    status = Status::checksum_mismatch;
    if (attempt < copy_count_max) status = detail::use_other_copy(g, space, &plan, status, verifies);
  }
  if (plan.scratch != no_scratch) on_leader(g, [&] { detail::end_read(space, plan); });
  return status;
}

// The whole page, 4096 bytes.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status read_page(Group g, const LogicalSpace& space, u64 address, void* destination,
                                           PageUse use = PageUse::metadata) {
  return read_page_range(g, space, address, whole_page(), destination, use);
}

// Writes the 4096 bytes at `source` to the page at `address`, which the caller has allocated. `source` has any
// alignment. Its bytes may change meanwhile; the page stays consistent.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_page(Group g, LogicalSpace& space, u64 address, const void* source,
                                            PageUse use = PageUse::metadata) {
  GPU4FS_CHECK(source != nullptr);
  const PinScope pins(g, space);
  const detail::WritePlan plan = on_leader(g, [&] { return detail::plan_write(space, address); });
  if (plan.status != Status::ok) return plan.status;
  if (detail::is_in_rows(space, plan)) return detail::write_in_rows(g, space, plan.location, 1, source, use);
  u64 checksum = 0;
  if (detail::has_checksum(space, use)) {
    checksum = xxh3_copy_page(g, plan.memory, source, address);
  } else {
    copy_bytes(g, plan.memory, source, page_size);
  }
  detail::mirror_page(g, space, plan);
  on_leader(g, [&] { detail::finish_write(space, plan, checksum); });
  return Status::ok;
}

// A page that is composed of an old page and new bytes.
struct PageMerge {
  u64 address;         // of the new page
  u64 old_address;     // no_address: zeros. It may be the same page, but not in chunks with parities
  ByteRange range;     // the bytes that are replaced
  const void* source;  // the new bytes, of any alignment; nullptr: zeros
  PageUse use = PageUse::metadata;

  GPU4FS_FN detail::NewBytes new_bytes() const { return {range, static_cast<const u8*>(source)}; }
};

namespace detail {

// In a chunk with parities the merged page is composed in engine memory, because it is written once. *old_is_bad:
// whether it failed because of the old page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status merge_into_row(Group g, LogicalSpace& space, const WritePlan& plan, ReadPlan* read,
                                                PageMerge merge, bool* old_is_bad) {
  const u32 scratch = on_leader(g, [&] { return take_scratch(space); });
  const MergeTarget target{scratch_memory(space, scratch), merge.old_address, has_checksum(space, merge.use)};
  Status status = Status::ok;
  for (u32 attempt = 0; status == Status::ok; ++attempt) {
    const OldPage old = read != nullptr ? OldPage{read->memory, merge.old_address, read->checksum} : OldPage{};
    const bool verified = merge_page(g, target, old, merge.new_bytes()).is_verified;
    g.sync();
    *old_is_bad = !verified;
    if (verified) {
      status = write_in_rows(g, space, plan.location, 1, target.memory, merge.use);
      break;
    }
    status = Status::checksum_mismatch;
    if (attempt < copy_count_max) status = use_other_copy(g, space, read, status, target.has_checksum);
  }
  on_leader(g, [&] { return_scratch(space, scratch); });
  return status;
}

// Merges into all copies of the page at `address`, which may be the old one. Only reading the old page can fail.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status merge_into_copies(Group g, LogicalSpace& space, const WritePlan& plan, ReadPlan* read,
                                                   PageMerge merge) {
  const MergeTarget target{plan.memory, merge.address, has_checksum(space, merge.use)};
  const bool in_place = merge.old_address == merge.address;
  for (u32 attempt = 0;; ++attempt) {
    // The copies have been repaired if necessary, so the first one is as good as the one found.
    const u8* old_memory = in_place ? plan.memory : read != nullptr ? read->memory : nullptr;
    const OldPage old = read != nullptr ? OldPage{old_memory, merge.old_address, read->checksum} : OldPage{};
    const MergeResult result = merge_page(g, target, old, merge.new_bytes());
    g.sync();
    if (result.is_verified) {
      mirror_page(g, space, plan);
      on_leader(g, [&] { finish_write(space, plan, result.checksum); });
      return Status::ok;
    }
    Status repaired = Status::checksum_mismatch;
    if (attempt < copy_count_max) {
      repaired = use_other_copy(g, space, read, repaired, target.has_checksum);
      if (in_place) read->copy = first_copy(plan.copies);
    }
    if (repaired != Status::ok) {
      on_leader(g, [&] { cancel_page_write(space, plan.location, 1); });
      return repaired;
    }
  }
}

// Verifies a page that is replaced in place, if pages are apart: when its write is announced, the copies need not have
// their old content any more.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status verify_old_page(Group g, const LogicalSpace& space, ReadPlan* read, u64 address,
                                                 bool verifies) {
  if (!verifies || !on_leader(g, [&] { return pages_are_apart(space); })) return Status::ok;
  for (u32 attempt = 0; xxh3_page(g, read->memory, address) != read->checksum; ++attempt) {
    if (attempt == copy_count_max) return Status::checksum_mismatch;
    GPU4FS_TRY(use_other_copy(g, space, read, Status::checksum_mismatch, verifies));
  }
  return Status::ok;
}

}  // namespace detail

// Composes and writes the new page. The old one is verified unless all of it is replaced. After checksum_mismatch the
// page at merge.address has undefined content or, if it is the old one, is unchanged. *old_is_bad tells what a status
// other than ok means: the old page cannot be read, or (false) the new one cannot be written.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_page_merged(Group g, LogicalSpace& space, PageMerge merge,
                                                   bool* old_is_bad = nullptr) {
  GPU4FS_CHECK_LE(merge.range.from, merge.range.to);
  GPU4FS_CHECK_LE(merge.range.to, page_size);
  const bool whole = merge.range.from == 0 && merge.range.to == page_size;
  if (old_is_bad != nullptr) *old_is_bad = false;
  if (whole && merge.source != nullptr) return write_page(g, space, merge.address, merge.source, merge.use);
  const bool has_old = merge.old_address != no_address && !whole;
  const bool in_place = merge.old_address == merge.address;
  const PinScope pins(g, space);
  detail::ReadPlan read{};
  read.scratch = no_scratch;
  Status status = Status::ok;
  bool read_failed = false;
  if (has_old) {
    // A replacement in place is merged into the first copy that is written.
    read = on_leader(g, [&] { return detail::plan_old_page(space, merge.old_address, in_place); });
    status = read.status;
    if (status != Status::ok) {
      status = detail::use_other_copy(g, space, &read, status, detail::has_checksum(space, merge.use));
    }
    if (status == Status::ok && GPU4FS_MUTANT(old_page_verified_late, in_place, false)) {
      status = detail::verify_old_page(g, space, &read, merge.old_address, detail::has_checksum(space, merge.use));
    }
    read_failed = status != Status::ok;
  }
  if (status == Status::ok) {
    const detail::WritePlan plan = on_leader(g, [&] { return detail::plan_write(space, merge.address); });
    detail::ReadPlan* const old = has_old ? &read : nullptr;
    status = plan.status;
    if (detail::is_in_rows(space, plan)) {
      GPU4FS_CHECK(!in_place);
      status = detail::merge_into_row(g, space, plan, old, merge, &read_failed);
    } else if (status == Status::ok) {
      status = detail::merge_into_copies(g, space, plan, old, merge);
      read_failed = status != Status::ok;
    }
  }
  if (old_is_bad != nullptr) *old_is_bad = read_failed;
  if (read.scratch != no_scratch) on_leader(g, [&] { detail::end_read(space, read); });
  return status;
}

}  // namespace gpu4fs::raid
