// Reads and judges superblock slots. A superblock is hostile input: every field of a `valid` slot
// is bounded, so that counts and offsets may be used without looking again, once
// find_feature_problem() has found nothing (what an unknown incompatible feature means for the
// fields nobody here can tell).
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
  damaged,  // no magic, or a checksum that does not hold
  invalid,  // checksum holds and a field is outside its bounds
  valid,
};

struct SuperblockSlot {
  SlotState state = SlotState::blank;
  std::string problem;              // what does not hold, "" for valid and blank
  format::Superblock superblock{};  // as read
};

struct SuperblockProbe {
  std::array<SuperblockSlot, 2> slots;  // A, B

  // The valid slot of the greatest epoch, or null.
  const format::Superblock* newest() const;
  // The valid slot of this epoch, or null.
  const format::Superblock* with_epoch(u64 epoch) const;
  // False: nothing says that there has been a pool.
  bool has_magic() const;
  // One line on why there is no usable slot.
  std::string problem() const;
};

inline constexpr u64 superblock_offset(u32 slot) {
  return slot == 0 ? format::superblock_offset_a : format::superblock_offset_b;
}

// Reads both slots. A device too short for them has blank slots.
SuperblockProbe probe_superblocks(const DeviceFile& device);
// Opens `path` for reading, without a lock: works on a mounted pool.
SuperblockProbe probe_superblocks(const std::string& path);

// "" or what is wrong: magic, version, slot, checksum, then every field. `device_bytes` is the real
// size of the device the page came from. Feature masks are not judged: see check_features().
std::string find_superblock_problem(const format::Superblock& superblock, u32 slot, u64 device_bytes);

// "" or why this version cannot mount the pool; with `read_only` unknown read-only-compatible
// features are no obstacle.
std::string find_feature_problem(const format::Superblock& superblock, bool read_only);

// The parts that are equal on every device of one epoch: without device part and checksum.
bool is_common_part_equal(const format::Superblock& a, const format::Superblock& b);

}  // namespace gpu4fs::pool
