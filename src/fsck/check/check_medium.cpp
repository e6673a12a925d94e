// Checks structures outside the logical space: superblocks, chunk tree, chunk maps.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "base/xxh3_serial.hpp"
#include "format/format_text.hpp"
#include "fsck/check/check_context.hpp"
#include "pool/pool_checksum.hpp"
#include "raid/levels/levels.hpp"

namespace gpu4fs::fsck::check {

namespace {

struct ChosenBitmap {
  BitWords words;  // empty: there is no current slot
  u32 slot = 2;    // the current one; 2: none
};

// The current slot of a chunk map.
ChosenBitmap choose_bitmap(CheckContext& context, const pool::DeviceFile& file, const pool::BitmapPlace& place) {
  SlotCopy slots[2];
  for (u32 slot = 0; slot < 2; ++slot) slots[slot] = read_slot(file, place, slot, context.pool.superblock.epoch);
  const SlotCopy* chosen = nullptr;
  for (const SlotCopy& slot : slots) {
    if (slot.use != SlotUse::usable || slot.bitmap.empty()) continue;
    if (chosen == nullptr || slot.header.epoch > chosen->header.epoch) chosen = &slot;
  }
  const auto offset_of = [&](u32 slot) { return place.offset + slot * (1 + place.bitmap_pages) * page_size; };
  for (u32 slot = 0; slot < 2; ++slot) {
    if (slots[slot].problem.empty()) continue;
    context.add(chosen == nullptr ? FindingId::chunk_map_damaged : FindingId::bitmap_slot_stale,
                device_place(file, offset_of(slot)),
                fmt::format("bitmap slot {}: {}", slot == 0 ? "A" : "B", slots[slot].problem));
  }
  if (chosen == nullptr) {
    if (slots[0].problem.empty() && slots[1].problem.empty()) {
      context.add(FindingId::chunk_map_damaged, device_place(file, place.offset),
                  "neither bitmap slot holds a state of this epoch");
    }
    return {};
  }
  return {chosen->bitmap, chosen == &slots[0] ? 0u : 1u};
}

// Reads the node from a replica. Returns "" or why it is not valid.
std::string read_tree_node(const pool::OpenedDevice& device, u64 number, format::ChunkTreeNode* node) {
  try {
    device.file.read_at(device.part.tree_offset + number * page_size, node, sizeof(*node));
  } catch (const pool::PoolError& error) {
    return error.what();
  }
  if (node->magic != format::chunk_tree_magic) return "wrong magic";
  if (node->checksum != pool::structure_checksum(*node, number)) return "wrong checksum";
  return "";
}

std::vector<u64> node_children(const format::ChunkTreeNode& node) {
  std::vector<u64> children;
  if (node.level == 0) return children;
  const u64 count = std::min<u64>(node.entry_count, sizeof(node.entries) / sizeof(format::ChunkTreeBranch));
  for (u64 i = 0; i < count; ++i) {
    format::ChunkTreeBranch branch{};
    std::memcpy(&branch, node.entries + i * sizeof(branch), sizeof(branch));
    children.push_back(branch.child);
  }
  return children;
}

void add_tree_finding(CheckContext& context, const pool::OpenedDevice& device, u64 number, const std::string& problem) {
  context.add(FindingId::tree_node_damaged, device_place(device.file, device.part.tree_offset + number * page_size),
              fmt::format("chunk tree node {}: {}", number, problem));
}

// The device was not a member in the epoch before the newest.
bool has_just_joined(const pool::OpenedPool& pool, const pool::OpenedDevice& device) {
  for (const pool::OpenedDevice& other : pool.devices) {
    if (!other.is_here()) continue;
    const pool::SuperblockProbe probe = pool::probe_superblocks(other.file);
    const format::Superblock* before = probe.with_epoch(pool.superblock.epoch - 1);
    if (before == nullptr) continue;
    for (u32 i = 0; i < before->device_count; ++i) {
      if (std::memcmp(before->device_uuids[i], device.part.device_uuid, sizeof(device.part.device_uuid)) == 0)
        return false;
    }
    return true;
  }
  return false;
}

}  // namespace

std::string device_place(const pool::DeviceFile& file, u64 offset) {
  return fmt::format("{} offset {:#x}", file.path(), offset);
}

void check_superblocks(CheckContext& context) {
  const format::Superblock& chosen = context.pool.superblock;
  if (chosen.clean == 0) {
    context.add(
        FindingId::pool_not_clean, context.pool.devices.front().file.path(),
        fmt::format("last checkpoint: epoch {} of {}", chosen.epoch, format::time_text(chosen.checkpoint_time)));
  }
  for (const pool::OpenedDevice& device : context.pool.devices) {
    if (device.state == pool::MemberState::removed) continue;
    if (!device.is_here()) {
      context.add(FindingId::device_missing, device.file.path(),
                  fmt::format("UUID {}, {}", format::uuid_text(device.part.device_uuid),
                              pool::member_state_name(device.state)));
      continue;
    }
    if (!device.has_newest_superblock) {
      context.add(FindingId::superblock_behind, device.file.path(),
                  fmt::format("has no superblock of epoch {}", chosen.epoch));
    }
    const pool::SuperblockProbe probe = pool::probe_superblocks(device.file);
    for (u32 slot = 0; slot < 2; ++slot) {
      const pool::SlotState state = probe.slots[slot].state;
      if (state != pool::SlotState::damaged && state != pool::SlotState::invalid) continue;
      // A torn write cannot be distinguished from damage. This holds for the newest superblock too, whose epoch the
      // pool has then lost.
      const bool torn = state == pool::SlotState::damaged;
      context.add(torn ? FindingId::superblock_torn : FindingId::superblock_damaged,
                  device_place(device.file, pool::superblock_offset(slot)),
                  fmt::format("superblock slot {}: {}", slot == 0 ? "A" : "B", probe.slots[slot].problem));
    }
    // Two epochs are kept, beginning with the second epoch in which the device is a member.
    const pool::SlotState other = probe.slots[(chosen.epoch & 1) ^ 1].state;
    if (chosen.epoch > 1 && other == pool::SlotState::blank && device.has_newest_superblock &&
        !has_just_joined(context.pool, device)) {
      context.add(FindingId::superblock_damaged, device.file.path(),
                  fmt::format("no superblock of epoch {}", chosen.epoch - 1));
    }
  }
}

void check_tree_replicas(CheckContext& context) {
  const format::Superblock& superblock = context.pool.superblock;
  std::vector<u64> waiting{superblock.tree_root};
  std::set<u64> seen{superblock.tree_root};
  while (!waiting.empty()) {
    const u64 number = waiting.back();
    waiting.pop_back();
    format::ChunkTreeNode newest{};
    std::vector<std::pair<const pool::OpenedDevice*, format::ChunkTreeNode>> found;
    for (u32 replica = 0; replica < superblock.tree_replica_count; ++replica) {
      const pool::OpenedDevice& device = context.pool.devices[replica];
      if (!device.is_here() || number >= device.part.tree_pages) continue;
      format::ChunkTreeNode node{};
      const std::string problem = read_tree_node(device, number, &node);
      if (!problem.empty()) {
        add_tree_finding(context, device, number, problem);
        continue;
      }
      found.emplace_back(&device, node);
      if (node.epoch <= superblock.epoch && node.epoch > newest.epoch) newest = node;
    }
    for (const auto& [device, node] : found) {
      if (std::memcmp(&node, &newest, sizeof(node)) == 0) continue;
      add_tree_finding(context, *device, number,
                       fmt::format("epoch {}, another replica has epoch {}", node.epoch, newest.epoch));
    }
    for (const u64 child : node_children(newest)) {
      if (seen.size() < superblock.tree_node_count && seen.insert(child).second) waiting.push_back(child);
    }
  }
}

void check_chunk_maps(CheckContext& context) {
  for (u32 index = 0; index < context.pool.devices.size(); ++index) {
    const pool::OpenedDevice& device = context.pool.devices[index];
    if (!device.is_here()) {
      context.chunk_map_slots.push_back(2);
      continue;
    }
    const format::DevicePart& part = device.part;
    const ChosenBitmap map = choose_bitmap(context, device.file, pool::chunk_map_place(part));
    context.chunk_map_slots.push_back(map.slot);
    if (map.words.empty()) continue;
    if (map.words != expected_chunk_map(context, index)) {
      context.add(FindingId::chunk_map_damaged, device_place(device.file, part.chunk_map_offset),
                  "the granules in use are not those of the device's chunks");
    }
  }
}

BitWords expected_chunk_map(const CheckContext& context, u32 index) {
  const format::DevicePart& part = context.pool.devices[index].part;
  BitWords expected(part.chunk_map_pages * page_size / 8);
  for (const pool::OpenedChunk& chunk : context.pool.chunks) {
    const u64 bytes = raid::column_length(chunk.descriptor);
    const u64 count = (bytes + format::physical_granule_bytes - 1) / format::physical_granule_bytes;
    for (const format::ColumnAddress& column : chunk.columns) {
      if (column.device_index() != index) continue;
      const u64 first = (column.offset_bytes() - part.chunk_area_offset) / format::physical_granule_bytes;
      for (u64 granule = first; granule < std::min(first + count, part.chunk_area_granules); ++granule) {
        set_bit(expected, granule);
      }
    }
  }
  return expected;
}

}  // namespace gpu4fs::fsck::check
