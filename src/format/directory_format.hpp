// Directory pages of format version 1: a multi-level extendible hash tree.
//
// A directory is a file whose pages are index nodes and leaves. Page 0 is the root: initially a leaf, and an index node
// once it has overflowed. A name's position is its 64-bit hash, XXH3-64 of its bytes seeded with the pool's
// name_hash_seed. The root consumes the top 9 bits of the hash, a node below it the next 9, and so on (at most 7
// levels). A node's 512 slots each hold a child's page index in the directory file. A leaf of local depth d (0..9,
// relative to its node) is in 2^(9-d) adjacent slots aligned to that number. A leaf that overflows splits in two (depth
// + 1); at depth 9 it is replaced by a new node whose 512 slots all name it, with depth 0.
//
// A leaf has slots sorted by (hash, name) that grow upwards from byte 32, and an entry heap that grows downwards from
// byte 4096. Enumeration follows hash order, so a cursor survives inserts and splits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/config.hpp"
#include "base/limits.hpp"

namespace gpu4fs::format {

inline constexpr std::uint32_t directory_leaf_magic = 0x4c443447;  // "G4DL"
inline constexpr std::uint32_t directory_node_magic = 0x4e443447;  // "G4DN"
inline constexpr unsigned directory_node_bits = 9;
inline constexpr unsigned directory_node_slots = 1u << directory_node_bits;
inline constexpr unsigned directory_level_max = 7;

struct DirectoryPageHeader {
  std::uint32_t magic;         // leaf or node
  std::uint16_t version;       // 1
  std::uint8_t level;          // of a node: 0 for the root, child nodes +1; of a leaf: its node's level
  std::uint8_t depth;          // of a leaf: local depth 0..9; 0 for a node and for a root leaf
  std::uint16_t entry_count;   // leaf: slots in use
  std::uint16_t heap_begin;    // leaf: byte offset of the lowest heap byte in use, 4096 when empty
  std::uint16_t heap_garbage;  // leaf: bytes in the heap that belong to no entry (removed names)
  std::uint16_t reserved0;
  std::uint64_t prefix;  // hash bits above this page's range, in place; the rest zero
  std::uint64_t reserved1;
};
static_assert(sizeof(DirectoryPageHeader) == 32);

// One name in a leaf, 16 bytes, sorted by (hash, name bytes).
struct DirectorySlot {
  std::uint64_t hash;
  std::uint16_t entry_offset;  // of a DirectoryEntry in this page, multiple of 8
  std::uint8_t name_length;    // 1..255
  std::uint8_t type;           // S_IFMT >> 12 (the DT_* values)
  std::uint32_t reserved;
};
static_assert(sizeof(DirectorySlot) == 16);

// In the heap: the inode number, then name_length bytes of name (no terminator), padded to 8.
struct DirectoryEntry {
  std::uint64_t inode;
};
static_assert(sizeof(DirectoryEntry) == 8);

// A node: header, then 512 child page indices (u32) at byte 2048. A child index is never 0.
inline constexpr unsigned directory_node_children_offset = 2048;

inline constexpr unsigned directory_leaf_slots_offset = sizeof(DirectoryPageHeader);

GPU4FS_FN constexpr unsigned directory_entry_size(unsigned name_length) {
  return (static_cast<unsigned>(sizeof(DirectoryEntry)) + name_length + 7) & ~7u;
}

// Readdir cursors (63-bit): 0 start, 1 after ".", 2 after "..", else position in hash order:
// (hash >> 10) + 1 in the upper bits, the ordinal among names with equal upper bits in the lower 8.
GPU4FS_FN constexpr std::uint64_t directory_cursor(std::uint64_t hash, unsigned ordinal) {
  return (((hash >> 10) + 1) << 8) | ordinal;
}

}  // namespace gpu4fs::format
