#include "pool/chunk_reach.hpp"

#include "base/limits.hpp"
#include "pool/pool_error.hpp"

namespace gpu4fs::pool {

u64 header_front_bytes(const format::ChunkDescriptor& chunk) {
  return format::chunk_layout(chunk.size_bytes / page_size).descriptors_page * page_size;
}

u64 header_area_bytes(const format::ChunkDescriptor& chunk) {
  return format::chunk_layout(chunk.size_bytes / page_size).header_pages * page_size;
}

bool may_hold_pages(const OpenedPool& pool, const OpenedChunk& chunk) {
  const format::ChunkLayout layout = format::chunk_layout(chunk.descriptor.size_bytes / page_size);
  for (u32 column = 0; column <= chunk.descriptor.redundancy; ++column) {
    const OpenedDevice& device = pool.devices[chunk.columns[column].device_index()];
    if (!device.is_here()) continue;
    for (const u64 page : {layout.bitmap_a_page, layout.bitmap_b_page}) {
      format::BitmapSlotHeader header{};
      try {
        device.file.read_at(chunk.columns[column].offset_bytes() + page * page_size, &header, sizeof(header));
      } catch (const PoolError&) {
        return true;
      }
      // The engine accepts no slot without the magic.
      if (header.magic == format::bitmap_slot_magic && header.set_count != 0) return true;
    }
  }
  return false;
}

u64 mounted_bytes(const OpenedPool& pool, const OpenedChunk& chunk) {
  return may_hold_pages(pool, chunk) ? header_area_bytes(chunk.descriptor) : header_front_bytes(chunk.descriptor);
}

}  // namespace gpu4fs::pool
