// The default sizes of an engine.
#include "session/engine_setup.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "pool/pool_error.hpp"
#include "session/page_tier_setup.hpp"

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

// The environment of this process is that of all tests.
class TierVariable {
 public:
  explicit TierVariable(const char* value) { ::setenv("GPU4FS_PAGE_TIER", value, 1); }
  ~TierVariable() { ::unsetenv("GPU4FS_PAGE_TIER"); }
};

TEST(PageCacheSizes, DependOnTheEngine) {
  ServerOptions options;
  options.page_cache_bytes = 3 * gib;
  const session::PageCacheSizes cpu = page_cache_sizes(options, EngineChoice::cpu, "as asked for");
  EXPECT_EQ(cpu.frame_bytes, 3 * gib);
  EXPECT_STREQ(cpu.frame_option, "page_cache");
  EXPECT_EQ(cpu.tier_bytes, 0u);
  options.host_cache_bytes = gib;
  const session::PageCacheSizes gpu = page_cache_sizes(options, EngineChoice::cuda, "");
  EXPECT_EQ(gpu.frame_bytes, gib);
  EXPECT_STREQ(gpu.frame_option, "host_cache");
  EXPECT_EQ(gpu.tier_bytes, 3 * gib);
  try {
    (void)page_cache_sizes(options, EngineChoice::cpu, "there is no GPU");
    ADD_FAILURE() << "host_cache= is taken";
  } catch (const pool::PoolError& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("host_cache"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("there is no GPU"), std::string::npos);
  }
}

TEST(PageCacheSizes, TestsHaveATierWithTheCpuEngine) {
  const TierVariable variable("1048576");
  ServerOptions options;
  EXPECT_EQ(page_cache_sizes(options, EngineChoice::cpu, "").tier_bytes, u64{1} << 20);
  options.purpose = ServerPurpose::check;
  EXPECT_EQ(page_cache_sizes(options, EngineChoice::cpu, "").tier_bytes, 0u);
  for (const char* wrong : {"", "1M", "-1", "99999999999999999999"}) {
    const TierVariable other(wrong);
    EXPECT_THROW((void)page_tier_bytes_of_tests(), pool::PoolError) << wrong;
  }
}

TEST(PageTierFrames, AreWholeSetsAndNeedChecksums) {
  std::string text;
  std::vector<std::string> warnings;
  EXPECT_EQ(page_tier_frames(0, true, &text, &warnings), 0u);
  EXPECT_EQ(text, "");
  EXPECT_EQ(page_tier_frames((u64{1} << 20) + 5000, true, &text, &warnings), 256u);
  EXPECT_EQ(text, "with 1024 KiB for copies of pages that are read again");
  EXPECT_TRUE(warnings.empty());
  EXPECT_EQ(page_tier_frames(4096, true, &text, &warnings), 32u);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0], "page_cache=4 KiB is too small: 128 KiB are used");
  EXPECT_EQ(page_tier_frames(u64{1} << 20, false, &text, &warnings), 0u);
  EXPECT_EQ(text, "no copies of pages, because data has no checksums");
  EXPECT_EQ(warnings.size(), 2u);
}

}  // namespace
}  // namespace gpu4fs::session::test
