// The table of damaged pages: pages that were read and did not match their checksums.
//
// A reader records a page here before it fails. The command that needed the page adds the owner afterwards. The table
// is bounded: a page is entered once, and damage beyond the end is only counted. An entry leaves the table when the
// page is found to be valid or free (scrub). All functions are called by one rank, hold the table's lock for some
// hundred cycles, and do nothing in a space without a table.
#pragma once

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/locks.hpp"
#include "base/phase_users.hpp"
#include "raid/translate.hpp"
#include "wire/health_format.hpp"

namespace gpu4fs::raid {

inline constexpr u32 damage_entry_max = 1024;

struct DamageTable {
  TicketLock lock;
  u32 entry_count;
  u32 dropped;                            // see wire::HealthRecord
  PhaseUsers repairs;                     // raid/repair_pages.hpp
  u64 mismatch_counts[device_count_max];  // by device
  wire::DamageRecord entries[damage_entry_max];
};

namespace detail {

// Index of the page's entry, or entry_count if there is none. Under the lock.
GPU4FS_FN inline u32 find_damage(const DamageTable& table, u64 address) {
  GPU4FS_CHECK_LE(table.entry_count, damage_entry_max);
  u32 index = 0;
  while (index < table.entry_count && table.entries[index].address != address) ++index;
  return index;
}

GPU4FS_FN inline u32 device_of_page(const LogicalSpace& space, u64 address) {
  PageLocation location{};
  if (find_page(space, address, &location) != Status::ok) return 0;
  return page_place(space, location, 0).device;
}

}  // namespace detail

// The page at `address` did not match its checksum.
GPU4FS_FN GPU4FS_NOINLINE inline void note_damage(const LogicalSpace& space, u64 address) {
  if (space.damage == nullptr) return;
  DamageTable& table = *space.damage;
  const u32 device = detail::device_of_page(space, address);
  GPU4FS_CHECK_LT(device, device_count_max);
  table.lock.lock();
  ++table.mismatch_counts[device];
  const u32 index = detail::find_damage(table, address);
  if (index < table.entry_count) {
    ++table.entries[index].count;
  } else if (index < damage_entry_max) {
    table.entries[index] = {address, wire::damage_inode_unknown, 1, device, wire::DamageKind::unknown, 0};
    ++table.entry_count;
  } else {
    ++table.dropped;
  }
  table.lock.unlock();
}

// A copy on `device` was bad and has been written again.
GPU4FS_FN GPU4FS_NOINLINE inline void note_repair(const LogicalSpace& space, u32 device) {
  GPU4FS_CHECK_LT(device, device_count_max);
  if (space.damage == nullptr) return;
  DamageTable& table = *space.damage;
  table.lock.lock();
  ++table.mismatch_counts[device];
  table.lock.unlock();
}

// Records that damaged pages among [address, address + page_count pages) belong to `inode`.
GPU4FS_FN GPU4FS_NOINLINE inline void name_damage(const LogicalSpace& space, u64 address, u64 page_count, u64 inode,
                                                  wire::DamageKind kind) {
  if (space.damage == nullptr) return;
  DamageTable& table = *space.damage;
  table.lock.lock();
  for (u32 i = 0; i < table.entry_count; ++i) {
    wire::DamageRecord& entry = table.entries[i];
    if (entry.address < address || (entry.address - address) / page_size >= page_count) continue;
    entry.inode = inode;
    entry.kind = kind;
  }
  table.lock.unlock();
}

// The page is valid or free.
GPU4FS_FN GPU4FS_NOINLINE inline void forget_damage(const LogicalSpace& space, u64 address) {
  if (space.damage == nullptr) return;
  DamageTable& table = *space.damage;
  table.lock.lock();
  const u32 index = detail::find_damage(table, address);
  if (index < table.entry_count) {
    --table.entry_count;
    table.entries[index] = table.entries[table.entry_count];
  }
  table.lock.unlock();
}

}  // namespace gpu4fs::raid
