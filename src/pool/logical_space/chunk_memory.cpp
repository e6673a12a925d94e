#include "pool/logical_space/chunk_memory.hpp"

#include <vector>

#include "base/check.hpp"
#include "pool/chunk_shape.hpp"
#include "raid/levels/levels.hpp"

namespace gpu4fs::pool {
namespace {

raid::ChunkState describe_state(const format::ChunkDescriptor& d, const ChunkPlaces& places, void* block) {
  raid::ChunkState chunk{};
  chunk.base_address = d.base_address;
  chunk.size_bytes = d.size_bytes;
  chunk.page_count = d.size_bytes / page_size;
  chunk.level = d.level;
  chunk.redundancy = d.redundancy;
  chunk.column_count = d.column_count;
  chunk.stripe_pages = static_cast<u32>(d.stripe_length_bytes / page_size);
  chunk.copy_count = raid::with_level(d.level, [&](auto level) { return level.copies(d.column_count); });
  chunk.parity_count = raid::with_level(d.level, [](auto level) -> u32 { return level.parity_count; });
  chunk.stripe_count = static_cast<u32>(stripe_count_of(d));
  chunk.stripe_stranded = at_offset<u32>(block, places.stripe_stranded);
  chunk.flags = d.flags;
  chunk.columns = at_offset<raid::ColumnState>(block, places.columns);
  chunk.descriptors = at_offset<format::PageDescriptor>(block, places.descriptors);
  chunk.descriptor_dirty = at_offset<u64>(block, places.descriptor_dirty);
  chunk.descriptor_table = at_offset<u64>(block, places.descriptor_tables[0]);
  chunk.descriptor_table_staged = at_offset<u64>(block, places.descriptor_tables[1]);
  chunk.header_work = at_offset<u8>(block, places.work_pages[0]);
  chunk.scrub_work = at_offset<u8>(block, places.work_pages[1]);
  chunk.epoch_created = d.epoch_created;
  chunk.bitmaps = {at_offset<u64>(block, places.bitmaps[0]), at_offset<u64>(block, places.bitmaps[1]),
                   at_offset<u64>(block, places.bitmaps[2]), at_offset<u64>(block, places.bitmaps[3]),
                   at_offset<u64>(block, places.bitmaps[4]), at_offset<u64>(block, places.bitmaps[5])};
  chunk.rebuild_todo = at_offset<u64>(block, places.rebuild_todo);
  chunk.region_free = at_offset<u32>(block, places.region_free);
  chunk.page_class = page_class_of(d);
  chunk.unbacked = at_offset<u64>(block, places.unbacked);
  chunk.trim_due = raid::trim_due_at_once;  // for space that was freed before the mount
  return chunk;
}

void copy_columns(EngineAllocator& allocator, const raid::ChunkState& chunk,
                  const std::vector<format::ColumnAddress>& addresses) {
  const u64 header_bytes = format::chunk_layout(chunk.page_count).header_pages * page_size;
  std::vector<raid::ColumnState> columns;
  for (const format::ColumnAddress column : addresses) {
    columns.push_back({column.device_index(), 0, column.offset_bytes(), column.offset_bytes() + header_bytes});
  }
  allocator.copy_in(chunk.columns, columns.data(), columns.size() * sizeof(raid::ColumnState));
}

}  // namespace

ChunkPlaces place_chunk(BlockLayout& layout, const format::ChunkDescriptor& descriptor) {
  const format::ChunkLayout pages = format::chunk_layout(descriptor.size_bytes / page_size);
  const u64 region_count = divide_up(descriptor.size_bytes / page_size, pages_per_block_2m);
  ChunkPlaces places{};
  places.columns = layout.take(descriptor.column_count * sizeof(raid::ColumnState));
  places.descriptors = layout.take_pages(pages.descriptor_pages * page_size);
  places.descriptor_dirty = layout.take(divide_up(pages.descriptor_pages, 64) * sizeof(u64));
  places.descriptor_tables[0] = layout.take_pages(pages.table_pages * page_size);
  for (u64& work : places.work_pages) work = layout.take_pages(raid::work_pages(pages) * page_size);
  for (u64& bitmap : places.bitmaps) bitmap = layout.take_pages(pages.bitmap_pages * page_size);
  // Behind the bitmap `staged`: they are written together.
  places.descriptor_tables[1] = layout.take_pages(pages.table_pages * page_size);
  places.rebuild_todo = layout.take(divide_up(descriptor.size_bytes / page_size, 64) * sizeof(u64));
  places.region_free = layout.take(divide_up(region_count, 2) * sizeof(u32));
  places.stripe_stranded = layout.take(stripe_count_of(descriptor) * sizeof(u32));
  places.unbacked = layout.take(divide_up(region_count, 64) * sizeof(u64));
  return places;
}

raid::ChunkState make_chunk_state(EngineAllocator& allocator, const OpenedChunk& chunk, const ChunkPlaces& places,
                                  void* block) {
  const raid::ChunkState state = describe_state(chunk.descriptor, places, block);
  copy_columns(allocator, state, chunk.columns);
  return state;
}

raid::ChunkState build_chunk(EngineAllocator& allocator, const OpenedChunk& chunk, bool accessible) {
  BlockLayout layout;
  const ChunkPlaces places = place_chunk(layout, chunk.descriptor);
  void* block = allocator.allocate(layout.used(), page_size);
  GPU4FS_CHECK(is_aligned(block, page_size));
  allocator.zero(block, layout.used());
  raid::ChunkState state = make_chunk_state(allocator, chunk, places, block);
  state.presence = accessible ? raid::chunk_accessible : 0;
  return state;
}

}  // namespace gpu4fs::pool
