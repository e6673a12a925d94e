// Restores current bitmap slots that no column has intact, in place.
//
// A checkpoint's bitmap is the set of pages that its tree reaches. This set is written only if the slot's header
// verifies it or, if the header is lost, the sum in the superblock does. Then the pool has its earlier state, and a
// waiting log can be replayed.
#include <algorithm>
#include <bit>
#include <cstring>

#include "fsck/repair/repair_context.hpp"
#include "pool/pool_checksum.hpp"

namespace gpu4fs::fsck::repair {

namespace {

constexpr u64 epochs_tried_max = u64{1} << 20;

struct LostSlot {
  u32 slot = 2;  // 2: none is lost, or too little of it is left
  format::BitmapSlotHeader header{};
};

u64 hash_bitmap(const BitWords& words, u64 base_address) {
  return xxh3_64(words.data(), words.size() * sizeof(u64), base_address);
}

// The slot with a damaged header: everything except its epoch is known.
LostSlot make_header(const pool::OpenedPool& pool, const HeaderReader& headers, u32 chunk, const BitWords& words) {
  const HeaderArea& area = headers.area(chunk);
  const u64 others = headers.slot_sum() - (area.slot == 2 ? 0 : area.header.checksum);
  const u64 checksum = pool.superblock.slot_sum - others;
  LostSlot lost;
  for (u32 slot = 0; slot < 2 && lost.slot == 2; ++slot) {
    const std::vector<u64>& table = area.columns.front().slots[slot].raw_table;
    if (slot == area.slot || table.empty()) continue;
    const u64 base = pool.chunks[chunk].descriptor.base_address;
    format::BitmapSlotHeader& header = lost.header;
    header = {};
    header.magic = format::bitmap_slot_magic;
    header.version = 2;
    header.slot = static_cast<u16>(slot);
    header.bitmap_checksum = hash_bitmap(words, base);
    header.base_address = base;
    header.bit_count = pool.chunks[chunk].descriptor.size_bytes / page_size;
    for (const u64 word : words) header.set_count += static_cast<u64>(std::popcount(word));
    header.descriptor_table_checksum =
        xxh3_64(table.data(), table.size() * sizeof(u64), format::descriptor_table_seed(base));
    const u64 first = area.slot == 2 ? 0 : area.header.epoch;
    const u64 last = pool.superblock.epoch;
    for (u64 epoch = last; epoch > first && last - epoch < epochs_tried_max && lost.slot == 2; --epoch) {
      header.epoch = epoch;
      pool::seal(header, base ^ slot);
      if (header.checksum == checksum) lost.slot = slot;
    }
  }
  return lost;
}

LostSlot find_lost_slot(const pool::OpenedPool& pool, const HeaderReader& headers, u32 chunk,
                        const check::ChunkUse& use) {
  const HeaderArea& area = headers.area(chunk);
  if (area.is_suspect || area.slot == 2) return make_header(pool, headers, chunk, use.reached);
  const bool is_lost =
      !use.has_bitmap && hash_bitmap(use.reached, area.header.base_address) == area.header.bitmap_checksum;
  return is_lost ? LostSlot{area.slot, area.header} : LostSlot{};
}

}  // namespace

bool has_lost_slots(const pool::OpenedPool& pool) {
  const HeaderReader headers(pool);
  if (headers.slot_sum() != pool.superblock.slot_sum) return true;
  for (u32 chunk = 0; chunk < pool.chunks.size(); ++chunk) {
    if (headers.area(chunk).bitmap.empty()) return true;
  }
  return false;
}

u64 restore_lost_slots(pool::OpenedPool& pool, check::CheckContext& old, bool writes) {
  HeaderReader& headers = *old.reader.headers();
  u64 count = 0;
  for (u32 chunk = 0; chunk < pool.chunks.size(); ++chunk) {
    const LostSlot lost = find_lost_slot(pool, headers, chunk, old.chunks[chunk]);
    if (lost.slot == 2) continue;
    ++count;
    const format::ChunkLayout layout = format::chunk_layout(old.reader.chunk_page_count(chunk));
    const u64 page = lost.slot == 0 ? layout.bitmap_a_page : layout.bitmap_b_page;
    const BitWords& words = old.chunks[chunk].reached;
    for (u32 column = 0; column < headers.area(chunk).columns.size() && writes; ++column) {
      if (!headers.is_here(chunk, column)) continue;
      pool::DeviceFile& file = headers.file(chunk, column);
      file.write_at(old.reader.header_area_offset(chunk, page + 1, column), words.data(), words.size() * sizeof(u64));
      file.write_at(old.reader.header_area_offset(chunk, page, column), &lost.header, page_size);
    }
  }
  for (pool::OpenedDevice& device : pool.devices) {
    if (count != 0 && writes && device.is_here()) device.file.flush();
  }
  return count;
}

}  // namespace gpu4fs::fsck::repair
