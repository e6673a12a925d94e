// Copies of many commands at once by a group.
#pragma once

#include "base/access.hpp"
#include "base/bits.hpp"
#include "base/copy.hpp"
#include "base/group.hpp"
#include "base/types.hpp"

namespace gpu4fs::nvme {

// A rank's part: both addresses are 16-byte aligned, and `bytes` is a multiple of 512, 0: nothing.
struct CopyJob {
  u8* to;
  const u8* from;
  u32 bytes;
};

// Rows of 16 bytes a rank that are on their way at once: a warp then moves a page in the time of one access.
inline constexpr u32 copy_rows_in_flight = 8;

// Collective. The jobs of all ranks are one list of rows, so small and large ones keep equally many accesses in flight.
// Does not synchronise, as copy_bytes().
template <class Group>
GPU4FS_FN void copy_jobs(Group g, const CopyJob& job) {
  if constexpr (Group::size() == 1) {
    if (job.bytes != 0) copy_bytes(g, job.to, job.from, job.bytes);
  } else {
    constexpr u32 row_bytes = Group::size() * 16;
    const u32 row_count = job.bytes / row_bytes;
    const u32 first = g.exclusive_scan(row_count);
    const u32 total = g.reduce(row_count, [](u32 a, u32 b) { return a + b; });
    for (u32 base = 0; base < total; base += copy_rows_in_flight) {
      Vector16 values[copy_rows_in_flight];
      u64 targets[copy_rows_in_flight];
      GPU4FS_UNROLL
      for (u32 i = 0; i < copy_rows_in_flight; ++i) {
        const u32 row = base + i;
        // The last rank whose rows begin at this one or before.
        const u32 owner = popcount(g.ballot(first <= row)) - 1;
        const u64 offset = u64{row - g.shuffle(first, owner)} * row_bytes + g.rank() * 16;
        const u64 from = g.shuffle(reinterpret_cast<u64>(job.from), owner) + offset;
        targets[i] = g.shuffle(reinterpret_cast<u64>(job.to), owner) + offset;
        if (row < total) values[i] = load_stream_16(reinterpret_cast<const u8*>(from));
      }
      GPU4FS_UNROLL
      for (u32 i = 0; i < copy_rows_in_flight; ++i) {
        if (base + i < total) store_stream_16(reinterpret_cast<u8*>(targets[i]), values[i]);
      }
    }
  }
}

}  // namespace gpu4fs::nvme
