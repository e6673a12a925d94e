// What has to be done for a schedule, in order (SPIN, sections 4.3.3, 3.2 and 5.1). Host only.
#pragma once

#include <span>
#include <vector>

#include "route/page_run.hpp"
#include "route/routes.hpp"
#include "route/schedule.hpp"

namespace gpu4fs::route {

struct TransferLimits {
  // Offsets and lengths of direct I/O are multiples of it; a power of two of at most page_size.
  u64 alignment_bytes = 512;
  // Longer reads of the medium are split; a multiple of page_size. The paper's phony buffer has this size.
  u64 request_bytes_max = u64{4} << 20;
};

enum class StepKind : u8 {
  write_back,  // of the range from the page cache to the medium; it must have ended before the next step begins
  read,        // of the range by the route into the buffer
};

struct TransferStep {
  StepKind kind = StepKind::read;
  u32 request = 0;  // index of the read
  ByteRange bytes;
  Route route = Route::cached;
  Reason reason = Reason::resident;

  friend bool operator==(const TransferStep&, const TransferStep&) = default;
};

// The steps of `schedule`, which was made for `reads`, the runs of the ranges `bytes`.
//
// - The reads cover each range once, but for what lies behind the last page of its runs (the end of the file).
// - In front of a read of the medium are the write-backs of all runs in it that may be dirty: the medium would answer
//   with older bytes.
// - Neighbouring pieces from the medium are one read, split at request_bytes_max.
// - Edges that direct I/O cannot read come through the page cache.
//
// Throws RouteError if the limits are not what their comments say.
std::vector<TransferStep> transfer_steps(std::span<const ByteRange> bytes, std::span<const ReadRuns> reads,
                                         const Schedule& schedule, const TransferLimits& limits = {});

}  // namespace gpu4fs::route
