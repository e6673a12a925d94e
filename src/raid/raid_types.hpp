// The logical address space in engine memory: chunks, their columns, page descriptors and bitmaps.
//
// Every array is allocated when the pool is mounted, or with a chunk that is created later, and never moves. The counts
// of devices and chunks grow; an element is complete before it is counted. A deleted chunk leaves its place in the
// table, marked as erased, for a later one (space/growth.hpp). load_chunk() fills `descriptors` and the bitmaps; a
// chunk is usable once it is loaded. A chunk's columns must also have their memory (accessible): blocks of a tmpfs, and
// registration with the GPU. The server provides it on first use, after an upcall.
#pragma once

#include "base/atomics.hpp"
#include "base/config.hpp"
#include "base/types.hpp"
#include "device/device_types.hpp"
#include "format/chunk_format.hpp"

namespace gpu4fs::raid {

struct ColumnState {
  u32 device;  // index into LogicalSpace::devices
  u32 reserved;
  u64 header_offset;  // device byte offset of the header area
  u64 data_offset;    // device byte offset of the first data page
};

// Allocation state of one chunk, one bit a page, u64 words; owned by the layer space.
//   busy       not available to the allocator: in use, in flight, or freed but not yet reusable
//   committed  what the next checkpoint writes
//   stable     referenced by the durable checkpoint or the one being written
//   freed_now  stable pages freed since the last snapshot
//   freed_old  stable pages freed before it: reusable when that checkpoint is durable
//   staged     copy of `committed` taken by the snapshot, written by the checkpoint
struct ChunkBitmaps {
  u64* busy;
  u64* committed;
  u64* stable;
  u64* freed_now;
  u64* freed_old;
  u64* staged;  // ChunkState::descriptor_table_staged follows its pages directly, as on the medium
};

// ChunkState::presence.
inline constexpr u32 chunk_loaded = 1u << 0;      // descriptors and bitmaps are valid
inline constexpr u32 chunk_accessible = 1u << 1;  // the engine may touch the columns' memory
inline constexpr u32 chunk_erased = 1u << 2;      // the pool does not have this chunk; its place in the table is free
inline constexpr u32 chunk_usable = chunk_loaded | chunk_accessible;

// Pages of each work memory of a chunk: two copies of the longest structure of its header area that is verified as a
// whole, which is the bitmap.
GPU4FS_FN constexpr u64 work_pages(const format::ChunkLayout& layout) {
  return 2 * layout.bitmap_pages;
}

struct ChunkState {
  u64 base_address;  // logical
  u64 size_bytes;
  u64 page_count;  // data pages
  format::RaidLevel level;
  u8 redundancy;
  u16 column_count;
  u32 stripe_pages;                     // 0: no stripes
  u32 copy_count;                       // places of each page
  u32 parity_count;                     // parities of each row of pages
  u32 flags;                            // format::ChunkFlags
  u32 stripe_count;                     // of a chunk with parities: the units of allocation, otherwise 0
  ColumnState* columns;                 // column_count
  format::PageDescriptor* descriptors;  // page_count
  u64* descriptor_dirty;                // one bit a descriptor page
  u64* descriptor_table;  // of the durable slot: one word a descriptor page, whole pages (format::descriptor_entry())
  u64* descriptor_table_staged;  // of the slot that the next checkpoint writes
  u8* header_work;               // work_pages() for the worker that loads or writes the header area
  u8* scrub_work;                // as many for the worker that holds `header_scrub`
  ChunkBitmaps bitmaps;
  u32* stripe_stranded;  // by stripe: free pages that wait for the others of their stripe
  u64* rebuild_todo;     // one bit a page: devices being rebuilt may lack it (raid/rebuild/); nullptr: never
  u32* region_free;      // free pages of each 2 MiB region (512 pages), two 16-bit counts a word
  u32 free_pages;        // pages not busy and not claimed; top bit: see space/space_counters.hpp
  u32 changed;           // atomic flag: `committed` changed since the last snapshot
  u32 staged_changed;    // `staged` must be written by the running checkpoint
  u32 slot_newest;       // bitmap slot (0/1) that holds the durable state
  u64 slot_epoch[2];     // epochs found in or written to the slots, 0: invalid
  u64 slot_checksum[2];  // of their headers
  u64 epoch_created;
  u32 header_scrub;        // atomic, 1: a worker verifies the header area
  u32 presence;            // atomic: chunk_loaded, chunk_accessible, chunk_erased
  u32 page_class;          // format::Profile of the chunk, minus one
  u32 generation;          // changes when another chunk gets this place, and when the server's answer about the chunk's
                           // memory becomes invalid; changed while no step runs
  u32 stranded_pages;      // atomic: the sum of stripe_stranded
  u32 partial_row_cursor;  // atomic: the stripe where the next search for stranded pages begins
  u64* unbacked;           // one bit a region: free, and its memory was returned to the system (space/backing.hpp)
  u32 unbacked_pages;      // atomic: the number of their pages
  u32 trimming;            // atomic, 1: the server is punching its regions
  u32 trim_due;            // atomic: searches for such regions since which pages have become free, see
                           // space/backing.hpp
};

// What is known of the chunk was written before its bit was set.
GPU4FS_FN inline u32 presence_of(const ChunkState& chunk) {
  return load<Order::acquire, Scope::engine>(&chunk.presence);
}
GPU4FS_FN inline bool is_loaded(const ChunkState& chunk) {
  return (presence_of(chunk) & chunk_loaded) != 0;
}
GPU4FS_FN inline bool is_accessible(const ChunkState& chunk) {
  return (presence_of(chunk) & chunk_accessible) != 0;
}
GPU4FS_FN inline bool is_erased(const ChunkState& chunk) {
  return (presence_of(chunk) & chunk_erased) != 0;
}

struct DamageTable;   // raid/damage.hpp
struct ParityState;   // raid/parity/parity_types.hpp
struct DeviceHealth;  // raid/device_loss.hpp

struct LogicalSpace {
  device::Device* devices;  // room for device_capacity
  u32 device_count;         // atomic
  u32 chunk_count;          // atomic
  ChunkState* chunks;       // room for chunk_capacity
  u32* granule_to_chunk;    // atomic: logical address >> granule_shift -> chunk index, or no_chunk
  u64 granule_count;        // of the table; it may reach beyond the last chunk
  u32 granule_shift;        // log2 of the superblock's chunk_size_bytes
  u32 data_checksums;       // feature_data_checksums
  DamageTable* damage;      // of the pages that did not match; nullptr: damage is not recorded
  ParityState* parity;      // nullptr: no chunk has parities
  u64 epoch_open;           // birth epoch of pages written now
  u32 stacked;              // 1: a device has a stack (device/device_access.hpp)
  u32 pages_apart;          // atomic, 1: the pages of a device need not be neighbours in memory
  u32 data_class;           // for data whose inode names no profile: a format::Profile minus one
  u32 metadata_class;
  u64 data_classes;                    // one bit for each class that data may ask for
  u64 striped_classes;                 // one bit for each class of chunks with parities
  u32 page_cost[format::profile_max];  // by class: pages reserved for each one, 1 or those of the longest stripe
  u32 tree_device_count;               // devices 0.. that hold chunk tree and operation log; 0: none
  DeviceHealth* health;                // of the devices; nullptr: no device may be lost
  u32 device_capacity;
  u32 chunk_capacity;
  device::StagedDevices* staged;  // nullptr: no device is staged
  device::PageTier* tier;         // nullptr: pages have no copies in faster memory (raid/page_copies.hpp)
};
// For ChunkState::trim_due: space that was just freed waits for a second search, so space in turnover stays allocated.
inline constexpr u32 trim_due_at_once = 1;
inline constexpr u32 trim_due_later = 2;

inline constexpr u32 no_chunk = 0xffffffffu;

// The number of existing chunks.
GPU4FS_FN inline u32 chunk_count_of(const LogicalSpace& space) {
  return load<Order::acquire, Scope::engine>(&space.chunk_count);
}
GPU4FS_FN inline u32 device_count_of(const LogicalSpace& space) {
  return load<Order::acquire, Scope::engine>(&space.device_count);
}

// At least the number that includes the caller's chunk or device: the caller learned of it after it was counted.
GPU4FS_FN inline u32 known_chunk_count(const LogicalSpace& space) {
  return load<Order::relaxed, Scope::group>(&space.chunk_count);
}
GPU4FS_FN inline u32 known_device_count(const LogicalSpace& space) {
  return load<Order::relaxed, Scope::group>(&space.device_count);
}

// A run of logical pages inside one chunk.
struct Extent {
  u64 address;  // logical, page aligned
  u32 page_count;
  u32 reserved;
};

}  // namespace gpu4fs::raid
