// Nodes of the chunk tree as pages and as lists of entries. Host only.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"
#include "format/chunk_format.hpp"

namespace gpu4fs::pool {

struct OpenedChunk {
  format::ChunkDescriptor descriptor;
  std::vector<format::ColumnAddress> columns;  // column_count
  u64 end() const { return descriptor.base_address + descriptor.size_bytes; }
  // It was deleted since the mount; its number stays.
  bool is_erased() const { return columns.empty(); }
  // A bit each: those with a column.
  u64 devices() const {
    u64 bits = 0;
    for (const format::ColumnAddress column : columns) bits |= u64{1} << column.device_index();
    return bits;
  }
};

inline constexpr u64 tree_node_entry_bytes = sizeof(format::ChunkTreeNode::entries);

constexpr u64 leaf_entry_bytes(u64 column_count) {
  return sizeof(format::ChunkDescriptor) + column_count * sizeof(format::ColumnAddress);
}

// A node in memory: of level 0 with chunks, else with children.
struct TreeNode {
  u32 level = 0;
  u64 epoch = 0;
  std::vector<OpenedChunk> chunks;
  std::vector<format::ChunkTreeBranch> children;

  bool is_leaf() const { return level == 0; }
  std::size_t entry_count() const { return is_leaf() ? chunks.size() : children.size(); }
  // Of the first entry, which there is.
  u64 first_key() const { return is_leaf() ? chunks.front().descriptor.base_address : children.front().base_address; }
  u64 entry_bytes(std::size_t index) const {
    return is_leaf() ? leaf_entry_bytes(chunks[index].columns.size()) : sizeof(format::ChunkTreeBranch);
  }
  u64 used_bytes() const;
};

// "" or what is wrong with the head of node `number` of `level`, as read from one replica, in a tree whose
// superblock has `epoch_max`.
std::string find_node_problem(const format::ChunkTreeNode& page, u32 number, u32 level, u64 epoch_max);

// The entries of a page whose head is sound. `first_key`: what the parent says of its smallest key, 0: of the root it
// says nothing. PoolError: entries that do not fill the used bytes, more columns than a chunk can have, keys that are
// zero or not ascending. What a chunk says of itself is not judged.
TreeNode decode_node(const format::ChunkTreeNode& page, u32 number, u64 first_key);

// The page of a node whose entries fit, sealed.
format::ChunkTreeNode encode_node(const TreeNode& node, u32 number, u64 epoch);

}  // namespace gpu4fs::pool
