// Directories as trees of hashed names: find, insert, remove, replace.
//
// A change has two halves. Prepare finds the leaf, loads its page and its node's page, checks them and counts the pages
// that the splits will need. Commit, in the gate of the same step, changes them. It cannot fail, because everything was
// checked and reserved.
//
// The pages of a directory are 0 .. size / 4096 - 1 without holes: a new page gets the next index, and the last page
// takes the place of a removed one (directory_shrink.hpp, which also removes names). mtime, ctime and link counts of
// the directory are left to the caller; size_bytes and entry_count are changed here.
//
// All functions require the directory's lock: shared for find, exclusive for prepare and commit. `dir` is an inode of
// type directory. Status of reading functions: corrupt_structure for a damaged page, and all statuses of get_page.
#pragma once

#include "base/mutant.hpp"
#include "fs/names/directory_leaf.hpp"
#include "fs/pages/change.hpp"

namespace gpu4fs::fs {

GPU4FS_FN inline HashedName make_name(const FileSystem& fs, const u8* bytes, u32 length) {
  GPU4FS_CHECK(length >= 1 && length <= name_length_max);
  return {bytes, xxh3_64(bytes, length, fs.name_hash_seed), length, 0};
}

// The place of a hash. `level` is that of the leaf's node; without a node the leaf is the root.
struct DirectoryPath {
  u64 hash;
  u32 leaf_frame;
  u32 leaf_index;
  u32 node_frame;  // no_frame: the leaf is the root
  u32 node_index;
  u32 level;
  u32 depth;
};

struct FoundName {
  u64 inode;
  DirectoryPath path;
  u32 slot;
  u32 type;  // S_IFMT >> 12
  u64 hash;
};

struct InsertPlan {
  DirectoryPath path;
  u32 touched_pages;  // existing pages that change
  u32 new_pages;      // at most
};

namespace detail {

GPU4FS_FN inline u64 directory_page_count(const InodeRef& dir) {
  return dir.inode->size_bytes / page_size;
}

// All pages of a directory exist, so a hole is damage.
template <class Group>
GPU4FS_FN Status get_directory_page(Group g, FileSystem& fs, Operation& op, const InodeRef& dir, u64 index,
                                    u32* frame) {
  const Status status = get_page(g, fs, op, dir, {0, index}, frame);
  return status == Status::page_absent ? Status::corrupt_structure : status;
}

// Walks to the leaf of `hash`. Every page on the way has a header that is valid for its place.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status walk_to_leaf(Group g, FileSystem& fs, Operation& op, const InodeRef& dir, u64 hash,
                                              DirectoryPath* path) {
  const u64 page_count = directory_page_count(dir);
  if (page_count == 0) return Status::corrupt_structure;
  *path = {hash, no_frame, 0, no_frame, 0, 0, 0};
  for (u32 level = 0; level <= format::directory_level_max; ++level) {
    GPU4FS_TRY(get_directory_page(g, fs, op, dir, path->leaf_index, &path->leaf_frame));
    const u8* page = page_data(fs, path->leaf_frame);
    if (page_header(page).magic != format::directory_node_magic) {
      path->level = level == 0 ? 0 : level - 1;
      if (GPU4FS_MUTANT(leaf_of_other_names, !leaf_header_is_sound(page, level == 0, path->level, hash), false))
        return Status::corrupt_structure;
      path->depth = page_header(page).depth;
      return Status::ok;
    }
    if (level == format::directory_level_max || !node_header_is_sound(page, level, hash)) {
      return Status::corrupt_structure;
    }
    const u32 child = node_children(page)[node_slot(hash, level)];
    if (child == 0 || child >= page_count) return Status::corrupt_structure;
    path->node_frame = path->leaf_frame;
    path->node_index = path->leaf_index;
    path->leaf_index = child;
  }
  return Status::corrupt_structure;
}

struct SplitCount {
  Status status;
  u32 pages;
};

// The number of pages for splits until `name` has room in the leaf. The sorted slots are split without moving anything.
// Leader only.
GPU4FS_FN GPU4FS_NOINLINE inline SplitCount count_split_pages(const u8* page, const DirectoryPath& path,
                                                              const HashedName& name) {
  const format::DirectorySlot* slots = leaf_slots(page);
  u32 first = 0;
  u32 end = page_header(page).entry_count;
  u32 level = path.level;
  u32 depth = path.depth;
  bool has_node = path.node_frame != no_frame;
  u32 pages = 0;
  for (;;) {
    u32 bytes = format::directory_leaf_slots_offset + leaf_cost(name.length);
    for (u32 i = first; i < end; ++i) bytes += leaf_cost(slots[i].name_length);
    if (bytes <= page_size) return {Status::ok, pages};
    if (!has_node || depth == format::directory_node_bits) {
      if (has_node) ++level;
      if (level >= format::directory_level_max) return {Status::no_space, 0};
      has_node = true;
      depth = 0;
      ++pages;
    }
    const u32 bit = format::directory_node_bits * level + depth;
    u32 middle = first;
    while (middle < end && !hash_bit(slots[middle].hash, bit)) ++middle;
    if (hash_bit(name.hash, bit)) {
      first = middle;
    } else {
      end = middle;
    }
    ++depth;
    ++pages;
  }
}

// Whether the whole leaf is valid. After that only functions of this file change it, until its frame is filled anew.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool leaf_is_sound(Group g, FileSystem& fs, u32 leaf_frame) {
  Frame& frame = fs.pages.frames[leaf_frame];
  const u32 bits = on_leader(g, [&] { return load<Order::relaxed, Scope::engine>(&frame.referenced); });
  if ((bits & frame_checked) != 0) return true;
  if (GPU4FS_MUTANT(leaf_unchecked, !leaf_check(g, page_data(fs, leaf_frame)), false)) return false;
  on_leader(g, [&] { set_bits<Scope::engine>(&frame.referenced, frame_checked); });
  return true;
}

