// Empties chunks of a mounted pool: freezes them and moves all their pages into other chunks. Host only.
#pragma once

#include <functional>
#include <vector>

#include "maintenance/page_mover.hpp"
#include "maintenance/pool_host.hpp"

namespace gpu4fs::maintenance {

struct RelocationProgress {
  u64 page_total = 0;  // that have to move, as far as is known
  u64 moved_count = 0;
  u64 stayed_count = 0;  // pages that cannot be read anywhere
};
// False: the work has to end.
using RelocationGoesOn = std::function<bool(const RelocationProgress&)>;

struct RelocationResult {
  // ok also if chunks are not empty because some of their pages cannot be read; no_space: the other chunks have no room
  // for the pages of these; cancelled; ...
  Status status = Status::ok;
  RelocationProgress progress;
  std::vector<u32> empty;  // those of the chunks that hold nothing
  std::vector<u32> not_empty;
};

// The chunks stay frozen. If not all of them can be frozen, those that this call froze are unfrozen. `host` writes the
// checkpoints.
RelocationResult empty_chunks(PageMover& mover, const std::vector<u32>& chunks, const RelocationGoesOn& goes_on,
                              PoolHost& host);

}  // namespace gpu4fs::maintenance
