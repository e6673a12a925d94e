// fsck --repair: makes a damaged pool consistent. Host only, one thread.
//
// What a pool's tree leads to is the truth; everything that can be derived from it (allocation, bitmaps of inodes and
// orphans, counts, parents) is derived anew, and what cannot be right in the tree itself is cut out or put right:
//
//   maps         malformed pointers, pointers to nowhere and unreadable indirect blocks become holes; what two
//                pointers lead to stays with the first (the least inode number), the other gets a copy if the page
//                matches its checksum, else a hole
//   inodes       those on unreadable pages or without a type are freed; impossible fields get their default
//   directories  names stay that lead to an inode in use; a directory with anything wrong in it is built anew from its
//                readable leaves. A directory has one name, where it says its parent is if that name exists
//   lost+found   whatever is in use and has no name, and directories that the root does not reach
//   content      data pages that do not match their checksum stay as they are: reading them is an error, and the
//                second check says so
//
// The repair is a checkpoint: all that changes is written to pages that are free in the old state, and becomes the
// state with the superblocks, written last. A crash in the middle leaves the pool as it was; only superblocks, chunk
// tree nodes and parts of header areas that were unusable anyway are replaced in place. It is written by this process
// and not by the engine, which mounts no pool whose bitmaps or counts are wrong.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/types.hpp"

namespace gpu4fs::fsck {

struct RepairOptions {
  std::vector<std::string> device_paths;  // as OpenPoolOptions::device_paths
  bool dry_run = false;                   // say what would be done
  bool drop_log = false;                  // give up what waits in a log that cannot be replayed
  std::function<void(const std::string& place, const std::string& text)> on_repair;
};

struct RepairResult {
  u64 repair_count = 0;
  u64 operations_replayed = 0;  // of a log that waited
  u64 epoch = 0;                // of the repaired pool
};

// Replays a log that waits, then repairs. PoolError: as open_pool() (in use, a device missing, no superblock left);
// the log cannot be replayed; no free pages are left to repair with. The pool is as before then, or as of its log's
// end.
RepairResult repair_pool(const RepairOptions& options);

}  // namespace gpu4fs::fsck