// The page after the last one, for a new leaf or node.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 append_page(Group g, FileSystem& fs, Operation& op, const InodeRef& dir, u32* frame) {
  const u64 index = directory_page_count(dir);
  GPU4FS_CHECK_LT(index, u64{no_frame});
  *frame = add_page(g, fs, op, dir, {0, index});
  on_leader(g, [&] { dir.inode->size_bytes = (index + 1) * page_size; });
  return static_cast<u32>(index);
}

// Moves the root leaf to a new page; page 0 becomes the node above it.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void grow_root(Group g, FileSystem& fs, Operation& op, const InodeRef& dir,
                                         DirectoryPath* path) {
  GPU4FS_CHECK_EQ(path->leaf_index, 0u);
  const u32 root_frame = path->leaf_frame;
  u32 frame = no_frame;
  const u32 index = append_page(g, fs, op, dir, &frame);
  u8* root = page_data(fs, root_frame);
  copy_bytes(g, page_data(fs, frame), root, page_size);
  node_create(g, root, 0, 0, index);
  mark_dirty(g, fs, op, dir, root_frame);
  *path = {path->hash, frame, index, root_frame, 0, 0, 0};
}

// A leaf that uses its node's last bit gets a node of its own, all of whose slots name it.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void grow_node(Group g, FileSystem& fs, Operation& op, const InodeRef& dir,
                                         DirectoryPath* path) {
  GPU4FS_CHECK_EQ(path->depth, format::directory_node_bits);
  GPU4FS_CHECK_LT(path->level + 1, format::directory_level_max);
  u8* leaf = page_data(fs, path->leaf_frame);
  const u64 prefix = page_header(leaf).prefix;
  u32 frame = no_frame;
  const u32 index = append_page(g, fs, op, dir, &frame);
  node_create(g, page_data(fs, frame), path->level + 1, prefix, path->leaf_index);
  node_fill(g, page_data(fs, path->node_frame), NodeSpan{node_slot(path->hash, path->level), 1}, index);
  on_leader(g, [&] {
    page_header(leaf).level = static_cast<u8>(path->level + 1);
    page_header(leaf).depth = 0;
  });
  mark_dirty(g, fs, op, dir, path->node_frame);
  mark_dirty(g, fs, op, dir, path->leaf_frame);
  path->node_frame = frame;
  path->node_index = index;
  path->level += 1;
  path->depth = 0;
}

