// Flushes wait for the lines that were dirty when they began, and for no later ones.
//
// Every dirty line and every line that is being written is counted in one of its device's two counters, by the parity
// of the number of flushes at the time when it became dirty. The word of the line carries this parity, so the end of
// its write-back subtracts it where it was added. A line that is stored into while it is being written is counted
// twice: as being written, and as dirty.
#pragma once

#include "base/mutant.hpp"
#include "cache/cache_types.hpp"

namespace gpu4fs::cache {

// Returns the number of a flush that waits for all changes that were marked before this call, or 0: the flush before
// has not ended, or another one begins. Whoever needs a flush then waits for the next one.
GPU4FS_FN inline u64 begin_flush(const Cache& cache, u32 device) {
  return try_begin_phase(dirty_lines(cache, device));
}

// True: all bytes that flush `number` waits for are written, and what was done before is visible. Until then somebody
// writes back the device's dirty lines, repeatedly: a line may become dirty for this flush after one has passed it.
GPU4FS_FN inline bool has_flushed(const Cache& cache, u32 device, u64 number) {
  PhaseUsers& lines = dirty_lines(cache, device);
  const u64 newest = load<Order::acquire, Scope::engine>(&lines.phase_count);
  GPU4FS_CHECK_LE(number, newest);
  return number < newest || GPU4FS_MUTANT(cache_flush_not_waited_for, !older_uses_run(lines), true);
}

// The same for the lowest byte of the number of a flush. If 256 flushes have begun since, this may be false until a
// later one has ended.
GPU4FS_FN inline bool has_flushed_byte(const Cache& cache, u32 device, u8 number) {
  const u64 newest = load<Order::acquire, Scope::engine>(&dirty_lines(cache, device).phase_count);
  const u64 distance = static_cast<u8>(static_cast<u8>(newest) - number);
  return has_flushed(cache, device, newest - distance);
}

// About how many lines of the device are dirty or being written. A line in both states counts twice. 0: what was stored
// before this call is written, and what was done before is visible.
GPU4FS_FN inline u64 dirty_line_count(const Cache& cache, u32 device) {
  const PhaseUsers& lines = dirty_lines(cache, device);
  return load<Order::acquire, Scope::engine>(&lines.running[0]) +
         load<Order::acquire, Scope::engine>(&lines.running[1]);
}

}  // namespace gpu4fs::cache
