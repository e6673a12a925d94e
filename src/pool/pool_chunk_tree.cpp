#include "pool/pool_chunk_tree.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "format/format_text.hpp"
#include "pool/chunk_shape.hpp"
#include "pool/pool_error.hpp"
#include "raid/levels/levels.hpp"

namespace gpu4fs::pool {

namespace {

using format::ChunkDescriptor;
using format::ColumnAddress;

[[noreturn]] void fail(const std::string& message) {
  throw PoolError(Status::corrupt_structure, message);
}

class TreeReader {
 public:
  TreeReader(const format::Superblock& superblock, TreeNodeStore& store) : superblock_(superblock), store_(store) {}

  std::vector<OpenedChunk> read() {
    walk(superblock_.tree_root, superblock_.tree_height - 1u, 0);
    if (chunks_.size() != superblock_.chunk_count) {
      fail(fmt::format("chunk tree: {} chunks found, the superblock counts {}", chunks_.size(),
                       superblock_.chunk_count));
    }
    u64 page_total = 0;
    for (const OpenedChunk& chunk : chunks_) page_total += chunk.descriptor.size_bytes / page_size;
    if (page_total != superblock_.page_total) {
      fail(fmt::format("chunk tree: chunks of {} pages, the superblock counts {}", page_total, superblock_.page_total));
    }
    return std::move(chunks_);
  }

  const TreeReport& report() const { return report_; }

 private:
  // `first_key` is the smallest key of this node according to the parent, 0 for the root.
  void walk(u32 number, u32 level, u64 first_key) {
    if (++node_count_ > superblock_.tree_node_count) {
      fail(fmt::format("chunk tree: more than the {} nodes that the superblock counts", superblock_.tree_node_count));
    }
    const format::ChunkTreeNode page = read_newest_page(store_, number, level, superblock_.epoch, report_);
    TreeNode node = decode_node(page, number, first_key);
    for (const format::ChunkTreeBranch& branch : node.children) walk(branch.child, level - 1, branch.base_address);
    for (OpenedChunk& chunk : node.chunks) {
      check_chunk(chunk.descriptor);
      chunks_.push_back(std::move(chunk));
    }
  }

  void check_chunk(const ChunkDescriptor& chunk) const {
    const u64 granule = superblock_.chunk_size_bytes;
    const u64 previous_end =
        chunks_.empty() ? granule : chunks_.back().descriptor.base_address + chunks_.back().descriptor.size_bytes;
    const u64 logical_end = format::logical_granule_max * granule;
    if (chunk.size_bytes == 0 || !is_aligned(chunk.base_address, granule) || !is_aligned(chunk.size_bytes, granule) ||
        chunk.size_bytes > logical_end || chunk.base_address > logical_end - chunk.size_bytes ||
        chunk.base_address < previous_end) {
      fail(fmt::format("chunk at {:#x} of {} bytes is out of order, bounds or alignment", chunk.base_address,
                       chunk.size_bytes));
    }
    if (const char* problem = find_shape_problem(chunk)) {
      fail(fmt::format("chunk at {:#x}, profile {} with redundancy {}, {} columns and stripes of {} bytes: {}",
                       chunk.base_address, to_text(chunk.level), chunk.redundancy, chunk.column_count,
                       chunk.stripe_length_bytes, problem));
    }
    const u32 content = chunk.flags & format::chunk_flag_any_content;
    if ((chunk.flags & ~u32{format::chunk_flag_known}) != 0 || content == 0 || chunk.epoch_created == 0 ||
        chunk.epoch_created > superblock_.epoch) {
      fail(fmt::format("chunk at {:#x}: flags {:#x}, epoch {}", chunk.base_address, chunk.flags, chunk.epoch_created));
    }
    if (chunks_.size() >= superblock_.chunk_count) {
      fail(fmt::format("chunk tree: more than the {} chunks that the superblock counts", superblock_.chunk_count));
    }
  }