// Splits the leaf at its next hash bit; the path follows its hash.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void split_leaf(Group g, FileSystem& fs, Operation& op, const InodeRef& dir, u8* scratch,
                                          DirectoryPath* path) {
  u8* leaf = page_data(fs, path->leaf_frame);
  const format::DirectoryPageHeader header = page_header(leaf);
  const u32 bit = format::directory_node_bits * path->level + path->depth;
  const u64 upper_prefix = header.prefix | (u64{1} << (directory_hash_bits - 1 - bit));
  u32 frame = no_frame;
  const u32 index = append_page(g, fs, op, dir, &frame);
  copy_bytes(g, scratch, leaf, page_size);
  g.sync();
  const u32 middle = leaf_lower_bound(g, scratch, upper_prefix);
  leaf_rebuild(g, page_data(fs, frame), {scratch, middle, header.entry_count - middle},
               {path->level, path->depth + 1, upper_prefix});
  leaf_rebuild(g, leaf, {scratch, 0, middle}, {path->level, path->depth + 1, header.prefix});
  NodeSpan upper = node_span(header.prefix, path->level, path->depth);
  upper.count /= 2;
  upper.first += GPU4FS_MUTANT(split_half_kept, upper.count, upper.count * 0);
  node_fill(g, page_data(fs, path->node_frame), upper, index);
  mark_dirty(g, fs, op, dir, path->node_frame);
  mark_dirty(g, fs, op, dir, path->leaf_frame);
  path->depth += 1;
  if (hash_bit(path->hash, bit)) {
    path->leaf_frame = frame;
    path->leaf_index = index;
  }
}

}  // namespace detail

// Gate: the content of a new directory, one empty leaf; one new page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void create_directory(Group g, FileSystem& fs, Operation& op, const InodeRef& dir) {
  GPU4FS_CHECK_EQ(dir.inode->size_bytes, u64{0});
  u32 frame = no_frame;
  detail::append_page(g, fs, op, dir, &frame);
  leaf_create(g, page_data(fs, frame), {0, 0, 0});
}

// Status: not_found.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status directory_find(Group g, FileSystem& fs, Operation& op, const InodeRef& dir,
                                                const HashedName& name, FoundName* found) {
  *found = {};
  GPU4FS_TRY(detail::walk_to_leaf(g, fs, op, dir, name.hash, &found->path));
  const u8* page = page_data(fs, found->path.leaf_frame);
  const LeafPosition position = leaf_find(g, page, name);
  if (position.status != Status::ok) return position.status;
  found->slot = position.slot;
  const format::DirectorySlot& slot = detail::leaf_slots(page)[position.slot];
  found->type = slot.type;
  found->hash = slot.hash;
  found->inode = detail::entry_inode(page, slot.entry_offset);
  return Status::ok;
}

// The same for a name that will be replaced: its leaf, the only existing page that changes, is checked completely.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status directory_prepare_change(Group g, FileSystem& fs, Operation& op, const InodeRef& dir,
                                                          const HashedName& name, FoundName* found) {
  GPU4FS_TRY(directory_find(g, fs, op, dir, name, found));
  if (!detail::leaf_is_sound(g, fs, found->path.leaf_frame)) return Status::corrupt_structure;
  return dir.inode->entry_count == 0 ? Status::corrupt_structure : Status::ok;
}

namespace detail {

// Loads the map pages above the next `count` pages of the directory, so they are resident for an append. If such a page
// already exists, this is damage.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status prepare_append(Group g, FileSystem& fs, Operation& op, const InodeRef& dir,
                                                u32 count) {
  const u64 first = directory_page_count(dir);
  for (u64 index = first; index < first + count; ++index) {
    u32 frame = no_frame;
    const Status status = get_page(g, fs, op, dir, {0, index}, &frame);
    if (status == Status::ok) return Status::corrupt_structure;
    if (status != Status::page_absent) return status;
  }
  return Status::ok;
}

}  // namespace detail

