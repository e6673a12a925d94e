// The data that a check of a pool and the engine exchange (Opcode::check). Not on the medium.
//
// A check runs in phases (Command::mode). Each phase covers the whole pool before the next one begins; the caller
// splits a phase into commands. Tables in engine memory pass the results of one phase to another: for each page whether
// it is allocated, reached, to be verified, damaged, or part of a directory that was seen; for each inode its
// CheckInode.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpu4fs::wire {

// Command::mode. Fields of the command, with `output`, `length`: CheckCounts and CheckRecords, unless stated otherwise:
//   load      inode: chunk; data, aux: bytes of two bitmaps of whole u64 words, allocated and reached pages; mask bit
//             0: make the chunk's pages reachable, those of regions with an allocated page or, with bit 1, all
//   walk      data, aux: CheckInodePages; every inode's fields, map and attributes; pages are claimed
//   verify    inode: chunk; offset, aux: first page and number of pages; verifies the pages that walk selected
//   owners    as walk: the files that own pages that did not match
//   names     as walk: every directory
//   leaks     inode: chunk; offset, aux: as verify; output: one bit for each page, in words that are zero before:
//             allocated and not reached
//   table     offset, aux: first inode and number; output: CheckInodes
enum class CheckPhase : std::uint32_t { load = 0, walk, verify, owners, names, leaks, table, count };

inline constexpr std::uint32_t check_mask_reach = 1;      // load
inline constexpr std::uint32_t check_mask_reach_all = 2;  // load: also of regions without an allocated page
inline constexpr std::uint32_t check_mask_verify_data =
    1;  // walk: contents of files have to be verified if they have checksums

// A page of the inode file.
struct CheckInodePage {
  std::uint64_t index;
  std::uint64_t address;
};

// An actual or possible fault: the caller examines it again and describes it.
enum class CheckKind : std::uint16_t {
  none = 0,
  metadata,           // address: a page that cannot be read, does not match, or is too new
  inode_page,         // the same, of the inode file; value: index
  fields,             // a field of the inode, or a reserved one in use
  summary,            // size or page count: value: pages, expected: end of content, address: pages of content
  pointer,            // level, value: index of the slot, address: the pointer
  attribute_pointer,  // address: the pointer
  outside,            // address
  used_twice,         // address, value: of `expected` pages
  not_allocated,      // the same
  attribute_page,     // address
  attribute_tree,     // there are map pages: the caller has to examine its entries
  data_page,          // address, value: page of the file
  directory,          // any fault
};

struct CheckRecord {
  CheckKind kind;
  std::uint16_t level;
  std::uint32_t reserved;
  std::uint64_t inode;
  std::uint64_t address;
  std::uint64_t value;
  std::uint64_t expected;
};
static_assert(sizeof(CheckRecord) == 40);

// Before the records of a command.
struct CheckCounts {
  std::uint64_t records;   // number found; those that did not fit are lost
  std::uint64_t reached;   // pages
  std::uint64_t verified;  // pages
  std::uint64_t found;     // verify: pages that do not match; leaks: pages
  std::uint64_t names;
  std::uint64_t reserved[3];
};
static_assert(sizeof(CheckCounts) == 64);

inline constexpr std::uint32_t check_inode_readable = 1;  // CheckInode::flags: a directory with most of its pages

// All zero: the inode is not in use.
struct CheckInode {
  std::uint64_t size_bytes;
  std::uint64_t parent;          // directories: according to the inode
  std::uint64_t named_in;        // directories: directory of the first name, plus 1; 0: none
  std::uint32_t names;           // that lead to it
  std::uint32_t subdirectories;  // names of directories in it
  std::uint32_t link_count;
  std::uint32_t directory_pages;  // pages of content
  std::uint16_t mode;
  std::uint16_t reserved;
  std::uint32_t flags;
};
static_assert(sizeof(CheckInode) == 48);

}  // namespace gpu4fs::wire
