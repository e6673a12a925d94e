// Block pointers of format version 1 (docs/internals/format.md, section 6). The thesis' pointers (Maucher 2022, section
// 4.2.1) are the model.
//
// A pointer is one little-endian 64-bit word. All blocks are aligned to at least 128 bytes, so the seven low bits are
// used for tags:
//
//   bits 0-1   size tag: 0 inode slot (unused by version 1), 1 4 KiB, 2 2 MiB, 3 1 GiB
//   bit  2     indirect: the 4 KiB block holds 512 slots of the level below
//   bit  3     valid: a word without it is a hole and must be zero altogether
//   bit  4     physical: the address is (device index, device offset), not logical
//   bit  5     unwritten: allocated, reads as zeros
//   bit  6     reserved, zero
//   bits 7-63  address without its seven low bits: a logical byte address, or for physical pointers
//              the device index in bits 58-63 and the byte offset on the device in bits 7-57
#pragma once

#include <cstdint>

#include "base/config.hpp"

namespace gpu4fs::format {

enum class BlockSize : std::uint8_t { inode_slot = 0, page_4k = 1, block_2m = 2, block_1g = 3 };

struct BlockPointer {
  static constexpr std::uint64_t size_mask = 0x3;
  static constexpr std::uint64_t indirect_bit = 1u << 2;
  static constexpr std::uint64_t valid_bit = 1u << 3;
  static constexpr std::uint64_t physical_bit = 1u << 4;
  static constexpr std::uint64_t unwritten_bit = 1u << 5;
  static constexpr std::uint64_t reserved_bit = 1u << 6;
  static constexpr std::uint64_t address_mask = ~std::uint64_t{0x7f};

  std::uint64_t raw;

  GPU4FS_FN static constexpr BlockPointer hole() { return {0}; }
  GPU4FS_FN static constexpr BlockPointer data(std::uint64_t address, BlockSize size) {
    return {(address & address_mask) | valid_bit | static_cast<std::uint64_t>(size)};
  }
  GPU4FS_FN static constexpr BlockPointer unwritten(std::uint64_t address, BlockSize size) {
    return {data(address, size).raw | unwritten_bit};
  }
  // An indirect block: always 4 KiB of 512 slots.
  GPU4FS_FN static constexpr BlockPointer indirect(std::uint64_t address) {
    return {data(address, BlockSize::page_4k).raw | indirect_bit};
  }

  GPU4FS_FN constexpr bool is_valid() const { return (raw & valid_bit) != 0; }
  GPU4FS_FN constexpr bool is_hole() const { return !is_valid(); }
  GPU4FS_FN constexpr bool is_indirect() const { return (raw & indirect_bit) != 0; }
  GPU4FS_FN constexpr bool is_physical() const { return (raw & physical_bit) != 0; }
  GPU4FS_FN constexpr bool is_unwritten() const { return (raw & unwritten_bit) != 0; }
  GPU4FS_FN constexpr std::uint64_t address() const { return raw & address_mask; }
  GPU4FS_FN constexpr BlockSize size() const { return static_cast<BlockSize>(raw & size_mask); }

  // Test of untrusted input: a hole is all zero; reserved bits are zero; indirect blocks are 4 KiB and never unwritten;
  // the address is aligned to the block's size; version 1 has no inode slots.
  GPU4FS_FN constexpr bool is_well_formed() const {
    if (!is_valid()) return raw == 0;
    if ((raw & reserved_bit) != 0 || is_physical() || size() == BlockSize::inode_slot) return false;
    if (is_indirect() && (size() != BlockSize::page_4k || is_unwritten())) return false;
    const unsigned shift = 12 + 9 * (static_cast<unsigned>(size()) - 1);
    return (address() & ((std::uint64_t{1} << shift) - 1)) == 0;
  }
};

// Slots of an indirect block, and the bits of a page index that one level consumes.
inline constexpr unsigned slots_per_block = 512;
inline constexpr unsigned slot_shift = 9;

static_assert(sizeof(BlockPointer) == 8);

}  // namespace gpu4fs::format