// Status: exists; no_space if the hashes of all names of a full leaf agree in all 63 usable bits or the directory has
// 2^32 pages.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status directory_prepare_insert(Group g, FileSystem& fs, Operation& op, const InodeRef& dir,
                                                          const HashedName& name, InsertPlan* plan) {
  *plan = {};
  DirectoryPath path{};
  GPU4FS_TRY(detail::walk_to_leaf(g, fs, op, dir, name.hash, &path));
  const u8* page = page_data(fs, path.leaf_frame);
  const LeafPosition position = leaf_find(g, page, name);
  if (position.status == Status::ok) return Status::exists;
  if (position.status != Status::not_found) return position.status;
  if (!detail::leaf_is_sound(g, fs, path.leaf_frame)) return Status::corrupt_structure;
  plan->path = path;
  plan->touched_pages = 1;
  if (leaf_cost(name.length) <= leaf_room_compacted(page)) return Status::ok;
  if (path.node_frame != no_frame) {
    const NodeSpan span = node_span(detail::page_header(page).prefix, path.level, path.depth);
    if (!node_span_is(g, page_data(fs, path.node_frame), span, path.leaf_index)) return Status::corrupt_structure;
    plan->touched_pages = 2;
  }
  const detail::SplitCount split = on_leader(g, [&] { return detail::count_split_pages(page, path, name); });
  plan->new_pages = split.pages;
  if (split.status == Status::ok && detail::directory_page_count(dir) + split.pages >= no_frame)
    return Status::no_space;
  if (split.status != Status::ok) return split.status;
  return detail::prepare_append(g, fs, op, dir, split.pages);
}

// A name that is added to a directory.
struct NewName {
  const InsertPlan& plan;
  const HashedName& name;
  NameTarget target;
};

// Gate. `scratch` is a page of the command's own. Between the plan and this call, in the same step, names may be
// removed from the directory, but no other names inserted.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void directory_commit_insert(Group g, FileSystem& fs, Operation& op, const InodeRef& dir,
                                                       NewName entry, u8* scratch) {
  const InsertPlan& plan = entry.plan;
  const HashedName& name = entry.name;
  GPU4FS_CHECK_NE(entry.target.inode, u64{0});
  DirectoryPath path = plan.path;
  const u64 pages_before = detail::directory_page_count(dir);
  while (leaf_cost(name.length) > leaf_room_compacted(page_data(fs, path.leaf_frame))) {
    if (path.node_frame == no_frame) {
      detail::grow_root(g, fs, op, dir, &path);
    } else if (path.depth == format::directory_node_bits) {
      detail::grow_node(g, fs, op, dir, &path);
    }
    detail::split_leaf(g, fs, op, dir, scratch, &path);
  }
  GPU4FS_CHECK_LE(detail::directory_page_count(dir) - pages_before, u64{plan.new_pages});
  u8* page = page_data(fs, path.leaf_frame);
  if (leaf_cost(name.length) > leaf_room(page)) leaf_compact(g, page, scratch);
  const LeafPosition position = leaf_find(g, page, name);
  GPU4FS_CHECK(position.status == Status::not_found);
  leaf_insert(g, page, position.slot, name, entry.target);
  on_leader(g, [&] { dir.inode->entry_count += 1; });
  mark_dirty(g, fs, op, dir, path.leaf_frame);
  mark_inode_dirty(g, fs, op, dir);
}

// Gate: the name leads to another inode afterwards.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void directory_commit_replace(Group g, FileSystem& fs, Operation& op, const InodeRef& dir,
                                                        const FoundName& found, NameTarget target) {
  GPU4FS_CHECK_NE(target.inode, u64{0});
  GPU4FS_CHECK_LT(target.type, 16u);
  u8* page = page_data(fs, found.path.leaf_frame);
  on_leader(g, [&] {
    format::DirectorySlot& slot = detail::leaf_slots(page)[found.slot];
    GPU4FS_CHECK_LT(found.slot, u32{detail::page_header(page).entry_count});
    detail::entry_inode(page, slot.entry_offset) = target.inode;
    slot.type = static_cast<u8>(target.type);
  });
  mark_dirty(g, fs, op, dir, found.path.leaf_frame);
  mark_inode_dirty(g, fs, op, dir);
}

}  // namespace gpu4fs::fs
