#include "fsck/check/header_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/limits.hpp"
#include "base/xxh3_serial.hpp"
#include "pool/pool_checksum.hpp"

namespace gpu4fs::fsck {

namespace {

std::string find_header_problem(const format::BitmapSlotHeader& header, u32 slot, const pool::BitmapPlace& place) {
  if (header.magic != format::bitmap_slot_magic) return "wrong magic";
  if (header.checksum != pool::structure_checksum(header, place.base_address ^ slot)) return "wrong checksum";
  if (header.version != 2) return fmt::format("version {}", header.version);
  if (header.slot != slot) return fmt::format("slot number {} instead of {}", header.slot, slot);
  if (header.base_address != place.base_address) return fmt::format("base {:#x}", header.base_address);
  if (header.bit_count != place.bit_count) {
    return fmt::format("{} bits instead of {}", header.bit_count, place.bit_count);
  }
  const auto* reserved = std::begin(header.reserved);
  const bool has_table = place.table_pages != 0 || header.descriptor_table_checksum == 0;
  if (!has_table || std::any_of(reserved, std::end(header.reserved), [](u8 byte) { return byte != 0; })) {
    return "reserved bytes are not zero";
  }
  return "";
}

u64 hash_words(const std::vector<u64>& words, u64 seed) {
  return xxh3_64(words.data(), words.size() * sizeof(u64), seed);
}

void append_table(HeaderArea& area, const std::vector<u64>& table) {
  if (!table.empty()) area.tables.push_back(table);
}

// Reduces a slot after the current one is known: the table of a slot without a header may still be needed.
void drop_content(HeaderArea& area) {
  for (HeaderArea::Column& copy : area.columns) {
    for (SlotCopy& slot : copy.slots) {
      slot.bitmap = {};
      slot.table = {};
      if (slot.use != SlotUse::damaged && slot.use != SlotUse::blank) slot.raw_table = {};
    }
  }
}

// The epoch of the youngest page in the page of descriptors.
u32 newest_birth(const void* page) {
  const auto* descriptors = static_cast<const format::PageDescriptor*>(page);
  u32 newest = 0;
  for (u32 i = 0; i < format::descriptors_per_page; ++i) newest = std::max(newest, descriptors[i].birth_epoch);
  return newest;
}

}  // namespace

SlotCopy read_slot(const pool::DeviceFile& file, const pool::BitmapPlace& place, u32 slot, u64 epoch_max) {
  SlotCopy copy;
  copy.use = SlotUse::damaged;
  const u64 offset = place.offset + slot * (1 + place.bitmap_pages + place.table_pages) * page_size;
  std::vector<u64> bitmap(place.bitmap_pages * page_size / sizeof(u64));
  copy.raw_table.resize(place.table_pages * page_size / sizeof(u64));
  try {
    file.read_at(offset, &copy.header, page_size);
    file.read_at(offset + page_size, bitmap.data(), place.bitmap_pages * page_size);
    if (place.table_pages != 0) {
      file.read_at(offset + (1 + place.bitmap_pages) * page_size, copy.raw_table.data(), place.table_pages * page_size);
    }
  } catch (const pool::PoolError& error) {
    copy.problem = error.what();
    copy.raw_table.clear();
    return copy;
  }
  const auto* bytes = reinterpret_cast<const u8*>(&copy.header);
  if (std::all_of(bytes, bytes + page_size, [](u8 byte) { return byte == 0; })) {
    copy.use = SlotUse::blank;
    return copy;
  }
  copy.problem = find_header_problem(copy.header, slot, place);
  if (!copy.problem.empty()) return copy;
  copy.use = copy.header.epoch > epoch_max ? SlotUse::beyond : SlotUse::usable;
  if (copy.use == SlotUse::beyond) return copy;
  if (hash_words(bitmap, place.base_address) == copy.header.bitmap_checksum) {
    copy.bitmap = std::move(bitmap);
  } else {
    copy.problem = "the bitmap does not match its checksum";
  }
  if (place.table_pages == 0) return copy;
  if (hash_words(copy.raw_table, format::descriptor_table_seed(place.base_address)) ==
      copy.header.descriptor_table_checksum) {
    copy.table = copy.raw_table;
  } else {
    copy.problem = "the descriptor table does not match its checksum";
  }
  return copy;
}

HeaderReader::HeaderReader(const pool::OpenedPool& pool) : pool_(pool) {
  for (u32 chunk = 0; chunk < pool.chunks.size(); ++chunk) {
    areas_.push_back(read_area(chunk));
    drop_content(areas_.back());
  }
  if (slot_sum() != pool.superblock.slot_sum) suspect_lost_slots();
}

u64 HeaderReader::slot_sum() const {
  u64 sum = 0;
  for (const HeaderArea& area : areas_) sum += area.slot == 2 ? 0 : area.header.checksum;
  return sum;
}

pool::BitmapPlace HeaderReader::place(u32 chunk, u32 column) const {
  const pool::OpenedChunk& opened = pool_.chunks[chunk];
  return pool::chunk_bitmap_place(opened.descriptor, opened.columns[column].offset_bytes());
}

pool::DeviceFile& HeaderReader::file(u32 chunk, u32 column) const {
  // The devices belong to the pool; a caller that writes them has opened it for writing.
  return const_cast<pool::DeviceFile&>(pool_.devices[pool_.chunks[chunk].columns[column].device_index()].file);
}

bool HeaderReader::is_here(u32 chunk, u32 column) const {
  return pool_.devices[pool_.chunks[chunk].columns[column].device_index()].is_here();
}

HeaderArea HeaderReader::read_area(u32 chunk) const {
  HeaderArea area;
  for (u32 column = 0; column <= pool_.chunks[chunk].descriptor.redundancy; ++column) {
    HeaderArea::Column& copy = area.columns.emplace_back();
    copy.is_here = is_here(chunk, column);
    if (!copy.is_here) continue;
    for (u32 slot = 0; slot < 2; ++slot) {
      copy.slots[slot] = read_slot(file(chunk, column), place(chunk, column), slot, pool_.superblock.epoch);
      const SlotCopy& found = copy.slots[slot];
      if (found.use != SlotUse::usable || (area.slot != 2 && found.header.epoch <= area.header.epoch)) continue;
      area.slot = slot;
      area.header = found.header;
    }
  }
  if (area.slot == 2) return area;
  for (HeaderArea::Column& copy : area.columns) {
    if (!copy.is_here) continue;
    const SlotCopy& own = copy.slots[area.slot];
    const bool has_header = own.use == SlotUse::usable && own.header.checksum == area.header.checksum;
    if (has_header && area.bitmap.empty()) area.bitmap = own.bitmap;
    if (has_header && !area.table_is_known && !own.table.empty()) {
      area.tables.push_back(own.table);
      area.table_is_known = true;
    }
    copy.is_sound = has_header && !own.bitmap.empty() && !own.table.empty();
  }
  // One column may have the header and another one the content.
  const u64 base = pool_.chunks[chunk].descriptor.base_address;
  for (const HeaderArea::Column& copy : area.columns) {
    if (!copy.is_here || area.table_is_known) continue;
    const SlotCopy& own = copy.slots[area.slot];
    if (!own.raw_table.empty() &&
        hash_words(own.raw_table, format::descriptor_table_seed(base)) == area.header.descriptor_table_checksum) {
      area.tables.push_back(own.raw_table);
      area.table_is_known = true;
    } else {
      append_table(area, own.raw_table);
    }
  }
  return area;
}

void HeaderReader::suspect_lost_slots() {
  for (HeaderArea& area : areas_) {
    for (u32 slot = 0; slot < 2; ++slot) {
      if (slot == area.slot) continue;
      bool has_no_header = false;
      bool is_there = false;
      std::vector<std::vector<u64>> tables;
      for (const HeaderArea::Column& copy : area.columns) {
        if (!copy.is_here) continue;
        const SlotUse use = copy.slots[slot].use;
        has_no_header = has_no_header || use == SlotUse::damaged || use == SlotUse::blank;
        is_there = is_there || use == SlotUse::usable;
        if (!copy.slots[slot].raw_table.empty()) tables.push_back(copy.slots[slot].raw_table);
      }
      if (!has_no_header || is_there) continue;
      area.is_suspect = true;
      area.tables.insert(area.tables.begin(), tables.begin(), tables.end());
    }
  }
}

bool HeaderReader::has_descriptors(u32 chunk, u32 column, u64 index, u64 entry, void* page) const {
  const pool::OpenedChunk& opened = pool_.chunks[chunk];
  const format::ChunkLayout layout = format::chunk_layout(opened.descriptor.size_bytes / page_size);
  const u64 at = layout.descriptor_page(index, format::descriptor_place(entry));
  try {
    file(chunk, column).read_at(opened.columns[column].offset_bytes() + at * page_size, page, page_size);
  } catch (const pool::PoolError&) {
    return false;
  }
  const u64 seed = format::descriptor_page_seed(opened.descriptor.base_address, index);
  return format::descriptor_entry_fits(entry, xxh3_64(page, page_size, seed));
}

// The content of the first readable column: of the place that the table names or, if the table does not verify, of the
// place with younger pages.
void HeaderReader::take_unverified(u32 chunk, u64 index, void* page) const {
  const HeaderArea& area = areas_[chunk];
  std::memset(page, 0, page_size);
  for (u32 column = 0; column < area.columns.size() && !area.tables.empty(); ++column) {
    if (!area.columns[column].is_here) continue;
    const bool is_known = area.table_is_known && !area.is_suspect;
    const u64 entry = is_known ? area.tables.back()[index] : area.tables.front()[index];
    (void)has_descriptors(chunk, column, index, entry, page);
    if (is_known) break;
    format::PageDescriptor other[format::descriptors_per_page] = {};
    (void)has_descriptors(chunk, column, index, entry ^ 1, other);
    if (newest_birth(other) > newest_birth(page)) std::memcpy(page, other, page_size);
    break;
  }
  auto* descriptors = static_cast<format::PageDescriptor*>(page);
  for (u32 i = 0; i < format::descriptors_per_page; ++i) descriptors[i].flags = format::page_flag_unverified;
}

DescriptorPage HeaderReader::find_by_table(u32 chunk, u64 index, std::size_t table, void* page) const {
  const HeaderArea& area = areas_[chunk];
  const u64 entry = area.tables[table][index];
  if (entry == format::descriptor_page_unwritten) {
    std::memset(page, 0, page_size);
    return {area.table_is_known && table + 1 == area.tables.size(), entry, 0};
  }
  for (u32 column = 0; column < area.columns.size(); ++column) {
    if (area.columns[column].is_here && has_descriptors(chunk, column, index, entry, page))
      return {true, entry, column};
  }
  return {};
}

DescriptorPage HeaderReader::find_descriptors(u32 chunk, u64 index, void* page) const {
  DescriptorPage best;
  if (areas_[chunk].describes_nothing()) {
    std::memset(page, 0, page_size);
    return {true, format::descriptor_page_unwritten, 0};
  }
  for (std::size_t table = 0; table < areas_[chunk].tables.size(); ++table) {
    format::PageDescriptor found[format::descriptors_per_page];
    const DescriptorPage here = find_by_table(chunk, index, table, found);
    // It is unknown which of several tables is valid; the one with the youngest page is used.
    if (!here.is_known || (best.is_known && newest_birth(found) <= newest_birth(page))) continue;
    best = here;
    std::memcpy(page, found, page_size);
  }
  if (!best.is_known) take_unverified(chunk, index, page);
  return best;
}

}  // namespace gpu4fs::fsck
