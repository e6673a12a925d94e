// Removes names, and gives back pages that a directory does not need.
//
// The reverse of the splits. A leaf is merged with its neighbour, the leaf of the same depth whose prefix differs in
// the last bit, if both together fill at most half a page. A node all of whose slots name one leaf is removed, and the
// leaf takes its place. Both happen in the commit that removes a name, a bounded number of times; the rest happens when
// the next name of the leaf is removed. So two neighbours fill more than half a page together, unless a merge is still
// pending or one of them was split further.
//
// The freed page then gets the content of the last one, which is removed. Prepare loads and checks all pages that this
// touches. Shrinking never makes a removal fail: if a page is damaged, the directory is not shrunk.
#pragma once

#include "fs/names/directory.hpp"

namespace gpu4fs::fs {

// The greatest number of pages that one removal gives back.
inline constexpr u32 directory_merge_max = 4;
// The greatest size of a merged leaf: its names have to double before it is split again.
inline constexpr u32 directory_merged_bytes_max = static_cast<u32>(page_size) / 2;

struct RemovePlan {
  FoundName name;
  u32 merges;  // at most; 0 is always allowed
  u32 reserved;
};

// The number of existing pages that the removal changes: the leaf; for each merge the remaining leaf, its node, the
// page that is moved and that page's node. The removed page counts as well.
GPU4FS_FN constexpr u32 touched_pages(const RemovePlan& plan) {
  return 1 + 5 * plan.merges;
}

namespace detail {

// Bytes of a leaf's header, slots and names.
GPU4FS_FN inline u32 leaf_bytes(const u8* page) {
  return static_cast<u32>(page_size) - leaf_room_compacted(page);
}

GPU4FS_FN inline NodeSpan neighbour_of(NodeSpan span) {
  return {span.first ^ span.count, span.count};
}

// Nodes on the way to the leaf of `hash`, by level; `count` of them.
struct NodePath {
  u32 frames[format::directory_level_max];
  u32 pages[format::directory_level_max];
  u32 count;
};

// The node of `level` on the way to a hash.
struct NodePlace {
  u64 hash;
  u32 level;
};

// The nodes from the root to `last`. All headers are sound.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status walk_to_node(Group g, FileSystem& fs, Operation& op, const InodeRef& dir,
                                              NodePlace last, NodePath* path) {
  const u64 page_count = directory_page_count(dir);
  if (last.level >= format::directory_level_max) return Status::corrupt_structure;
  u32 page = 0;
  for (u32 l = 0; l <= last.level; ++l) {
    if (page >= page_count || (l != 0 && page == 0)) return Status::corrupt_structure;
    path->pages[l] = page;
    GPU4FS_TRY(get_directory_page(g, fs, op, dir, page, &path->frames[l]));
    const u8* bytes = page_data(fs, path->frames[l]);
    if (!node_header_is_sound(bytes, l, last.hash)) return Status::corrupt_structure;
    page = node_children(bytes)[node_slot(last.hash, l)];
  }
  path->count = last.level + 1;
  return Status::ok;
}

// The slots that name the page with this header in the node above it, of level *level.
GPU4FS_FN inline NodeSpan span_of_page(const format::DirectoryPageHeader& header, u32* level) {
  if (header.magic == format::directory_node_magic) {
    *level = u32{header.level} - 1;
    return {node_slot(header.prefix, *level), 1};
  }
  *level = header.level;
  return node_span(header.prefix, header.level, header.depth);
}

// Page `index`, not 0, can be moved: it and the way to it are valid. All of it is resident.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status prepare_move(Group g, FileSystem& fs, Operation& op, const InodeRef& dir, u32 index) {
  u32 frame = no_frame;
  GPU4FS_TRY(get_directory_page(g, fs, op, dir, index, &frame));
  const u8* page = page_data(fs, frame);
  const format::DirectoryPageHeader& header = page_header(page);
  const bool is_node = header.magic == format::directory_node_magic;
  const bool sound = is_node ? header.level != 0 && node_header_is_sound(page, header.level, header.prefix)
                             : leaf_header_is_sound(page, false, header.level, header.prefix);
  if (!sound) return Status::corrupt_structure;
  u32 level = 0;
  const NodeSpan span = span_of_page(header, &level);
  NodePath path{};
  GPU4FS_TRY(walk_to_node(g, fs, op, dir, {header.prefix, level}, &path));
  return node_span_is(g, page_data(fs, path.frames[level]), span, index) ? Status::ok : Status::corrupt_structure;
}

