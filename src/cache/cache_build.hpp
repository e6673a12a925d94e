// The table's memory. Host only. Everything is allocated before the first use.
#pragma once

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/host/engine_allocator.hpp"
#include "base/limits.hpp"
#include "cache/cache_types.hpp"
#include "cache/dirty_sets.hpp"

namespace gpu4fs::cache {

constexpr u64 dirty_set_bytes(u32 set_count) {
  return align_up(u64{dirty_word_count(set_count)} * sizeof(u64), cache_line);
}

// Bytes of the table for this number of frames, a multiple of set_size. The frames themselves are not included.
inline u64 table_bytes(u32 frame_count, u32 set_size = set_line_max) {
  GPU4FS_CHECK_GE(set_size, 1u);
  GPU4FS_CHECK_LE(set_size, set_line_max);
  GPU4FS_CHECK_GE(frame_count, set_size);
  GPU4FS_CHECK_EQ(frame_count % set_size, 0u);
  const u64 lines = align_up(u64{frame_count} * sizeof(Line), cache_line);
  const u64 sets = align_up(u64{frame_count / set_size} * sizeof(CacheSet), cache_line);
  return dirty_set_bytes(frame_count / set_size) + lines + sets + device_count_max * sizeof(DirtyCount) +
         sizeof(AheadCounts);
}

// An empty table in `memory`: table_bytes() of engine memory, zeroed, at a multiple of cache_line. `frames` are pages.
// The addresses are not dereferenced.
inline Cache place_cache(void* memory, void* frames, u32 frame_count, u32 set_size = set_line_max) {
  const u64 bytes = table_bytes(frame_count, set_size);
  GPU4FS_CHECK(is_aligned(memory, cache_line));
  GPU4FS_CHECK(is_aligned(frames, page_size));
  u8* const begin = static_cast<u8*>(memory);
  Cache cache{};
  u8* const lines = begin + dirty_set_bytes(frame_count / set_size);
  cache.dirty_sets = reinterpret_cast<u64*>(begin);
  cache.lines = reinterpret_cast<Line*>(lines);
  cache.sets = reinterpret_cast<CacheSet*>(lines + align_up(u64{frame_count} * sizeof(Line), cache_line));
  cache.ahead = reinterpret_cast<AheadCounts*>(begin + bytes - sizeof(AheadCounts));
  cache.dirty_counts = reinterpret_cast<DirtyCount*>(begin + bytes - sizeof(AheadCounts)) - device_count_max;
  cache.frames = static_cast<u8*>(frames);
  cache.set_count = frame_count / set_size;
  cache.set_size = set_size;
  cache.line_count = frame_count;
  return cache;
}

// Allocates the table, and the frames from `frame_allocator`. Frames are not zeroed: a frame is filled before anybody
// reads it.
inline Cache build_cache(EngineAllocator& allocator, EngineAllocator& frame_allocator, u32 frame_count) {
  const u64 bytes = table_bytes(frame_count);
  void* const memory = allocator.allocate(bytes, cache_line);
  void* const frames = frame_allocator.allocate(u64{frame_count} * page_size, page_size);
  allocator.zero(memory, bytes);
  return place_cache(memory, frames, frame_count);
}

inline Cache build_cache(EngineAllocator& allocator, u32 frame_count) {
  return build_cache(allocator, allocator, frame_count);
}

}  // namespace gpu4fs::cache
