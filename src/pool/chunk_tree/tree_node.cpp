#include "pool/chunk_tree/tree_node.hpp"

#include <fmt/format.h>

#include <cstring>

#include "base/check.hpp"
#include "base/mutant.hpp"
#include "pool/pool_checksum.hpp"
#include "pool/pool_error.hpp"

namespace gpu4fs::pool {

namespace {

using format::ChunkDescriptor;
using format::ChunkTreeBranch;
using format::ChunkTreeNode;
using format::ColumnAddress;

constexpr u32 column_count_max = 64;

[[noreturn]] void refuse_node(const std::string& message) {
  throw PoolError(Status::corrupt_structure, message);
}

void require_ascending(u32 number, u32 index, u64 key, u64 previous, u64 first_key) {
  if (key == 0 || (index != 0 && key <= previous)) {
    refuse_node(fmt::format("chunk tree node {}: entry {}: chunk at {:#x} is out of order, bounds or alignment", number,
                            index, key));
  }
  if (index == 0 && first_key != 0 && key != first_key) {
    refuse_node(fmt::format("chunk tree node {}: first key {:#x}, its parent says {:#x}", number, key, first_key));
  }
}

void decode_branches(const ChunkTreeNode& page, u32 number, u64 first_key, TreeNode& node) {
  if (u64{page.entry_count} * sizeof(ChunkTreeBranch) != page.used_bytes) {
    refuse_node(fmt::format("chunk tree node {}: {} entries in {} bytes", number, page.entry_count, page.used_bytes));
  }
  node.children.resize(page.entry_count);
  std::memcpy(node.children.data(), page.entries, page.used_bytes);
  for (u32 i = 0; i < page.entry_count; ++i) {
    const ChunkTreeBranch& branch = node.children[i];
    if (branch.reserved != 0) refuse_node(fmt::format("chunk tree node {}: entry {} with reserved bytes", number, i));
    require_ascending(number, i, branch.base_address, i == 0 ? 0 : node.children[i - 1].base_address, first_key);
  }
}

void decode_chunks(const ChunkTreeNode& page, u32 number, u64 first_key, TreeNode& node) {
  u64 offset = 0;
  for (u32 i = 0; i < page.entry_count; ++i) {
    OpenedChunk chunk;
    if (offset + sizeof(ChunkDescriptor) > page.used_bytes) {
      refuse_node(fmt::format("chunk tree node {}: entry {} reaches beyond the used bytes", number, i));
    }
    std::memcpy(&chunk.descriptor, page.entries + offset, sizeof(ChunkDescriptor));
    const u32 column_count = chunk.descriptor.column_count;
    if (column_count < 1 || column_count > column_count_max ||
        offset + leaf_entry_bytes(column_count) > page.used_bytes) {
      refuse_node(fmt::format("chunk tree node {}: entry {} with {} columns", number, i, column_count));
    }
    chunk.columns.resize(column_count);
    std::memcpy(chunk.columns.data(), page.entries + offset + sizeof(ChunkDescriptor),
                column_count * sizeof(ColumnAddress));
    offset += leaf_entry_bytes(column_count);
    require_ascending(number, i, chunk.descriptor.base_address, i == 0 ? 0 : node.chunks.back().descriptor.base_address,
                      first_key);
    node.chunks.push_back(std::move(chunk));
  }
  if (offset != page.used_bytes) {
    refuse_node(fmt::format("chunk tree node {}: {} bytes used, entries take {}", number, page.used_bytes, offset));
  }
}

}  // namespace

u64 TreeNode::used_bytes() const {
  if (!is_leaf()) return children.size() * sizeof(ChunkTreeBranch);
  u64 bytes = 0;
  for (const OpenedChunk& chunk : chunks) bytes += leaf_entry_bytes(chunk.columns.size());
  return bytes;
}

std::string find_node_problem(const ChunkTreeNode& page, u32 number, u32 level, u64 epoch_max) {
  if (page.magic != format::chunk_tree_magic) return "magic";
  if (GPU4FS_MUTANT(tree_node_unverified, page.checksum != structure_checksum(page, number), false)) return "checksum";
  if (page.version != 1 || page.reserved0 != 0) return "version or reserved bytes";
  if (page.level != level) return fmt::format("level {} instead of {}", page.level, level);
  if (page.epoch == 0 || page.epoch > epoch_max) return fmt::format("epoch {}", page.epoch);
  if (page.entry_count == 0 || page.used_bytes > sizeof(page.entries)) {
    return fmt::format("{} entries in {} bytes", page.entry_count, page.used_bytes);
  }
  return "";
}

TreeNode decode_node(const ChunkTreeNode& page, u32 number, u64 first_key) {
  TreeNode node;
  node.level = page.level;
  node.epoch = page.epoch;
  if (page.level == 0) {
    decode_chunks(page, number, first_key, node);
  } else {
    decode_branches(page, number, first_key, node);
  }
  return node;
}

ChunkTreeNode encode_node(const TreeNode& node, u32 number, u64 epoch) {
  GPU4FS_CHECK_GT(node.entry_count(), std::size_t{0});
  GPU4FS_CHECK_LE(node.used_bytes(), tree_node_entry_bytes);
  ChunkTreeNode page{};
  page.magic = format::chunk_tree_magic;
  page.version = 1;
  page.level = static_cast<u8>(node.level);
  page.epoch = epoch;
  page.entry_count = static_cast<u32>(node.entry_count());
  page.used_bytes = static_cast<u32>(node.used_bytes());
  if (!node.is_leaf()) {
    std::memcpy(page.entries, node.children.data(), page.used_bytes);
  } else {
    u8* entry = page.entries;
    for (const OpenedChunk& chunk : node.chunks) {
      GPU4FS_CHECK_EQ(chunk.columns.size(), std::size_t{chunk.descriptor.column_count});
      std::memcpy(entry, &chunk.descriptor, sizeof(ChunkDescriptor));
      std::memcpy(entry + sizeof(ChunkDescriptor), chunk.columns.data(), chunk.columns.size() * sizeof(ColumnAddress));
      entry += leaf_entry_bytes(chunk.columns.size());
    }
  }
  seal(page, number);
  return page;
}

}  // namespace gpu4fs::pool
