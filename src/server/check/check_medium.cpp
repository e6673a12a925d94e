// Structures outside the logical space: superblocks, chunk tree, chunk maps, chunk headers and
// bitmaps.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "base/xxh3_serial.hpp"
#include "format/format_text.hpp"
#include "raid/levels/levels.hpp"
#include "server/check/check_context.hpp"
#include "server/pool_checksum.hpp"

namespace gpu4fs::server::check {

namespace {

std::string device_place(const DeviceFile& file, u64 offset) {
  return fmt::format("{} offset {:#x}", file.path(), offset);
}

enum class SlotUse { blank, damaged, beyond, usable };

struct BitmapSlot {
  SlotUse use = SlotUse::damaged;
  std::string problem;
  u64 epoch = 0;
  u64 set_count = 0;
  BitWords words;
};

std::string find_header_problem(const format::BitmapSlotHeader& header, u32 slot, u64 base_address,
                                u64 bit_count) {
  if (header.magic != format::bitmap_slot_magic) return "wrong magic";
  if (header.checksum != structure_checksum(header, base_address ^ slot)) return "wrong checksum";
  if (header.version != 1) return fmt::format("version {}", header.version);
  if (header.slot != slot) return fmt::format("slot number {} instead of {}", header.slot, slot);
  if (header.base_address != base_address) return fmt::format("base {:#x}", header.base_address);
  if (header.bit_count != bit_count) {
    return fmt::format("{} bits instead of {}", header.bit_count, bit_count);
  }
  const auto* reserved = std::begin(header.reserved);
  if (std::any_of(reserved, std::end(header.reserved), [](u8 byte) { return byte != 0; })) {
    return "reserved bytes are not zero";
  }
  return "";
}

// A bitmap behind its header: `bitmap_pages` pages of which `bit_count` bits count.
BitmapSlot read_bitmap_slot(const DeviceFile& file, u64 offset, u32 slot, u64 base_address,
                            u64 bit_count, u64 bitmap_pages, u64 epoch_max) {
  BitmapSlot result;
  format::BitmapSlotHeader header{};
  BitWords words(bitmap_pages * page_size / 8);
  try {
    file.read_at(offset, &header, sizeof(header));
    file.read_at(offset + page_size, words.data(), words.size() * 8);
  } catch (const PoolError& error) {
    result.problem = error.what();
    return result;
  }
  const auto* bytes = reinterpret_cast<const u8*>(&header);
  if (std::all_of(bytes, bytes + sizeof(header), [](u8 byte) { return byte == 0; })) {
    result.use = SlotUse::blank;
    return result;
  }
  result.problem = find_header_problem(header, slot, base_address, bit_count);
  if (!result.problem.empty()) return result;
  result.epoch = header.epoch;
  if (header.epoch > epoch_max) {
    result.use = SlotUse::beyond;
    return result;
  }
  if (xxh3_64(words.data(), words.size() * 8, base_address) != header.bitmap_checksum) {
    result.problem = "the bitmap does not match its checksum";
    return result;
  }
  result.use = SlotUse::usable;
  result.set_count = header.set_count;
  result.words = std::move(words);
  return result;
}

struct BitmapPlace {
  const DeviceFile& file;
  u64 offset_a;
  u64 offset_b;
  u64 base_address;
  u64 bit_count;
  u64 bitmap_pages;
};

struct ChosenBitmap {
  BitWords words;  // empty: no slot counts
  u32 slot = 2;    // that counts; 2: none
  u64 epoch = 0;
};

// The slot that counts. Reports damage as `damage`.
ChosenBitmap choose_bitmap(CheckContext& context, const BitmapPlace& place, FindingId damage) {
  BitmapSlot slots[2];
  for (u32 slot = 0; slot < 2; ++slot) {
    slots[slot] = read_bitmap_slot(place.file, slot == 0 ? place.offset_a : place.offset_b, slot,
                                   place.base_address, place.bit_count, place.bitmap_pages,
                                   context.pool.superblock.epoch);
  }
  const BitmapSlot* chosen = nullptr;
  for (const BitmapSlot& slot : slots) {
    if (slot.use != SlotUse::usable) continue;
    if (chosen == nullptr || slot.epoch > chosen->epoch) chosen = &slot;
  }
  for (u32 slot = 0; slot < 2; ++slot) {
    if (slots[slot].use != SlotUse::damaged) continue;
    context.add(chosen == nullptr ? damage : FindingId::bitmap_slot_stale,
                device_place(place.file, slot == 0 ? place.offset_a : place.offset_b),
                fmt::format("bitmap slot {}: {}", slot == 0 ? "A" : "B", slots[slot].problem));
  }
  if (chosen == nullptr) {
    if (slots[0].use != SlotUse::damaged && slots[1].use != SlotUse::damaged) {
      context.add(damage, device_place(place.file, place.offset_a),
                  "neither bitmap slot holds a state of this epoch");
    }
    return {};
  }
  u64 set_count = 0;
  for (u64 bit = 0; bit < chosen->words.size() * 64; bit += 64) {
    u64 word = chosen->words[bit / 64];
    set_count += static_cast<u64>(std::popcount(word));
    if (bit + 64 > place.bit_count) {
      const u64 beyond = bit >= place.bit_count ? word : word >> (place.bit_count - bit);
      if (beyond != 0) {
        context.add(FindingId::bitmap_count, device_place(place.file, place.offset_a),
                    fmt::format("bits beyond the {} that count are set", place.bit_count));
        break;
      }
    }
  }
  if (set_count != chosen->set_count) {
    context.add(FindingId::bitmap_count, device_place(place.file, place.offset_a),
                fmt::format("{} bits are set, the header says {}", set_count, chosen->set_count));
  }
  return {chosen->words, chosen == &slots[0] ? 0u : 1u, chosen->epoch};
}

void check_chunk_header(CheckContext& context, u32 chunk, u32 column) {
  const format::ChunkDescriptor& descriptor = context.pool.chunks[chunk].descriptor;
  const DeviceFile& file = context.reader.chunk_device(chunk, column);
  const u64 offset = context.reader.header_area_offset(chunk, 0, column);
  format::ChunkHeader header{};
  std::string problem;
  try {
    file.read_at(offset, &header, sizeof(header));
  } catch (const PoolError& error) {
    problem = error.what();
  }
  if (problem.empty()) {
    const bool reserved_zero = std::all_of(std::begin(header.reserved), std::end(header.reserved),
                                           [](u8 byte) { return byte == 0; });
    if (header.magic != format::chunk_header_magic) {
      problem = "wrong magic";
    } else if (header.checksum != structure_checksum(header, descriptor.base_address)) {
      problem = "wrong checksum";
    } else if (header.version != 1 || header.column_index != column || !reserved_zero) {
      problem = "impossible fields";
    } else if (std::memcmp(header.pool_uuid, context.pool.superblock.pool_uuid, 16) != 0) {
      problem = fmt::format("belongs to pool {}", format::uuid_text(header.pool_uuid));
    } else if (header.base_address != descriptor.base_address ||
               header.size_bytes != descriptor.size_bytes) {
      problem = fmt::format("describes {:#x} with {} bytes, the chunk tree {:#x} with {}",
                            header.base_address, header.size_bytes, descriptor.base_address,
                            descriptor.size_bytes);
    }
  }
  if (!problem.empty()) {
    context.add(FindingId::chunk_header_damaged, device_place(file, offset),
                fmt::format("chunk {:#x}: {}", descriptor.base_address, problem));
  }
}

// The node as a replica has it, or why not.
std::string read_tree_node(const OpenedDevice& device, u64 number, format::ChunkTreeNode* node) {
  try {
    device.file.read_at(device.part.tree_offset + number * page_size, node, sizeof(*node));
  } catch (const PoolError& error) {
    return error.what();
  }
  if (node->magic != format::chunk_tree_magic) return "wrong magic";
  if (node->checksum != structure_checksum(*node, number)) return "wrong checksum";
  return "";
}

std::vector<u64> node_children(const format::ChunkTreeNode& node) {
  std::vector<u64> children;
  if (node.level == 0) return children;
  const u64 count =
      std::min<u64>(node.entry_count, sizeof(node.entries) / sizeof(format::ChunkTreeBranch));
  for (u64 i = 0; i < count; ++i) {
    format::ChunkTreeBranch branch{};
    std::memcpy(&branch, node.entries + i * sizeof(branch), sizeof(branch));
    children.push_back(branch.child);
  }
  return children;
}

// The newest bitmap that counts of all copies of the header area, as an engine takes it; reports copies that are
// older or differ. *column: whose it is.
ChosenBitmap read_allocation(CheckContext& context, u32 chunk, u32* column) {
  const format::ChunkDescriptor& descriptor = context.pool.chunks[chunk].descriptor;
  const u64 page_count = context.reader.chunk_page_count(chunk);
  const format::ChunkLayout layout = format::chunk_layout(page_count);
  const FindingId damage = descriptor.redundancy == 0 ? FindingId::bitmap_damaged : FindingId::header_copy_damaged;
  std::vector<ChosenBitmap> copies;
  *column = context.reader.first_column(chunk);
  for (u32 at = 0; at <= descriptor.redundancy; ++at) {
    if (!context.reader.is_here(chunk, at)) {
      copies.emplace_back();
      continue;
    }
    copies.push_back(choose_bitmap(
        context,
        {context.reader.chunk_device(chunk, at), context.reader.header_area_offset(chunk, layout.bitmap_a_page, at),
         context.reader.header_area_offset(chunk, layout.bitmap_b_page, at), descriptor.base_address, page_count,
         layout.bitmap_pages},
        damage));
    // An epoch of a copy without a bitmap is 0.
    if (copies[at].epoch > copies[*column].epoch) *column = at;
  }
  const ChosenBitmap newest = copies[*column];
  for (u32 at = 0; at < copies.size(); ++at) {
    const ChosenBitmap& copy = copies[at];
    if (copy.words.empty() || (copy.epoch == newest.epoch && copy.words == newest.words)) continue;
    context.add(FindingId::header_copy_damaged,
                device_place(context.reader.chunk_device(chunk, at),
                             context.reader.header_area_offset(chunk, layout.bitmap_a_page, at)),
                copy.epoch < newest.epoch
                    ? fmt::format("the bitmap is of epoch {}, that of another copy of {}", copy.epoch, newest.epoch)
                    : "the bitmap differs from that of another copy");
  }
  if (newest.words.empty() && descriptor.redundancy != 0) {
    context.add(FindingId::bitmap_damaged, fmt::format("chunk {:#x}", descriptor.base_address), "in all copies");
  }
  return newest;
}

void add_tree_finding(CheckContext& context, const OpenedDevice& device, u64 number, const std::string& problem) {
  context.add(FindingId::tree_node_damaged, device_place(device.file, device.part.tree_offset + number * page_size),
              fmt::format("chunk tree node {}: {}", number, problem));
}

// The epoch before the newest did not have the device.
bool has_just_joined(const OpenedPool& pool, const OpenedDevice& device) {
  for (const OpenedDevice& other : pool.devices) {
    if (!other.is_here()) continue;
    const SuperblockProbe probe = probe_superblocks(other.file);
    const format::Superblock* before = probe.with_epoch(pool.superblock.epoch - 1);
    if (before == nullptr) continue;
    for (u32 i = 0; i < before->device_count; ++i) {
      if (std::memcmp(before->device_uuids[i], device.part.device_uuid, sizeof(device.part.device_uuid)) == 0) return false;
    }
    return true;
  }
  return false;
}

}  // namespace

void check_superblocks(CheckContext& context) {
  const format::Superblock& chosen = context.pool.superblock;
  if (chosen.clean == 0) {
    context.add(FindingId::pool_not_clean, context.pool.devices.front().file.path(),
                fmt::format("last checkpoint: epoch {} of {}", chosen.epoch,
                            format::time_text(chosen.checkpoint_time)));
  }
  for (const OpenedDevice& device : context.pool.devices) {
    if (device.state == MemberState::removed) continue;
    if (!device.is_here()) {
      context.add(FindingId::device_missing, device.file.path(),
                  fmt::format("UUID {}, {}", format::uuid_text(device.part.device_uuid), member_state_name(device.state)));
      continue;
    }
    if (!device.has_newest_superblock) {
      context.add(FindingId::superblock_behind, device.file.path(),
                  fmt::format("has no superblock of epoch {}", chosen.epoch));
    }
    const SuperblockProbe probe = probe_superblocks(device.file);
    for (u32 slot = 0; slot < 2; ++slot) {
      const SlotState state = probe.slots[slot].state;
      if (state != SlotState::damaged && state != SlotState::invalid) continue;
      // Also beside a clean one: the first checkpoint behind it may have been torn, and nothing tells that
      // from damage.
      const bool torn = state == SlotState::damaged;
      context.add(
          torn ? FindingId::superblock_torn : FindingId::superblock_damaged,
          device_place(device.file, superblock_offset(slot)),
          fmt::format("superblock slot {}: {}", slot == 0 ? "A" : "B", probe.slots[slot].problem));
    }
    // Two epochs are kept from the second one on that has the device.
    const SlotState other = probe.slots[(chosen.epoch & 1) ^ 1].state;
    if (chosen.epoch > 1 && other == SlotState::blank && device.has_newest_superblock &&
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
    std::vector<std::pair<const OpenedDevice*, format::ChunkTreeNode>> found;
    for (u32 replica = 0; replica < superblock.tree_replica_count; ++replica) {
      const OpenedDevice& device = context.pool.devices[replica];
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
    const OpenedDevice& device = context.pool.devices[index];
    if (!device.is_here()) {
      context.chunk_map_slots.push_back(2);
      continue;
    }
    const format::DevicePart& part = device.part;
    const u64 slot_b = part.chunk_map_offset + (1 + part.chunk_map_pages) * page_size;
    const ChosenBitmap map = choose_bitmap(context,
                                           {device.file, part.chunk_map_offset, slot_b, index,
                                            part.chunk_area_granules, part.chunk_map_pages},
                                           FindingId::chunk_map_damaged);
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
  for (const OpenedChunk& chunk : context.pool.chunks) {
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

void check_chunks(CheckContext& context) {
  const auto chunk_count = static_cast<u32>(context.pool.chunks.size());
  context.chunks.resize(chunk_count);
  u64 pages_allocated = 0;
  bool all_known = true;
  for (u32 chunk = 0; chunk < chunk_count; ++chunk) {
    for (u32 column = 0; column <= context.pool.chunks[chunk].descriptor.redundancy; ++column) {
      if (context.reader.is_here(chunk, column)) check_chunk_header(context, chunk, column);
    }
    const u64 page_count = context.reader.chunk_page_count(chunk);
    const format::ChunkLayout layout = format::chunk_layout(page_count);
    ChunkUse& use = context.chunks[chunk];
    ChosenBitmap bitmap = read_allocation(context, chunk, &use.column);
    use.allocated = std::move(bitmap.words);
    use.slot = bitmap.slot;
    context.reader.use_header_column(chunk, use.column);
    use.has_bitmap = !use.allocated.empty();
    all_known = all_known && use.has_bitmap;
    use.allocated.resize(layout.bitmap_pages * page_size / 8);
    use.reached.resize(use.allocated.size());
    for (const u64 word : use.allocated) pages_allocated += static_cast<u64>(std::popcount(word));
    context.result.pages_total += page_count;
  }
  const format::Superblock& superblock = context.pool.superblock;
  const std::string place = context.pool.devices.front().file.path();
  if (all_known && pages_allocated != superblock.page_used) {
    context.add(FindingId::superblock_count, place,
                fmt::format("{} pages in use, the bitmaps hold {}: a bitmap slot was lost",
                            superblock.page_used, pages_allocated));
  }
  if (context.result.pages_total != superblock.page_total) {
    context.add(FindingId::superblock_count, place,
                fmt::format("{} pages in all, the chunks hold {}", superblock.page_total,
                            context.result.pages_total));
  }
}

}  // namespace gpu4fs::server::check
