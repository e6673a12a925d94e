// The chunk map of a mounted device: which granules have a column. Host only.
#pragma once

#include "format/superblock_format.hpp"
#include "pool/pool_device_file.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::pool {

// The slot of a chunk map that counts, or 1 where none does: the other one is written next. PoolError.
u32 newest_map_slot(const DeviceFile& file, const format::DevicePart& part);

// 0: the slot holds none. PoolError.
u64 map_slot_epoch(const DeviceFile& file, const format::DevicePart& part, u32 slot);

// Slots of an epoch that never became the pool's: at the mount, before that epoch comes again. PoolError.
void clear_lost_chunk_maps(OpenedPool& pool);

}  // namespace gpu4fs::pool
