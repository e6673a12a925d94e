// A device that takes the place of a member of a pool: what is on it before the engine fills it
// with the rest (engine/handlers/rebuild_ops.hpp). Host only.
//
// Written here is what commands do not write: the chunk tree, the chunk map, and the chunk headers,
// with bitmap slots that count for nothing until a checkpoint has written them. Superblocks come
// last of all, from the checkpoint that makes the device a full member; a device that is new to the
// pool gets ones before that say what a member that has been away for long would say, so that a
// later mount knows it for what it is: stale.
#pragma once

#include "format/superblock_format.hpp"
#include "pool/pool_device_file.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::pool {

// Bytes that a device in place of member `index` must have at least.
u64 replacement_size_min(const OpenedPool& pool, u32 index);

// Where things lie on a device of `size_bytes` that takes the place of member `index`: columns
// where the chunk tree has them. `uuid` is its own. PoolError when it is too small.
format::DevicePart plan_replacement(const OpenedPool& pool, u32 index, u64 size_bytes, const u8 (&uuid)[16]);

// The device part of a stale member as its superblocks have it; PoolError when they are not there
// any more.
format::DevicePart stale_part(const OpenedPool& pool, u32 index, const DeviceFile& file);

// Everything but superblocks. `is_new`: what the device holds in front of the chunks means nothing.
void prepare_replacement(OpenedPool& pool, DeviceFile& file, const format::DevicePart& part, bool is_new);

// The superblocks of a device that is new, once durable superblocks of the others say that member
// `index` has its UUID and is stale since the epoch `stale_since`.
void write_stale_superblocks(const OpenedPool& pool, DeviceFile& file, const format::DevicePart& part, u64 stale_since);

}  // namespace gpu4fs::pool
