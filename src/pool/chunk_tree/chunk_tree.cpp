#include "pool/chunk_tree/chunk_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "pool/pool_error.hpp"

namespace gpu4fs::pool {

namespace {

using format::ChunkTreeBranch;

constexpr u64 fill_bytes_min = tree_node_entry_bytes / 3;

[[noreturn]] void refuse_tree(Status status, const std::string& message) {
  throw PoolError(status, message);
}

// The last child whose first key is not greater; the first one if there is none.
std::size_t child_index(const TreeNode& node, u64 key) {
  const auto above = std::upper_bound(node.children.begin(), node.children.end(), key,
                                      [](u64 value, const ChunkTreeBranch& b) { return value < b.base_address; });
  return above == node.children.begin() ? 0 : static_cast<std::size_t>(above - node.children.begin()) - 1;
}

// The position of the first chunk with a greater key.
std::vector<OpenedChunk>::iterator chunk_above(TreeNode& leaf, u64 key) {
  return std::upper_bound(leaf.chunks.begin(), leaf.chunks.end(), key,
                          [](u64 value, const OpenedChunk& chunk) { return value < chunk.descriptor.base_address; });
}

// Moves the entries from `index` on to the front of another node.
void move_tail(TreeNode& from, std::size_t index, TreeNode& to) {
  const auto at = static_cast<std::ptrdiff_t>(index);
  if (from.is_leaf()) {
    to.chunks.insert(to.chunks.begin(), std::make_move_iterator(from.chunks.begin() + at),
                     std::make_move_iterator(from.chunks.end()));
    from.chunks.resize(index);
  } else {
    to.children.insert(to.children.begin(), from.children.begin() + at, from.children.end());
    from.children.resize(index);
  }
}

// The number of entries in the first half of the bytes: at least one, and at least one entry is left.
std::size_t middle_of(const TreeNode& node) {
  const u64 half = node.used_bytes() / 2;
  u64 bytes = 0;
  std::size_t index = 0;
  while (index + 1 < node.entry_count() && (index == 0 || bytes + node.entry_bytes(index) / 2 < half)) {
    bytes += node.entry_bytes(index++);
  }
  return index;
}

void replace_children(TreeNode& parent, std::size_t index, std::size_t count,
                      const std::vector<ChunkTreeBranch>& replacement) {
  const auto at = parent.children.begin() + static_cast<std::ptrdiff_t>(index);
  const auto next = parent.children.erase(at, at + static_cast<std::ptrdiff_t>(count));
  parent.children.insert(next, replacement.begin(), replacement.end());
}

}  // namespace

TreeRoot tree_root_of(const format::Superblock& superblock) {
  return {superblock.tree_root, superblock.tree_height, superblock.tree_node_count, superblock.chunk_count};
}

ChunkTree::ChunkTree(TreeNodeStore& store, const TreeRoot& root, u64 epoch, std::size_t cache_node_max)
    : store_(store),
      cache_node_max_(std::max<std::size_t>(cache_node_max, 2 * tree_height_max)),
      epoch_(epoch),
      root_(root),
      durable_(root) {
  u64 pages = ~u64{0};
  for (u32 replica = 0; replica < store.replica_count(); ++replica) {
    if (store.is_here(replica)) pages = std::min(pages, store.page_count(replica));
  }
  if (pages == ~u64{0}) refuse_tree(Status::no_device, "chunk tree: no replica is here");
  used_.resize(std::min<u64>(pages, ~u32{0}));
  free_count_ = used_.size();
  if (root.height > tree_height_max)
    refuse_tree(Status::corrupt_structure, fmt::format("chunk tree of height {}", root.height));
  if (root.height != 0) learn_numbers(root.root, root.height - 1, 0);
  root_.node_count = durable_.node_count = used_.size() - free_count_;
}

// Nodes in memory.

ChunkTree::NodePointer ChunkTree::node(u32 number, u32 level, u64 first_key) {
  const auto changed = dirty_.find(number);
  if (changed != dirty_.end()) return changed->second;
  const auto cached = cache_.find(number);
  if (cached != cache_.end()) {
    least_used_.splice(least_used_.end(), least_used_, cached->second.used);
    GPU4FS_CHECK_EQ(cached->second.node->level, level);
    return cached->second.node;
  }
  NodePointer found = read(number, level, first_key);
  remember(number, found);
  return found;
}

ChunkTree::NodePointer ChunkTree::read(u32 number, u32 level, u64 first_key) {
  const format::ChunkTreeNode page = read_newest_page(store_, number, level, epoch_, report_);
  auto result = std::make_shared<TreeNode>(decode_node(page, number, first_key));
  u64 previous_end = 0;
  for (const OpenedChunk& chunk : result->chunks) {
    const u64 base = chunk.descriptor.base_address;
    if (base < previous_end || chunk.descriptor.size_bytes == 0 || chunk.end() < base) {
      refuse_tree(Status::corrupt_structure, fmt::format("chunk tree node {}: chunk at {:#x} of {} bytes", number, base,
                                                         chunk.descriptor.size_bytes));
    }
    previous_end = chunk.end();
  }
  return result;
}

void ChunkTree::remember(u32 number, NodePointer node) {
  while (cache_.size() >= cache_node_max_) {
    cache_.erase(least_used_.front());
    least_used_.pop_front();
  }
  cache_[number] = {std::move(node), least_used_.insert(least_used_.end(), number)};
}

u32 ChunkTree::allocate() {
  if (free_count_ == 0) refuse_tree(Status::no_space, "the chunk tree's area has no free node");
  while (used_[next_number_]) next_number_ = (next_number_ + 1) % static_cast<u32>(used_.size());
  used_[next_number_] = true;
  --free_count_;
  return next_number_;
}

// The node is removed from the changed tree.
void ChunkTree::release(u32 number) {
  GPU4FS_CHECK_GT(root_.node_count, u64{0});
  --root_.node_count;
  if (dirty_.erase(number) == 0) {
    released_.push_back(number);
    return;
  }
  used_[number] = false;
  ++free_count_;
}

ChunkTreeBranch ChunkTree::place(NodePointer node) {
  const u32 number = allocate();
  ++root_.node_count;
  const u64 key = node->first_key();
  dirty_.emplace(number, std::move(node));
  return {key, number, 0};
}

// Places the node as one node if it fits, otherwise as two. `is_last`: it is the last one of its level.
ChunkTree::Replacement ChunkTree::place_or_split(const NodePointer& node, bool is_last) {
  if (node->used_bytes() <= tree_node_entry_bytes) return {place(node)};
  auto right = std::make_shared<TreeNode>();
  right->level = node->level;
  const u64 last_bytes = node->entry_bytes(node->entry_count() - 1);
  const bool appends = is_last && node->used_bytes() - last_bytes <= tree_node_entry_bytes;
  move_tail(*node, appends ? node->entry_count() - 1 : middle_of(*node), *right);
  Replacement replacement{place(node)};
  replacement.push_back(place(std::move(right)));
  return replacement;
}

void ChunkTree::take(u32 number) {
  if (number >= used_.size() || used_[number]) {
    refuse_tree(Status::corrupt_structure,
                fmt::format("chunk tree: node {} is outside the tree area, or used twice", number));
  }
  used_[number] = true;
  --free_count_;
}

void ChunkTree::learn_numbers(u32 number, u32 level, u64 first_key) {
  take(number);
  if (used_.size() - free_count_ > root_.node_count) {
    refuse_tree(Status::corrupt_structure,
                fmt::format("chunk tree: more than the {} nodes that the superblock counts", root_.node_count));
  }
  if (level == 0) return;
  const NodePointer branch = node(number, level, first_key);
  for (const ChunkTreeBranch& child : branch->children) {
    if (level == 1) {
      take(child.child);
    } else {
      learn_numbers(child.child, level - 1, child.base_address);
    }
  }
}

// Returns the node for changing. Its number is released; place_or_split() finds another one.
ChunkTree::NodePointer ChunkTree::begin_change(u32 number, u32 level, u64 first_key) {
  GPU4FS_CHECK(!written_);
  NodePointer found = node(number, level, first_key);
  const bool is_ours = dirty_.contains(number);
  release(number);
  return is_ours ? found : std::make_shared<TreeNode>(*found);
}

// Looking up.

// The last chunk that begins at or before the address; `leaf` keeps it alive.
const OpenedChunk* ChunkTree::floor_in(u64 address, NodePointer& leaf) {
  if (root_.height == 0) return nullptr;
  leaf = node(root_.root, root_.height - 1, 0);
  while (!leaf->is_leaf()) {
    const ChunkTreeBranch child = leaf->children[child_index(*leaf, address)];
    leaf = node(child.child, leaf->level - 1, child.base_address);
  }
  const auto above = chunk_above(*leaf, address);
  return above == leaf->chunks.begin() ? nullptr : &*(above - 1);
}

std::optional<OpenedChunk> ChunkTree::find(u64 address) {
  NodePointer leaf;
  const OpenedChunk* chunk = floor_in(address, leaf);
  if (chunk == nullptr || address >= chunk->end()) return std::nullopt;
  return *chunk;
}

// The first key that is at least `key`.
std::optional<u64> ChunkTree::first_key_from(u32 number, u32 level, u64 first_key, u64 address) {
  const NodePointer here = node(number, level, first_key);
  if (here->is_leaf()) {
    for (const OpenedChunk& chunk : here->chunks) {
      if (chunk.descriptor.base_address >= address) return chunk.descriptor.base_address;
    }
    return std::nullopt;
  }
  const std::size_t index = child_index(*here, address);
  const ChunkTreeBranch child = here->children[index];
  const std::optional<u64> below = first_key_from(child.child, level - 1, child.base_address, address);
  if (below) return below;
  if (index + 1 < here->children.size()) return here->children[index + 1].base_address;
  return std::nullopt;
}

void ChunkTree::for_each(const std::function<void(const OpenedChunk& chunk)>& visit) {
  if (root_.height != 0) visit_below(root_.root, root_.height - 1, 0, visit);
}

void ChunkTree::visit_below(u32 number, u32 level, u64 first_key,
                            const std::function<void(const OpenedChunk&)>& visit) {
  const NodePointer here = node(number, level, first_key);
  for (const OpenedChunk& chunk : here->chunks) visit(chunk);
  for (const ChunkTreeBranch& child : here->children) visit_below(child.child, level - 1, child.base_address, visit);
}

// Changes.

// Room for a copy and a neighbour on each level, and for a new root.
void ChunkTree::require_room() const {
  if (free_count_ >= 2 * u64{root_.height} + 1) return;
  refuse_tree(Status::no_space, fmt::format("the chunk tree's area has {} nodes, {} are free: too few for a change",
                                            used_.size(), free_count_));
}

void ChunkTree::require_apart(const OpenedChunk& chunk) {
  const u64 base = chunk.descriptor.base_address;
  GPU4FS_CHECK_EQ(chunk.columns.size(), std::size_t{chunk.descriptor.column_count});
  if (base == 0 || chunk.end() <= base) {
    refuse_tree(Status::invalid_argument, fmt::format("chunk at {:#x} of {} bytes", base, chunk.descriptor.size_bytes));
  }
  NodePointer leaf;
  const OpenedChunk* below = floor_in(base, leaf);
  const bool meets_below = below != nullptr && below->end() > base;
  const std::optional<u64> above =
      root_.height == 0 ? std::nullopt : first_key_from(root_.root, root_.height - 1, 0, base);
  if (meets_below || (above && *above < chunk.end())) {
    refuse_tree(Status::exists,
                fmt::format("chunk at {:#x} of {} bytes overlaps the one at {:#x}", base, chunk.descriptor.size_bytes,
                            meets_below ? below->descriptor.base_address : *above));
  }
}

void ChunkTree::insert(const OpenedChunk& chunk) {
  require_room();
  require_apart(chunk);
  try {
    if (root_.height == 0) {
      auto leaf = std::make_shared<TreeNode>();
      leaf->chunks.push_back(chunk);
      root_.height = 1;
      root_.root = place(std::move(leaf)).child;
    } else {
      set_root(insert_below(root_.root, root_.height - 1, 0, chunk, true));
    }
    ++root_.chunk_count;
  } catch (...) {
    roll_back();
    throw;
  }
}

bool ChunkTree::erase(u64 base_address) {
  const std::optional<OpenedChunk> found = find(base_address);
  if (!found || found->descriptor.base_address != base_address) return false;
  require_room();
  try {
    set_root(erase_below(root_.root, root_.height - 1, 0, base_address, true));
    GPU4FS_CHECK_GT(root_.chunk_count, u64{0});
    --root_.chunk_count;
  } catch (...) {
    roll_back();
    throw;
  }
  return true;
}

ChunkTree::Replacement ChunkTree::insert_below(u32 number, u32 level, u64 first_key, const OpenedChunk& chunk,
                                               bool is_last) {
  const NodePointer here = begin_change(number, level, first_key);
  const u64 key = chunk.descriptor.base_address;
  if (here->is_leaf()) {
    here->chunks.insert(chunk_above(*here, key), chunk);
    return place_or_split(here, is_last);
  }
  const std::size_t index = child_index(*here, key);
  const ChunkTreeBranch child = here->children[index];
  const bool child_is_last = is_last && index + 1 == here->children.size();
  replace_children(*here, index, 1, insert_below(child.child, level - 1, child.base_address, chunk, child_is_last));
  return place_or_split(here, is_last);
}

ChunkTree::Replacement ChunkTree::erase_below(u32 number, u32 level, u64 first_key, u64 base_address, bool is_last) {
  const NodePointer here = begin_change(number, level, first_key);
  if (here->is_leaf()) {
    const auto behind = chunk_above(*here, base_address);
    GPU4FS_CHECK(behind != here->chunks.begin());
    here->chunks.erase(behind - 1);
  } else {
    const std::size_t index = child_index(*here, base_address);
    const ChunkTreeBranch child = here->children[index];
    const bool child_is_last = is_last && index + 1 == here->children.size();
    const Replacement left = erase_below(child.child, level - 1, child.base_address, base_address, child_is_last);
    replace_children(*here, index, 1, left);
    if (!left.empty()) fill_up(*here, index, is_last);
  }
  if (here->entry_count() == 0) return {};
  return place_or_split(here, is_last);
}

// Joins child `index` with a neighbour if it has become too empty. If both do not fit into one node, their entries are
// divided between two. `is_last`: the parent is the last one of its level.
void ChunkTree::fill_up(TreeNode& parent, std::size_t index, bool is_last) {
  const u32 level = parent.level - 1;
  const ChunkTreeBranch child = parent.children[index];
  if (node(child.child, level, child.base_address)->used_bytes() >= fill_bytes_min) return;
  if (parent.children.size() == 1) return;
  const std::size_t left_index = index == 0 ? 0 : index - 1;
  const ChunkTreeBranch left_branch = parent.children[left_index];
  const ChunkTreeBranch right_branch = parent.children[left_index + 1];
  const NodePointer left = begin_change(left_branch.child, level, left_branch.base_address);
  const NodePointer right = begin_change(right_branch.child, level, right_branch.base_address);
  move_tail(*left, 0, *right);
  const bool is_last_pair = is_last && left_index + 2 == parent.children.size();
  replace_children(parent, left_index, 2, place_or_split(right, is_last_pair));
}

void ChunkTree::set_root(const Replacement& replacement) {
  if (replacement.empty()) {
    root_.root = 0;
    root_.height = 0;
    return;
  }
  root_.root = replacement.front().child;
  if (replacement.size() > 1) {
    GPU4FS_CHECK_LT(root_.height, tree_height_max);
    auto above = std::make_shared<TreeNode>();
    above->level = root_.height++;
    above->children = replacement;
    root_.root = place(std::move(above)).child;
    return;
  }
  while (root_.height > 1) {
    const NodePointer root = node(root_.root, root_.height - 1, 0);
    if (root->children.size() > 1) return;
    release(root_.root);
    root_.root = root->children.front().child;
    --root_.height;
  }
}

// Writing.

void ChunkTree::write(u64 epoch) {
  GPU4FS_CHECK(!written_);
  GPU4FS_CHECK_GT(epoch, epoch_);
  written_ = true;
  epoch_ = epoch;
  for (const auto& [number, node] : dirty_) {
    const format::ChunkTreeNode page = encode_node(*node, number, epoch);
    node->epoch = epoch;
    for (u32 replica = 0; replica < store_.replica_count(); ++replica) {
      if (store_.is_here(replica)) store_.write(replica, number, page);
    }
  }
}

void ChunkTree::write_all_to(TreeNodeStore& store, u32 replica, u64 epoch) {
  GPU4FS_CHECK(written_);
  if (root_.height != 0) copy_below(root_.root, root_.height - 1, 0, store, replica, epoch);
}

void ChunkTree::copy_below(u32 number, u32 level, u64 first_key, TreeNodeStore& store, u32 replica, u64 epoch) {
  const NodePointer here = node(number, level, first_key);
  store.write(replica, number, encode_node(*here, number, dirty_.contains(number) ? epoch : here->epoch));
  for (const ChunkTreeBranch& child : here->children) {
    copy_below(child.child, level - 1, child.base_address, store, replica, epoch);
  }
}

void ChunkTree::commit() {
  GPU4FS_CHECK(written_ || !has_changes());
  written_ = false;
  for (const u32 number : released_) {
    const auto cached = cache_.find(number);
    if (cached != cache_.end()) {
      least_used_.erase(cached->second.used);
      cache_.erase(cached);
    }
    used_[number] = false;
    ++free_count_;
  }
  released_.clear();
  for (auto& [number, node] : dirty_) {
    remember(number, std::move(node));
  }
  dirty_.clear();
  durable_ = root_;
}

void ChunkTree::roll_back() {
  written_ = false;
  for (const auto& [number, node] : dirty_) {
    used_[number] = false;
    ++free_count_;
  }
  dirty_.clear();
  released_.clear();
  root_ = durable_;
}

}  // namespace gpu4fs::pool
