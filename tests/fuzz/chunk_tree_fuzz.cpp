// A chunk tree with any content: if read_chunk_tree() accepts it, the result is a set of chunks in order, inside the
// devices and without overlap, so the engine's table of the logical space can be built from it. Whatever the nodes
// contain, ChunkTree changes them or throws a PoolError, and it writes a valid tree.
#include <algorithm>

#include "engine/engine_cpu.hpp"
#include "format/format_text.hpp"
#include "fuzz/damage.hpp"
#include "fuzz/fuzz_target.hpp"
#include "fuzz/pool_file.hpp"
#include "pool/chunk_tree/chunk_tree.hpp"
#include "pool/logical_space/logical_space.hpp"
#include "pool/pool_chunk_tree.hpp"
#include "pool/pool_error.hpp"
#include "raid/translate.hpp"

namespace gpu4fs::fuzz {

const char target_name[] = "chunk_tree";

namespace {

using format::ChunkTreeBranch;
using format::ChunkTreeNode;
using format::Superblock;

constexpr u32 node_count = 6;

// Larger spaces would cost the time of many inputs, in the granule table alone.
constexpr u64 granule_count_max = u64{1} << 14;

// A node of `level` over two children.
ChunkTreeNode make_branch(u32 level, u64 first_key, u32 first_child, u32 second_child) {
  ChunkTreeNode node{};
  node.magic = format::chunk_tree_magic;
  node.version = 1;
  node.level = static_cast<u8>(level);
  node.epoch = 1;
  node.entry_count = 2;
  node.used_bytes = 2 * sizeof(ChunkTreeBranch);
  const ChunkTreeBranch branches[2] = {{first_key, first_child, 0}, {2 * first_key, second_child, 0}};
  std::memcpy(node.entries, branches, sizeof(branches));
  return node;
}

// The leaf with only one of its chunks.
ChunkTreeNode part_of(const ChunkTreeNode& leaf, u32 index) {
  constexpr u32 entry_bytes = sizeof(format::ChunkDescriptor) + sizeof(format::ColumnAddress);
  ChunkTreeNode node = leaf;
  node.entry_count = 1;
  node.used_bytes = entry_bytes;
  std::memmove(node.entries, node.entries + index * entry_bytes, entry_bytes);
  return node;
}

// Node 0 is the leaf of both chunks; 1 is the root of a tree of height 2 over 2 and 3, which hold one chunk each.
void make_nodes(const ChunkTreeNode& leaf, u64 chunk_size, ChunkTreeNode (&nodes)[node_count]) {
  nodes[0] = leaf;
  nodes[1] = make_branch(1, chunk_size, 2, 3);
  nodes[2] = part_of(leaf, 0);
  nodes[3] = part_of(leaf, 1);
  nodes[4] = make_branch(2, chunk_size, 1, 5);
  nodes[5] = make_branch(1, chunk_size, 2, 2);
}

void damage_tree(Input& input, Superblock& superblock, ChunkTreeNode (&nodes)[node_count]) {
  static constexpr u32 roots[] = {0, 1, 4};
  const u32 flags = input.byte();
  superblock.tree_height = static_cast<u8>(1 + flags % 3);
  superblock.tree_root = roots[flags % 3];
  superblock.tree_node_count = 1 + (flags / 4) % 32;
  for (u32 count = 0; count < 32 && !input.empty(); ++count) {
    const u32 place = input.byte();
    u8 page[page_size];
    if (place % 8 == 7) {
      std::memcpy(page, &superblock, page_size);
      change_bytes(input, page + offsetof(Superblock, chunk_count), 40);
      std::memcpy(&superblock, page, page_size);
      continue;
    }
    ChunkTreeNode& node = nodes[place % node_count];
    std::memcpy(page, &node, page_size);
    change_bytes(input, page, place / 8 % 4 == 0 ? page_size : 256);
    std::memcpy(&node, page, page_size);
  }
  for (u32 i = 0; i < node_count; ++i) {
    if ((flags & 0x80) == 0) pool::seal(nodes[i], i);
  }
}

void check_chunks(const Superblock& superblock, const std::vector<pool::OpenedChunk>& chunks,
                  const format::DevicePart& part) {
  u64 previous_end = superblock.chunk_size_bytes;
  std::vector<std::pair<u64, u64>> columns;
  require(!chunks.empty(), "a pool without chunks");
  for (const pool::OpenedChunk& chunk : chunks) {
    const u64 size = chunk.descriptor.size_bytes;
    require(chunk.descriptor.base_address >= previous_end, "chunks overlap in logical space");
    previous_end = chunk.descriptor.base_address + size;
    require(chunk.columns.size() == 1 && chunk.columns[0].device_index() == 0, "columns");
    const u64 begin = chunk.columns[0].offset_bytes();
    const u64 end = begin + format::chunk_layout(size / page_size).header_pages * page_size + size;
    require(begin >= part.chunk_area_offset && end <= part.size_bytes, "a column outside the device");
    columns.emplace_back(begin, end);
    require(!format::to_text(chunk.descriptor).empty(), "no text");
  }
  std::sort(columns.begin(), columns.end());
  for (std::size_t i = 1; i < columns.size(); ++i) {
    require(columns[i - 1].second <= columns[i].first, "columns overlap");
  }
  require(previous_end <= format::logical_granule_max * superblock.chunk_size_bytes, "beyond the logical space");
}

void read_it(const Superblock& superblock, pool::DeviceFile& device) {
  std::vector<std::string> warnings;
  const std::vector<pool::TreeDevice> devices{{&device, superblock.device}};
  const std::vector<pool::OpenedChunk> chunks = pool::read_chunk_tree(superblock, devices, warnings);
  check_chunks(superblock, chunks, superblock.device);
  const format::ChunkDescriptor& last = chunks.back().descriptor;
  if ((last.base_address + last.size_bytes) / superblock.chunk_size_bytes > granule_count_max) return;
  engine::HeapAllocator memory;
  const std::vector<device::Device> memories{
      {device::DeviceKind::memory, 0, superblock.device.size_bytes, nullptr, 0, 0}};
  const raid::LogicalSpace space = pool::build_logical_space(memory, superblock, memories, chunks, true);
  for (u64 address = 0; address < space.granule_count << space.granule_shift;
       address += u64{1} << space.granule_shift) {
    raid::PageLocation location{};
    (void)raid::find_page(space, address, &location);
  }
}

// As many nodes of the area as the tree can have, and some free ones.
constexpr u64 area_pages = 16;

std::size_t count_chunks(pool::ChunkTree& tree) {
  std::size_t count = 0;
  tree.for_each([&](const pool::OpenedChunk&) { ++count; });
  return count;
}

void change_it(const Superblock& superblock, pool::DeviceFile& device, u64 key) {
  format::DevicePart part = superblock.device;
  part.tree_pages = std::min(part.tree_pages, area_pages);
  const std::vector<pool::TreeDevice> devices{{&device, part}};
  pool::DeviceNodeStore store(devices, 1, true);
  pool::ChunkTree tree(store, pool::tree_root_of(superblock), superblock.epoch);
  const std::size_t before = count_chunks(tree);
  const std::optional<pool::OpenedChunk> found = tree.find(key);
  if (!found || !tree.erase(found->descriptor.base_address)) return;
  require(count_chunks(tree) + 1 == before, "an erased chunk is still there");
  tree.insert(*found);
  tree.write(superblock.epoch + 1);
  tree.commit();
  pool::ChunkTree again(store, tree.root(), superblock.epoch + 1);
  require(count_chunks(again) == before, "chunks were lost");
}

}  // namespace

void run_input(const u8* data, std::size_t length) {
  static PoolFile file;
  static const auto base = file.read_as<Superblock>(pool::superblock_offset(1));
  static const auto leaf = file.read_as<ChunkTreeNode>(base.device.tree_offset);
  Input input(data, length);
  Superblock superblock = base;
  ChunkTreeNode nodes[node_count];
  make_nodes(leaf, base.chunk_size_bytes, nodes);
  damage_tree(input, superblock, nodes);
  pool::seal(superblock, pool::superblock_offset(1));
  // Only a valid superblock gets this far.
  if (!pool::find_superblock_problem(superblock, 1, pool_file_bytes).empty()) return;
  static const std::vector<u8> blank((area_pages - node_count) * page_size);
  file.write(base.device.tree_offset, nodes, sizeof(nodes));
  file.write(base.device.tree_offset + sizeof(nodes), blank.data(), blank.size());
  pool::DeviceFile device =
      pool::DeviceFile::open(file.path(), pool::DeviceFile::Access::read_write, pool::DeviceFile::Locking::none);
  try {
    read_it(superblock, device);
  } catch (const pool::PoolError&) {
  }
  try {
    change_it(superblock, device, u64{input.byte()} << 20);
  } catch (const pool::PoolError&) {
  }
}

}  // namespace gpu4fs::fuzz
