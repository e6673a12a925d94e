// Plans which chunks the grower creates, and where.
#include <algorithm>

#include "maintenance/growth/pool_grower.hpp"
#include "pool/chunk_shape.hpp"
#include "pool/pool_error.hpp"

namespace gpu4fs::maintenance {

// The beginning of a new chunk: after the last one or, if that space is used up, in the first gap.
std::optional<u64> PoolGrower::find_base(u64 size_bytes, const Plan& plan) const {
  const raid::LogicalSpace& space = mounted_.setup.space;
  const u64 limit = space.granule_count << space.granule_shift;
  std::vector<std::pair<u64, u64>> taken{{0, mounted_.pool.superblock.chunk_size_bytes}};
  for (const std::vector<pool::OpenedChunk>* chunks :
       {static_cast<const std::vector<pool::OpenedChunk>*>(&mounted_.pool.chunks), &plan.chunks}) {
    for (const pool::OpenedChunk& chunk : *chunks) {
      if (!chunk.is_erased()) taken.emplace_back(chunk.descriptor.base_address, chunk.end());
    }
  }
  u64 last = 0;
  for (const auto& [begin, end] : taken) last = std::max(last, end);
  if (last + size_bytes <= limit) return last;
  std::sort(taken.begin(), taken.end());
  u64 gap = 0;
  for (const auto& [begin, end] : taken) {
    if (begin >= gap + size_bytes) return gap;
    gap = end;
  }
  return std::nullopt;
}

// A number for a new chunk.
std::optional<u32> PoolGrower::find_slot(const Plan& plan) const {
  const std::vector<pool::OpenedChunk>& chunks = mounted_.pool.chunks;
  const auto is_planned = [&](u32 slot) {
    return std::find(plan.slots.begin(), plan.slots.end(), slot) != plan.slots.end();
  };
  for (u32 slot = first_new_slot_; slot < chunks.size(); ++slot) {
    if (chunks[slot].is_erased() && !is_planned(slot)) return slot;
  }
  for (u32 slot = static_cast<u32>(chunks.size()); slot < mounted_.setup.space.chunk_capacity; ++slot) {
    if (!is_planned(slot)) return slot;
  }
  return std::nullopt;
}

std::optional<pool::OpenedChunk> PoolGrower::plan_chunk(const pool::ChunkForm& form, u64 base_address) {
  std::vector<u32> devices;
  for (u32 i = 0; i < mounted_.pool.devices.size(); ++i) {
    if (may_hold_columns(i) && form.may_lie_on(i)) devices.push_back(i);
  }
  std::stable_sort(devices.begin(), devices.end(),
                   [this](u32 a, u32 b) { return free_->free_count(a) > free_->free_count(b); });
  for (u64 count = std::min<u64>(form.columns_wanted, devices.size()); count >= form.columns_least; --count) {
    pool::OpenedChunk chunk;
    chunk.descriptor = pool::describe_grown(form, static_cast<u32>(count), mounted_.pool.superblock.chunk_size_bytes);
    chunk.descriptor.base_address = base_address;
    chunk.descriptor.epoch_created = mounted_.setup.host->durable_epoch();
    const u64 granules = pool::granules_per_column(chunk.descriptor);
    for (const u32 device : devices) {
      if (chunk.columns.size() == count) break;
      const std::optional<u64> first = free_->find(device, granules);
      if (!first) continue;
      const format::DevicePart& part = mounted_.pool.devices[device].part;
      chunk.columns.push_back(
          format::ColumnAddress::make(device, part.chunk_area_offset + *first * format::physical_granule_bytes));
    }
    if (chunk.columns.size() == count) return chunk;
  }
  return std::nullopt;
}

pool::ChunkForm PoolGrower::form_like(const pool::OpenedChunk& chunk) const {
  pool::ChunkForm form = pool::form_of_class(mounted_.pool, pool::page_class_of(chunk.descriptor));
  form.like = chunk.descriptor;
  return form;
}

// False: there is no room left.
bool PoolGrower::add_to_plan(Plan& plan, const pool::ChunkForm& form) {
  const std::optional<u32> slot = find_slot(plan);
  std::optional<pool::OpenedChunk> chunk = slot ? plan_chunk(form, 0) : std::nullopt;
  if (!chunk) return false;
  const std::optional<u64> base = find_base(chunk->descriptor.size_bytes, plan);
  if (!base) return false;
  chunk->descriptor.base_address = *base;
  try {
    tree_->insert(*chunk);
  } catch (const pool::PoolError& error) {
    if (error.status() == Status::no_space && !plan.chunks.empty()) return false;
    forget(plan);
    throw;
  }
  free_->mark(*chunk, true);
  plan.maps_changed |= chunk->devices();
  plan.chunks.push_back(std::move(*chunk));
  plan.slots.push_back(*slot);
  return true;
}

u64 PoolGrower::make_chunks(const pool::ChunkForm& form, u64 count) {
  u64 made = 0;
  while (made < count) {
    Plan plan;
    plan.tree_replica_count = mounted_.pool.superblock.tree_replica_count;
    while (plan.chunks.size() < std::min<u64>(count - made, space::growth_chunks_max) && add_to_plan(plan, form)) {
    }
    if (plan.chunks.empty()) break;
    const u64 planned = plan.chunks.size();
    make_durable(std::move(plan));
    made += planned;
  }
  tell_of_room();
  return made;
}

}  // namespace gpu4fs::maintenance
