// The way of a plan of the grower into a checkpoint, and its result.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "maintenance/growth/pool_grower.hpp"
#include "pool/pool_error.hpp"

namespace gpu4fs::maintenance {

namespace {

constexpr u32 checkpoint_attempts_max = 16;

}  // namespace

void PoolGrower::make_durable(Plan plan) {
  plan.number = ++plan_count_;
  const Plan kept = plan;
  {
    const std::lock_guard lock(plan_mutex_);
    plan_ = {};
  }
  try {
    std::vector<raid::ChunkState> states(plan.chunks.size());
    withdraw();
    for (std::size_t i = 0; i < states.size(); ++i) prepare_chunk(plan.chunks[i], states[i]);
    hand_over(plan, states);
    {
      const std::lock_guard lock(plan_mutex_);
      plan_ = std::move(plan);
      plan_.is_armed = true;
    }
    const Status status = stage_and_wait();
    if (status != Status::ok)
      throw pool::PoolError(status, fmt::format("the pool did not grow: {}", status_text(status)));
  } catch (const device::DeviceError& error) {
    give_up(kept);
    throw pool::PoolError(error.error_number() == ENOSPC ? Status::no_space : Status::io_error, error.what());
  } catch (...) {
    give_up(kept);
    throw;
  }
  const Status admitted = host_.command(wire::Opcode::grow, wire::grow_admit).status;
  if (admitted == Status::stale) {
    // A device was lost before the superblocks were written: they do not name the plan.
    {
      const std::lock_guard lock(plan_mutex_);
      plan_.written = false;
    }
    give_up(kept);
    throw pool::PoolError(Status::busy, "the pool did not change: a device was lost");
  }
  remember(kept);
  if (admitted != Status::ok) {
    throw pool::PoolError(admitted,
                          fmt::format("new chunks cannot be used before the next mount: {}", status_text(admitted)));
  }
}

// A failed plan is not staged afterwards: its place in engine memory may be rewritten, and its chunks are unfrozen.
void PoolGrower::withdraw() {
  const Status status = host_.command(wire::Opcode::grow, wire::grow_withdraw).status;
  if (status == Status::ok) return;
  throw pool::PoolError(status, fmt::format("an earlier change of the pool is not complete: {}", status_text(status)));
}

// Waits until the superblocks that name the plan are durable.
Status PoolGrower::stage_and_wait() {
  GPU4FS_TRY(host_.command(wire::Opcode::grow, wire::grow_stage).status);
  for (u32 attempt = 0; attempt < checkpoint_attempts_max; ++attempt) {
    GPU4FS_TRY(host_.checkpoint());
    const std::lock_guard lock(plan_mutex_);
    if (plan_.written) return Status::ok;
    if (!plan_.is_armed) return Status::io_error;
  }
  return Status::io_error;
}

// Superblocks that name the plan may have been written, and the engine counts its devices.
void PoolGrower::give_up(const Plan& plan) {
  Plan tried;
  {
    const std::lock_guard lock(plan_mutex_);
    failed_ = plan_.written;
    // A later checkpoint that reaches it is refused: the chunks and devices that it names are gone.
    plan_.is_armed = false;
    tried = plan_;
  }
  if (failed_) return;
  (void)host_.command(wire::Opcode::grow, wire::grow_withdraw);
  forget(plan);
  if (tried.epoch != 0) restore_chunk_maps(tried);
}

// The plan failed.
void PoolGrower::forget(const Plan& plan) {
  tree_->roll_back();
  for (const pool::OpenedChunk& chunk : plan.chunks) free_->mark(chunk, false);
  for (const u32 index : plan.erased) free_->mark(mounted_.pool.chunks[index], true);
  blocks_.forget_new();
  if (plan.joining == 0) return;
  const u32 index = count_trailing_zeros(plan.joining);
  host_.forget_errors(index);
  {
    const std::unique_lock lock(mounted_.tables);
    pool::OpenedPool& pool = mounted_.pool;
    if (index + 1 == pool.devices.size() && index >= pool.superblock.device_count) {
      tree_devices_.pop_back();
      mounted_.setup.files.pop_back();
      pool.devices.pop_back();
    } else {
      close_removed(index);
    }
  }
  free_ = std::make_unique<pool::FreeGranules>(mounted_.pool);
}

void PoolGrower::remember_members(const Plan& plan) {
  pool::OpenedPool& pool = mounted_.pool;
  format::Superblock& superblock = pool.superblock;
  superblock.device_count = static_cast<u32>(pool.devices.size());
  bool any_removed = false;
  for (u32 i = 0; i < pool.devices.size(); ++i) {
    const bool is_gone = (plan.leaving >> i & 1) != 0 || pool.devices[i].state == pool::MemberState::removed;
    any_removed = any_removed || is_gone;
    std::memset(superblock.device_uuids[i], 0, 16);
    if (!is_gone) std::memcpy(superblock.device_uuids[i], pool.devices[i].part.device_uuid, 16);
  }
  superblock.feature_incompatible &= ~u64{format::feature_removed_devices};
  if (any_removed) superblock.feature_incompatible |= format::feature_removed_devices;
}

// The plan is durable.
void PoolGrower::remember(const Plan& plan) {
  tree_->commit();
  pool::OpenedPool& pool = mounted_.pool;
  {
    const std::unique_lock lock(mounted_.tables);
    format::Superblock& superblock = pool.superblock;
    for (const u32 index : plan.erased) {
      superblock.page_total -= pool.chunks[index].descriptor.size_bytes / page_size;
      pool.chunks[index] = pool::OpenedChunk{};
      mapper_.forget_chunk(index);
      blocks_.forget(index);
    }
    for (std::size_t i = 0; i < plan.chunks.size(); ++i) {
      const u32 slot = plan.slots[i];
      superblock.page_total += plan.chunks[i].descriptor.size_bytes / page_size;
      if (slot >= pool.chunks.size()) pool.chunks.resize(slot + 1);
      pool.chunks[slot] = plan.chunks[i];
      mapper_.forget_chunk(slot);
    }
    blocks_.keep_new(plan.slots);
    u32 chunk_count = 0;
    for (const pool::OpenedChunk& chunk : pool.chunks) chunk_count += chunk.is_erased() ? 0 : 1;
    superblock.chunk_count = chunk_count;
    remember_members(plan);
    const pool::TreeRoot& root = tree_->root();
    superblock.tree_root = root.root;
    superblock.tree_height = static_cast<u8>(root.height);
    superblock.tree_node_count = root.node_count;
  }
  if (plan.tree_replica_count == pool.superblock.tree_replica_count) return;
  pool.superblock.tree_replica_count = static_cast<u8>(plan.tree_replica_count);
  open_store(plan.tree_replica_count);
}

}  // namespace gpu4fs::maintenance
