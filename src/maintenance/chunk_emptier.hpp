// Empties chunks of a mounted pool: they are frozen, and all that they hold is moved into others. Host only.
#pragma once

#include <functional>
#include <vector>

#include "maintenance/page_mover.hpp"
#include "maintenance/pool_host.hpp"

namespace gpu4fs::maintenance {

struct RelocationProgress {
  u64 page_total = 0;  // that are to move, as far as is known
  u64 moved_count = 0;
  u64 stayed_count = 0;  // pages that cannot be read anywhere
};
// False: it is to end.
using RelocationGoesOn = std::function<bool(const RelocationProgress&)>;

struct RelocationResult {
  // ok also if chunks are not empty because pages of them cannot be read; no_space: the other chunks have no room for
  // what these hold; cancelled; ...
  Status status = Status::ok;
  RelocationProgress progress;
  std::vector<u32> empty;  // of the chunks, those that hold nothing any more
  std::vector<u32> not_empty;
};

// The chunks stay frozen, unless they cannot all be frozen: then those that this call has frozen are not. `host` writes
// the checkpoints.
RelocationResult empty_chunks(PageMover& mover, const std::vector<u32>& chunks, const RelocationGoesOn& goes_on,
                              PoolHost& host);

}  // namespace gpu4fs::maintenance
