// A column's header area in the bytes of a device. Changes it and recomputes all checksums, so only the meaning is
// wrong. The superblock's sum is left to the caller: each change returns its difference.
#pragma once

#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "base/limits.hpp"
#include "base/types.hpp"
#include "base/xxh3_serial.hpp"
#include "format/chunk_format.hpp"

namespace gpu4fs::test {

struct HeaderBytes {
  std::function<void(u64 offset, void* to, u64 length)> read;
  std::function<void(u64 offset, const void* from, u64 length)> write;
};

class HeaderImage {
 public:
  // The current slot is the newest one whose epoch is not beyond `epoch_max`.
  HeaderImage(HeaderBytes bytes, u64 column_offset, u64 base_address, u64 page_count, u64 epoch_max = ~u64{0})
      : bytes_(std::move(bytes)),
        column_(column_offset),
        base_(base_address),
        layout_(format::chunk_layout(page_count)) {
    u64 best = 0;
    for (u32 i = 0; i < 2; ++i) {
      format::BitmapSlotHeader header{};
      read_page(slot_page(i), &header);
      if (header.magic != format::bitmap_slot_magic || header.epoch > epoch_max || header.epoch < best) continue;
      best = header.epoch;
      slot_ = i;
    }
  }

  u32 slot() const { return slot_; }
  const format::ChunkLayout& layout() const { return layout_; }
  // Device offset of a page of the area.
  u64 offset_of(u64 page) const { return column_ + page * page_size; }
  u64 slot_page(u32 slot) const { return slot == 0 ? layout_.bitmap_a_page : layout_.bitmap_b_page; }
  u64 table_page() const { return slot_page(slot_) + 1 + layout_.bitmap_pages; }
  format::BitmapSlotHeader header() const {
    format::BitmapSlotHeader header{};
    read_page(slot_page(slot_), &header);
    return header;
  }
  u64 entry(u64 index) const {
    u64 entry = 0;
    bytes_.read(offset_of(table_page()) + index * sizeof(entry), &entry, sizeof(entry));
    return entry;
  }
  // The place of the page of descriptors; if it was never written, its future place.
  u64 descriptor_page(u64 index) const {
    return layout_.descriptor_page(index, format::descriptor_place(entry(index)));
  }

  u64 edit_header(const std::function<void(format::BitmapSlotHeader&)>& change) {
    format::BitmapSlotHeader header = this->header();
    const u64 before = header.checksum;
    change(header);
    header.checksum = 0;
    header.checksum = xxh3_64(&header, sizeof(header), base_ ^ slot_);
    bytes_.write(offset_of(slot_page(slot_)), &header, sizeof(header));
    return header.checksum - before;
  }

  // `bitmap` has whole pages.
  u64 write_bitmap(const std::vector<u8>& bitmap) {
    u64 set_count = 0;
    for (const u8 byte : bitmap) set_count += static_cast<u64>(__builtin_popcount(byte));
    bytes_.write(offset_of(slot_page(slot_) + 1), bitmap.data(), bitmap.size());
    return edit_header([&](format::BitmapSlotHeader& header) {
      header.set_count = set_count;
      header.bitmap_checksum = xxh3_64(bitmap.data(), bitmap.size(), base_);
    });
  }
  std::vector<u8> bitmap() const {
    std::vector<u8> bitmap(layout_.bitmap_pages * page_size);
    bytes_.read(offset_of(slot_page(slot_) + 1), bitmap.data(), bitmap.size());
    return bitmap;
  }

  u64 edit_descriptors(u64 index, const std::function<void(format::PageDescriptor*)>& change) {
    format::PageDescriptor page[format::descriptors_per_page] = {};
    const u64 old = entry(index);
    if (old != format::descriptor_page_unwritten) read_page(descriptor_page(index), page);
    change(page);
    bytes_.write(offset_of(descriptor_page(index)), page, sizeof(page));
    const u64 hash = xxh3_64(page, sizeof(page), format::descriptor_page_seed(base_, index));
    const u64 entry = format::descriptor_entry(hash, format::descriptor_place(old));
    bytes_.write(offset_of(table_page()) + index * sizeof(entry), &entry, sizeof(entry));
    std::vector<u8> table(layout_.table_pages * page_size);
    bytes_.read(offset_of(table_page()), table.data(), table.size());
    return edit_header([&](format::BitmapSlotHeader& header) {
      header.descriptor_table_checksum = xxh3_64(table.data(), table.size(), format::descriptor_table_seed(base_));
    });
  }
  u64 write_checksum(u64 page, u64 checksum) {
    return edit_descriptors(page / format::descriptors_per_page, [&](format::PageDescriptor* descriptors) {
      descriptors[page % format::descriptors_per_page].checksum = checksum;
    });
  }

 private:
  void read_page(u64 page, void* to) const { bytes_.read(offset_of(page), to, page_size); }

  HeaderBytes bytes_;
  u64 column_;
  u64 base_;
  format::ChunkLayout layout_;
  u32 slot_ = 0;
};

}  // namespace gpu4fs::test