// The state of the merges in the plan: the leaf as it will be.
struct MergeState {
  u64 hash;
  u32 bytes;
  u32 level;
  u32 depth;
  u32 node_frame;
};

// Whether the leaf is merged with its neighbour.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status plan_merge(Group g, FileSystem& fs, Operation& op, const InodeRef& dir,
                                            MergeState* state, bool* merges) {
  *merges = false;
  const u8* node = page_data(fs, state->node_frame);
  const NodeSpan span = neighbour_of(node_span(state->hash, state->level, state->depth));
  const u32 index = node_children(node)[span.first];
  if (index == 0 || index >= directory_page_count(dir)) return Status::corrupt_structure;
  u32 frame = no_frame;
  GPU4FS_TRY(get_directory_page(g, fs, op, dir, index, &frame));
  const u8* page = page_data(fs, frame);
  const u32 prefix_bits = format::directory_node_bits * state->level + state->depth;
  const u64 neighbour_hash = state->hash ^ (u64{1} << (directory_hash_bits - prefix_bits));
  const bool is_leaf = page_header(page).magic == format::directory_leaf_magic;
  if (!is_leaf || page_header(page).depth != state->depth) return Status::ok;
  if (!leaf_header_is_sound(page, false, state->level, neighbour_hash) || !node_span_is(g, node, span, index) ||
      !leaf_is_sound(g, fs, frame)) {
    return Status::corrupt_structure;
  }
  const u32 bytes = state->bytes + leaf_bytes(page) - format::directory_leaf_slots_offset;
  if (bytes > directory_merged_bytes_max) return Status::ok;
  state->bytes = bytes;
  state->depth -= 1;
  *merges = true;
  return Status::ok;
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status plan_merges(Group g, FileSystem& fs, Operation& op, const InodeRef& dir,
                                             const HashedName& name, RemovePlan* plan) {
  const DirectoryPath& leaf = plan->name.path;
  const u8* page = page_data(fs, leaf.leaf_frame);
  MergeState state{name.hash, leaf_bytes(page) - leaf_cost(name.length), leaf.level, leaf.depth, leaf.node_frame};
  if (leaf.node_frame == no_frame || state.bytes > directory_merged_bytes_max) return Status::ok;
  const NodeSpan span = node_span(name.hash, leaf.level, leaf.depth);
  if (!node_span_is(g, page_data(fs, leaf.node_frame), span, leaf.leaf_index)) return Status::corrupt_structure;
  NodePath path{};
  GPU4FS_TRY(walk_to_node(g, fs, op, dir, {name.hash, leaf.level}, &path));
  u32 merges = 0;
  bool is_root = false;
  while (merges < directory_merge_max && !is_root) {
    bool goes_on = true;
    if (state.depth > 0) {
      GPU4FS_TRY(plan_merge(g, fs, op, dir, &state, &goes_on));
    } else if (state.level == 0) {
      is_root = true;
    } else {
      state.level -= 1;
      state.depth = format::directory_node_bits;
      state.node_frame = path.frames[state.level];
    }
    if (!goes_on) break;
    ++merges;
  }
  const u64 page_count = directory_page_count(dir);
  if (merges >= page_count) return Status::corrupt_structure;
  for (u32 i = 1; i <= merges; ++i) {
    GPU4FS_TRY(prepare_move(g, fs, op, dir, static_cast<u32>(page_count - i)));
  }
  plan->merges = merges;
  return Status::ok;
}

// Gate. Moves the last page of the directory to the place of page `index`, which nothing names.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void give_back_page(Group g, FileSystem& fs, Operation& op, const InodeRef& dir, u32 index) {
  const u32 last = static_cast<u32>(directory_page_count(dir) - 1);
  GPU4FS_CHECK_GT(index, 0u);
  GPU4FS_CHECK_LE(index, last);
  if (index != last) {
    const u32 from = on_leader(g, [&] { return resident_frame(fs, dir.number, 0, last); });
    const u32 to = on_leader(g, [&] { return resident_frame(fs, dir.number, 0, index); });
    const u8* page = page_data(fs, from);
    u32 level = 0;
    const NodeSpan span = span_of_page(page_header(page), &level);
    NodePath path{};
    const Status status = walk_to_node(g, fs, op, dir, {page_header(page).prefix, level}, &path);
    GPU4FS_CHECK_OK(status);
    node_fill(g, page_data(fs, path.frames[level]), span, index);
    copy_bytes(g, page_data(fs, to), page, page_size);
    on_leader(g, [&] {
      const u32 checked = load<Order::relaxed, Scope::engine>(&fs.pages.frames[from].referenced) & frame_checked;
      fetch_and<Order::relaxed, Scope::engine>(&fs.pages.frames[to].referenced, ~u32{frame_checked});
      set_bits<Scope::engine>(&fs.pages.frames[to].referenced, checked);
    });
    mark_dirty(g, fs, op, dir, path.frames[level]);
    mark_dirty(g, fs, op, dir, to);
  }
  remove_page(g, fs, op, dir, {0, last});
  remove_empty_map_pages(g, fs, op, dir, 1, last);
  on_leader(g, [&] {
    dir.inode->size_bytes = u64{last} * page_size;
    add<Scope::engine>(&fs.directory_pages_given_back, u64{1});
  });
}

