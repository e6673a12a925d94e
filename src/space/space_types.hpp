// What the allocator of pages keeps in engine memory, and what a command carries through it.
#pragma once

#include "base/config.hpp"
#include "base/locks.hpp"
#include "base/types.hpp"
#include "format/superblock_format.hpp"
#include "raid/raid_types.hpp"

namespace gpu4fs::space {

// Space accounting in pages, one for the chunks of each profile (all atomic). `available` is what may still
// be promised: a page of a chunk that the engine can reach, free and not promised yet. A page is allocated out of a
// promise only.
struct alignas(64) SpaceCounters {
  u64 total;
  u64 free;  // not busy
  u64 available;
  u64 reserved;           // promised: to commands, and one for each dirty frame
  u64 used;               // set bits of `committed`: the page_used of the next checkpoint
  u64 freed_pending;      // busy only until the next checkpoint is durable
  u64 emergency;          // kept back from commands that only consume
  u64 unallocated_pages;  // in no chunk yet: what chunks have that the server could still make for the class
};

// Where a shard goes on in the chunks of one profile.
struct ShardPlace {
  u32 chunk;  // small allocations
  u32 region;
  u32 large_chunk;  // allocations of 2 MiB
  u32 large_region;
  // What is left of the open stripe (space/stripes.hpp), under the shard's lock.
  u64 open_address;
  u32 open_count;       // pages
  u32 open_generation;  // SpaceState::stripe_generation when it was opened
};
static_assert(sizeof(ShardPlace) == 32);

struct alignas(64) AllocationShard {
  TicketLock lock;
  u64 inode_batch;  // first inode number of the claimed batch of 16, 0: none
  u32 inode_mask;   // its inodes still free (bit i: inode_batch + i)
  u32 padding[3];
  ShardPlace places[format::profile_max];
};
static_assert(sizeof(AllocationShard) == 64 + 32 * format::profile_max);

struct PoolGrowth;  // space/growth.hpp

// Metadata pages in memory that differ from the medium. Each was promised a page, of which the next checkpoint uses up
// what it writes.
struct DirtyPages {
  u32 count;      // atomic
  u32 replacing;  // atomic: of them, whose promised page the next checkpoint gives back: it frees an old place, or the
                  // page was removed
  u32 reserved;   // promised to commands
};

// The root of the layer. It is a part of the file system's state.
struct SpaceState {
  raid::LogicalSpace space;
  SpaceCounters counters[format::profile_max];  // by class: a format::Profile less one
  DirtyPages dirty;
  AllocationShard* shards;
  u32 shard_count;
  u32 stripe_generation;            // grows at each snapshot: open stripes of older ones end
  u64 epoch_durable;                // newest epoch whose superblocks are durable
  format::Superblock* superblocks;  // one a device, as last written; templates of the next ones. Room as space.devices
  PoolGrowth* growth;               // what the next checkpoint adds to the pool; nullptr: it does not grow
  u32 has_log;                      // 1: pages that are freed may be named by records of an operation log
  u32 read_only;
  u32 had_error;          // atomic: metadata damage was seen since mount
  u32 checkpoint_failed;  // a checkpoint could not be written: no further ones

  // Of the class of data whose inode names no profile.
  GPU4FS_FN SpaceCounters& data_counters() { return counters[space.data_class]; }
  GPU4FS_FN const SpaceCounters& data_counters() const { return counters[space.data_class]; }
};

// What an operation may take of the emergency reserve. All of it: it frees space (unlink, truncate, rmdir ...). Half of
// it: it uses up stranded pages, or gives back what it takes.
enum class EmergencyUse : u32 { none, all, half };

// What a command carries through the functions of the layer. It is a part of the operation's state.
struct SpaceRequest {
  u32 shard;  // allocation shard of the worker
  EmergencyUse emergency_use;
  u32 whole_stripes;            // 1: pages are allocated in stripes that no other command gets pages of
  u32 profile;                  // format::Profile of the pages that it reserves and allocates, 0: the pool's for data
  u32 blocked_by_reservations;  // 1: with Status::no_space of this step, what other commands hold would have done
  u32 dirty_reserved;           // of DirtyPages::reserved, and as many pages for metadata
  u64 pages_reserved;           // of SpaceCounters::reserved of that profile, still unused by this command
  u64 refused_devices;          // bit a device: a chunk of it could not be mapped for this command
  u64 refused_classes;          // bit a class: no chunk could be made of it for this command
  u32 wanted_chunk;             // set with Status::chunk_not_mapped; raid::new_chunk: one more
  u32 wanted_class;             // of that chunk
};

}  // namespace gpu4fs::space
