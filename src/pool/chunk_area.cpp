#include "pool/chunk_area.hpp"

#include <bit>
#include <cstring>
#include <vector>

#include "base/limits.hpp"
#include "base/xxh3_serial.hpp"
#include "pool/pool_checksum.hpp"

namespace gpu4fs::pool {

namespace {

u64 slot_offset(const BitmapPlace& place, u32 slot) {
  return place.offset + slot * (1 + place.bitmap_pages + place.table_pages) * page_size;
}

u64 count_set_bits(const void* bitmap, u64 length) {
  u64 count = 0;
  for (u64 i = 0; i < length; i += sizeof(u64)) {
    u64 word = 0;
    std::memcpy(&word, static_cast<const u8*>(bitmap) + i, sizeof(word));
    count += static_cast<u64>(std::popcount(word));
  }
  return count;
}

}  // namespace

BitmapPlace chunk_map_place(const format::DevicePart& part) {
  return {part.chunk_map_offset, part.chunk_map_pages, 0, part.device_index, part.chunk_area_granules};
}

BitmapPlace chunk_bitmap_place(const format::ChunkDescriptor& chunk, u64 offset) {
  const u64 page_count = chunk.size_bytes / page_size;
  const format::ChunkLayout layout = format::chunk_layout(page_count);
  return {offset + layout.bitmap_a_page * page_size, layout.bitmap_pages, layout.table_pages, chunk.base_address,
          page_count};
}

u64 write_bitmap_slot(DeviceFile& file, const BitmapPlace& place, u32 slot, const void* bitmap, const void* table,
                      u64 epoch) {
  const u64 bitmap_bytes = place.bitmap_pages * page_size;
  std::vector<u8> content((place.bitmap_pages + place.table_pages) * page_size);
  std::memcpy(content.data(), bitmap, bitmap_bytes);
  if (table != nullptr) std::memcpy(content.data() + bitmap_bytes, table, place.table_pages * page_size);
  format::BitmapSlotHeader header{};
  header.magic = format::bitmap_slot_magic;
  header.version = 2;
  header.slot = static_cast<u16>(slot);
  header.bitmap_checksum = xxh3_64(bitmap, bitmap_bytes, place.base_address);
  header.base_address = place.base_address;
  header.epoch = epoch;
  header.bit_count = place.bit_count;
  header.set_count = count_set_bits(bitmap, bitmap_bytes);
  if (place.table_pages != 0) {
    header.descriptor_table_checksum = xxh3_64(content.data() + bitmap_bytes, place.table_pages * page_size,
                                               format::descriptor_table_seed(place.base_address));
  }
  seal(header, place.base_address ^ slot);
  file.write_at(slot_offset(place, slot) + page_size, content.data(), content.size());
  file.write_at(slot_offset(place, slot), &header, sizeof(header));
  return header.checksum;
}

void clear_bitmap_slot(DeviceFile& file, const BitmapPlace& place, u32 slot) {
  file.zero_range(slot_offset(place, slot), page_size);
}

format::ChunkHeader make_chunk_header(const format::ChunkDescriptor& chunk, u32 column, const u8 (&pool_uuid)[16]) {
  format::ChunkHeader header{};
  header.magic = format::chunk_header_magic;
  header.version = 1;
  header.column_index = static_cast<u16>(column);
  std::memcpy(header.pool_uuid, pool_uuid, sizeof(pool_uuid));
  header.base_address = chunk.base_address;
  header.size_bytes = chunk.size_bytes;
  header.epoch_created = chunk.epoch_created;
  seal(header, chunk.base_address);
  return header;
}

}  // namespace gpu4fs::pool
