// The state of files and chunks that a worker remembers: the next read of one finds its page with few loads.
//
// Addresses stay valid while the step gate does not close. Its era tells when it last did (engine/gate.hpp). A file
// view describes the inode correctly as long as the inode's lock has the version of the view. Every read checks this at
// the end (engine/optimistic/version.hpp). So a view that was filled during a write does no harm.
//
// A kernel keeps this state in shared memory. Only its worker uses it: all ranks read, one rank at a time writes.
#pragma once

#include "base/command_lock.hpp"
#include "engine/read_streams.hpp"
#include "format/attribute_record_format.hpp"
#include "format/chunk_format.hpp"
#include "format/inode_format.hpp"
#include "fs/fs_types.hpp"
#include "fs/names/directory_leaf.hpp"
#include "raid/device_loss.hpp"
#include "ring/ring.hpp"

namespace gpu4fs::engine {

// A regular file whose content is in pages, with the map position of the last read.
struct FileView {
  u64 number;  // 0: the view is empty
  u64 era;
  CommandLock* lock;
  u64 version;
  u64 size_bytes;
  u64 fresh_until_ns;                 // of now_monotonic_ns(): no read changes the access time before
  const format::BlockPointer* slots;  // of `level`, in the inode or in a resident map page; read again each time
  u64 first_page;                     // in the file, page of the first slot
  u32 slot_count;                     // number of slots
  u32 level;
};

// A chunk whose pages are contiguous in memory.
struct ChunkView {
  u64 era;
  u64 base_address;  // logical
  u64 size_bytes;    // 0: the view is empty
  const u8* memory;  // of its first page
  const format::PageDescriptor* descriptors;
};

// An inode whose lock has been looked at.
struct InodeView {
  u64 number;
  const format::Inode* inode;  // in its page; nullptr: not found, or a command is changing it
  CommandLock* lock;
  u64 version;  // of the lock, loaded before any part of the inode
};

// A name in a directory whose inode had a version.
struct KnownName {
  static constexpr u32 length_max = 32;
  u64 directory;
  u64 version;
  u64 hash;
  u64 inode;   // that the name leads to
  u32 type;    // S_IFMT >> 12
  u32 length;  // 0: none
  u8 bytes[length_max];

  GPU4FS_FN bool is_same(const fs::HashedName& name) const {
    if (hash != name.hash || length != name.length) return false;
    for (u32 i = 0; i < length; ++i) {
      if (bytes[i] != name.bytes[i]) return false;
    }
    return true;
  }
};

// What was found in this era: where pages and inodes are, which inodes are directories, and names. An inode that has
// changed since is found out when its version is checked at the end. Within an era, pages of the inode file stay where
// they are. Everything else stays as long as the inode of its file does not change, so it is remembered together with
// the version of that inode. It may have been read during a change: then the version is another one at the end.
// For a worker that answers one command at a time: its leader alone reads and writes this.
struct KnownPlaces {
  static constexpr u32 page_count = 16;
  static constexpr u32 inode_count = 16;
  static constexpr u32 name_set_count = 8;
  static constexpr u32 names_per_set = 2;
  struct Page {
    fs::PageKey key;
    u64 version;        // of the file's inode
    u32 frame_and_one;  // 0: none
    u32 reserved;
  };

  u64 era;
  u32 has_changed;  // 1: an inode had another version at the end
  u32 reserved;
  InodeView inodes[inode_count];     // number 0: none
  u64 directory_pages[inode_count];  // of the same inodes; 0: not known to be a directory
  Page pages[page_count];
  KnownName names[name_set_count][names_per_set];  // the later one of a set first

  // The first inodes of several pages have different places, because workers create inodes in pages of their own.
  GPU4FS_FN static constexpr u32 inode_place(u64 number) { return (number + 5 * (number / inode_count)) % inode_count; }
  GPU4FS_FN InodeView& inode(u64 number) { return inodes[inode_place(number)]; }
  GPU4FS_FN KnownName* name_set(u64 hash) { return names[hash % name_set_count]; }
  GPU4FS_FN Page& page(fs::PageKey key) { return pages[(key.inode * 5 + key.level_and_index) % page_count]; }

  // For a group.
  template <class Group>
  GPU4FS_FN void forget(Group g, u64 now_era) {
    for (u32 i = g.rank(); i < inode_count; i += Group::size()) inodes[i].number = 0;
    for (u32 i = g.rank(); i < page_count; i += Group::size()) pages[i].frame_and_one = 0;
    for (u32 i = g.rank(); i < name_set_count; i += Group::size()) {
      for (KnownName& name : names[i]) name.length = 0;
    }
    if (g.leader()) {
      era = now_era;
      has_changed = 0;
    }
    g.sync();
  }
};

inline constexpr u32 file_view_count = 8;
inline constexpr u32 unlocked_max = ring::fetch_max;  // commands that a worker answers together
inline constexpr u32 chunk_view_count = 4;

// State that never changes while an engine runs.
struct RootView {
  fs::PageRoot pages;         // frames == nullptr: not set yet
  const u64* failed_devices;  // atomic, one bit for each device; nullptr: none of them may be lost
  u32 granule_shift;
  u32 data_checksums;
  ReadStreams* read_streams;  // nullptr: nothing is loaded ahead

  GPU4FS_FN static RootView of(const fs::FileSystem& fs, ReadStreams* streams = nullptr) {
    const raid::LogicalSpace& space = fs.space;
    return {fs.pages, space.health == nullptr ? nullptr : &space.health->failed, space.granule_shift,
            space.data_checksums, streams};
  }
};

// Bytes of a file.
struct ReadRange {
  u64 inode;
  u64 offset;
  u64 length;
};

struct ReadPlan {
  const u8* page;  // on its device; nullptr: the bytes are zeros
  u64 address;     // logical
  const format::PageDescriptor* descriptor;
  u8* destination;
  u32 from;  // bytes [from, to) of the page; of a long read: from the first page's beginning on
  u32 to;
  CommandLock* lock;
  u64 version;
};

struct LongRead {
  ReadRange range;
  ReadPlan plan;
};

struct WorkerViews {
  RootView root;
  wire::RingDescriptor descriptor;  // of a quiet ring's command
  KnownPlaces known;
  FileView files[file_view_count];
  ChunkView chunks[chunk_view_count];
  LongRead long_read;                                         // that is being moved
  alignas(16) format::AttributeRecord records[unlocked_max];  // answers of the current commands
  alignas(8) u8 names[unlocked_max][name_length_max + 1];     // of the current commands; clients cannot write here

  GPU4FS_FN FileView& file(u64 number) { return files[number % file_view_count]; }
  // Indexed by granule of logical space.
  GPU4FS_FN ChunkView& chunk(u64 granule) { return chunks[granule % chunk_view_count]; }
};

}  // namespace gpu4fs::engine
