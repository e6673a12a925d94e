// The logical address space in engine memory: chunks, their columns, page descriptors and bitmaps.
//
// Every array is allocated when the pool is mounted and never moves. `descriptors` and the bitmaps are
// filled by load_chunk(); a chunk is usable once `loaded` is 1. A chunk's columns must also have their memory
// (`accessible`): blocks of a tmpfs, and registration with the GPU. The server sees to that on first use, by an
// upcall.
#pragma once

#include "base/config.hpp"
#include "base/types.hpp"
#include "device/device_types.hpp"
#include "format/chunk_format.hpp"

namespace gpu4fs::raid {

struct ColumnState {
  u32 device;          // index into LogicalSpace::devices
  u32 reserved;
  u64 header_offset;   // device byte offset of the header area
  u64 data_offset;     // device byte offset of the first data page
};

// Allocation state of one chunk, one bit a page, u64 words; owned by fs/space.
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
  u64* staged;
};

struct ChunkState {
  u64 base_address;             // logical
  u64 size_bytes;
  u64 page_count;               // data pages
  format::RaidLevel level;
  u8 redundancy;
  u16 column_count;
  u32 stripe_pages;             // 0: no stripes
  u32 copy_count;               // places of each page
  u32 flags;                    // format::ChunkFlags
  ColumnState* columns;         // column_count
  format::PageDescriptor* descriptors;  // page_count
  u64* descriptor_dirty;        // one bit a descriptor page
  ChunkBitmaps bitmaps;
  u32* region_free;             // free pages of each 2 MiB region (512 pages), two 16-bit counts a word
  u32 free_pages;               // pages not busy and not claimed; top bit: see fs/space/space_counters.hpp
  u32 changed;                  // atomic flag: `committed` changed since the last snapshot
  u32 staged_changed;           // `staged` must be written by the running checkpoint
  u32 slot_newest;              // bitmap slot (0/1) that holds the durable state
  u64 slot_epoch[2];            // epochs found in or written to the slots, 0: invalid
  u32 accessible;               // 1: the engine may touch the columns' memory
  u32 loaded;                   // 1: descriptors and bitmaps are valid
};

struct DamageTable;             // raid/damage.hpp

struct LogicalSpace {
  device::Device* devices;
  u32 device_count;
  u32 chunk_count;
  ChunkState* chunks;
  u32* granule_to_chunk;        // logical address >> granule_shift -> chunk index, or no_chunk
  u64 granule_count;
  u32 granule_shift;            // log2 of the superblock's chunk_size_bytes
  u32 data_checksums;           // feature_data_checksums
  DamageTable* damage;          // of the pages that did not match; nullptr: nobody keeps count
  u64 epoch_open;               // birth epoch of pages written now
  u32 stacked;                  // 1: a device has a stack (device/device_access.hpp)
  u32 reserved;
};
inline constexpr u32 no_chunk = 0xffffffffu;

// A run of logical pages inside one chunk.
struct Extent {
  u64 address;                  // logical, page aligned
  u32 page_count;
  u32 reserved;
};

}  // namespace gpu4fs::raid
