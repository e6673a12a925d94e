// Operation log of format version 1: the operations that committed after the newest checkpoint
// (docs/internals/format.md, section 11).
//
// The log is one sequence of records. A record's place in it is its log sequence number (LSN), a count of bytes that
// never decreases during a pool's life. Records follow each other without gaps. The record with LSN n lies at byte n %
// capacity of the op-log area of each log device. Devices 0 .. tree_replica_count - 1 all hold the same log, and
// capacity is the least of their log_bytes. No record crosses the end of the area: a filler before it takes up the
// rest.
//
// Reading begins at the superblock's log_start. It ends at the first place without a valid record of exactly that LSN,
// or with a record whose pages have another digest (they were not written before the end). A record is valid if LSN,
// length, bounds and checksum are right. The checksum's seed is the superblock's log_seed ^ lsn. log_seed is a new
// random number for each mount for writing, and no client can read it. So neither records of an earlier mount nor bytes
// that a client writes into a file are ever taken for a record.
//
// Only the first 64 bytes of a filler have a meaning, also for its checksum. Record: LogRecord, first name, second
// name, zeros up to a multiple of 16, data, zeros up to a multiple of 16, extents, zeros up to a multiple of 64.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/config.hpp"
#include "base/limits.hpp"
#include "format/log_list.hpp"
#include "format/superblock_format.hpp"

namespace gpu4fs::format {

inline constexpr std::uint32_t log_record_granule = 64;
// Sufficient for an extended attribute of the greatest size.
inline constexpr std::uint32_t log_record_bytes_max = 68 * 1024;
inline constexpr std::uint64_t log_capacity_min = 512 * 1024;

// LogOpcode::row: some pages of a row are written although others of it are in use. The record is durable before the
// first of them changes. So a reader of the pool after a crash writes the row from the record before it reads anything
// else of the row.
//   offset         logical address of the page of slot 0 of the row
//   number         slots whose pages are written, one bit each; the checkpoint does not use them
//   second_inode   slots that the new parities of the row sum up, these included
//   data           those pages, lowest slot first, then all parities of the row
//   inode          the file that will get the pages, by a record of its own

// LogOpcode::fallocate, in `mask`.
enum LogAllocateMask : std::uint32_t {
  log_allocate_part = 1,  // more of the operation follows: the file's size and mode stay
};

// All fields little-endian; those that the operation does not use are zero.
struct LogRecord {
  std::uint64_t lsn;
  std::uint64_t checksum;  // XXH3-64 of the whole record with this field zero, seed: log_seed ^ lsn
  std::uint32_t length;    // bytes of the record, a multiple of 64
  LogOpcode opcode;
  std::uint16_t flags;        // zero
  std::uint64_t durable_lsn;  // everything before it was durable and acknowledged when the record was made
  std::uint64_t time;         // 34.30: the operation's time stamp
  std::uint64_t inode;
  std::uint64_t second_inode;
  std::uint64_t offset;
  std::uint64_t size;    // of creations: the generation of the inode
  std::uint64_t device;  // dev_t of device nodes
  std::uint64_t number;  // of the inode that was created
  std::uint32_t uid;     // of the caller
  std::uint32_t gid;
  std::uint32_t mode;
  std::uint32_t mask;
  std::uint32_t umask_bits;
  std::uint32_t data_length;
  std::uint16_t name_length;
  std::uint16_t second_name_length;
  std::uint16_t extent_count;
  std::uint16_t reserved;
  std::uint64_t epoch;  // in which the operation was done
};
static_assert(sizeof(LogRecord) == 128);
static_assert(offsetof(LogRecord, opcode) == 20);
static_assert(offsetof(LogRecord, uid) == 88);

enum LogExtentFlags : std::uint32_t {
  log_extent_in_place = 1,   // the pages were already unwritten blocks of the file
  log_extent_unwritten = 2,  // the pages have no content
};

// Pages that belong to the operation. They are never changed before a checkpoint covers the record.
struct LogExtent {
  std::uint64_t address;  // logical
  std::uint64_t digest;   // page_digest() summed over the pages, 0 if unwritten
  std::uint32_t page_count;
  std::uint32_t flags;  // LogExtentFlags
  std::uint64_t page;   // LogOpcode::fallocate: the first page, counted from the page of the record's `offset`;
                        // otherwise 0
};
static_assert(sizeof(LogExtent) == 32);

// One page's part of an extent's digest: the finaliser of MurmurHash3 over its checksum and place.
GPU4FS_FN constexpr std::uint64_t page_digest(std::uint64_t checksum, std::uint32_t index) {
  std::uint64_t h = checksum + (std::uint64_t{index} + 1) * 0x9e3779b97f4a7c15ull;
  h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdull;
  h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return h ^ (h >> 33);
}

struct LogRecordLayout {
  std::uint32_t data_offset;
  std::uint32_t extents_offset;
  std::uint32_t length;
};

// Sums stay far below 2^32, because the caller limits data_length to log_record_bytes_max.
GPU4FS_FN constexpr LogRecordLayout log_record_layout(std::uint32_t name_bytes, std::uint32_t data_length,
                                                      std::uint32_t extent_count) {
  LogRecordLayout layout{};
  layout.data_offset = (static_cast<std::uint32_t>(sizeof(LogRecord)) + name_bytes + 15) & ~15u;
  layout.extents_offset = (layout.data_offset + data_length + 15) & ~15u;
  const std::uint32_t end = layout.extents_offset + extent_count * static_cast<std::uint32_t>(sizeof(LogExtent));
  layout.length = (end + log_record_granule - 1) & ~(log_record_granule - 1);
  return layout;
}

// Without checksums of data it is unknown whether a record's pages were written, so such pools have no log.
constexpr bool has_log(const Superblock& superblock) {
  constexpr std::uint64_t wanted = feature_operation_log | feature_data_checksums;
  return (superblock.feature_incompatible & wanted) == wanted;
}

// The capacity of a pool's log in bytes, 0: too small for a log. `parts` are those of the log devices.
constexpr std::uint64_t log_capacity(const DevicePart* parts, std::uint32_t count) {
  std::uint64_t capacity = count == 0 ? 0 : ~std::uint64_t{0};
  for (std::uint32_t i = 0; i < count; ++i) capacity = parts[i].log_bytes < capacity ? parts[i].log_bytes : capacity;
  capacity &= ~std::uint64_t{page_size - 1};
  return capacity < log_capacity_min ? 0 : capacity;
}

// The same for a pool whose log devices may be incomplete.
constexpr std::uint64_t log_capacity(const Superblock& superblock, const DevicePart* parts) {
  if (superblock.log_capacity != 0) return superblock.log_capacity;
  return log_capacity(parts, superblock.tree_replica_count);
}

}  // namespace gpu4fs::format
