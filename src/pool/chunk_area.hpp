// Structures that lie before a chunk's pages on a device, and the devices' chunk maps: mkfs, growth, the replacement of
// a device and repair write them (docs/internals/format.md). Host only.
#pragma once

#include "base/types.hpp"
#include "format/chunk_format.hpp"
#include "format/superblock_format.hpp"
#include "pool/pool_device_file.hpp"

namespace gpu4fs::pool {

// A bitmap in two slots. Each has a header page, the bitmap after it, and in a chunk the descriptor table.
struct BitmapPlace {
  u64 offset;        // device byte offset of slot A
  u64 bitmap_pages;  // of one slot
  u64 table_pages;   // 0 in a chunk map
  u64 base_address;  // of the chunk; a device's index for its chunk map
  u64 bit_count;
};

BitmapPlace chunk_map_place(const format::DevicePart& part);

// `offset`: of the header area on its device.
BitmapPlace chunk_bitmap_place(const format::ChunkDescriptor& chunk, u64 offset);

// `bitmap` has bitmap_pages pages, `table` table_pages; nullptr means zeros. The header is written after them. Returns
// its checksum, which is the same for all columns of a chunk. PoolError.
u64 write_bitmap_slot(DeviceFile& file, const BitmapPlace& place, u32 slot, const void* bitmap, const void* table,
                      u64 epoch);

// Slot `slot` is invalid afterwards. PoolError.
void clear_bitmap_slot(DeviceFile& file, const BitmapPlace& place, u32 slot);

// The first page of the header area of a column, unchanged since the chunk was created.
format::ChunkHeader make_chunk_header(const format::ChunkDescriptor& chunk, u32 column, const u8 (&pool_uuid)[16]);

}  // namespace gpu4fs::pool
