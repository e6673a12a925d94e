// Decides what to read ahead for an open file that the GPU reads (P-readahead of SPIN, section 4.3.2). Host only.
//
// Reads of the medium past the page cache do not start the kernel's read-ahead. Without it, short sequential reads are
// slow (section 3.1). So they are served from the page cache, and the data behind them is prefetched into it, within a
// partition of its own. This is a decision only: the caller moves the data.
//
// The states of a file and what a read does in them:
//
//   read                                         | decision                        | next state
//   advice RANDOM                                | schedule                        | no window
//   not where the last one ended                 | schedule                        | no window
//   sequential, longer than the window may be,   | medium, as one read             | no window
//     not all resident                           |                                 |
//   sequential                                   | page cache, prefetch if less    | the window doubles with each
//                                                | than half a window is ahead     | prefetch, up to the maximum
//
// The first read of a file is sequential if it begins at 0.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "route/page_run.hpp"
#include "route/read_ahead_partition.hpp"
#include "route/routes.hpp"

namespace gpu4fs::route {

// Values of posix_fadvise for a whole file. The others are about ranges, and the kernel carries them out.
enum class Advice : u8 { normal, sequential, random };

struct ReadAheadLimits {
  u64 window_bytes_min = u64{16} << 10;   // the first window; a multiple of page_size
  u64 window_bytes_max = u64{512} << 10;  // of the kernel by default; doubled by Advice::sequential, as there
  u64 request_bytes_max = u64{4} << 20;   // of one prefetch; a multiple of page_size
};

enum class ReadSource : u8 {
  schedule,    // what schedule.hpp decides
  page_cache,  // ordinary reads
  medium,      // one read past the page cache, with write-back of dirty pages first
};

struct ReadDecision {
  ReadSource source = ReadSource::schedule;
  Reason reason = Reason::absent;     // of the two other sources
  std::vector<ByteRange> prefetches;  // whole pages within the file
};

class ReadAhead {
 public:
  // `file` is its name in the partition, which outlives this.
  ReadAhead(u64 file, ReadAheadPartition& partition, const ReadAheadLimits& limits = {})
      : file_(file), partition_(partition), limits_(limits) {}

  void advise(Advice advice);

  // A read of `bytes` of a file of `file_size` bytes; `runs` is its residency. Call it once for each read, in order.
  ReadDecision decide(ByteRange bytes, std::span<const PageRun> runs, u64 file_size);

  // The residency of a prefetch at its beginning: only pages that it brings in belong to the partition. Returns the
  // pages that leave the page cache for them.
  std::vector<FilePages> begin_prefetch(std::span<const PageRun> runs);

  u64 window_bytes() const { return window_bytes_; }

 private:
  u64 window_bytes_max() const;
  void end_window();
  void prefetch(u64 end, u64 file_size, ReadDecision& decision);

  u64 file_;
  ReadAheadPartition& partition_;
  ReadAheadLimits limits_;
  Advice advice_ = Advice::normal;
  u64 last_end_ = 0;      // where the last read ended
  u64 window_bytes_ = 0;  // 0: no window
  u64 ahead_end_ = 0;     // everything from the last read to here has been prefetched
};

}  // namespace gpu4fs::route
