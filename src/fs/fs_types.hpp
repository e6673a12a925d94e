// The file system's state in engine memory. FileSystem is the root; everything it points to is allocated at mount and
// never moves.
//
// Rules of concurrency (docs/internals/architecture.md has the whole argument):
//  - A command's handler runs in steps. Within one step the frames (metadata pages) that it has found stay in place;
//    across steps only locks, allocations and reservations are kept.
//  - An inode, its map pages, its directory pages and its attribute pages are read under the inode's command lock
//    (shared), and changed under it (exclusive) and inside the commit gate. Time stamps and block slots are 8-byte
//    words that change by single stores, because a checkpoint relocates pages while readers run.
//  - The inode file and the two bitmap files have fixed heights. Their pages appear under `grow_lock`. Pages of the
//    inode file vanish only in a checkpoint while no step runs (fs/inode/give_back.hpp). So no lock is needed to walk
//    them.
#pragma once

#include "base/command_lock.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/locks.hpp"
#include "base/types.hpp"
#include "format/inode_format.hpp"
#include "format/log_format.hpp"
#include "format/superblock_format.hpp"
#include "raid/raid_types.hpp"
#include "space/space_types.hpp"

namespace gpu4fs::fs {

// A metadata page's name. Level 0 is content (directory page, bitmap page, inode page, by page index in the file).
// Level L >= 1 is the indirect block with index (page index >> 9 L), whose 512 slots are of level L - 1. Attributes are
// a second tree of the inode (PageTree). Its pages have level `attribute_level`, and its indirect blocks the levels
// after that.
inline constexpr u32 attribute_level = 15;
inline constexpr u64 page_index_end = u64{1} << 56;  // limit of the indices that fit into a key
struct PageKey {
  u64 inode;
  u64 level_and_index;  // level in the top 8 bits
  GPU4FS_FN static constexpr PageKey make(u64 inode, u32 level, u64 index) {
    return {inode, (u64{level} << 56) | index};
  }
  GPU4FS_FN constexpr u32 level() const { return static_cast<u32>(level_and_index >> 56); }
  GPU4FS_FN constexpr u64 index() const { return level_and_index & ((u64{1} << 56) - 1); }
  friend constexpr bool operator==(const PageKey&, const PageKey&) = default;
};

// Of frames on the free list. Neither half is that of any page.
inline constexpr PageKey no_page_key{~u64{0}, ~u64{0}};

inline constexpr u32 no_frame = 0xffffffffu;

enum FrameState : u32 { frame_free = 0, frame_loading = 1, frame_valid = 2 };

enum FrameBits : u32 {
  frame_referenced = 1,  // used since the eviction clock last passed
  frame_has_child = 2,   // while evicting: a page below it is resident
  frame_checked = 4,     // a directory leaf that was completely checked
  frame_emptied = 8,     // of the inode file: in PageTable::emptied_list
};

// Key, link and state in 32 bytes, see PageTable.
struct alignas(64) Frame {
  PageKey key;
  u64 address;     // logical address of the page's last place on the medium, 0: never written
  u32 next;        // hash chain or free list
  u32 state;       // FrameState, atomic
  u32 dirty;       // 1: in the dirty list, atomic
  u32 referenced;  // FrameBits, atomic
};

// The fields that a lookup needs. They never change while an engine runs.
struct PageRoot {
  Frame* frames;             // frame_count
  u8* data;                  // frame_count * 4096, 4 KiB aligned
  CommandLock* inode_locks;  // frame_count * 16: lock of inode (16 * page + i) while its inode page is in this frame
  u32* buckets;              // bucket_count frame indices (no_frame: empty), bucket_count a power of two
  u32 frame_count;
  u32 bucket_count;
};

// The root stands in front: a GPU's first-level cache is filled by 32 bytes.
struct alignas(32) PageTable : PageRoot {
  u32 bucket_lock_count;
  u32 staging_count;         // greatest number of dirty frames
  TicketLock* bucket_locks;  // bucket_lock_count (a power of two)
  u32* dirty_list;           // frame indices, frame_count entries, of which SpaceState::dirty has the count
  u32* limbo_list;           // frame_count entries: frames removed, not yet reusable
  u32* emptied_list;         // frame_count entries: pages of the inode file whose inodes were all free at some time
  u8* staging;               // staging_count * 4096: copies taken by the snapshot
  u32* staged_frames;        // staging_count frame indices
  u64* staged_addresses;     // staging_count new addresses
  TicketLock free_lock;
  u32 free_head;        // free list of frames
  u32 free_count;       // frames on it
  u32 frames_reserved;  // for commands in their commit step
  u32 staged_count;
  u32 limbo_count;
  u32 emptied_count;  // atomic
  u32 clock_hand;
};

// Claimed batches of inode numbers are counted by hash, so a batch is not claimed twice.
inline constexpr u32 claimed_batch_slots = 1024;
inline constexpr u32 returned_inode_max = 64;

enum class AccessTimeMode : u32 { relative = 0, never = 1, strict = 2, directories_never = 3 };

// The operation log in engine memory (fs/journal/operation_log.hpp). `ring` holds the bytes with LSNs in [start, tail)
// at LSN % capacity, like the medium.
struct OperationLog {
  u8* ring;              // capacity bytes
  u64* ready;            // atomic, one for each granule: the LSN of the record that begins there, once it is complete
  u64 capacity;          // 0: no log, every sync is a checkpoint
  u64 seed;              // Superblock::log_seed
  u32 device_count;      // devices 0.. that hold it
  u32 checkpoint_asked;  // atomic flag: more than half is in use, and a checkpoint was requested
  u64 start;             // first LSN that the durable checkpoint does not include
  u64 start_staged;      // the same of the checkpoint being written
  alignas(32) u64 tail;  // atomic: LSN of the next record
  u64 named_pages;       // atomic: pages named by records since the last snapshot
  u64 room;              // atomic, signed: bytes that may still be reserved
  u64 durable;           // atomic: records before it are on the medium, or in a durable checkpoint
};

// Pages of one round of a transfer that are contiguous in logical space.
struct RoundExtent {
  // The pages are unwritten ones that the file already has; the command must not free them.
  static constexpr u32 in_place_bit = 1u << 31;

