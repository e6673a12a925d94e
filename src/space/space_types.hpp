// State of the page allocator in engine memory, and the state that a command passes through it.
#pragma once

#include "base/config.hpp"
#include "base/locks.hpp"
#include "base/types.hpp"
#include "format/superblock_format.hpp"
#include "raid/raid_types.hpp"

namespace gpu4fs::space {

// Space accounting in pages, separately for the chunks of each profile (all atomic). `available` may still be reserved:
// pages of chunks that the engine can reach, free and not reserved yet. A page is allocated only out of a reservation.
struct alignas(64) SpaceCounters {
  u64 total;
  u64 free;  // not busy
  u64 available;
  u64 reserved;           // for commands, and one for each dirty frame
  u64 used;               // set bits of `committed`: the page_used of the next checkpoint
  u64 freed_pending;      // busy only until the next checkpoint is durable
  u64 emergency;          // kept back from commands that only use up space
  u64 unallocated_pages;  // in no chunk yet: pages of chunks that the server could still create for the class
};

// The place where a shard continues in the chunks of one profile.
struct ShardPlace {
  u32 chunk;  // small allocations
  u32 region;
  u32 large_chunk;  // allocations of 2 MiB
  u32 large_region;
  // The rest of the open stripe (space/stripes.hpp), under the shard's lock.
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

// Metadata pages in memory that differ from the medium. Each has a reserved page; the next checkpoint uses up those
// that it writes.
struct DirtyPages {
  u32 count;      // atomic
  u32 replacing;  // atomic: those of them whose reserved page the next checkpoint returns, because it frees an old
                  // place or the page was removed
  u32 reserved;   // promised to commands
};

// The root of the layer. It is a part of the file system's state.
struct SpaceState {
  raid::LogicalSpace space;
  SpaceCounters counters[format::profile_max];  // by class: a format::Profile less one
  DirtyPages dirty;
  AllocationShard* shards;
  u32 shard_count;
  u32 stripe_generation;            // increases at each snapshot: open stripes of older ones end
  u64 epoch_durable;                // newest epoch whose superblocks are durable
  format::Superblock* superblocks;  // one for each device, as last written; templates of the next ones. Room as
                                    // space.devices
  PoolGrowth* growth;               // the additions of the next checkpoint to the pool; nullptr: it does not grow
  u32 has_log;                      // 1: records of an operation log may name freed pages
  u32 read_only;
  u32 had_error;          // atomic: damage to metadata was seen since the mount
  u32 checkpoint_failed;  // a checkpoint could not be written: there are no further ones

  // Of the class for data whose inode names no profile.
  GPU4FS_FN SpaceCounters& data_counters() { return counters[space.data_class]; }
  GPU4FS_FN const SpaceCounters& data_counters() const { return counters[space.data_class]; }
};

// How much of the emergency reserve an operation may take. All: it frees space (unlink, truncate, rmdir ...). Half: it
// uses up stranded pages, or returns what it takes.
enum class EmergencyUse : u32 { none, all, half };

// The state that a command passes through the functions of the layer. It is a part of the operation's state.
struct SpaceRequest {
  u32 shard;  // allocation shard of the worker
  EmergencyUse emergency_use;
  u32 whole_stripes;            // 1: pages are allocated in stripes of which no other command gets pages
  u32 profile;                  // format::Profile of the pages that it reserves and allocates, 0: the pool's for data
  u32 blocked_by_reservations;  // 1: with Status::no_space of this step, the reservations of other commands would have
                                // sufficed
  u32 dirty_reserved;           // of DirtyPages::reserved, and the same number of pages for metadata
  u64 pages_reserved;           // of SpaceCounters::reserved of that profile, not used by this command yet
  u64 refused_devices;          // one bit for each device: a chunk of it could not be mapped for this command
  u64 refused_classes;          // one bit for each class: no chunk of it could be created for this command
  u32 wanted_chunk = raid::no_chunk;  // with Status::chunk_not_mapped
  u32 wanted_class;                   // with Status::needs_new_chunk
};

// Says which chunk the command waits for if `status`, which is returned, is chunk_not_mapped.
GPU4FS_FN inline Status want_chunk(SpaceRequest& request, u32 chunk, Status status) {
  if (status == Status::chunk_not_mapped) request.wanted_chunk = chunk;
  return status;
}

GPU4FS_FN inline Status want_new_chunk(SpaceRequest& request, u32 page_class) {
  request.wanted_class = page_class;
  return Status::needs_new_chunk;
}

}  // namespace gpu4fs::space
