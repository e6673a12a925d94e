// The default sizes of an engine.
#include "session/engine_setup.hpp"

#include <gtest/gtest.h>

namespace gpu4fs::session::test {
namespace {

constexpr u64 gib = u64{1} << 30;

TEST(CacheSize, FollowsTheMemoryWithinBounds) {
  EXPECT_EQ(default_cache_bytes(0), u64{32} << 20);
  EXPECT_EQ(default_cache_bytes(gib / 2), u64{32} << 20);
  EXPECT_EQ(default_cache_bytes(4 * gib), u64{128} << 20);
  EXPECT_EQ(default_cache_bytes(16 * gib), u64{512} << 20);
  EXPECT_EQ(default_cache_bytes(1024 * gib), u64{512} << 20);
}

}  // namespace
}  // namespace gpu4fs::session::test
