// fsck --repair: makes a damaged pool consistent. Host only, one thread.
//
// The repair trusts the pool's tree. Everything that can be derived from it (allocation, bitmaps of inodes and orphans,
// counts, parents) is derived anew. Impossible parts of the tree itself are removed or corrected:
//
//   maps         malformed pointers, pointers to nowhere and unreadable indirect blocks become holes; a page with two
//                pointers stays with the first one (the least inode number), and the other gets a copy if the page
//                matches its checksum, otherwise a hole
//   inodes       those on unreadable pages or without a type are freed; impossible fields get their defaults
//   directories  names that lead to an inode in use stay; a directory with errors is rebuilt from its readable leaves.
//                A directory has one name, in the parent that it records if that name exists
//   lost+found   gets everything that is in use and has no name, and directories that the root does not reach
//   content      data pages that do not match their checksum stay as they are: reading them is an error, and the second
//                check reports it
//
// The repair is a checkpoint: all changes are written to pages that are free in the old state, and become valid with
// the superblocks, which are written last. A crash during the repair leaves the pool unchanged. Only superblocks, chunk
// tree nodes and parts of header areas that were unusable are replaced in place. This process writes the repair, and
// not the engine, which mounts no pool whose bitmaps or counts are wrong.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/types.hpp"

namespace gpu4fs::fsck {

struct RepairOptions {
  std::vector<std::string> device_paths;  // as OpenPoolOptions::device_paths
  bool dry_run = false;                   // report what would be done
  bool drop_log = false;                  // drop the operations of a log that cannot be replayed
  std::function<void(const std::string& place, const std::string& text)> on_repair;
};

struct RepairResult {
  u64 repair_count = 0;
  u64 operations_replayed = 0;  // of a waiting log
  u64 epoch = 0;                // of the repaired pool
};

// Replays a waiting log, then repairs. PoolError: as open_pool() (in use, a device missing, no superblock left); the
// log cannot be replayed; no free pages are left for the repair. Then the pool is unchanged, or has the state at the
// end of its log.
RepairResult repair_pool(const RepairOptions& options);

}  // namespace gpu4fs::fsck
