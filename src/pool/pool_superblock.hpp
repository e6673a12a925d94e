// Reads and checks superblock slots. A superblock is untrusted input. Every field of a `valid` slot is in its bounds,
// so counts and offsets may be used without further checks, once find_feature_problem() has found nothing. The meaning
// of fields under an unknown incompatible feature is unknown.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "base/types.hpp"
#include "format/superblock_format.hpp"
#include "pool/pool_device_file.hpp"

namespace gpu4fs::pool {

enum class SlotState : u8 {
  blank,    // all zero: never written, or cleared
  damaged,  // no magic, or a wrong checksum
  invalid,  // the checksum is right and a field is outside its bounds
  valid,
};

struct SuperblockSlot {
  SlotState state = SlotState::blank;
  std::string problem;              // the fault, "" for valid and blank
  format::Superblock superblock{};  // as read
};

struct SuperblockProbe {
  std::array<SuperblockSlot, 2> slots;  // A, B

  // The valid slot of the greatest epoch, or null.
  const format::Superblock* newest() const;
  // The valid slot of this epoch, or null.
  const format::Superblock* with_epoch(u64 epoch) const;
  // False: there is no sign that a pool ever existed.
  bool has_magic() const;
  // One line that says why there is no usable slot.
  std::string problem() const;
};

inline constexpr u64 superblock_offset(u32 slot) {
  return slot == 0 ? format::superblock_offset_a : format::superblock_offset_b;
}

// Reads both slots. Slots beyond the end of a device are blank.
SuperblockProbe probe_superblocks(const DeviceFile& device);
// Opens `path` for reading, without a lock: works on a mounted pool.
SuperblockProbe probe_superblocks(const std::string& path);

// "" or what is wrong: magic, version, slot, checksum, then every field. `device_bytes` is the real size of the device
// the page came from. Feature masks are not checked here, see find_feature_problem().
std::string find_superblock_problem(const format::Superblock& superblock, u32 slot, u64 device_bytes);

// "" or why this version cannot mount the pool; with `read_only` unknown read-only-compatible
// features are no obstacle.
std::string find_feature_problem(const format::Superblock& superblock, bool read_only);

// The parts that are equal on every device of one epoch: without device part and checksum.
bool is_common_part_equal(const format::Superblock& a, const format::Superblock& b);

}  // namespace gpu4fs::pool
