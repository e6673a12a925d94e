// fsck: a complete check of a pool that is not mounted. Host only, read-only.
//
// There are two readers. The one in this folder (CheckEngine::none) has one thread and shares no code with the engine
// above the format structures. It reads the devices with its own walker, so it does not repeat the engine's mistakes,
// and a damaged pool cannot make a check of the engine fail; it is the oracle of the tests. With an engine, the
// expensive parts run there in parallel (engine/handlers/check_ops.hpp): the walk over inodes and maps, the checksums
// of all pages, the directories. The engine reports which inodes, pages and directories are odd. The code here finds
// and describes the exact faults, the same in both cases, and does all work that is serial by nature.
//
// The amount of work is limited by the pool's size, whatever the devices contain: a page that is reached twice is
// reported and not followed again.
//
// Checked, in this order:
//   medium       superblocks of every device and slot, chunk tree replicas, chunk headers, bitmaps, chunk maps, the
//                operation log
//   inodes       every inode's fields, its whole map, attributes, the checksums of all its pages
//   directories  page structure, order, hashes, names, targets and their types
//   links        link counts, parents, loops, inode bitmap, orphan bitmap, bitmaps = reachable pages
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "fsck/check/finding.hpp"

namespace gpu4fs::fsck {

struct CheckProgress {
  const char* phase;
  u64 pages_done;   // reached or, for unchecked file contents, skipped
  u64 pages_total;  // in use according to the superblock
};

// The engine that walks the files and verifies pages. `none`: this process, with a reader that shares no code with the
// engine.
enum class CheckEngine { none, automatic, cpu, cuda };

struct CheckOptions {
  std::vector<std::string> device_paths;  // as OpenPoolOptions::device_paths
  CheckEngine engine = CheckEngine::none;
  unsigned worker_count = 0;  // of the engine, 0: depends on the machine
  bool check_data = true;     // off: checksums of file contents are not verified
  bool lock = true;           // off: the pool may be in use; then findings have little meaning
  std::function<void(const Finding&)> on_finding;
  std::function<void(const CheckProgress&)> on_progress;  // called every few hundred pages
};

struct CheckResult {
  Findings findings{};
  u64 epoch = 0;
  u64 pages_used = 0;  // reached
  u64 pages_total = 0;
  u64 pages_verified = 0;  // checksums computed
  u64 inodes = 0;          // in use, without the reserved ones
  u64 directories = 0;
  u64 names = 0;
  u64 orphans = 0;
  u64 log_records = 0;  // which the next mount replays
  u64 log_bytes = 0;
  u64 log_end = 0;                     // sequence number after the last of them
  std::vector<std::string> devices{};  // paths by index
  std::string engine = "none";         // the one that was used
  u64 chunks_mapped = 0;               // for which that engine got memory
  u64 regions_mapped = 0;              // those of the chunks, of 512 pages each
};

// Throws PoolError if the pool cannot be checked at all: no permission, in use, a device missing, no pool. Damage that
// prevents opening the pool is a finding, pool_unusable.
CheckResult check_pool(const CheckOptions& options);

}  // namespace gpu4fs::fsck
