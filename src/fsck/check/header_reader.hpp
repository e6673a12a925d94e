// Bitmap slots and header areas of chunks as the devices have them, verified. Host only; reads with a reader of its own
// (docs/internals/format.md, section 5), which shares nothing with the engine.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/types.hpp"
#include "pool/chunk_area.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::fsck {

enum class SlotUse : u8 { blank, damaged, beyond, usable };

// The header of a slot; with its content if that is usable and verifies.
struct SlotCopy {
  SlotUse use = SlotUse::blank;
  std::string problem;  // of a damaged header, or of a content that does not verify
  format::BitmapSlotHeader header{};
  std::vector<u64> bitmap;     // empty: it does not match the header
  std::vector<u64> table;      // the same
  std::vector<u64> raw_table;  // as it stands there
};

// Slots of epochs beyond `epoch_max` are the remains of a checkpoint that did not happen.
SlotCopy read_slot(const pool::DeviceFile& file, const pool::BitmapPlace& place, u32 slot, u64 epoch_max);

// Where a page of descriptors is. `entry` as in a descriptor table.
struct DescriptorPage {
  bool is_known = false;  // false: no column has a page that an entry names
  u64 entry = 0;
  u32 column = 0;  // that has it
};

// A chunk's header area.
struct HeaderArea {
  struct Column {
    bool is_here = false;
    SlotCopy slots[2];
    bool is_sound = false;  // it has the whole of the slot that counts
  };
  std::vector<Column> columns;  // 0 to redundancy
  u32 slot = 2;                 // that counts; 2: none
  format::BitmapSlotHeader header{};
  std::vector<u64> bitmap;  // empty: no column has it
  // Tables that say where descriptors are. The last is that of the slot that counts if `table_is_known`; of others
  // entries count as far as there are pages that they name.
  std::vector<std::vector<u64>> tables;
  bool table_is_known = false;
  // The superblock means another slot than the one that is left: some slot without a header in all columns may be it.
  bool is_suspect = false;

  // The slot that counts has no page in use, so its table means nothing.
  bool describes_nothing() const { return slot != 2 && !is_suspect && header.set_count == 0; }
};

// All chunks' header areas.
class HeaderReader {
 public:
  // `pool` outlives the reader.
  explicit HeaderReader(const pool::OpenedPool& pool);

  const HeaderArea& area(u32 chunk) const { return areas_[chunk]; }
  std::vector<u64> take_bitmap(u32 chunk) { return std::move(areas_[chunk].bitmap); }
  // Of the slots that count.
  u64 slot_sum() const;
  // Looks a page of descriptors up in all columns; `page` gets its bytes, or zeros, or, of one that no column
  // has, what stands there, with flags that say so (format::page_flag_unverified).
  DescriptorPage find_descriptors(u32 chunk, u64 index, void* page) const;
  // Whether the column has the page that `entry` names. `page` gets what is there.
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
