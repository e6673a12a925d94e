// Generations of inodes: which one follows, and which of two is later, also across the wrap-around.
#include <gtest/gtest.h>

#include <cstdint>

#include "format/inode_format.hpp"

namespace gpu4fs::format {
namespace {

constexpr std::uint32_t last = ~std::uint32_t{0};

TEST(Generations, AreNeverZero) {
  EXPECT_EQ(generation_after(0, 0), 1u);
  EXPECT_EQ(generation_after(7, 3), 11u);
  EXPECT_EQ(generation_after(last - 1, 0), last);
  EXPECT_EQ(generation_after(last, 0), 1u);
  EXPECT_EQ(generation_after(last - 3, 10), 8u);
  for (const std::uint32_t from : {0u, 1u, last / 2, last - 1, last}) {
    for (const std::uint32_t skip : {0u, 1u, 65535u, last - 1, last}) EXPECT_NE(generation_after(from, skip), 0u);
  }
}

TEST(Generations, HaveAnOrder) {
  EXPECT_TRUE(generation_is_later(2, 1));
  EXPECT_TRUE(generation_is_later(3u << 30, 1)) << "far apart, as after many crashes";
  EXPECT_TRUE(generation_is_later(1, last)) << "behind the turn";
  EXPECT_TRUE(generation_is_later(65536, last - 65536));
  EXPECT_TRUE(generation_is_later(last, 0)) << "a number that was never used";
  const std::uint32_t all[] = {0, 1, 2, 65536, 1u << 30, 1u << 31, 3u << 30, last - 65536, last - 1, last};
  for (const std::uint32_t a : all) {
    EXPECT_FALSE(generation_is_later(a, a));
    EXPECT_FALSE(generation_is_later(0, a));
    for (const std::uint32_t b : all) {
      EXPECT_EQ(generation_is_later(a, b) || generation_is_later(b, a), a != b) << a << " " << b;
      EXPECT_FALSE(generation_is_later(a, b) && generation_is_later(b, a)) << a << " " << b;
    }
    for (const std::uint32_t skip : {0u, 1u, 65535u}) {
      EXPECT_TRUE(generation_is_later(generation_after(a, skip), a)) << a << " " << skip;
    }
  }
}

}  // namespace
}  // namespace gpu4fs::format
