// A device that replaces a member of a pool: its content before the engine fills it with the rest
// (engine/handlers/rebuild_ops.hpp). Host only.
//
// This code writes the parts that commands do not write: the chunk tree, the chunk map, and the chunk headers, with
// bitmap slots that are invalid until a checkpoint has written them. Superblocks come last, from the checkpoint that
// makes the device a full member. A new device gets superblocks before that, those of a member that has been absent for
// long. So a later mount recognises it as stale.
#pragma once

#include "format/superblock_format.hpp"
#include "pool/pool_device_file.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::pool {

// The least size in bytes of a device that replaces member `index`.
u64 replacement_size_min(const OpenedPool& pool, u32 index);

// The layout of a device of `size_bytes` that replaces member `index`, with columns where the chunk tree has them.
// `uuid` is its own. PoolError if it is too small.
format::DevicePart plan_replacement(const OpenedPool& pool, u32 index, u64 size_bytes, const u8 (&uuid)[16]);

// The device part in the superblocks of a stale member; PoolError if there are none.
format::DevicePart stale_part(const OpenedPool& pool, u32 index, const DeviceFile& file);

// Writes everything except superblocks. `is_new`: the areas before the chunks have no valid content.
void prepare_replacement(OpenedPool& pool, DeviceFile& file, const format::DevicePart& part, bool is_new);

// Writes the superblocks of a new device, after durable superblocks of the others say that member `index` has its UUID
// and is stale since the epoch `stale_since`.
void write_stale_superblocks(const OpenedPool& pool, DeviceFile& file, const format::DevicePart& part, u64 stale_since);

}  // namespace gpu4fs::pool