  const format::Superblock& superblock_;
  TreeNodeStore& store_;
  TreeReport report_;
  std::vector<OpenedChunk> chunks_;
  u64 node_count_ = 0;
};

// The place of a column on its device.
struct DeviceExtent {
  u32 device_index;
  u64 begin;
  u64 end;
  u64 base_address;  // of its chunk
};

void check_columns(const std::vector<OpenedChunk>& chunks, const std::vector<TreeDevice>& devices) {
  std::vector<DeviceExtent> extents;
  extents.reserve(chunks.size());
  for (const OpenedChunk& chunk : chunks) {
    const u64 length = raid::column_length(chunk.descriptor);
    u64 devices_used = 0;
    const bool is_physical = (chunk.descriptor.flags & format::chunk_flag_physical) != 0;
    if (is_physical && chunk.columns.front().device_index() != chunk.descriptor.physical_device) {
      fail(fmt::format("chunk at {:#x}: belongs to device {}, lies on device {}", chunk.descriptor.base_address,
                       chunk.descriptor.physical_device, chunk.columns.front().device_index()));
    }
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
      const u64 area_end = part.chunk_area_offset + part.chunk_area_granules * format::physical_granule_bytes;
      const u64 begin = column.offset_bytes();
      // The areas of an absent device are unknown.
      const bool is_here = devices[column.device_index()].file->fd() >= 0;
      const bool is_inside = begin >= part.chunk_area_offset && length <= area_end && begin <= area_end - length;
      if ((is_here && !is_inside) || !is_aligned(begin, format::physical_granule_bytes)) {
        fail(fmt::format("chunk at {:#x}: column at {} of {} bytes is outside the chunk area of {}",
                         chunk.descriptor.base_address, begin, length, devices[column.device_index()].file->path()));
      }
      extents.push_back({column.device_index(), begin, begin + length, chunk.descriptor.base_address});
    }
  }
  std::sort(extents.begin(), extents.end(), [](const DeviceExtent& a, const DeviceExtent& b) {
    return std::pair(a.device_index, a.begin) < std::pair(b.device_index, b.begin);
  });
  for (std::size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].device_index == extents[i - 1].device_index && extents[i].begin < extents[i - 1].end) {
      fail(fmt::format("chunks at {:#x} and {:#x} overlap on {}", extents[i - 1].base_address, extents[i].base_address,
                       devices[extents[i].device_index].file->path()));
    }
  }
}

// Checks the superblock's statements about the profiles of chunks.
void check_profiles(const format::Superblock& superblock, const std::vector<OpenedChunk>& chunks) {
  const bool is_mixed = (superblock.feature_incompatible & format::feature_mixed_profiles) != 0;
  bool has_data = false;
  bool has_metadata = false;
  for (const OpenedChunk& chunk : chunks) {
    const auto profile = static_cast<u16>(format::profile_of(chunk.descriptor));
    const bool is_first = format::profile_of(chunks[0].descriptor) == static_cast<format::Profile>(profile);
    const bool is_physical = (chunk.descriptor.flags & format::chunk_flag_physical) != 0;
    if (is_physical && (superblock.feature_incompatible & format::feature_physical) == 0) {
      fail(fmt::format("chunk at {:#x}: belongs to a device, and the pool has no such chunks",
                       chunk.descriptor.base_address));
    }
    if (!is_mixed && (!is_first || static_cast<u16>(chunk.descriptor.level) != superblock.data_profile)) {
      fail(fmt::format("chunk at {:#x}: profile {}, and the pool has only one", chunk.descriptor.base_address,
                       format::profile_name(static_cast<format::Profile>(profile)).text));
    }
    has_data = has_data || profile == superblock.data_profile;
    has_metadata = has_metadata || profile == superblock.metadata_profile;
  }
  if (is_mixed && !(has_data && has_metadata)) {
    const u16 missing = has_data ? superblock.metadata_profile : superblock.data_profile;
    fail(fmt::format("no chunk of profile {}", format::profile_name(static_cast<format::Profile>(missing)).text));
  }
}

}  // namespace

std::vector<OpenedChunk> read_chunk_tree(const format::Superblock& superblock, const std::vector<TreeDevice>& devices,
                                         std::vector<std::string>& warnings, bool may_repair) {
  DeviceNodeStore store(devices, superblock.tree_replica_count, may_repair);
  TreeReader reader(superblock, store);
  std::vector<OpenedChunk> chunks = reader.read();
  check_columns(chunks, devices);
  check_profiles(superblock, chunks);
  const TreeReport& report = reader.report();
  warnings.insert(warnings.end(), report.lines.begin(), report.lines.end());
  if (report.pages_repaired != 0) {
    warnings.push_back(fmt::format("{} pages of the chunk tree's replicas were written again", report.pages_repaired));
  }
  return chunks;
}

}  // namespace gpu4fs::pool
