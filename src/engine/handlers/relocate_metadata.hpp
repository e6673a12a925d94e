// The parts of relocate that do not move data blocks: metadata pages in frozen chunks, the walk over all inodes, frozen
// chunks and the pages that chunks have in use (wire/relocate_format.hpp).
#pragma once

#include "base/bits.hpp"
#include "engine/handlers/file_common.hpp"
#include "fs/inode/inode.hpp"
#include "fs/map/file_map.hpp"
#include "fs/names/attribute_walk.hpp"
#include "space/freeze.hpp"
#include "space/growth.hpp"
#include "wire/relocate_format.hpp"

namespace gpu4fs::engine {
namespace detail {

inline constexpr u32 marked_page_max = 32;  // of one command
inline constexpr u32 marked_run_max = 8;    // limit of the runs whose ancestors reserve_metadata() counts
inline constexpr u32 metadata_lookups_max = 512;

// A metadata page that is to be written elsewhere.
struct MarkedPage {
  u64 index;
  u32 level;
  u32 frame;
};
struct MarkedPages {
  u64 next;    // position where the walk continues
  u64 stayed;  // pages that cannot be read
  u32 count;
  u32 run_count;
  MarkedPage pages[marked_page_max];
};
static_assert(sizeof(MarkedPages) <= command_scratch_size);

// Leader. False: the list has no room for it.
GPU4FS_FN inline bool add_marked(MarkedPages& list, u32 level, u64 index) {
  GPU4FS_CHECK_LE(list.count, u32{marked_page_max});
  const bool follows = list.count != 0 && list.pages[list.count - 1].level == level &&
                       list.pages[list.count - 1].index >> format::slot_shift == index >> format::slot_shift;
  if (list.count == marked_page_max || (!follows && list.run_count == marked_run_max)) return false;
  if (!follows) ++list.run_count;
  list.pages[list.count++] = {index, level, fs::no_frame};
  return true;
}

GPU4FS_FN constexpr bool is_unreadable(Status status) {
  return status == Status::checksum_mismatch || status == Status::corrupt_structure ||
         status == Status::device_failed || status == Status::medium_error;
}

// The position of a walk that marks pages.
struct MarkWalk {
  u64 next;   // page where it continues
  bool full;  // the list is full
};

// Marks map pages that begin at file page `page`. walk->next: `page`, or the page after the part that cannot be read.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status mark_map_pages_at(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                   u64 page, MarkWalk* walk) {
  GPU4FS_CHECK_LE(u32{ref.inode->height}, u32{fs::map_height_max});
  MarkedPages& list = scratch_of<MarkedPages>(c);
  *walk = {page, false};
  for (u32 level = ref.inode->height; level >= 1; --level) {
    fs::detail::MapPlace place{};
    const Status status = fs::detail::map_descend(g, engine.fs, c.operation, ref, {page, level}, &place);
    if (is_unreadable(status)) {
      const u64 span = fs::map_span(level + 1);
      walk->next = align_down(page, span) + span;
      on_leader(g, [&] { ++list.stayed; });
      return Status::ok;
    }
    GPU4FS_TRY(status);
    if (place.level != level || !place.pointer.is_indirect()) return Status::ok;
    if (page % fs::map_span(level) != 0) continue;
    walk->full = on_leader(g, [&] {
      if (!space::is_in_frozen_chunk(engine.fs, place.pointer.address())) return false;
      return !add_marked(list, level, page >> (format::slot_shift * level));
    });
    if (walk->full) return Status::ok;
  }
  return Status::ok;
}

// Marks pages of content, unless they are data, in the array of slots above `page`. walk->next: the page after the
// array, or the page for which the list has no room.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status mark_content_at(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                 u64 page, MarkWalk* walk) {
  const bool is_data = ref.number >= format::inode_number_first_free && fs::is_regular(ref.inode->mode);
  MarkedPages& list = scratch_of<MarkedPages>(c);
  fs::detail::MapPlace place{};
  const Status status = fs::detail::map_descend(g, engine.fs, c.operation, ref, {page, 0}, &place);
  walk->full = false;
  if (is_unreadable(status)) {
    walk->next = align_down(page, fs::map_span(1)) + fs::map_span(1);
    on_leader(g, [&] { ++list.stayed; });
    return Status::ok;
  }
  GPU4FS_TRY(status);
  const u64 span = fs::map_span(place.level);
  if (place.level != 0) {
    walk->next = align_down(page, span) + span;
    return Status::ok;
  }
  const u64 end = page + (place.slot_count - place.slot);
  const u64 stop = on_leader(g, [&] {
    for (u64 at = page; at < end && !is_data; ++at) {
      const format::BlockPointer pointer = fs::load_slot(&place.slots[place.slot + (at - page)]);
      if (!pointer.is_valid() || !space::is_in_frozen_chunk(engine.fs, pointer.address())) continue;
      if (!add_marked(list, 0, at)) return at;
    }
    return end;
  });
  walk->full = stop != end;
  walk->next = stop;
  return Status::ok;
}

