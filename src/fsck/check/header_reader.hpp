// Bitmap slots and header areas of chunks on the devices, verified. Host only; uses a reader of its own
// (docs/internals/format.md, section 5) that shares nothing with the engine.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/types.hpp"
#include "pool/chunk_area.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::fsck {

enum class SlotUse : u8 { blank, damaged, beyond, usable };

// The header of a slot, and its content if that verifies.
struct SlotCopy {
  SlotUse use = SlotUse::blank;
  std::string problem;  // of a damaged header, or of content that does not verify
  format::BitmapSlotHeader header{};
  std::vector<u64> bitmap;     // empty: it does not match the header
  std::vector<u64> table;      // the same
  std::vector<u64> raw_table;  // the existing bytes
};

// Slots of epochs beyond `epoch_max` are left from a checkpoint that was never completed.
SlotCopy read_slot(const pool::DeviceFile& file, const pool::BitmapPlace& place, u32 slot, u64 epoch_max);

// The place of a page of descriptors. `entry` as in a descriptor table.
struct DescriptorPage {
  bool is_known = false;  // false: no column has the page that an entry names
  u64 entry = 0;
  u32 column = 0;  // the one that has it
};

// A chunk's header area.
struct HeaderArea {
  struct Column {
    bool is_here = false;
    SlotCopy slots[2];
    bool is_sound = false;  // it has all of the current slot
  };
  std::vector<Column> columns;  // 0 to redundancy
  u32 slot = 2;                 // the current one; 2: none
  format::BitmapSlotHeader header{};
  std::vector<u64> bitmap;  // empty: no column has it
  // Tables with the places of descriptors. The last one is that of the current slot if `table_is_known`; entries of
  // others are valid as far as pages exist that match them.
  std::vector<std::vector<u64>> tables;
  bool table_is_known = false;
  // The superblock refers to another slot than the remaining one: a slot whose header is damaged in all columns may be
  // the current one.
  bool is_suspect = false;

  // The current slot has no page in use, so its table has no meaning.
  bool describes_nothing() const { return slot != 2 && !is_suspect && header.set_count == 0; }
};

// All chunks' header areas.
class HeaderReader {
 public:
  // `pool` outlives the reader.
  explicit HeaderReader(const pool::OpenedPool& pool);

  const HeaderArea& area(u32 chunk) const { return areas_[chunk]; }
  std::vector<u64> take_bitmap(u32 chunk) { return std::move(areas_[chunk].bitmap); }
  // Of the current slots.
  u64 slot_sum() const;
  // Looks up a page of descriptors in all columns. `page` gets its bytes, or zeros. If no column has it, `page` gets
  // the existing bytes with marked descriptors (format::page_flag_unverified).
  DescriptorPage find_descriptors(u32 chunk, u64 index, void* page) const;
  // Whether the column has the page that `entry` names. `page` gets the bytes found.
  bool has_descriptors(u32 chunk, u32 column, u64 index, u64 entry, void* page) const;

  pool::BitmapPlace place(u32 chunk, u32 column) const;
  pool::DeviceFile& file(u32 chunk, u32 column) const;
  bool is_here(u32 chunk, u32 column) const;

 private:
  HeaderArea read_area(u32 chunk) const;
  void suspect_lost_slots();
  DescriptorPage find_by_table(u32 chunk, u64 index, std::size_t table, void* page) const;
  void take_unverified(u32 chunk, u64 index, void* page) const;

  const pool::OpenedPool& pool_;
  std::vector<HeaderArea> areas_;
};

}  // namespace gpu4fs::fsck
