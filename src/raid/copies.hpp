// The other copies of a page: finding a good one, and repairing bad ones.
//
// A page with several copies is read from one of them. If this copy cannot be read or does not match its checksum, the
// others are tried in turn. The first one that verifies is written over those that did not, which is counted
// (raid/damage.hpp). Pages that commands can reach do not change while they are read (fs/fs_types.hpp), so a repair
// stores the earlier content, and two readers that repair one page store the same bytes.
//
// Uniform; not on any fast path.
#pragma once

#include "base/copy.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "base/xxh3.hpp"
#include "raid/damage.hpp"
#include "raid/page_access.hpp"

namespace gpu4fs::raid {

// A copy of a page; `status` says why it cannot be read.
struct CopyPlan {
  Status status;
  u32 copy;
  const u8* memory;
  u64 checksum;
};

namespace detail {

GPU4FS_FN inline CopyPlan plan_copy(const LogicalSpace& space, const PageLocation& location, u32 copy) {
  const Status status = begin_copy_read(space, location, 1, copy);
  if (status != Status::ok) return {status, copy, nullptr, 0};
  const Vector16 descriptor = load_shared_16(&space.chunks[location.chunk].descriptors[location.page]);
  return {Status::ok, copy, page_memory(space, location, copy), descriptor.low};
}

// Writes the page at `good` over copy `copy`. If the device cannot be written, the copy stays as it is.
template <class Group>
GPU4FS_FN void repair_copy(Group g, const LogicalSpace& space, const PageLocation& location, u32 copy, const u8* good) {
  u8* memory = on_leader(g, [&]() -> u8* {
    const DevicePlace place = page_place(space, location, copy);
    if (space.devices[place.device].read_only != 0) return nullptr;
    if (begin_copy_write(space, location, 1, copy) != Status::ok) return nullptr;
    return page_memory(space, location, copy);
  });
  if (memory == nullptr) return;
  GPU4FS_MUTANT(copy_repair_not_written, copy_bytes(g, memory, good, page_size), static_cast<void>(0));
  g.sync();
  on_leader(g, [&] {
    end_copy_write(space, location, 1, copy);
    note_repair(space, page_place(space, location, copy).device);
  });
}

}  // namespace detail

// A copy that could not be read.
struct BadCopy {
  u32 copy;
  Status reason;  // checksum_mismatch, or the error of its device
};

// Finds another copy of the page at `location`, and repairs bad copies that it finds before. Returns the number and the
// place of the copy. Status: if a copy was read and none verifies, checksum_mismatch, with `notes` also entered into
// the table of damage; otherwise the reason. `verifies`: pages of this use have a checksum. The caller prevents writes
// of the page meanwhile.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE CopyPlan find_good_copy(Group g, const LogicalSpace& space, const PageLocation& location,
                                                  BadCopy bad, bool verifies, bool notes) {
  const ChunkState& chunk = space.chunks[location.chunk];
  const u64 address = chunk.base_address + location.page * page_size;
  u32 mismatched = bad.reason == Status::checksum_mismatch ? 1u << bad.copy : 0;
  for (u32 i = 1; i < chunk.copy_count; ++i) {
    const u32 copy = (bad.copy + i) % chunk.copy_count;
    const CopyPlan plan = on_leader(g, [&] { return detail::plan_copy(space, location, copy); });
    if (plan.status != Status::ok) continue;
    if (verifies && xxh3_page(g, plan.memory, address) != plan.checksum) {
      mismatched |= 1u << copy;
      continue;
    }
    if (bad.reason != Status::checksum_mismatch) mismatched |= 1u << bad.copy;
    for (u32 other = 0; other < chunk.copy_count; ++other) {
      if ((mismatched >> other & 1) == 0) continue;
      detail::repair_copy(g, space, location, GPU4FS_MUTANT(wrong_copy_repaired, other, copy), plan.memory);
    }
    return plan;
  }
  if (mismatched == 0) return {bad.reason, bad.copy, nullptr, 0};
  if (notes) on_leader(g, [&] { note_damage(space, address); });
  return {Status::checksum_mismatch, bad.copy, nullptr, 0};
}

}  // namespace gpu4fs::raid
