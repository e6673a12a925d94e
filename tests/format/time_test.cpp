#include <gtest/gtest.h>

#include <cstdint>

#include "format/directory_format.hpp"
#include "format/inode_format.hpp"

namespace gpu4fs::format {
namespace {

constexpr std::int64_t seconds_min = -(std::int64_t{1} << 31);
constexpr std::int64_t seconds_max = (std::int64_t{1} << 34) - (std::int64_t{1} << 31) - 1;

TEST(TimeStamp, round_trip) {
  for (const std::int64_t seconds : {seconds_min, seconds_min + 1, std::int64_t{-1}, std::int64_t{0}, std::int64_t{1},
                                     std::int64_t{1} << 31, (std::int64_t{1} << 32) + 5, seconds_max}) {
    for (const std::uint32_t nanoseconds : {0u, 1u, 999999999u}) {
      const std::uint64_t encoded = encode_time(seconds, nanoseconds);
      EXPECT_EQ(time_seconds(encoded), seconds);
      EXPECT_EQ(time_nanoseconds(encoded), nanoseconds);
      EXPECT_TRUE(is_time(encoded));
    }
  }
}

TEST(TimeStamp, order_is_that_of_the_words) {
  EXPECT_LT(encode_time(10, 999999999), encode_time(11, 0));
  EXPECT_LT(encode_time(11, 0), encode_time(11, 1));
  EXPECT_LT(encode_time(-1, 999999999), encode_time(0, 0));
  EXPECT_LT(encode_time(-2, 0), encode_time(-1, 0));
}

// The bytes of a time according to format.md.
TEST(TimeStamp, words) {
  EXPECT_EQ(encode_time(seconds_min, 0), 0u);
  EXPECT_EQ(encode_time(0, 5), (std::uint64_t{1} << 61) + 5);
  EXPECT_EQ(encode_time(seconds_max, 7), (~std::uint64_t{0} << 30) + 7);
}

TEST(TimeStamp, out_of_range_is_clamped) {
  for (const std::int64_t seconds : {seconds_min - 1, std::int64_t{INT64_MIN}}) {
    EXPECT_EQ(time_seconds(encode_time(seconds, 5)), seconds_min);
    EXPECT_EQ(time_nanoseconds(encode_time(seconds, 5)), 0u);
  }
  for (const std::int64_t seconds : {seconds_max + 1, std::int64_t{INT64_MAX}}) {
    EXPECT_EQ(time_seconds(encode_time(seconds, 0)), seconds_max);
    EXPECT_EQ(time_nanoseconds(encode_time(seconds, 0)), 999999999u);
  }
}

TEST(DirectoryCursor, grows_with_the_hash_and_stays_positive) {
  EXPECT_GT(directory_cursor(0, 0), 2u) << "0 to 2 are the start and the two dot entries";
  EXPECT_LT(directory_cursor(0, 255), directory_cursor(1u << 10, 0));
  EXPECT_LT(directory_cursor(UINT64_MAX, 255), std::uint64_t{1} << 63);
}

TEST(DirectoryEntrySize, is_padded_to_eight) {
  EXPECT_EQ(directory_entry_size(1), 16u);
  EXPECT_EQ(directory_entry_size(8), 16u);
  EXPECT_EQ(directory_entry_size(9), 24u);
  EXPECT_EQ(directory_entry_size(255), 264u);
}

}  // namespace
}  // namespace gpu4fs::format
