// Wall clock time in the engine. The monotonic clock is base/access.hpp's.
#pragma once

#include "base/access.hpp"
#include "engine/engine_types.hpp"
#include "format/inode_format.hpp"

#if !GPU4FS_DEVICE_CODE
#include <time.h>
#endif

namespace gpu4fs::engine {

// Nanoseconds since 1970. A kernel adds an offset, set at its launch, to the device's clock.
GPU4FS_FN inline u64 now_realtime_ns(const Engine& engine) {
#if GPU4FS_DEVICE_CODE
  return now_monotonic_ns() + engine.config.realtime_offset_ns;
#else
  (void)engine;
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<u64>(now.tv_sec) * 1000000000u + static_cast<u64>(now.tv_nsec);
#endif
}

// The same as a 34.30 time stamp.
GPU4FS_FN inline u64 now_stamp(const Engine& engine) {
  const u64 now_ns = now_realtime_ns(engine);
  return format::encode_time(static_cast<i64>(now_ns / 1000000000u), static_cast<u32>(now_ns % 1000000000u));
}

}  // namespace gpu4fs::engine
