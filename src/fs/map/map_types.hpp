// The file map's terms: runs, places, costs, and the rules for slots (docs/internals/format.md, section 7).
//
// A regular file's map is a radix tree of fan-out 512. A slot of level l spans 512^l pages and is a hole,
// a direct block of exactly that span (levels 0 to 2: 4 KiB, 2 MiB, 1 GiB) or an indirect block, which is
// the metadata page (level l, page index >> 9 l) of fs/pages and holds 512 slots of level l - 1. The
// inode's seven slots are of level `height`. All page numbers here are indices of 4 KiB pages in the file.
#pragma once

#include "base/bits.hpp"
#include "base/mutant.hpp"
#include "fs/pages/change.hpp"
#include "fs/pages/pages.hpp"
#include "raid/translate.hpp"
#include "space/space.hpp"

namespace gpu4fs::fs {

// Greatest height: 7 * 512^5 pages. fs/pages does not address more.
inline constexpr u32 map_height_max = 5;

// The number of pages that one slot of `level` spans, and of those that the seven slots of an inode of `height` span.
GPU4FS_FN constexpr u64 map_span(u32 level) {
  return u64{1} << (format::slot_shift * level);
}
GPU4FS_FN constexpr u64 map_capacity(u32 height) {
  return format::inode_slot_count * map_span(height);
}
inline constexpr u64 map_page_max = map_capacity(map_height_max);

// Greatest file size in bytes: what the map can address (below 2^63).
inline constexpr u64 file_size_max = map_page_max * page_size;
static_assert(file_size_max < u64{1} << 63);

// The least height whose seven slots reach page_end.
GPU4FS_FN constexpr u32 map_height_for(u64 page_end) {
  u32 height = 0;
  while (height < map_height_max && map_capacity(height) < page_end) ++height;
  return height;
}

// Pages [first, end) of a file.
struct PageRange {
  u64 first;
  u64 end;

  GPU4FS_FN constexpr u64 page_count() const { return end - first; }
};

enum class MapKind : u32 { hole = 0, data = 1, unwritten = 2 };

// Pages that are contiguous in the file and, unless they are a hole, in logical space.
struct MapRun {
  MapKind kind;
  u32 reserved;
  u64 address;  // of the first page; 0 for a hole
  u64 page_count;
};

// Existing map pages that a change dirties (ancestors included), and map pages that it may add: the second and third
// count of reserve_metadata.
struct MapCost {
  u32 changed;
  u32 fresh;
};

GPU4FS_FN constexpr MapCost operator+(MapCost a, MapCost b) {
  return {a.changed + b.changed, a.fresh + b.fresh};
}

namespace detail {

// The slot of `level` over a page.
struct MapSlot {
  u64 page;
  u32 level;
};

// A slot on the way from the inode to a page: its place and its value.
struct MapPlace {
  format::BlockPointer* slots;  // the array that contains it
  u32 slot;                     // its index there
  u32 slot_count;               // of the array: 7 or 512
  u32 level;
  u32 frame;  // of the array, no_frame: the inode
  format::BlockPointer pointer;
};

// Test of an untrusted slot of `level`. The address of an indirect block may be 0 or outdated: the resident page is the
// current one. block_in_space detects address 0 of a direct block.
GPU4FS_FN constexpr bool slot_fits_level(format::BlockPointer pointer, u32 level) {
  if (!pointer.is_well_formed()) return false;
  if (pointer.is_hole()) return true;
  if (pointer.is_indirect()) return level >= 1;
  return static_cast<u32>(pointer.size()) == level + 1;
}

// A direct block's pages lie in one chunk, which need not be accessible.
GPU4FS_FN inline bool block_in_space(const FileSystem& fs, format::BlockPointer pointer, u32 level) {
  raid::PageLocation first{};
  raid::PageLocation last{};
  const u64 last_page = pointer.address() + (map_span(level) - 1) * page_size;
  if (raid::find_page(fs.space, pointer.address(), &first) != Status::ok) return false;
  return raid::find_page(fs.space, last_page, &last) == Status::ok && first.chunk == last.chunk;
}

GPU4FS_FN constexpr format::BlockPointer direct_pointer(u64 address, u32 level, bool unwritten) {
  const auto size = static_cast<format::BlockSize>(level + 1);
  return unwritten ? format::BlockPointer::unwritten(address, size) : format::BlockPointer::data(address, size);
}

// The number of spans of slots of `level` that overlap [first, end); first < end.
GPU4FS_FN constexpr u64 span_count(u32 level, u64 first, u64 end) {
  const u32 shift = format::slot_shift * level;
  return ((end - 1) >> shift) - (first >> shift) + 1;
}

// The greatest number of map pages that filling [first, end), all below one missing subtree of `level`, adds.
GPU4FS_FN constexpr u64 subtree_pages(u32 level, u64 first, u64 end) {
  GPU4FS_CHECK_LE(level, map_height_max);
  u64 pages = 0;
  for (u32 l = 1; l <= level; ++l) pages += span_count(l, first, end);
  return pages;
}

// The number of map pages above `page`'s slot of `level` that are not also above `previous`'s. `previous` is initially
// ~0.
GPU4FS_FN constexpr u32 fresh_path(u64 page, u64 previous, u32 level, u32 height) {
  u32 pages = 0;
  for (u32 l = level + 1; l <= height; ++l) {
    const u32 shift = format::slot_shift * l;
    if (previous == ~u64{0} || (page >> shift) != (previous >> shift)) ++pages;
  }
  return pages;
}

}  // namespace detail

// Whether `count` pages from `address`, all in one chunk, are in use: false only for damaged maps, which may
// name free pages. Leader or Lane.
GPU4FS_FN inline bool pages_in_use(const FileSystem& fs, u64 address, u64 count) {
  GPU4FS_CHECK_GT(count, u64{0});
  raid::PageLocation location{};
  if (raid::find_page(fs.space, address, &location) != Status::ok) return false;
  const raid::ChunkState& chunk = fs.space.chunks[location.chunk];
  if (count > chunk.page_count - location.page) return false;
  bool in_use = true;
  space::for_each_word(location.page, count, [&](u64 word, u64 mask) {
    const u64 bits = load<Order::relaxed, Scope::engine>(&chunk.bitmaps.committed[word]);
    if ((bits & mask) != mask) in_use = false;
  });
  return in_use;
}

// Whether pages of the chunk that holds `address` are written once (raid/parity/row.hpp).
GPU4FS_FN inline bool is_written_once(const FileSystem& fs, u64 address) {
  raid::PageLocation location{};
  if (raid::find_page(fs.space, address, &location) != Status::ok) return false;
  return space::has_stripes(fs.space.chunks[location.chunk]);
}

// Whether the page at `address` lies in a chunk of the profile that new blocks of the file get.
GPU4FS_FN GPU4FS_NOINLINE inline bool has_profile_of(const FileSystem& fs, const format::Inode& inode, u64 address) {
  const u64 classes = fs.space.data_classes;
  if ((classes & (classes - 1)) == 0) return true;
  raid::PageLocation location{};
  if (raid::find_page(fs.space, address, &location) != Status::ok) return true;
  return fs.space.chunks[location.chunk].page_class + 1 == effective_profile(fs, inode.profile);
}

// Whether a data page of a map may be overwritten in place: no checkpoint refers to it.
GPU4FS_FN inline bool may_overwrite(const FileSystem& fs, u64 address) {
  if (is_written_once(fs, address)) return false;
  return GPU4FS_MUTANT(stable_pages_overwritten, !is_stable(fs, address), true) && pages_in_use(fs, address, 1);
}

}  // namespace gpu4fs::fs
