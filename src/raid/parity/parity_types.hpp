// State in engine memory that all chunks with parities of a pool share.
#pragma once

#include "base/limits.hpp"
#include "base/locks.hpp"
#include "base/phase_users.hpp"
#include "base/types.hpp"

namespace gpu4fs::raid {

// Many times the number that the workers of an engine hold while devices are lost: a batch of rows each
// (row_batch.hpp).
inline constexpr u32 row_lock_count = 8192;
// More than all workers of an engine hold at once: none takes more than three, so no wait is endless.
inline constexpr u32 scratch_page_count = 1024;
inline constexpr u32 no_scratch = scratch_page_count;
// Pages that are composed for a row's record (raid/row_replacement.hpp), and one more.
inline constexpr u32 row_work_page_count = 8;

struct ParityState {
  // A lock protects a row's parities and the flags that say what they include. The row's number selects the lock.
  TicketLock row_locks[row_lock_count];
  // Updates of parities: a checkpoint waits for the older ones before it makes itself durable
  // (raid/parity/row_write.hpp).
  PhaseUsers updates;
  u64 reconstructed_count;                    // atomic: pages that were computed from others
  u64 scratch_free[scratch_page_count / 64];  // atomic words: one bit for each page
  u64 lost_devices;                           // one bit each: pages of logged operations had to be computed from others
                                              // (raid/logged_pages.hpp)
  u32 row_work_taken;                         // atomic: one command at a time, within a step
  alignas(cache_line) u8 row_work[row_work_page_count][page_size];
  alignas(cache_line) u8 scratch[scratch_page_count][page_size];
};

}  // namespace gpu4fs::raid