// Leader, gate. An insertion may enlarge the leaf or its neighbour, or split the neighbour; then the merge ends here.
// Parts of the plan that it leaves unchanged are checked.
GPU4FS_FN GPU4FS_NOINLINE inline bool still_merges(FileSystem& fs, const InodeRef& dir, const DirectoryPath& path) {
  if (path.node_frame == no_frame) return false;
  const u32 bytes = leaf_bytes(page_data(fs, path.leaf_frame));
  if (path.depth == 0) return bytes <= directory_merged_bytes_max;
  const NodeSpan span = neighbour_of(node_span(path.hash, path.level, path.depth));
  const u32 frame = resident_frame(fs, dir.number, 0, node_children(page_data(fs, path.node_frame))[span.first]);
  if (frame == no_frame) return false;
  const u8* page = page_data(fs, frame);
  if (page_header(page).magic != format::directory_leaf_magic || page_header(page).depth != path.depth) return false;
  return bytes + leaf_bytes(page) - format::directory_leaf_slots_offset <= directory_merged_bytes_max;
}

// Gate: merges the leaf with its neighbour. Returns the freed page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 merge_leaf(Group g, FileSystem& fs, Operation& op, const InodeRef& dir,
                                         const DirectoryPath& path, u8* scratch) {
  u8* node = page_data(fs, path.node_frame);
  const NodeSpan own = node_span(path.hash, path.level, path.depth);
  const NodeSpan other = neighbour_of(own);
  const u32 other_index = node_children(node)[other.first];
  const u32 other_frame = on_leader(g, [&] { return resident_frame(fs, dir.number, 0, other_index); });
  const bool is_lower = own.first < other.first;
  const u32 lower_frame = is_lower ? path.leaf_frame : other_frame;
  const u32 upper_frame = is_lower ? other_frame : path.leaf_frame;
  const u32 lower_index = is_lower ? path.leaf_index : other_index;
  const u32 upper_index = is_lower ? other_index : path.leaf_index;
  u8* lower = page_data(fs, lower_frame);
  const u8* upper = page_data(fs, upper_frame);
  const format::DirectoryPageHeader header = page_header(lower);
  const u32 upper_count = page_header(upper).entry_count;
  g.sync();
  copy_bytes(g, scratch, lower, page_size);
  leaf_rebuild(g, lower, {scratch, 0, header.entry_count}, {path.level, path.depth - 1, header.prefix});
  leaf_append(g, lower, {upper, 0, upper_count});
  node_fill(g, node, is_lower ? other : own, lower_index);
  mark_dirty(g, fs, op, dir, path.node_frame);
  mark_dirty(g, fs, op, dir, lower_frame);
  return upper_index;
}

