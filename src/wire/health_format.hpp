// Wire format of the management process's queries about a pool's health: the answers to the internal commands `health`,
// `scrub` and `list_blocks`. All in the session's data area, little-endian.
#pragma once

#include <cstdint>

#include "base/config.hpp"
#include "format/chunk_format.hpp"

namespace gpu4fs::wire {

inline constexpr std::uint64_t damage_inode_unknown = ~std::uint64_t{0};

enum class DamageKind : std::uint32_t {
  unknown = 0,
  data = 1,      // content of a regular file
  metadata = 2,  // directory, map page, attribute page, inode file, bitmap file
};

// A page whose bytes did not match its checksum.
struct DamageRecord {
  std::uint64_t address;  // logical
  std::uint64_t inode;    // owner; damage_inode_unknown: no reader of the page knew it
  std::uint32_t count;    // how often it was found
  std::uint32_t device;   // index of the device that holds it
  DamageKind kind;
  std::uint32_t reserved;
};
static_assert(sizeof(DamageRecord) == 32);

enum HealthFlags : std::uint32_t {
  health_read_only = 1u << 0,          // mounted read-only
  health_metadata_damaged = 1u << 1,   // a metadata page did not match or had invalid content
  health_checkpoint_failed = 1u << 2,  // no further checkpoint will be written
  health_changes_stopped = 1u << 3,    // commands that change something are refused, see fs/errors.hpp
};

// Pages of the chunks of one profile in the view of files, without copies and parities. Includes chunks that could
// still be created if no other profile got any.
struct ClassUsage {
  std::uint64_t page_total;
  std::uint64_t page_used;       // committed
  std::uint64_t page_free;       // for the next command, including pages that the next checkpoint releases
  std::uint64_t page_available;  // those of them that are for content of files, see space/reserve.hpp
  std::uint32_t flags;           // ClassFlags
  std::uint32_t chunk_count;
};
static_assert(sizeof(ClassUsage) == 40);
enum ClassFlags : std::uint32_t {
  class_takes_data = 1u << 0,  // of files that request it
  class_is_data = 1u << 1,     // of other files
  class_is_metadata = 1u << 2,
};

// `health`: this, then `damage_count` DamageRecords, as many as fit.
struct HealthRecord {
  std::uint64_t epoch_open;
  std::uint64_t epoch_durable;
  std::uint64_t page_total;
  std::uint64_t page_used;
  std::uint64_t inode_used;
  std::uint64_t inode_file_pages;   // of inodes, in use and free, and of their map
  std::uint64_t checkpoint_errors;  // checkpoints that failed
  std::uint32_t flags;              // HealthFlags
  std::uint32_t device_count;
  std::uint32_t damage_count;         // records that follow
  std::uint32_t damage_dropped;       // damaged pages that were found while the table was full
  std::uint64_t failed_devices;       // one bit for each device: missing, stale or given up
  std::uint64_t rebuilding_devices;   // those of them that are being filled again
  std::uint64_t mismatch_counts[64];  // by device: reads that found a damaged page
  std::uint32_t read_errors[64];      // by device: accesses that failed
  std::uint32_t write_errors[64];
  std::uint32_t flush_errors[64];           // that made it a lost device
  ClassUsage classes[format::profile_max];  // by Profile, minus one; page_total 0: the pool has none
};
static_assert(sizeof(HealthRecord) == 88 + 64 * 8 + 3 * 64 * 4 + 64 * 40);

enum ScrubMask : std::uint32_t {
  // Damaged pages of the range enter the damage table, owned by `second_inode`, of kind `mode`; others leave it. Only
  // pages of the last checkpoint count as damaged.
  scrub_mask_record = 1u << 0,
};
// The result of `scrub`: pages verified in the lower half, damaged ones in the upper.
GPU4FS_FN constexpr std::uint32_t scrub_pages_verified(std::uint64_t result) {
  return static_cast<std::uint32_t>(result);
}
GPU4FS_FN constexpr std::uint32_t scrub_pages_damaged(std::uint64_t result) {
  return static_cast<std::uint32_t>(result >> 32);
}

enum class BlockKind : std::uint32_t {
  content = 1,    // of a regular file: data; of others: metadata
  unwritten = 2,  // allocated, without content
  map_page = 3,   // indirect block
  attributes = 4,
};

// Pages that are contiguous in the file and in logical space.
struct BlockRecord {
  std::uint64_t address;    // logical
  std::uint64_t file_page;  // 4 KiB pages from the beginning of the file; for attributes the page of their tree
  std::uint32_t page_count;
  BlockKind kind;
};
static_assert(sizeof(BlockRecord) == 24);

// `list_blocks`: this, then the records.
struct BlockListHeader {
  std::uint64_t next_page;  // `offset` of the next command, 0 at first; block_list_end: this was the last one
  std::uint32_t record_count;
  std::uint32_t skipped;  // 1: a part of the map could not be read
};
static_assert(sizeof(BlockListHeader) == 16);
inline constexpr std::uint64_t block_list_end = ~std::uint64_t{0};

}  // namespace gpu4fs::wire
