// The chunk map of a mounted device: which of its granules belong to columns. Host only.
#pragma once

#include "format/superblock_format.hpp"
#include "pool/pool_device_file.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::pool {

// The current slot of a chunk map, or 1 if there is none; the other one is written next. PoolError.
u32 newest_map_slot(const DeviceFile& file, const format::DevicePart& part);

// 0: the slot is not valid. PoolError.
u64 map_slot_epoch(const DeviceFile& file, const format::DevicePart& part, u32 slot);

// Clears slots of an epoch that was never completed: at the mount, before that epoch number is used again. PoolError.
void clear_lost_chunk_maps(OpenedPool& pool);

}  // namespace gpu4fs::pool
