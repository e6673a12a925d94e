// Allocates the second tier of the page cache. Host only.
#pragma once

#include "base/check.hpp"
#include "base/host/engine_allocator.hpp"
#include "cache/cache_build.hpp"
#include "device/tier/page_tier.hpp"

namespace gpu4fs::device {

inline constexpr u32 page_tier_frames_min = cache::set_line_max;

// The answer is engine memory, for Device::tier. `frame_count`: at least page_tier_frames_min, and a multiple of it.
inline PageTier* build_page_tier(EngineAllocator& allocator, u32 frame_count) {
  PageTier tier{};
  tier.cache = cache::build_cache(allocator, frame_count);
  const u64 bytes = u64{frame_count} * sizeof(RecentPages);
  tier.recent = static_cast<RecentPages*>(allocator.allocate(bytes, cache_line));
  allocator.zero(tier.recent, bytes);
  void* const memory = allocator.allocate(sizeof(PageTier), cache_line);
  allocator.copy_in(memory, &tier, sizeof(tier));
  return static_cast<PageTier*>(memory);
}

}  // namespace gpu4fs::device