// Marks pages of attributes from place *place on. *place: where to continue, or relocate_end after the last one.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status list_attributes(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                 u32 lookups, u64* place) {
  GPU4FS_CHECK_GE(*place, fs::attribute_places);
  MarkedPages& list = scratch_of<MarkedPages>(c);
  u64 at = *place - fs::attribute_places;
  for (u32 i = 0; i < lookups; ++i) {
    const u64 here = at;
    fs::AttributePage found{};
    const Status status = fs::next_attribute_page_at(g, engine.fs, c.operation, ref, &at, &found);
    if (is_unreadable(status) || status == Status::page_absent) {
      on_leader(g, [&] { ++list.stayed; });
      continue;
    }
    GPU4FS_TRY(status);
    if (found.pointer.is_hole()) {
      *place = wire::relocate_end;
      return Status::ok;
    }
    const bool full = on_leader(g, [&] {
      if (!space::is_in_frozen_chunk(engine.fs, found.pointer.address())) return false;
      return !add_marked(list, found.level, found.index);
    });
    if (full) at = here;
    if (full) break;
  }
  *place = fs::attribute_places + at;
  return Status::ok;
}

// Lists pages of the inode's metadata in frozen chunks. The content of regular files is data.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status list_metadata(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  MarkedPages& list = scratch_of<MarkedPages>(c);
  on_leader(g, [&] { list = {}; });
  const bool has_map = !ref.inode->is_inline() && ref.inode->height <= fs::map_height_max;
  const u64 end = has_map ? fs::map_capacity(ref.inode->height) : 0;
  u64 page = c.command.offset;
  MarkWalk walk{page, false};
  u32 i = 0;
  for (; i < metadata_lookups_max && page < end && !walk.full; ++i) {
    GPU4FS_TRY(mark_map_pages_at(g, engine, c, ref, page, &walk));
    if (walk.full) break;
    if (walk.next == page) GPU4FS_TRY(mark_content_at(g, engine, c, ref, page, &walk));
    page = walk.next;
  }
  if (page >= end && !walk.full) {
    page = maximum(page, fs::attribute_places);
    GPU4FS_TRY(list_attributes(g, engine, c, ref, metadata_lookups_max - i, &page));
  }
  on_leader(g, [&] { list.next = page; });
  return Status::ok;
}