// Gate: the leaf, the only one of its node, takes the node's place. Returns the freed page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 raise_leaf(Group g, FileSystem& fs, Operation& op, const InodeRef& dir,
                                         const DirectoryPath& path) {
  u8* leaf = page_data(fs, path.leaf_frame);
  if (path.level == 0) {
    u8* root = page_data(fs, path.node_frame);
    copy_bytes(g, root, leaf, page_size);
    on_leader(g, [&] { set_bits<Scope::engine>(&fs.pages.frames[path.node_frame].referenced, frame_checked); });
    mark_dirty(g, fs, op, dir, path.node_frame);
    return path.leaf_index;
  }
  NodePath nodes{};
  const Status status = walk_to_node(g, fs, op, dir, {path.hash, path.level - 1}, &nodes);
  GPU4FS_CHECK_OK(status);
  const u32 parent = nodes.frames[path.level - 1];
  node_fill(g, page_data(fs, parent), NodeSpan{node_slot(path.hash, path.level - 1), 1}, path.leaf_index);
  on_leader(g, [&] {
    page_header(leaf).level = static_cast<u8>(path.level - 1);
    page_header(leaf).depth = format::directory_node_bits;
  });
  mark_dirty(g, fs, op, dir, parent);
  mark_dirty(g, fs, op, dir, path.leaf_frame);
  return path.node_index;
}

}  // namespace detail

// Prepare: finds the name, and the pages that its removal frees. Status: as directory_prepare_change.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status directory_prepare_remove(Group g, FileSystem& fs, Operation& op, const InodeRef& dir,
                                                          const HashedName& name, RemovePlan* plan) {
  plan->merges = 0;
  GPU4FS_TRY(directory_prepare_change(g, fs, op, dir, name, &plan->name));
  const Status status = detail::plan_merges(g, fs, op, dir, name, plan);
  return is_control(status) ? status : Status::ok;
}

// Gate: removes the name that directory_prepare_remove found in this step. An insertion that was planned in this step
// may follow, and then directory_commit_shrink().
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void directory_commit_take(Group g, FileSystem& fs, Operation& op, const InodeRef& dir,
                                                     const RemovePlan& plan) {
  const FoundName& found = plan.name;
  leaf_remove(g, page_data(fs, found.path.leaf_frame), found.slot);
  on_leader(g, [&] {
    GPU4FS_CHECK_GT(dir.inode->entry_count, u64{0});
    dir.inode->entry_count -= 1;
  });
  mark_dirty(g, fs, op, dir, found.path.leaf_frame);
  mark_inode_dirty(g, fs, op, dir);
}

// Gate: frees the pages that the removal of the name leaves; fewer than planned if a name was inserted in between.
// `scratch` is a page of the command's own.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void directory_commit_shrink(Group g, FileSystem& fs, Operation& op, const InodeRef& dir,
                                                       const RemovePlan& plan, u8* scratch) {
  for (u32 i = 0; i < plan.merges; ++i) {
    DirectoryPath path{};
    const Status status = detail::walk_to_leaf(g, fs, op, dir, plan.name.hash, &path);
    GPU4FS_CHECK_OK(status);
    if (!on_leader(g, [&] { return detail::still_merges(fs, dir, path); })) break;
    const u32 free =
        path.depth > 0 ? detail::merge_leaf(g, fs, op, dir, path, scratch) : detail::raise_leaf(g, fs, op, dir, path);
    detail::give_back_page(g, fs, op, dir, free);
  }
  if (plan.merges != 0) lower_height(g, fs, op, dir);
}

// Gate: both.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void directory_commit_remove(Group g, FileSystem& fs, Operation& op, const InodeRef& dir,
                                                       const RemovePlan& plan, u8* scratch) {
  directory_commit_take(g, fs, op, dir, plan);
  directory_commit_shrink(g, fs, op, dir, plan, scratch);
}

}  // namespace gpu4fs::fs
