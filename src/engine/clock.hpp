// Wall clock time in the engine. The monotonic clock is in base/access.hpp.
#pragma once

#include "base/access.hpp"
#include "engine/engine_types.hpp"
#include "format/inode_format.hpp"

#if !GPU4FS_DEVICE_CODE
#include <time.h>
#endif

namespace gpu4fs::engine {

// The wall clock as a 34.30 time stamp. `monotonic_ns` is now_monotonic_ns(), read just before. A kernel adds an offset
// to the device's clock. The offset was set when the engine was built.
GPU4FS_FN inline u64 stamp_at(const Engine& engine, u64 monotonic_ns) {
#if GPU4FS_DEVICE_CODE
  const u64 now_ns = monotonic_ns + engine.config.realtime_offset_ns;
  return format::encode_time(static_cast<i64>(now_ns / 1000000000u), static_cast<u32>(now_ns % 1000000000u));
#else
  (void)engine;
  (void)monotonic_ns;
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return format::encode_time(now.tv_sec, static_cast<u32>(now.tv_nsec));
#endif
}

GPU4FS_FN inline u64 now_stamp(const Engine& engine) {
  return stamp_at(engine, now_monotonic_ns());
}

}  // namespace gpu4fs::engine