// Loads the listed pages. Pages that cannot be read are removed from the list.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status load_marked(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  MarkedPages& list = scratch_of<MarkedPages>(c);
  const u32 count = on_leader(g, [&] { return list.count; });
  for (u32 i = 0; i < count; ++i) {
    const MarkedPage page = on_leader(g, [&] { return list.pages[i]; });
    u32 frame = fs::no_frame;
    const Status status = fs::get_page(g, engine.fs, c.operation, ref, {page.level, page.index}, &frame);
    const bool gone = is_unreadable(status) || status == Status::page_absent;
    if (!gone) GPU4FS_TRY(status);
    on_leader(g, [&] {
      list.pages[i].frame = gone ? fs::no_frame : frame;
      if (gone) ++list.stayed;
    });
  }
  return Status::ok;
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status find_any_inode(Group g, Engine& engine, CommandState& c, fs::InodeRef* ref) {
  const u64 number = c.command.inode;
  const bool is_special = number == format::inode_number_inode_file || number == format::inode_number_inode_bitmap ||
                          number == format::inode_number_orphan_bitmap;
  if (!is_special) return lock_any(g, engine, c, number, LockMode::exclusive, ref);
  return fs::get_inode(g, engine.fs, c.operation, number, ref);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step relocate_metadata(Group g, Engine& engine, CommandState& c) {
  MarkedPages& list = scratch_of<MarkedPages>(c);
  u8* output = nullptr;
  GPU4FS_STEP_TRY(resolve(g, engine, c, c.command.data, sizeof(wire::RelocateReport), &output));
  if (!is_aligned(output, 8)) return Step::end(Status::unaligned);
  fs::InodeRef ref{};
  GPU4FS_STEP_TRY(find_any_inode(g, engine, c, &ref));
  GPU4FS_STEP_TRY(list_metadata(g, engine, c, ref));
  GPU4FS_STEP_TRY(load_marked(g, engine, c, ref));
  const u32 count = on_leader(g, [&] { return list.count; });
  u64 moved = 0;
  if (count != 0) {
    GPU4FS_STEP_TRY(fs::reserve_metadata(g, engine.fs, c.operation, {1, count, 0}));
    GPU4FS_STEP_TRY(enter_gate(g, engine, c));
    for (u32 i = 0; i < count; ++i) {
      const u32 frame = on_leader(g, [&] { return list.pages[i].frame; });
      if (frame == fs::no_frame) continue;
      fs::mark_dirty(g, engine.fs, c.operation, ref, frame);
      ++moved;
    }
  }
  on_leader(g, [&] { *reinterpret_cast<wire::RelocateReport*>(output) = {list.next, moved, list.stayed}; });
  return Step::complete();
}

// Leader: the first number from `number` on whose bit is set in the bitmap page, or the first number after the page.
GPU4FS_FN inline u64 next_set_bit(fs::FileSystem& fs, u32 frame, u64 number) {
  GPU4FS_CHECK_NE(frame, u32{fs::no_frame});
  const u64 page_end = align_down(number, fs::bitmap_bits_per_page) + fs::bitmap_bits_per_page;
  while (number < page_end) {
    const u64 word = load<Order::acquire, Scope::engine>(fs::detail::bitmap_word(fs, frame, number)) >> (number % 64);
    if (word != 0) return number + count_trailing_zeros(word);
    number = align_down(number, u64{64}) + 64;
  }
  return page_end;
}

// Works without locks: inodes that are created or removed meanwhile may be found or not.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step find_next_inode(Group g, Engine& engine, CommandState& c) {
  fs::FileSystem& fs = engine.fs;
  u64 number = c.command.inode;
  while (number < fs::inode_number_max) {
    u32 frame = fs::no_frame;
    const Status status =
        fs::detail::get_bitmap_page(g, fs, c.operation, format::inode_number_inode_bitmap, number, &frame);
    const u64 page_end = align_down(number, fs::bitmap_bits_per_page) + fs::bitmap_bits_per_page;
    if (status == Status::page_absent) {
      fs::InodeRef file{};
      GPU4FS_STEP_TRY(fs::detail::get_bitmap_file(g, fs, c.operation, format::inode_number_inode_bitmap, &file));
      const u64 reached = on_leader(g, [&] {
        return load<Order::relaxed, Scope::engine>(&file.inode->size_bytes) / page_size * fs::bitmap_bits_per_page;
      });
      if (page_end > reached) break;
      number = page_end;
      continue;
    }
    GPU4FS_STEP_TRY(status);
    const u64 found = on_leader(g, [&] { return next_set_bit(fs, frame, number); });
    if (found != page_end) return Step::complete(found);
    number = found;
  }
  return Step::complete(wire::relocate_end);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step freeze_while_stopped(Group g, Engine& engine, CommandState& c) {
  const bool freezes = c.command.mode == static_cast<u32>(wire::RelocateStep::freeze);
  if (c.command.inode >= raid::chunk_count_of(engine.fs.space)) return Step::end(Status::out_of_range);
  GPU4FS_STEP_TRY(stop_steps(g, engine, c));
  const Status status = on_leader(g, [&] {
    const u32 chunk = static_cast<u32>(c.command.inode);
    if (space::is_being_deleted(engine.fs, chunk)) return Status::busy;
    return freezes ? space::freeze_chunk(engine.fs, chunk) : space::unfreeze_chunk(engine.fs, chunk);
  });
  resume_steps(g, engine, c);
  return Step::end(status);
}

template <class Group>
GPU4FS_FN wire::ChunkUsage usage_of(Group g, const raid::ChunkState& chunk) {
  u32 used = 0;
  u32 busy = 0;
  for (u64 w = g.rank(); w < divide_up(chunk.page_count, u64{64}); w += Group::size()) {
    const u64 left = chunk.page_count - w * 64;
    const u64 mask = left >= 64 ? ~u64{0} : (u64{1} << left) - 1;
    used += popcount(load<Order::relaxed, Scope::engine>(&chunk.bitmaps.committed[w]) & mask);
    if (raid::is_unbacked(chunk, w * 64)) continue;
    busy += popcount(load<Order::relaxed, Scope::engine>(&chunk.bitmaps.busy[w]) & mask);
  }
  const auto sum = [](u32 a, u32 b) { return a + b; };
  used = g.reduce(used, sum);
  busy = g.reduce(busy, sum);
  return {static_cast<u32>(chunk.page_count), used, busy, static_cast<u16>(chunk.page_class),
          on_leader(g, [&] { return static_cast<u16>(space::is_frozen(chunk) ? 1 : 0); })};
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step list_chunk_usage(Group g, Engine& engine, CommandState& c) {
  u8* output = nullptr;
  GPU4FS_STEP_TRY(resolve(g, engine, c, c.command.data, c.command.length, &output));
  if (!is_aligned(output, 8)) return Step::end(Status::unaligned);
  const u32 chunk_count = on_leader(g, [&] { return raid::chunk_count_of(engine.fs.space); });
  if (c.command.inode >= chunk_count) return Step::complete(0);
  const u64 count = minimum(chunk_count - c.command.inode, c.command.length / sizeof(wire::ChunkUsage));
  for (u64 i = 0; i < count; ++i) {
    const wire::ChunkUsage usage = usage_of(g, engine.fs.space.chunks[c.command.inode + i]);
    on_leader(g, [&] { reinterpret_cast<wire::ChunkUsage*>(output)[i] = usage; });
  }
  return Step::complete(count);
}

}  // namespace detail
}  // namespace gpu4fs::engine
