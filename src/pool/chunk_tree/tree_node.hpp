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
  // The chunk was deleted after the mount; its number stays.
  bool is_erased() const { return columns.empty(); }
  // One bit for each device with a column.
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

// A node in memory: with chunks on level 0, otherwise with children.
struct TreeNode {
  u32 level = 0;
  u64 epoch = 0;
  std::vector<OpenedChunk> chunks;
  std::vector<format::ChunkTreeBranch> children;

  bool is_leaf() const { return level == 0; }
  std::size_t entry_count() const { return is_leaf() ? chunks.size() : children.size(); }
  // The key of the first entry, which must exist.
  u64 first_key() const { return is_leaf() ? chunks.front().descriptor.base_address : children.front().base_address; }
  u64 entry_bytes(std::size_t index) const {
    return is_leaf() ? leaf_entry_bytes(chunks[index].columns.size()) : sizeof(format::ChunkTreeBranch);
  }
  u64 used_bytes() const;
};

// "", or what is wrong with the head of node `number` of `level`, as read from one replica, in a tree whose superblock
// has `epoch_max`.
std::string find_node_problem(const format::ChunkTreeNode& page, u32 number, u32 level, u64 epoch_max);

// The entries of a page with a valid head. `first_key` is the smallest key according to the parent; 0: unknown, for the
// root. PoolError: the entries do not fill the used bytes, a chunk has more columns than allowed, or keys are zero or
// not ascending. The other fields of chunks are not checked.
TreeNode decode_node(const format::ChunkTreeNode& page, u32 number, u64 first_key);

// The page of a node whose entries fit, with its checksum.
format::ChunkTreeNode encode_node(const TreeNode& node, u32 number, u64 epoch);

}  // namespace gpu4fs::pool
