// check: every directory, page by page and name by name (docs/internals/format.md, section 9).
//
// A task is a page of the inode file. Each directory is checked by one worker. Names are counted at the inodes that
// they lead to. All errors of a directory make one record: the caller examines the directory and describes them.
#pragma once

#include "engine/handlers/check_walk.hpp"
#include "fs/names/directory_leaf.hpp"

namespace gpu4fs::engine {
namespace detail {

// The directory that a task checks; equal on all ranks.
struct CheckedDirectory {
  u64 number;
  const format::Inode* inode;
  u64 page_count;
  u64 block_address[fs::map_height_max + 1];  // of the indirect block in the buffer of each level
};

// A rank's part.
struct NameSums {
  u64 names;
  u64 subdirectories;
  u64 pages;
  u64 problems;
};
GPU4FS_FN inline NameSums add_names(const NameSums& a, const NameSums& b) {
  return {a.names + b.names, a.subdirectories + b.subdirectories, a.pages + b.pages, a.problems + b.problems};
}

// The place of a page in the tree. It determines the hashes in the page.
struct PagePlaceInTree {
  u32 level;  // number of nodes above
  u32 first;  // slots of the node above that lead here
  u32 count;
  u64 prefix;
};

// Address of a page of the directory; 0: it has none that can be read.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 directory_page_address(Group g, const CheckTask& task, CheckedDirectory& directory,
                                                     u64 index) {
  u32 level = directory.inode->height;
  const u64 top = index >> (format::slot_shift * level);
  if (level > fs::map_height_max || top >= format::inode_slot_count) return 0;
  BlockPointer pointer = directory.inode->slots[top];
  while (leads_down(pointer, level)) {
    --level;
    u8* const block = task.buffer.pages[check_block_buffer + level];
    if (directory.block_address[level] != pointer.address()) {
      directory.block_address[level] = 0;
      if (raid::read_page(g, task.engine.fs.space, pointer.address(), block) != Status::ok) return 0;
      directory.block_address[level] = pointer.address();
    }
    const u64 slot = (index >> (format::slot_shift * level)) % format::slots_per_block;
    pointer = reinterpret_cast<const BlockPointer*>(block)[slot];
  }
  const CheckedInode file{directory.number, directory.inode, fs::mode_directory, true};
  return level == 0 && fits_content(file, pointer, 0) ? pointer.address() : 0;
}

// Any rank: counts the name at its inode. False: the inode, or an earlier name of it, does not fit this name.
GPU4FS_FN inline bool count_name(const CheckTask& task, u64 directory, u64 target, u32 type, NameSums& sums) {
  CheckTables& tables = task.engine.check;
  if (target < format::inode_number_first_free || target >= tables.inode_count) return false;
  wire::CheckInode& entry = tables.inodes[target];
  if (entry.mode == 0) return false;
  const u32 found = (entry.mode & fs::mode_type_mask) >> fs::mode_type_shift;
  const u32 before = fetch_add<Order::relaxed, Scope::engine>(&entry.names, 1u);
  if (found != fs::mode_directory >> fs::mode_type_shift) return found == type;
  ++sums.subdirectories;
  // The directory with the lowest number is stored, in whatever order they come.
  u64 known = load<Order::relaxed, Scope::engine>(&entry.named_in);
  while ((known == 0 || known > directory + 1) &&
         !compare_exchange<Order::relaxed, Scope::engine>(&entry.named_in, known, directory + 1)) {
  }
  return found == type && before == 0 && entry.parent == directory;
}

GPU4FS_FN inline bool name_is_allowed(const u8* name, u32 length) {
  if (length == 1 && name[0] == '.') return false;
  if (length == 2 && name[0] == '.' && name[1] == '.') return false;
  for (u32 i = 0; i < length; ++i) {
    if (name[i] == '/' || name[i] == 0) return false;
  }
  return true;
}

struct LeafFacts {
  const u8* page;
  format::DirectoryPageHeader header;
  u32 prefix_bits;
};

GPU4FS_FN inline format::DirectorySlot leaf_slot(const LeafFacts& leaf, u32 index) {
  return reinterpret_cast<const format::DirectorySlot*>(leaf.page + format::directory_leaf_slots_offset)[index];
}

// Any rank: checks one name of a leaf. Returns the bytes of the heap that it occupies.
GPU4FS_FN GPU4FS_NOINLINE inline u32 check_name(const CheckTask& task, u64 directory, const LeafFacts& leaf, u32 index,
                                                NameSums& sums) {
  const format::DirectorySlot slot = leaf_slot(leaf, index);
  if (!fs::detail::slot_is_in_heap(leaf.header, slot)) {
    ++sums.problems;
    return 0;
  }
  const u8* name = leaf.page + slot.entry_offset + sizeof(format::DirectoryEntry);
  bool sound = name_is_allowed(name, slot.name_length);
  if (index > 0) {
    const format::DirectorySlot before = leaf_slot(leaf, index - 1);
    if (before.hash > slot.hash || !fs::detail::slot_is_in_heap(leaf.header, before)) {
      sound = false;
    } else if (before.hash == slot.hash) {
      const u8* other = leaf.page + before.entry_offset + sizeof(format::DirectoryEntry);
      sound = sound && fs::detail::compare_names(other, before.name_length, name, slot.name_length) < 0;
    }
  }
  const u64 hash = xxh3_64(name, slot.name_length, task.engine.fs.name_hash_seed);
  sound = sound && hash == slot.hash && fs::hash_prefix(hash, leaf.prefix_bits) == leaf.header.prefix;
  u64 target = 0;
  __builtin_memcpy(&target, leaf.page + slot.entry_offset, sizeof(target));
  ++sums.names;
  const bool leads = count_name(task, directory, target, slot.type, sums);
  if (!sound || !leads) ++sums.problems;
  return format::directory_entry_size(slot.name_length);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void check_leaf(Group g, const CheckTask& task, u64 directory, const u8* page,
                                          const PagePlaceInTree& place, NameSums& sums) {
  LeafFacts leaf{page, {}, 0};
  __builtin_memcpy(&leaf.header, page, sizeof(leaf.header));
  const format::DirectoryPageHeader& header = leaf.header;
  const bool is_root = place.level == 0;
  const u32 level = is_root ? 0 : place.level - 1;
  const u32 depth = header.depth;
  const bool span_fits = is_root ? depth == 0
                                 : depth <= format::directory_node_bits &&
                                       place.count == format::directory_node_slots >> depth &&
                                       place.first % place.count == 0;
  if (!span_fits || !fs::leaf_header_is_sound(page, is_root, level, place.prefix)) {
    ++sums.problems;
    return;
  }
  leaf.prefix_bits = is_root ? 0 : format::directory_node_bits * level + depth;
  u32 heap_bytes = 0;
  for (u32 i = g.rank(); i < header.entry_count; i += Group::size()) {
    heap_bytes += check_name(task, directory, leaf, i, sums);
  }
  const u32 all = g.reduce(heap_bytes, [](u32 a, u32 b) { return a + b; });
  if (all + header.heap_garbage != page_size - header.heap_begin) ++sums.problems;
}

GPU4FS_FN inline bool node_is_sound(const u8* page, const PagePlaceInTree& place) {
  return place.level < format::directory_level_max && (place.level == 0 || place.count == 1) &&
         fs::node_header_is_sound(page, place.level, place.prefix);
}

// Returns true for a node, which is then in the buffer of its level.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool enter_page(Group g, const CheckTask& task, CheckedDirectory& directory, u64 index,
                                          const PagePlaceInTree& place, NameSums& sums) {
  const u64 address = index < directory.page_count ? directory_page_address(g, task, directory, index) : u64{0};
  raid::LogicalSpace& space = task.engine.fs.space;
  const bool is_new = on_leader(g, [&] {
    raid::PageLocation location{};
    if (address == 0 || raid::find_page(space, address, &location) != Status::ok) return false;
    const raid::ChunkState& chunk = space.chunks[location.chunk];
    return claim_bits(chunk, chunk.bitmaps.stable, location.page, 1).before == 0;
  });
  u8* page = task.buffer.pages[check_leaf_buffer];
  if (!is_new) {
    ++sums.problems;
    return false;
  }
  const PageLook look = look_at_page(g, task, wire::CheckRecord{}, address, page);
  if (look.odd) ++sums.problems;
  if (!look.usable) return false;
  if (g.leader()) ++sums.pages;
  format::DirectoryPageHeader header{};
  __builtin_memcpy(&header, page, sizeof(header));
  if (header.magic == format::directory_leaf_magic) {
    check_leaf(g, task, directory.number, page, place, sums);
    return false;
  }
  if (header.magic != format::directory_node_magic || !node_is_sound(page, place)) {
    ++sums.problems;
    return false;
  }
  copy_bytes(g, task.buffer.pages[check_node_buffer + place.level], page, page_size);
  g.sync();
  return true;
}

// Depth first. The nodes on the path are in the task's buffer.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void walk_directory(Group g, const CheckTask& task, CheckedDirectory& directory,
                                              NameSums& sums) {
  u32 position[format::directory_level_max];
  u64 prefix[format::directory_level_max];
  u32 depth = 0;  // nodes on the path
  if (!enter_page(g, task, directory, 0, {0, 0, 0, 0}, sums)) return;
  position[0] = 0;
  prefix[0] = 0;
  depth = 1;
  while (depth != 0) {
    const u32 level = depth - 1;
    const u32* children = reinterpret_cast<const u32*>(task.buffer.pages[check_node_buffer + level] +
                                                       format::directory_node_children_offset);
    const u32 first = position[level];
    if (first >= format::directory_node_slots) {
      --depth;
      continue;
    }
    u32 end = first + 1;
    while (end < format::directory_node_slots && children[end] == children[first]) ++end;
    position[level] = end;
    const u32 child = children[first];
    if (child == 0) {
      ++sums.problems;
      continue;
    }
    const u32 shift = 64 - format::directory_node_bits * depth;
    const u64 below = prefix[level] | u64{first} << shift;
    if (!enter_page(g, task, directory, child, {depth, first, end - first, below}, sums)) continue;
    GPU4FS_CHECK_LT(depth, u32{format::directory_level_max});
    position[depth] = 0;
    prefix[depth] = below;
    ++depth;
  }
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void check_directory(Group g, const CheckTask& task, u64 number, const format::Inode* inode) {
  CheckTables& tables = task.engine.check;
  const u32 flags = load<Order::relaxed, Scope::engine>(&tables.inodes[number].flags);
  if ((flags & wire::check_inode_readable) == 0) return;
  CheckedDirectory directory{number, inode, inode->size_bytes / page_size, {}};
  NameSums sums{};
  walk_directory(g, task, directory, sums);
  const NameSums all = g.reduce(sums, [](const NameSums& a, const NameSums& b) { return add_names(a, b); });
  if (!g.leader()) return;
  add<Scope::engine>(&task.sink.counts->names, all.names);
  add<Scope::engine>(&tables.inodes[number].subdirectories, static_cast<u32>(all.subdirectories));
  const bool sound =
      all.problems == 0 && all.names == inode->entry_count && all.pages == tables.inodes[number].directory_pages;
  if (!sound) emit_record(task.sink, make_record(CheckKind::directory, number));
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void check_names_page(Group g, const CheckTask& task, const wire::CheckInodePage& page) {
  const u64 first = page.index * format::inodes_per_page;
  GPU4FS_CHECK_LE(first + format::inodes_per_page, task.engine.check.inode_count);
  u8* const bytes = task.buffer.pages[check_inode_buffer];
  if (raid::read_page(g, task.engine.fs.space, page.address, bytes) != Status::ok) return;  // the walk has reported it
  const auto* inodes = reinterpret_cast<const format::Inode*>(bytes);
  for (u32 i = 0; i < format::inodes_per_page; ++i) {
    if ((inodes[i].mode & fs::mode_type_mask) != fs::mode_directory || is_hidden_inode(first + i)) continue;
    check_directory(g, task, first + i, &inodes[i]);
  }
}

}  // namespace detail
}  // namespace gpu4fs::engine
