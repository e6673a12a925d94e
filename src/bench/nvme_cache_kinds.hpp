// How the part `cache` of `gpu4fs bench nvme` tells acquisitions of a page apart, and in which phases it makes them.
#pragma once

#include "base/types.hpp"

namespace gpu4fs::bench {

enum class CacheKind : u32 {
  hit,         // the page was there
  loading,     // somebody else loaded it meanwhile
  cold,        // this lane loaded it into a free frame
  miss,        // this lane loaded it, and a clean page left
  write_back,  // the same, and a dirty page had to be written first
};
inline constexpr u32 cache_kind_count = 5;

// In this order, on a table that is empty at first.
enum class CachePhase : u32 {
  cold,    // each of as many pages as fill half of the frames, once: all of them are cold misses
  fill,    // each page once: behind this no frame is free
  reads,   // random pages for a while
  writes,  // the same, and half of the acquisitions write their page
  flush,   // dirty pages are written back
};
inline constexpr CachePhase cache_phases[] = {CachePhase::cold, CachePhase::fill, CachePhase::reads, CachePhase::writes,
                                              CachePhase::flush};

}  // namespace gpu4fs::bench
