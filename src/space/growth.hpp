// A pool that changes its size while it is mounted: chunks that are created and deleted, devices that join and leave.
//
// The server prepares new chunks and devices in unused places, and the contents of the superblocks for them
// (PoolGrowth); nothing on the medium refers to them yet. Chunks that will be deleted are frozen and empty before
// (space/frozen_chunks.hpp). Then:
//
//   stage     the engine gets the plan (Opcode::grow)
//   the next checkpoint, of epoch E:
//     asks the server to write what depends on E: nodes of the chunk tree, chunk headers and chunk maps. If it
//     refuses, or a device is lost meanwhile, the checkpoint continues without the plan
//     flushes, with the pages of the epoch
//     writes the superblocks of E with the plan: first to devices that join the pool, which are flushed, then to the
//     others. So a device is in a durable list of members only after it has a superblock; one that leaves gets none
//   admit     (Opcode::grow) while no step runs: new chunks get a place in the table and in the granule table, deleted
//             ones leave it. Then the new ones are loaded
//   withdraw  (Opcode::grow) before a plan that failed is overwritten
//
// Each plan has a number. The server's answer to a checkpoint refers to the plan that it was asked about. This plan may
// have been withdrawn meanwhile and another one staged.
//
// The engine owns the phase: each of these commands is executed in the phases in which it has a meaning, and answered
// with a status in all others. A staged plan is still valid when it is admitted, because nothing else changes the
// tables and a chunk that will be deleted is not unfrozen meanwhile.
//
// A crash before a superblock of E is durable leaves the old pool: the nodes of the tree and the slots of chunk maps
// that were written are unused ones. A later crash leaves a pool with the new chunks, which are empty: their pages are
// allocated only after `admit`. The content of deleted chunks on the devices is unchanged until then, and the server
// reuses their space only in a plan for a later epoch.
#pragma once

#include "base/atomics.hpp"
#include "base/bits.hpp"
#include "base/check.hpp"
#include "device/device_access.hpp"
#include "device/staged/late_errors.hpp"
#include "raid/device_loss.hpp"
#include "raid/translate.hpp"
#include "space/chunk_checkpoint.hpp"
#include "space/frozen_chunks.hpp"
#include "space/space_types.hpp"

