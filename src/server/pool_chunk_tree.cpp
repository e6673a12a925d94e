#include "server/pool_chunk_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "format/format_text.hpp"
#include "raid/levels/levels.hpp"
#include "server/pool_checksum.hpp"
#include "server/pool_error.hpp"

namespace gpu4fs::server {

namespace {

using format::ChunkDescriptor;
using format::ChunkTreeBranch;
using format::ChunkTreeNode;
using format::ColumnAddress;

constexpr u32 column_count_max = 64;

[[noreturn]] void fail(const std::string& message) {
  throw PoolError(Status::corrupt_structure, message);
}

class TreeReader {
 public:
  TreeReader(const format::Superblock& superblock, const std::vector<TreeDevice>& devices,
             std::vector<std::string>& warnings)
      : superblock_(superblock), devices_(devices), warnings_(warnings) {}

  std::vector<OpenedChunk> read() {
    walk(superblock_.tree_root, superblock_.tree_height - 1u, 0);
    if (chunks_.size() != superblock_.chunk_count) {
      fail(fmt::format("chunk tree: {} chunks found, the superblock counts {}", chunks_.size(),
                       superblock_.chunk_count));
    }
    u64 page_total = 0;
    for (const OpenedChunk& chunk : chunks_) page_total += chunk.descriptor.size_bytes / page_size;
    if (page_total != superblock_.page_total) {
      fail(fmt::format("chunk tree: chunks of {} pages, the superblock counts {}", page_total,
                       superblock_.page_total));
    }
    return std::move(chunks_);
  }

 private:
  // "" or what is wrong with a node as read from one replica.
  std::string find_node_problem(const ChunkTreeNode& node, u32 number, u32 level) const {
    if (node.magic != format::chunk_tree_magic) return "magic";
    if (node.checksum != structure_checksum(node, number)) return "checksum";
    if (node.version != 1 || node.reserved0 != 0) return "version or reserved bytes";
    if (node.level != level) return fmt::format("level {} instead of {}", node.level, level);
    if (node.epoch == 0 || node.epoch > superblock_.epoch)
      return fmt::format("epoch {}", node.epoch);
    if (node.entry_count == 0 || node.used_bytes > sizeof(node.entries)) {
      return fmt::format("{} entries in {} bytes", node.entry_count, node.used_bytes);
    }
    return "";
  }

  ChunkTreeNode read_node(u32 number, u32 level) {
    std::string problems;
    for (u32 i = 0; i < superblock_.tree_replica_count; ++i) {
      const TreeDevice& device = devices_[i];
      std::string problem = "outside the tree area";
      if (number < device.part.tree_pages) {
        ChunkTreeNode node;
        device.file->read_at(device.part.tree_offset + u64{number} * page_size, &node, page_size);
        problem = find_node_problem(node, number, level);
        if (problem.empty()) {
          if (!problems.empty()) warnings_.push_back(problems + "; another replica is good");
          return node;
        }
      }
      problems += fmt::format("{}{}: chunk tree node {}: {}", problems.empty() ? "" : "; ",
                              device.file->path(), number, problem);
    }
    fail(problems);
  }

  // `first_key` is what the parent says of this node's smallest key, 0 for the root.
  void walk(u32 number, u32 level, u64 first_key) {
    if (++node_count_ > superblock_.tree_node_count) {
      fail(fmt::format("chunk tree: more than the {} nodes that the superblock counts",
                       superblock_.tree_node_count));
    }
    const ChunkTreeNode node = read_node(number, level);
    if (level == 0) {
      read_leaf(node, number, first_key);
      return;
    }
    if (u64{node.entry_count} * sizeof(ChunkTreeBranch) != node.used_bytes) {
      fail(fmt::format("chunk tree node {}: {} entries in {} bytes", number, node.entry_count,
                       node.used_bytes));
    }
    for (u32 i = 0; i < node.entry_count; ++i) {
      ChunkTreeBranch branch;
      std::memcpy(&branch, node.entries + i * sizeof(branch), sizeof(branch));
      if (branch.reserved != 0 || branch.base_address == 0 ||
          (i == 0 && first_key != 0 && branch.base_address != first_key)) {
        fail(fmt::format("chunk tree node {}: entry {} with key {:#x}", number, i,
                         branch.base_address));
      }
      walk(branch.child, level - 1, branch.base_address);
    }
  }

  void read_leaf(const ChunkTreeNode& node, u32 number, u64 first_key) {
    u32 offset = 0;
    for (u32 i = 0; i < node.entry_count; ++i) {
      OpenedChunk chunk;
      if (offset + sizeof(ChunkDescriptor) > node.used_bytes) {
        fail(fmt::format("chunk tree node {}: entry {} reaches beyond the used bytes", number, i));
      }
      std::memcpy(&chunk.descriptor, node.entries + offset, sizeof(ChunkDescriptor));
      offset += static_cast<u32>(sizeof(ChunkDescriptor));
      const u32 column_count = chunk.descriptor.column_count;
      if (column_count < 1 || column_count > column_count_max ||
          offset + column_count * sizeof(ColumnAddress) > node.used_bytes) {
        fail(fmt::format("chunk tree node {}: entry {} with {} columns", number, i, column_count));
      }
      chunk.columns.resize(column_count);
      std::memcpy(chunk.columns.data(), node.entries + offset,
                  column_count * sizeof(ColumnAddress));
      offset += static_cast<u32>(column_count * sizeof(ColumnAddress));
      if (i == 0 && first_key != 0 && chunk.descriptor.base_address != first_key) {
        fail(fmt::format("chunk tree node {}: first key {:#x}, its parent says {:#x}", number,
                         chunk.descriptor.base_address, first_key));
      }
      check_chunk(chunk.descriptor);
      chunks_.push_back(std::move(chunk));
    }
    if (offset != node.used_bytes) {
      fail(fmt::format("chunk tree node {}: {} bytes used, entries take {}", number,
                       node.used_bytes, offset));
    }
  }

