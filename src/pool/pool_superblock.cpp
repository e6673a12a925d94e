#include "pool/pool_superblock.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"
#include "format/format_text.hpp"
#include "format/log_format.hpp"
#include "pool/pool_checksum.hpp"
#include "raid/levels/levels.hpp"

namespace gpu4fs::pool {

namespace {

using format::DevicePart;
using format::Superblock;

template <std::size_t count>
bool is_zero(const u8 (&bytes)[count]) {
  return std::all_of(bytes, bytes + count, [](u8 byte) { return byte == 0; });
}

// An area of the device layout. Areas must follow each other in this order without overlap.
struct Area {
  const char* name;
  u64 offset;
  u64 units;
  u64 unit_bytes;
};

std::string find_area_problem(const DevicePart& part, u64 chunk_size_bytes) {
  if (part.chunk_map_pages > part.size_bytes / page_size) {
    return fmt::format("chunk map of {} pages", part.chunk_map_pages);
  }
  const Area areas[] = {
      {"tree area", part.tree_offset, part.tree_pages, page_size},
      {"chunk map", part.chunk_map_offset, 2 * (1 + part.chunk_map_pages), page_size},
      {"log area", part.log_offset, part.log_bytes, 1},
      {"chunk area", part.chunk_area_offset, part.chunk_area_granules, format::physical_granule_bytes},
  };
  u64 previous_end = format::layout_area_offset;
  for (const Area& area : areas) {
    u64 length = 0;
    u64 end = 0;
    if (!multiply_checked(area.units, area.unit_bytes, length) || !add_checked(area.offset, length, end) ||
        end > part.size_bytes) {
      return fmt::format("{} at {} reaches beyond the device's {} bytes", area.name, area.offset, part.size_bytes);
    }
    if (area.offset < previous_end || !is_aligned(area.offset, page_size)) {
      return fmt::format("{} at {} overlaps what lies in front of it or is not aligned", area.name, area.offset);
    }
    previous_end = end;
  }
  if (!is_aligned(part.chunk_area_offset, format::physical_granule_bytes)) {
    return fmt::format("chunk area at {} is not aligned", part.chunk_area_offset);
  }
  if (divide_up(part.chunk_area_granules, format::bits_per_page) > part.chunk_map_pages) {
    return fmt::format("chunk map of {} pages for {} granules", part.chunk_map_pages, part.chunk_area_granules);
  }
  if (part.chunk_area_granules < chunk_size_bytes / format::physical_granule_bytes) {
    return "chunk area without room for a chunk";
  }
  return "";
}

std::string find_device_part_problem(const Superblock& superblock, u64 device_bytes) {
  const DevicePart& part = superblock.device;
  if (part.device_index >= superblock.device_count) {
    return fmt::format("device index {} of {} devices", part.device_index, superblock.device_count);
  }
  if (std::memcmp(part.device_uuid, superblock.device_uuids[part.device_index], 16) != 0) {
    return fmt::format("device UUID is not that of member {}", part.device_index);
  }
  if (is_zero(part.device_uuid)) return "device without a UUID";
  if (part.reserved0 != 0 || !is_zero(part.reserved)) return "reserved bytes of the device part";
  if (part.size_bytes > device_bytes) {
    return fmt::format("image cut short: the device has {} bytes, the pool uses {}", device_bytes, part.size_bytes);
  }
  return find_area_problem(part, superblock.chunk_size_bytes);
}

std::string find_tree_problem(const Superblock& superblock) {
  const u64 tree_pages = superblock.device.tree_pages;
  if (superblock.tree_height < 1 || superblock.tree_height > 8) {
    return fmt::format("chunk tree of height {}", superblock.tree_height);
  }
  if (superblock.tree_replica_count < 1 || superblock.tree_replica_count > superblock.device_count) {
    return fmt::format("{} chunk tree replicas on {} devices", superblock.tree_replica_count, superblock.device_count);
  }
  if (superblock.device.device_index < superblock.tree_replica_count &&
      (superblock.tree_root >= tree_pages || superblock.tree_node_count > tree_pages)) {
    return fmt::format("chunk tree of {} nodes with root {} in an area of {} pages", superblock.tree_node_count,
                       superblock.tree_root, tree_pages);
  }
  if (superblock.tree_node_count < superblock.tree_height) {
    return fmt::format("chunk tree of {} nodes and height {}", superblock.tree_node_count, superblock.tree_height);
  }
  return "";
}

std::string find_log_problem(const Superblock& superblock) {
  const bool begins_nowhere = superblock.log_start == 0 && format::has_log(superblock);
  if (begins_nowhere || superblock.log_start % format::log_record_granule != 0 || superblock.log_start > u64{1} << 62) {
    return fmt::format("log that starts at {}", superblock.log_start);
  }
  const u64 capacity = superblock.log_capacity;
  if (capacity == 0) return "";
  const bool holds_it = superblock.device.device_index < superblock.tree_replica_count;
  if (!is_aligned(capacity, page_size) || capacity < format::log_capacity_min ||
      (holds_it && capacity > superblock.device.log_bytes)) {
    return fmt::format("log of {} bytes in an area of {}", capacity, superblock.device.log_bytes);
  }
  return "";
}

std::string find_stale_problem(const Superblock& superblock) {
  bool any = false;
  for (u32 i = 0; i < device_count_max; ++i) {
    const u64 since = superblock.stale_since[i];
    any = any || since != 0;
    if (since > superblock.epoch || (since != 0 && is_zero(superblock.device_uuids[i]))) {
      return fmt::format("device {} is stale since epoch {}", i, since);
    }
  }
  if (superblock.device.device_index < device_count_max &&
      superblock.stale_since[superblock.device.device_index] != 0) {
    return "it says that its own device is stale";
  }
  const bool named = (superblock.feature_incompatible & format::feature_stale_devices) != 0;
  return named == any ? "" : "stale devices and the feature that tells of them do not agree";
}

std::string find_inode_file_problem(const Superblock& superblock) {
  const format::Inode& inode = superblock.inode_file;
  if (inode.version != 1 || inode.height != format::inode_file_height || inode.flags != 0 ||
      !is_zero(inode.inline_tail) || !is_zero(inode.reserved)) {
    return "inode file: version, height, flags or reserved bytes";
  }
  if (inode.size_bytes == 0 || !is_aligned(inode.size_bytes, page_size)) {
    return fmt::format("inode file of {} bytes", inode.size_bytes);
  }
  for (const format::BlockPointer& slot : inode.slots) {
    if (!slot.is_well_formed() || (slot.is_valid() && !slot.is_indirect())) {
      return fmt::format("inode file: slot {:#x}", slot.raw);
    }
  }
  return "";
}

std::string find_common_problem(const Superblock& superblock) {
  if (superblock.epoch == 0 || superblock.epoch > format::epoch_max) return fmt::format("epoch {}", superblock.epoch);
  if (superblock.device_count < 1 || superblock.device_count > device_count_max) {
    return fmt::format("{} devices", superblock.device_count);
  }
  const bool may_have_gaps = (superblock.feature_incompatible & format::feature_removed_devices) != 0;
  bool has_gaps = false;
  for (u32 i = 0; i < device_count_max; ++i) {
    const bool zero = is_zero(superblock.device_uuids[i]);
    const bool is_gap = zero && i < superblock.device_count;
    has_gaps = has_gaps || is_gap;
    if ((is_gap && (!may_have_gaps || i < superblock.tree_replica_count)) || (!zero && i >= superblock.device_count)) {
      return fmt::format("UUID of member {}", i);
    }
    for (u32 k = 0; k < i && !zero; ++k) {
      if (std::memcmp(superblock.device_uuids[i], superblock.device_uuids[k], 16) == 0) {
        return fmt::format("members {} and {} have the same UUID", k, i);
      }
    }
  }
  if (has_gaps != may_have_gaps) return "removed devices and the feature that tells of them do not agree";
  const u64 chunk_size = superblock.chunk_size_bytes;
  if (!is_power_of_two(chunk_size) || chunk_size < format::chunk_size_min || chunk_size > format::chunk_size_max) {
    return fmt::format("chunk size {}", chunk_size);
  }
  if (superblock.chunk_count < 1 || superblock.chunk_count >= format::logical_granule_max) {
    return fmt::format("{} chunks", superblock.chunk_count);
  }
  const u64 page_max = format::logical_granule_max * (chunk_size / page_size);
  if (superblock.page_total > page_max || superblock.page_used > superblock.page_total) {
    return fmt::format("{} pages used of {}", superblock.page_used, superblock.page_total);
  }
  const bool is_mixed = (superblock.feature_incompatible & format::feature_mixed_profiles) != 0;
  const bool is_physical = (superblock.feature_incompatible & format::feature_physical) != 0;
  if (is_physical && !is_mixed) return "chunks of given devices in a pool of one profile";
  const u32 profile_end = is_mixed ? format::pool_profile_max : static_cast<u32>(format::RaidLevel::raid7);
  const auto is_known = [&](u16 profile) { return profile >= 1 && profile <= profile_end; };
  if (!is_known(superblock.data_profile) || !is_known(superblock.metadata_profile) ||
      (!is_mixed && superblock.metadata_profile != superblock.data_profile)) {
    return fmt::format("data profile {}, metadata profile {}", superblock.data_profile, superblock.metadata_profile);
  }
  if (superblock.clean > 1) return fmt::format("clean flag {}", superblock.clean);
  // An ignorable feature may give reserved bytes a meaning.
  const bool all_known = (superblock.feature_compatible & ~format::feature_compatible_known) == 0 &&
                         (superblock.feature_read_only_compatible & ~format::feature_read_only_compatible_known) == 0;
  if (all_known && (superblock.reserved0 != 0 || superblock.reserved1 != 0 || !is_zero(superblock.reserved2) ||
                    !is_zero(superblock.reserved3))) {
    return "reserved bytes";
  }
  return find_inode_file_problem(superblock);
}

SuperblockSlot read_slot(const DeviceFile& device, u32 slot) {
  SuperblockSlot result;
  if (device.size_bytes() < superblock_offset(slot) + page_size) return result;
  device.read_at(superblock_offset(slot), &result.superblock, page_size);
  const Superblock& superblock = result.superblock;
  if (std::all_of(reinterpret_cast<const u8*>(&superblock), reinterpret_cast<const u8*>(&superblock) + page_size,
                  [](u8 byte) { return byte == 0; })) {
    return result;
  }
  result.state = SlotState::damaged;
  if (superblock.magic != format::superblock_magic) {
    result.problem = "magic";
    return result;
  }
  if (GPU4FS_MUTANT(superblock_unverified,
                    superblock.checksum != structure_checksum(superblock, superblock_offset(slot)), false)) {
    result.problem = "checksum";
    return result;
  }
  result.state = SlotState::invalid;
  result.problem = find_superblock_problem(superblock, slot, device.size_bytes());
  if (result.problem.empty()) result.state = SlotState::valid;
  return result;
}

}  // namespace

std::string find_superblock_problem(const Superblock& superblock, u32 slot, u64 device_bytes) {
  if (superblock.magic != format::superblock_magic) return "magic";
  if (superblock.version != format::format_version) {
    return fmt::format(
        "the pool has format version {}, this program reads and writes version {} only: use a gpu4fs of that "
        "version, or copy the files to a new pool",
        superblock.version, format::format_version);
  }
  if (superblock.checksum != structure_checksum(superblock, superblock_offset(slot))) {
    return "checksum";
  }
  if (superblock.slot != slot || (superblock.epoch & 1) != slot) {
    return fmt::format("epoch {} for slot {} found in slot {}", superblock.epoch, superblock.slot, slot);
  }
  // If there is a feature that this version does not know, the fields cannot be checked.
  if (!find_feature_problem(superblock, true).empty()) return "";
  std::string problem = find_common_problem(superblock);
  if (problem.empty()) problem = find_device_part_problem(superblock, device_bytes);
  if (problem.empty()) problem = find_tree_problem(superblock);
  if (problem.empty()) problem = find_log_problem(superblock);
  if (problem.empty()) problem = find_stale_problem(superblock);
  return problem;
}

std::string find_feature_problem(const Superblock& superblock, bool read_only) {
  const u64 incompatible = superblock.feature_incompatible & ~format::feature_incompatible_known;
  if (GPU4FS_MUTANT(feature_accepted, incompatible != 0, false)) {
    return fmt::format("unknown incompatible features {:#x}", incompatible);
  }
  const u64 unwritable = superblock.feature_read_only_compatible & ~format::feature_read_only_compatible_known;
  if (unwritable != 0 && !read_only) {
    return fmt::format("unknown features {:#x} allow only a read-only mount", unwritable);
  }
  return "";
}

bool SuperblockProbe::has_magic() const {
  return std::any_of(slots.begin(), slots.end(),
                     [](const SuperblockSlot& slot) { return slot.superblock.magic == format::superblock_magic; });
}

bool is_common_part_equal(const Superblock& a, const Superblock& b) {
  Superblock parts[2] = {a, b};
  for (Superblock& part : parts) {
    part.checksum = 0;
    part.device = DevicePart{};
  }
  return std::memcmp(&parts[0], &parts[1], sizeof(Superblock)) == 0;
}

const Superblock* SuperblockProbe::newest() const {
  const Superblock* best = nullptr;
  for (const SuperblockSlot& slot : slots) {
    if (slot.state != SlotState::valid) continue;
    if (best == nullptr || GPU4FS_MUTANT(older_superblock_counts, slot.superblock.epoch > best->epoch,
                                         slot.superblock.epoch < best->epoch)) {
      best = &slot.superblock;
    }
  }
  return best;
}

const Superblock* SuperblockProbe::with_epoch(u64 epoch) const {
  for (const SuperblockSlot& slot : slots) {
    if (slot.state == SlotState::valid && slot.superblock.epoch == epoch) return &slot.superblock;
  }
  return nullptr;
}

std::string SuperblockProbe::problem() const {
  std::string text;
  for (u32 i = 0; i < 2; ++i) {
    const SuperblockSlot& slot = slots[i];
    if (slot.state == SlotState::valid) continue;
    text += fmt::format("{}slot {}: {}", text.empty() ? "" : "; ", i == 0 ? "A" : "B",
                        slot.state == SlotState::blank ? "blank" : slot.problem);
  }
  return text;
}

SuperblockProbe probe_superblocks(const DeviceFile& device) {
  return {{read_slot(device, 0), read_slot(device, 1)}};
}

SuperblockProbe probe_superblocks(const std::string& path) {
  return probe_superblocks(DeviceFile::open(path, DeviceFile::Access::read_only, DeviceFile::Locking::none));
}

}  // namespace gpu4fs::pool