namespace gpu4fs::space {

enum class GrowthPhase : u32 {
  none = 0,  // no plan, or the last plan was admitted or withdrawn
  staged,    // the next checkpoint takes it up
  written,   // the superblocks of the running checkpoint name it
  durable,   // they are durable
  refused,   // the server could not write its part, or a device was lost
};

inline constexpr u32 growth_chunks_max = 256;  // that one plan creates or deletes

// Written by the server, except for the phase, while the phase is none or refused.
struct PoolGrowth {
  u32 phase;         // atomic, GrowthPhase; written by the engine alone
  u32 device_count;  // after the plan, like all that follows
  u32 chunk_count;
  u32 slot_count;  // places in the table of chunks, erased ones included
  u32 tree_root;
  u32 tree_height;
  u32 tree_replica_count;
  u32 added_count;
  u32 erased_count;
  u32 number;  // of the plan; unique within a mount
  u64 tree_node_count;
  u64 page_total;
  u64 joining;  // one bit for each device that becomes a member
  u64 leaving;  // those that are members no more
  u8 device_uuids[device_count_max][16];
  device::Device devices[device_count_max];  // those that join
  format::DevicePart parts[device_count_max];
  u32 added_slots[growth_chunks_max];
  u32 erased_slots[growth_chunks_max];
  raid::ChunkState added[growth_chunks_max];
};

namespace detail {

GPU4FS_FN inline GrowthPhase growth_phase(const SpaceState& state) {
  if (state.growth == nullptr) return GrowthPhase::none;
  return static_cast<GrowthPhase>(load<Order::acquire, Scope::engine>(&state.growth->phase));
}

GPU4FS_FN inline void set_growth_phase(SpaceState& state, GrowthPhase phase) {
  store<Order::release, Scope::engine>(&state.growth->phase, static_cast<u32>(phase));
}

// False: the phase has changed meanwhile.
GPU4FS_FN inline bool change_growth_phase(SpaceState& state, GrowthPhase from, GrowthPhase to) {
  u32 expected = static_cast<u32>(from);
  return compare_exchange<Order::acq_rel, Scope::engine>(&state.growth->phase, expected, static_cast<u32>(to));
}

GPU4FS_FN inline bool growth_fits(const SpaceState& state, const PoolGrowth& plan) {
  const u64 devices = plan.device_count >= 64 ? ~u64{0} : (u64{1} << plan.device_count) - 1;
  return ((plan.joining | plan.leaving) & ~devices) == 0 && plan.device_count >= raid::device_count_of(state.space) &&
         plan.device_count <= state.space.device_capacity && plan.slot_count >= raid::chunk_count_of(state.space) &&
         plan.slot_count <= state.space.chunk_capacity && plan.chunk_count <= plan.slot_count &&
         plan.added_count <= growth_chunks_max && plan.erased_count <= growth_chunks_max;
}

// The chunk's granules are in the table and belong to no chunk.
GPU4FS_FN GPU4FS_NOINLINE inline bool has_free_granules(const SpaceState& state, const raid::ChunkState& chunk) {
  const u64 granule_bytes = u64{1} << state.space.granule_shift;
  if (chunk.size_bytes == 0 || !is_aligned(chunk.base_address | chunk.size_bytes, granule_bytes)) return false;
  const u64 first = chunk.base_address >> state.space.granule_shift;
  const u64 count = chunk.size_bytes >> state.space.granule_shift;
  if (first > state.space.granule_count || count > state.space.granule_count - first) return false;
  for (u64 granule = first; granule < first + count; ++granule) {
    if (load<Order::acquire, Scope::engine>(&state.space.granule_to_chunk[granule]) != raid::no_chunk) return false;
  }
  return true;
}

// Each added chunk has a free place in the table and free addresses; none occurs twice.
GPU4FS_FN GPU4FS_NOINLINE inline bool added_chunks_fit(const SpaceState& state, const PoolGrowth& plan) {
  for (u32 i = 0; i < plan.added_count; ++i) {
    const u32 slot = plan.added_slots[i];
    if (slot >= plan.slot_count) return false;
    if (slot < raid::chunk_count_of(state.space) && !raid::is_erased(state.space.chunks[slot])) return false;
    const raid::ChunkState& chunk = plan.added[i];
    if (!has_free_granules(state, chunk)) return false;
    for (u32 k = 0; k < i; ++k) {
      const raid::ChunkState& other = plan.added[k];
      const bool is_apart = chunk.base_address >= other.base_address + other.size_bytes ||
                            other.base_address >= chunk.base_address + chunk.size_bytes;
      if (plan.added_slots[k] == slot || !is_apart) return false;
    }
  }
  return true;
}

// Each chunk that will be deleted is in the table, occurs once, and is frozen and empty.
GPU4FS_FN GPU4FS_NOINLINE inline Status check_erased_chunks(const SpaceState& state, const PoolGrowth& plan) {
  for (u32 i = 0; i < plan.erased_count; ++i) {
    if (plan.erased_slots[i] >= raid::chunk_count_of(state.space)) return Status::invalid_argument;
    for (u32 k = 0; k < i; ++k) {
      if (plan.erased_slots[k] == plan.erased_slots[i]) return Status::invalid_argument;
    }
    GPU4FS_TRY(check_frozen_empty(state, plan.erased_slots[i]));
  }
  return Status::ok;
}

}  // namespace detail

// The server's plan is in state.growth. Status: busy (a plan is being executed, or durable and not admitted, or a chunk
// to be deleted is not frozen and empty), retry_after_checkpoint (it is, but not in the durable epoch), not_found (the
// chunk was deleted), invalid_argument.
GPU4FS_FN GPU4FS_NOINLINE inline Status stage_growth(SpaceState& state) {
  if (state.growth == nullptr || state.read_only != 0) return Status::read_only;
  const GrowthPhase phase = detail::growth_phase(state);
  if (phase != GrowthPhase::none && phase != GrowthPhase::refused) return Status::busy;
  const PoolGrowth& plan = *state.growth;
  if (!detail::growth_fits(state, plan) || !detail::added_chunks_fit(state, plan)) return Status::invalid_argument;
  GPU4FS_TRY(detail::check_erased_chunks(state, plan));
  return detail::change_growth_phase(state, phase, GrowthPhase::staged) ? Status::ok : Status::busy;
}

// No checkpoint will take up the staged plan. Status: busy (superblocks that name it are being written, or are
// durable).
GPU4FS_FN GPU4FS_NOINLINE inline Status withdraw_growth(SpaceState& state) {
  if (state.growth == nullptr) return Status::read_only;
  (void)detail::change_growth_phase(state, GrowthPhase::staged, GrowthPhase::none);
  const GrowthPhase phase = detail::growth_phase(state);
  return phase == GrowthPhase::none || phase == GrowthPhase::refused ? Status::ok : Status::busy;
}

// A current plan deletes the chunk.
GPU4FS_FN GPU4FS_NOINLINE inline bool is_being_deleted(const SpaceState& state, u32 index) {
  const GrowthPhase phase = detail::growth_phase(state);
  if (phase == GrowthPhase::none || phase == GrowthPhase::refused) return false;
  for (u32 i = 0; i < state.growth->erased_count; ++i) {
    if (state.growth->erased_slots[i] == index) return true;
  }
  return false;
}

GPU4FS_FN inline bool growth_is_staged(const SpaceState& state) {
  return detail::growth_phase(state) == GrowthPhase::staged;
}
// Of the current plan; while one is staged, and until the end of the step.
GPU4FS_FN inline u32 growth_number(const SpaceState& state) {
  return state.growth == nullptr ? 0 : state.growth->number;
}

namespace detail {

// Writes the plan into the superblock of every device; a new device begins with the superblock of the others.
GPU4FS_FN GPU4FS_NOINLINE inline void put_into_superblocks(SpaceState& state, const PoolGrowth& plan) {
  u32 newest = 0;  // a device that was written by the last checkpoint
  while (newest + 1 < raid::device_count_of(state.space) && !device::is_readable(state.space.devices[newest])) ++newest;
  bool any_removed = false;
  for (u32 d = 0; d < plan.device_count; ++d) {
    u8 any = 0;
    for (u32 k = 0; k < 16; ++k) any = static_cast<u8>(any | plan.device_uuids[d][k]);
    any_removed = any_removed || any == 0;
  }
  for (u32 d = 0; d < plan.device_count; ++d) {
    format::Superblock& superblock = state.superblocks[d];
    if ((plan.joining >> d & 1) != 0) {
      superblock = state.superblocks[newest];
      superblock.epoch = state.epoch_durable;
      superblock.device = plan.parts[d];
    }
    superblock.device_count = plan.device_count;
    superblock.chunk_count = plan.chunk_count;
    superblock.tree_root = plan.tree_root;
    superblock.tree_height = static_cast<u8>(plan.tree_height);
    superblock.tree_replica_count = static_cast<u8>(plan.tree_replica_count);
    superblock.tree_node_count = plan.tree_node_count;
    superblock.page_total = plan.page_total;
    superblock.feature_incompatible &= ~u64{format::feature_removed_devices};
    if (any_removed) superblock.feature_incompatible |= format::feature_removed_devices;
    for (u32 i = 0; i < plan.device_count; ++i) {
      for (u32 k = 0; k < 16; ++k) superblock.device_uuids[i][k] = plan.device_uuids[i][k];
    }
  }
}

// It comes into use with the last store; an index without a device is not read by others.
GPU4FS_FN inline void install_joining_device(SpaceState& state, const PoolGrowth& plan, u32 d) {
  device::Device& device = state.space.devices[d];
  device::Device image = plan.devices[d];
  image.failed = device::device_failed_for_good;
  image.tier = state.space.tier;
  device = image;
  if (image.stack != nullptr) store<Order::relaxed, Scope::engine>(&state.space.stacked, 1u);
  // The engine's staged devices were built with it.
  GPU4FS_CHECK(image.staged == nullptr || image.staged == state.space.staged);
  // Of a device that had its index, or that was to join and could not.
  if (image.staged != nullptr) device::forget_write_error(*image.staged, d);
  if (image.kind != device::DeviceKind::memory) store<Order::relaxed, Scope::engine>(&state.space.pages_apart, 1u);
  if (state.space.health != nullptr) {
    raid::DeviceHealth& health = *state.space.health;
    store<Order::relaxed, Scope::engine>(&health.read_errors[d], 0u);
    store<Order::relaxed, Scope::engine>(&health.write_errors[d], 0u);
    store<Order::relaxed, Scope::engine>(&health.flush_errors[d], 0u);
    health.file_numbers[d] = 0;
  }
  store<Order::release, Scope::engine>(&device.failed, u32{device::device_in_use});
}

}  // namespace detail

// The server has written its part of plan `number` for the epoch of the running checkpoint, or has failed. Nothing
// happens if that plan was withdrawn meanwhile: a newly staged one waits for the next checkpoint.
GPU4FS_FN GPU4FS_NOINLINE inline void take_up_growth(SpaceState& state, u32 number, bool is_written) {
  if (!growth_is_staged(state) || growth_number(state) != number) return;
  const GrowthPhase next = is_written ? GrowthPhase::written : GrowthPhase::refused;
  if (!detail::change_growth_phase(state, GrowthPhase::staged, next) || !is_written) return;
  const PoolGrowth& plan = *state.growth;
  // After this, a loss is judged with the new chunks; an earlier loss leaves the pool as it was.
  if (!raid::plan_chunks(state.space, plan.added, plan.added_count, plan.leaving)) {
    detail::set_growth_phase(state, GrowthPhase::refused);
    return;
  }
  GPU4FS_CHECK_LE(plan.device_count, state.space.device_capacity);
  detail::put_into_superblocks(state, plan);
  for (u64 left = plan.joining; left != 0; left &= left - 1) {
    detail::install_joining_device(state, plan, static_cast<u32>(count_trailing_zeros(left)));
  }
  store<Order::release, Scope::engine>(&state.space.device_count, plan.device_count);
}

// Devices that join the pool with the running checkpoint, one bit each.
GPU4FS_FN inline u64 joining_devices(const SpaceState& state) {
  return detail::growth_phase(state) == GrowthPhase::written ? state.growth->joining : 0;
}

// The change of the sum of the slots' checksums by a plan that superblocks name: its chunks are not in the table yet,
// and those that it deletes still are. More checkpoints may follow before it is admitted.
GPU4FS_FN GPU4FS_NOINLINE inline u64 growth_slot_sum(const SpaceState& state) {
  const GrowthPhase phase = detail::growth_phase(state);
  if (phase != GrowthPhase::written && phase != GrowthPhase::durable) return 0;
  const PoolGrowth& plan = *state.growth;
  u64 sum = 0;
  for (u32 i = 0; i < plan.added_count; ++i) sum += plan.added[i].slot_checksum[plan.added[i].slot_newest];
  for (u32 i = 0; i < plan.erased_count; ++i) {
    const raid::ChunkState& chunk = state.space.chunks[plan.erased_slots[i]];
    sum -= detail::written_slot_checksum(chunk, true);
  }
  return sum;
}

// The checkpoint is durable.
GPU4FS_FN inline void end_growth(SpaceState& state) {
  if (detail::growth_phase(state) != GrowthPhase::written) return;
  state.space.tree_device_count = state.growth->tree_replica_count;
  detail::set_growth_phase(state, GrowthPhase::durable);
}

// Whether admit_chunks() would admit the plan.
GPU4FS_FN inline bool growth_is_durable(const SpaceState& state) {
  return state.growth != nullptr && detail::growth_phase(state) == GrowthPhase::durable;
}

// While no step runs: the chunks of a durable plan get their places and have to be loaded; deleted chunks lose theirs.
// Status: busy (it is not durable yet), stale (it was refused), not_found (there is none, or it was admitted).
GPU4FS_FN GPU4FS_NOINLINE inline Status admit_chunks(SpaceState& state) {
  if (state.growth == nullptr) return Status::read_only;
  const GrowthPhase phase = detail::growth_phase(state);
  if (phase == GrowthPhase::refused) return Status::stale;
  if (phase == GrowthPhase::none) return Status::not_found;
  if (phase != GrowthPhase::durable) return Status::busy;
  const PoolGrowth& plan = *state.growth;
  const auto enter = [&](const raid::ChunkState& chunk, u32 index, u32 expected) {
    const u64 end = (chunk.base_address + chunk.size_bytes) >> state.space.granule_shift;
    for (u64 granule = chunk.base_address >> state.space.granule_shift; granule < end; ++granule) {
      GPU4FS_CHECK_EQ(state.space.granule_to_chunk[granule], expected);
      store<Order::release, Scope::engine>(&state.space.granule_to_chunk[granule], index);
    }
  };
  for (u32 i = 0; i < plan.erased_count; ++i) {
    raid::ChunkState& chunk = state.space.chunks[plan.erased_slots[i]];
    enter(chunk, raid::no_chunk, plan.erased_slots[i]);
    detail::forget_chunk(state, chunk);
  }
  for (u32 i = 0; i < plan.added_count; ++i) {
    raid::ChunkState& chunk = state.space.chunks[plan.added_slots[i]];
    const u32 generation = chunk.generation + 1;
    chunk = plan.added[i];
    chunk.generation = generation;
    enter(plan.added[i], plan.added_slots[i], raid::no_chunk);
  }
  store<Order::release, Scope::engine>(&state.space.chunk_count, plan.slot_count);
  raid::forget_planned_chunks(state.space);
  detail::set_growth_phase(state, GrowthPhase::none);
  return Status::ok;
}

}  // namespace gpu4fs::space