  u64 address;
  u32 page_count;
  u32 first;  // number of the first page in the round, and the bit

  GPU4FS_FN constexpr u32 first_page() const { return first & ~in_place_bit; }
  GPU4FS_FN constexpr bool is_in_place() const { return (first & in_place_bit) != 0; }
  GPU4FS_FN constexpr raid::Extent pages() const { return {address, page_count, 0}; }
};

struct FileSystem : space::SpaceState {
  PageTable pages;
  format::Inode inode_file;         // inode 0, live. Its generation is the latest that was lost with a page of the file
  format::Inode inode_file_staged;  // as of the snapshot
  TicketLock grow_lock;             // creation of pages in the inode file and the bitmap files
  u64 inode_scan;                   // next batch of inode numbers to test
  u64 inode_used;
  u64 inode_pages_given_back;      // atomic: of the inode file, since the mount
  u64 directory_pages_given_back;  // atomic
  u64 inode_used_staged;
  u64 page_used_staged;
  u64 epoch_open;  // operations that commit now belong to it
  u64 name_hash_seed;
  u32 generation_skip;  // generations of inodes that this engine creates are larger by it
  AccessTimeMode access_time_mode;
  u32 stop_on_error;                         // 1: an error ends changes, see fs/errors.hpp
  u32 claimed_batches[claimed_batch_slots];  // inode numbers claimed but not committed, by hash of batch
  u64 returned_inodes[returned_inode_max];   // claims whose commands ended without using them, under grow_lock
  u32 returned_inode_count;                  // atomic
  OperationLog log;
};

// The state that a command passes through the fs functions; it is in the command's state in engine memory.
struct Operation : space::SpaceRequest {
  u64 now;                          // 34.30 time stamp of this command
  u32 row_update;                   // 1 + the counter of ParityState::updates that counts the command; 0: none
  u64 claimed_inode;                // number claimed and not committed, kept over restarts; 0: none
  u32 frames_reserved;              // of PageTable::frames_reserved
  u32 log_reserved;                 // bytes of OperationLog::room, not used by this command yet
  const format::LogRecord* replay;  // the record that this command replays, or null
};

}  // namespace gpu4fs::fs
