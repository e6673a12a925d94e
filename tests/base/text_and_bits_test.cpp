// to_text, UUID parsing, bit arithmetic.
#include <gtest/gtest.h>

#include <bit>

#include "base/bits.hpp"
#include "base/random.hpp"
#include "base/to_text.hpp"

namespace gpu4fs {
namespace {

TEST(Text, Uuids) {
  const std::string text = "01234567-89ab-cdef-fedc-ba9876543210";
  const std::optional<Uuid> uuid = parse_uuid(text);
  ASSERT_TRUE(uuid.has_value());
  EXPECT_EQ(uuid->bytes[0], 0x01);
  EXPECT_EQ(uuid->bytes[7], 0xef);
  EXPECT_EQ(uuid->bytes[15], 0x10);
  EXPECT_EQ(to_text(*uuid), text);
  EXPECT_EQ(parse_uuid("01234567-89AB-CDEF-FEDC-BA9876543210"), uuid);
  for (const char* bad : {"", "0123456789abcdeffedcba9876543210", "01234567-89ab-cdef-fedc-ba987654321",
                          "01234567-89ab-cdef-fedc-ba98765432100", "01234567-89ab-cdef-fedc_ba9876543210",
                          "0123456g-89ab-cdef-fedc-ba9876543210", "01234567--9ab-cdef-fedc-ba9876543210"}) {
    EXPECT_EQ(parse_uuid(bad), std::nullopt) << bad;
  }
}

TEST(Text, RandomUuidsDifferAndAreVersionFour) {
  const Uuid a = random_uuid();
  const Uuid b = random_uuid();
  EXPECT_FALSE(a == b);
  EXPECT_FALSE(a.is_nil());
  EXPECT_TRUE(Uuid{}.is_nil());
  EXPECT_EQ(to_text(a)[14], '4');
  EXPECT_NE(std::string("89ab").find(to_text(a)[19]), std::string::npos);
}

TEST(Text, StatusHexAndFaults) {
  EXPECT_EQ(to_text(Status::no_space), "no_space: No space left in the pool.");
  EXPECT_EQ(hex_text(0x1f), "0x1f");
  const u8 bytes[3] = {0, 0xab, 0x10};
  EXPECT_EQ(hex_text(bytes, 3), "00ab10");
  FaultRecord record{};
  EXPECT_EQ(to_text(record), "no fault recorded");
  record.state = 1;
  record.line = 7;
  record.left = 16;
  std::snprintf(record.file, sizeof(record.file), "fs/map.hpp");
  std::snprintf(record.expression, sizeof(record.expression), "a == b");
  EXPECT_EQ(to_text(record), "fs/map.hpp:7: check failed: a == b (16 = 0x10, 0 = 0x0) in block 0, thread 0");
}

TEST(Bits, AgreesWithTheStandardLibrary) {
  u64 value = 1;
  for (u32 i = 0; i < 2000; ++i) {
    value = value * 6364136223846793005u + 1442695040888963407u;
    const u64 v = value >> (i % 64);
    EXPECT_EQ(count_leading_zeros(v), static_cast<u32>(std::countl_zero(v)));
    EXPECT_EQ(count_trailing_zeros(v), static_cast<u32>(std::countr_zero(v)));
    EXPECT_EQ(popcount(v), static_cast<u32>(std::popcount(v)));
    const u32 w = static_cast<u32>(v);
    EXPECT_EQ(count_leading_zeros(w), static_cast<u32>(std::countl_zero(w)));
    EXPECT_EQ(count_trailing_zeros(w), static_cast<u32>(std::countr_zero(w)));
    EXPECT_EQ(popcount(w), static_cast<u32>(std::popcount(w)));
    EXPECT_EQ(is_power_of_two(v), std::has_single_bit(v));
    EXPECT_EQ(rotate_left(v, i % 64), std::rotl(v, static_cast<int>(i % 64)));
    if (v != 0) {
      EXPECT_EQ(log2_floor(v), static_cast<u32>(std::bit_width(v)) - 1);
    }
  }
  EXPECT_EQ(count_leading_zeros(u64{0}), 64u);
  EXPECT_EQ(count_trailing_zeros(u64{0}), 64u);
  EXPECT_EQ(count_leading_zeros(u32{0}), 32u);
  EXPECT_EQ(count_trailing_zeros(u32{0}), 32u);
}

TEST(Bits, RoundingAndOverflow) {
  static_assert(align_up(4097, 4096) == 8192 && align_up(4096, 4096) == 4096 && align_up(0, 4096) == 0);
  static_assert(align_down(8191, 4096) == 4096 && is_aligned(8192, 4096) && !is_aligned(8193, 2));
  static_assert(divide_up(0, 7) == 0 && divide_up(7, 7) == 1 && divide_up(8, 7) == 2);
  static_assert(divide_up(~u64{0}, 2) == u64{1} << 63);
  static_assert(log2_ceil(0) == 0 && log2_ceil(1) == 0 && log2_ceil(5) == 3 && log2_ceil(8) == 3);
  static_assert(low_bits(0) == 0 && low_bits(12) == 0xfff && low_bits(64) == ~u64{0});
  static_assert(byte_swap(0x01020304u) == 0x04030201u && byte_swap(u64{1}) == u64{1} << 56);
  u64 result = 0;
  EXPECT_TRUE(add_checked(~u64{0} - 1, 1, result));
  EXPECT_FALSE(add_checked(~u64{0}, 1, result));
  EXPECT_TRUE(multiply_checked(u64{1} << 32, (u64{1} << 32) - 1, result));
  EXPECT_FALSE(multiply_checked(u64{1} << 32, u64{1} << 32, result));
  EXPECT_TRUE(multiply_checked(0, ~u64{0}, result));
}

}  // namespace
}  // namespace gpu4fs
