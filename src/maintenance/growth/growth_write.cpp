// Writes the content of a plan of the grower into engine memory and onto the medium.
#include <fmt/format.h>

#include <cstddef>
#include <cstring>

#include "base/host/log.hpp"
#include "base/limits.hpp"
#include "maintenance/growth/pool_grower.hpp"
#include "pool/chunk_area.hpp"
#include "pool/chunk_reach.hpp"
#include "pool/growth/chunk_maps.hpp"
#include "pool/pool_error.hpp"

namespace gpu4fs::maintenance {

namespace {

// Writes all copies of the header area of a chunk without pages in use, which needs no descriptors. Returns the
// checksum of its slot.
u64 write_header_areas(pool::OpenedPool& pool, const pool::OpenedChunk& chunk) {
  const format::ChunkDescriptor& descriptor = chunk.descriptor;
  const format::ChunkLayout layout = format::chunk_layout(descriptor.size_bytes / page_size);
  const std::vector<u8> no_pages(layout.bitmap_pages * page_size);
  u64 checksum = 0;
  for (u32 column = 0; column <= descriptor.redundancy; ++column) {
    pool::DeviceFile& file = pool.devices[chunk.columns[column].device_index()].file;
    const u64 offset = chunk.columns[column].offset_bytes();
    file.zero_range(offset, pool::header_front_bytes(descriptor));
    const format::ChunkHeader header = pool::make_chunk_header(descriptor, column, pool.superblock.pool_uuid);
    file.write_at(offset, &header, sizeof(header));
    checksum = pool::write_bitmap_slot(file, pool::chunk_bitmap_place(descriptor, offset), 0, no_pages.data(), nullptr,
                                       descriptor.epoch_created);
  }
  return checksum;
}

}  // namespace

// Creates the engine's memory of a chunk, writes the front of its header areas and makes it reachable.
void PoolGrower::prepare_chunk(const pool::OpenedChunk& chunk, raid::ChunkState& state) {
  session::EngineSetup& setup = mounted_.setup;
  bool accessible = setup.gpu == nullptr;
  for (const format::ColumnAddress column : chunk.columns) {
    const device::MappedFile& file = setup.files[column.device_index()];
    if (file.grows_with_use()) {
      file.reserve_range(column.offset_bytes(), pool::header_front_bytes(chunk.descriptor));
      accessible = false;
    }
    if (setup.gpu == nullptr) continue;
    const Status mapped = setup.reach(file, column.offset_bytes(), pool::header_front_bytes(chunk.descriptor));
    if (mapped != Status::ok) throw pool::PoolError(mapped, "a chunk's header cannot be registered with the GPU");
  }
  const u64 slot_checksum = write_header_areas(mounted_.pool, chunk);
  setup.host->while_paused([&] { state = blocks_.build(setup.allocator(), chunk, accessible); });
  state.slot_checksum[0] = slot_checksum;
}

// Writes the new content of the superblocks, and the engine's state of new chunks and devices, into engine memory.
void PoolGrower::hand_over(const Plan& plan, const std::vector<raid::ChunkState>& states) {
  const pool::OpenedPool& pool = mounted_.pool;
  session::EngineSetup& setup = mounted_.setup;
  const auto growth = std::make_unique<space::PoolGrowth>();
  std::memset(static_cast<void*>(growth.get()), 0, sizeof(*growth));
  u64 slot_count = pool.chunks.size();
  u64 chunk_count = plan.chunks.size();
  for (const pool::OpenedChunk& chunk : pool.chunks) chunk_count += chunk.is_erased() ? 0 : 1;
  growth->page_total = pool.superblock.page_total;
  for (std::size_t i = 0; i < plan.chunks.size(); ++i) {
    growth->page_total += plan.chunks[i].descriptor.size_bytes / page_size;
    growth->added_slots[i] = plan.slots[i];
    growth->added[i] = states[i];
    slot_count = std::max<u64>(slot_count, plan.slots[i] + u64{1});
  }
  for (std::size_t i = 0; i < plan.erased.size(); ++i) {
    growth->page_total -= pool.chunks[plan.erased[i]].descriptor.size_bytes / page_size;
    growth->erased_slots[i] = plan.erased[i];
  }
  growth->added_count = static_cast<u32>(plan.chunks.size());
  growth->erased_count = static_cast<u32>(plan.erased.size());
  growth->slot_count = static_cast<u32>(slot_count);
  growth->chunk_count = static_cast<u32>(chunk_count - plan.erased.size());
  growth->device_count = static_cast<u32>(pool.devices.size());
  const pool::TreeRoot& root = tree_->root();
  growth->tree_root = root.root;
  growth->tree_height = root.height;
  growth->tree_node_count = root.node_count;
  growth->tree_replica_count = plan.tree_replica_count;
  growth->number = plan.number;
  growth->joining = plan.joining;
  growth->leaving = plan.leaving;
  for (u32 i = 0; i < pool.devices.size(); ++i) {
    if ((plan.leaving >> i & 1) == 0) {
      std::memcpy(growth->device_uuids[i], pool.devices[i].part.device_uuid, sizeof(growth->device_uuids[i]));
    }
    if ((plan.joining >> i & 1) == 0) continue;
    growth->devices[i] = setup.device(i);
    growth->parts[i] = pool.devices[i].part;
  }
  // The phase before it belongs to the engine.
  constexpr u64 skipped = offsetof(space::PoolGrowth, device_count);
  const u8* const from = reinterpret_cast<const u8*>(growth.get()) + skipped;
  u8* const to = reinterpret_cast<u8*>(setup.growth) + skipped;
  setup.host->while_paused([&] { setup.allocator().copy_in(to, from, sizeof(*growth) - skipped); });
}

void PoolGrower::write_chunk_map(u32 device, u64 epoch) {
  pool::OpenedDevice& opened = mounted_.pool.devices[device];
  const format::DevicePart& part = opened.part;
  const u32 slot = pool::newest_map_slot(opened.file, part) ^ 1;
  pool::write_bitmap_slot(opened.file, pool::chunk_map_place(part), slot,
                          free_->bitmap(device, part.chunk_map_pages).data(), nullptr, epoch);
}

// Slots that were written for a failed plan have an epoch that the pool has reached meanwhile, so they get the right
// content. Nothing is lost without it, but a check would complain.
void PoolGrower::restore_chunk_maps(const Plan& plan) {
  for (u32 i = 0; i < mounted_.pool.devices.size(); ++i) {
    pool::OpenedDevice& opened = mounted_.pool.devices[i];
    if ((plan.maps_changed >> i & 1) == 0 || !opened.is_here()) continue;
    const format::DevicePart& part = opened.part;
    try {
      const u32 slot = pool::newest_map_slot(opened.file, part);
      if (pool::map_slot_epoch(opened.file, part, slot) != plan.epoch) continue;
      pool::write_bitmap_slot(opened.file, pool::chunk_map_place(part), slot,
                              free_->bitmap(i, part.chunk_map_pages).data(), nullptr, plan.epoch);
      opened.file.flush();
    } catch (const pool::PoolError& error) {
      log(LogLevel::warning, fmt::format("a chunk map is not as it was: {}", error.what()));
    }
  }
}

Status PoolGrower::write(u64 epoch, u32 number) {
  const std::lock_guard lock(plan_mutex_);
  if (!plan_.is_armed || plan_.number != number) return Status::stale;
  plan_.epoch = epoch;
  try {
    tree_->write(epoch);
    for (u32 i = 0; i < mounted_.pool.devices.size(); ++i) {
      if ((plan_.maps_changed >> i & 1) != 0) write_chunk_map(i, epoch);
    }
    if (plan_.tree_replica_count > store_->replica_count()) {
      pool::DeviceNodeStore all(tree_devices_, plan_.tree_replica_count, true);
      tree_->write_all_to(all, plan_.tree_replica_count - 1, epoch);
    }
  } catch (const pool::PoolError& error) {
    log(LogLevel::error, fmt::format("the pool cannot grow: {}", error.what()));
    plan_.is_armed = false;
    return Status::io_error;
  }
  plan_.written = true;
  return Status::ok;
}

}  // namespace gpu4fs::maintenance