  void check_chunk(const ChunkDescriptor& chunk) const {
    const u64 granule = superblock_.chunk_size_bytes;
    const u64 previous_end = chunks_.empty() ? granule
                                             : chunks_.back().descriptor.base_address +
                                                   chunks_.back().descriptor.size_bytes;
    const u64 logical_end = format::logical_granule_max * granule;
    if (chunk.size_bytes == 0 || !is_aligned(chunk.base_address, granule) ||
        !is_aligned(chunk.size_bytes, granule) || chunk.size_bytes > logical_end ||
        chunk.base_address > logical_end - chunk.size_bytes || chunk.base_address < previous_end) {
      fail(fmt::format("chunk at {:#x} of {} bytes is out of order, bounds or alignment",
                       chunk.base_address, chunk.size_bytes));
    }
    if (const char* problem = raid::find_shape_problem(chunk)) {
      fail(fmt::format("chunk at {:#x}, profile {} with redundancy {}, {} columns and stripes of {} bytes: {}",
                       chunk.base_address, to_text(chunk.level), chunk.redundancy, chunk.column_count,
                       chunk.stripe_length_bytes, problem));
    }
    if ((chunk.flags & ~u32{format::chunk_flag_known}) != 0 || chunk.flags == 0 ||
        chunk.reserved != 0 || chunk.epoch_created == 0 ||
        chunk.epoch_created > superblock_.epoch) {
      fail(fmt::format("chunk at {:#x}: flags {:#x}, reserved {}, epoch {}", chunk.base_address,
                       chunk.flags, chunk.reserved, chunk.epoch_created));
    }
    if (chunks_.size() >= superblock_.chunk_count) {
      fail(fmt::format("chunk tree: more than the {} chunks that the superblock counts",
                       superblock_.chunk_count));
    }
  }

  const format::Superblock& superblock_;
  const std::vector<TreeDevice>& devices_;
  std::vector<std::string>& warnings_;
  std::vector<OpenedChunk> chunks_;
  u64 node_count_ = 0;
};

// The place of a column on its device.
struct ColumnExtent {
  u32 device_index;
  u64 begin;
  u64 end;
  u64 base_address;  // of its chunk
};

void check_columns(const std::vector<OpenedChunk>& chunks, const std::vector<TreeDevice>& devices) {
  std::vector<ColumnExtent> extents;
  extents.reserve(chunks.size());
  for (const OpenedChunk& chunk : chunks) {
    const u64 length = raid::column_length(chunk.descriptor);
    u64 devices_used = 0;
    for (const ColumnAddress& column : chunk.columns) {
      if (column.device_index() >= devices.size()) {
        fail(fmt::format("chunk at {:#x}: column on device {} of {}", chunk.descriptor.base_address,
                         column.device_index(), devices.size()));
      }
      const u64 device_bit = u64{1} << column.device_index();
      if ((devices_used & device_bit) != 0) {
        fail(fmt::format("chunk at {:#x}: two columns on device {}", chunk.descriptor.base_address,
                         column.device_index()));
      }
      devices_used |= device_bit;
      const format::DevicePart& part = devices[column.device_index()].part;
      const u64 area_end =
          part.chunk_area_offset + part.chunk_area_granules * format::physical_granule_bytes;
      const u64 begin = column.offset_bytes();
      if (begin < part.chunk_area_offset || length > area_end || begin > area_end - length ||
          !is_aligned(begin, format::physical_granule_bytes)) {
        fail(fmt::format("chunk at {:#x}: column at {} of {} bytes is outside the chunk area of {}",
                         chunk.descriptor.base_address, begin, length,
                         devices[column.device_index()].file->path()));
      }
      extents.push_back(
          {column.device_index(), begin, begin + length, chunk.descriptor.base_address});
    }
  }
  std::sort(extents.begin(), extents.end(), [](const ColumnExtent& a, const ColumnExtent& b) {
    return std::pair(a.device_index, a.begin) < std::pair(b.device_index, b.begin);
  });
  for (std::size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].device_index == extents[i - 1].device_index &&
        extents[i].begin < extents[i - 1].end) {
      fail(fmt::format("chunks at {:#x} and {:#x} overlap on {}", extents[i - 1].base_address,
                       extents[i].base_address, devices[extents[i].device_index].file->path()));
    }
  }
}

}  // namespace

std::vector<OpenedChunk> read_chunk_tree(const format::Superblock& superblock,
                                         const std::vector<TreeDevice>& devices,
                                         std::vector<std::string>& warnings) {
  std::vector<OpenedChunk> chunks = TreeReader(superblock, devices, warnings).read();
  check_columns(chunks, devices);
  return chunks;
}

}  // namespace gpu4fs::server
