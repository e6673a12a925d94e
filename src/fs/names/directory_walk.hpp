// Enumeration of a directory in hash order.
//
// A cursor is a position in hash order (format::directory_cursor). So insertions, splits and removals between two calls
// neither hide nor repeat a name that exists all the time. Among names whose hashes agree in the upper 54 bits the
// position is their ordinal. Only there can a concurrent change shift it, and only 255 of them are ever returned.
#pragma once

#include "fs/names/directory.hpp"

namespace gpu4fs::fs {

inline constexpr u64 cursor_start = 0;
inline constexpr u64 cursor_after_dot = 1;
inline constexpr u64 cursor_after_dot_dot = 2;
inline constexpr u64 cursor_first_name = format::directory_cursor(0, 0);
inline constexpr u32 cursor_ordinal_max = 255;
inline constexpr u32 cursor_hash_shift = 10;

// State of an enumeration within one step, equal on all ranks.
struct DirectoryWalk {
  u64 hash;     // all names below it have been processed
  u64 group;    // upper 54 bits of the hash that `ordinal` counts in
  u32 ordinal;  // names of `group` seen so far
  u32 skip;     // names of the first group returned by earlier calls
  u64 skip_group;
  u32 leaf_frame;  // no_frame: the leaf of `hash` is not found yet
  u32 slot;
  u64 next_leaf;  // first hash after the leaf, 0: it is the last
};

struct DirectoryItem {
  u64 inode;
  u64 next_cursor;
  const u8* name;
  u32 name_length;
  u32 type;
};

// `cursor` is cursor_first_name or a result of directory_next. Status: invalid_argument.
GPU4FS_FN inline Status directory_begin(u64 cursor, DirectoryWalk* walk) {
  *walk = {};
  walk->leaf_frame = no_frame;
  walk->next_leaf = 1;
  if (cursor < cursor_first_name) return Status::invalid_argument;
  const u64 group = (cursor >> 8) - 1;
  if (group > u64{1} << (directory_hash_bits - cursor_hash_shift)) return Status::invalid_argument;
  if (group == u64{1} << (directory_hash_bits - cursor_hash_shift)) {
    walk->next_leaf = 0;  // after the last hash
    return Status::ok;
  }
  walk->hash = group << cursor_hash_shift;
  walk->group = group;
  walk->skip_group = group;
  walk->skip = static_cast<u32>(cursor & 0xff);
  return Status::ok;
}

namespace detail {

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status open_leaf(Group g, FileSystem& fs, Operation& op, const InodeRef& dir,
                                           DirectoryWalk* walk) {
  DirectoryPath path{};
  GPU4FS_TRY(walk_to_leaf(g, fs, op, dir, walk->hash, &path));
  const u8* page = page_data(fs, path.leaf_frame);
  walk->leaf_frame = path.leaf_frame;
  walk->slot = leaf_lower_bound(g, page, walk->hash);
  const u32 bit_count = path.node_frame == no_frame ? 0 : format::directory_node_bits * path.level + path.depth;
  walk->next_leaf = bit_count == 0 ? 0 : page_header(page).prefix + (u64{1} << (directory_hash_bits - bit_count));
  return Status::ok;
}

}  // namespace detail

// The next name. `item` refers to the page: valid in this step and under the directory's lock.
// Status: not_found at the end.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status directory_next(Group g, FileSystem& fs, Operation& op, const InodeRef& dir,
                                                DirectoryWalk* walk, DirectoryItem* item) {
  for (;;) {
    if (walk->leaf_frame == no_frame) {
      if (walk->next_leaf == 0) return Status::not_found;
      GPU4FS_TRY(detail::open_leaf(g, fs, op, dir, walk));
    }
    const u8* page = page_data(fs, walk->leaf_frame);
    const format::DirectoryPageHeader& header = detail::page_header(page);
    if (walk->slot >= header.entry_count) {
      if (walk->next_leaf == 0) return Status::not_found;
      // Strictly greater than before, and one leaf covers one range, so the loop ends.
      GPU4FS_CHECK_GT(walk->next_leaf, header.prefix);
      walk->hash = walk->next_leaf;
      walk->leaf_frame = no_frame;
      continue;
    }
    const format::DirectorySlot& slot = detail::leaf_slots(page)[walk->slot];
    if (!detail::slot_is_sound(header, slot) || slot.hash < walk->hash ||
        (walk->next_leaf != 0 && slot.hash >= walk->next_leaf)) {
      return Status::corrupt_structure;
    }
    walk->slot += 1;
    walk->hash = slot.hash;
    const u64 group = slot.hash >> cursor_hash_shift;
    if (group != walk->group) {
      walk->group = group;
      walk->ordinal = 0;
    }
    const u32 ordinal = walk->ordinal++;
    if (ordinal >= cursor_ordinal_max || (group == walk->skip_group && ordinal < walk->skip)) continue;
    item->inode = detail::entry_inode(page, slot.entry_offset);
    item->next_cursor = format::directory_cursor(slot.hash, ordinal + 1);
    item->name = detail::entry_name(page, slot.entry_offset);
    item->name_length = slot.name_length;
    item->type = slot.type;
    return Status::ok;
  }
}

}  // namespace gpu4fs::fs
