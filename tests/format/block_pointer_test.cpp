#include <gtest/gtest.h>

#include <cstdint>

#include "format/block_pointer_format.hpp"

namespace gpu4fs::format {
namespace {

TEST(BlockPointer, bits_are_where_the_format_says) {
  EXPECT_EQ(BlockPointer::hole().raw, 0u);
  EXPECT_EQ(BlockPointer::data(0x12345000, BlockSize::page_4k).raw, 0x12345000u | 0b001001u);
  EXPECT_EQ(BlockPointer::data(0x200000, BlockSize::block_2m).raw, 0x200000u | 0b001010u);
  EXPECT_EQ(BlockPointer::unwritten(1ull << 40, BlockSize::block_1g).raw, (1ull << 40) | 0b101011u);
  EXPECT_EQ(BlockPointer::indirect(0x7000).raw, 0x7000u | 0b001101u);
}

TEST(BlockPointer, accessors_undo_the_factories) {
  const std::uint64_t address = 0xfedcba9876543000ull & ~((1ull << 30) - 1);
  for (const BlockSize size : {BlockSize::page_4k, BlockSize::block_2m, BlockSize::block_1g}) {
    const BlockPointer data = BlockPointer::data(address, size);
    EXPECT_TRUE(data.is_valid() && !data.is_hole() && !data.is_indirect() && !data.is_unwritten());
    EXPECT_EQ(data.address(), address);
    EXPECT_EQ(data.size(), size);
    EXPECT_TRUE(data.is_well_formed());
    EXPECT_TRUE(BlockPointer::unwritten(address, size).is_unwritten());
    EXPECT_TRUE(BlockPointer::unwritten(address, size).is_well_formed());
  }
  EXPECT_TRUE(BlockPointer::indirect(address).is_indirect());
  EXPECT_TRUE(BlockPointer::indirect(address).is_well_formed());
}

TEST(BlockPointer, malformed_words_are_refused) {
  const auto well_formed = [](std::uint64_t raw) { return BlockPointer{raw}.is_well_formed(); };
  EXPECT_TRUE(well_formed(0));
  EXPECT_FALSE(well_formed(0x12345001)) << "not valid and not zero";
  EXPECT_FALSE(well_formed(0x1000 | 0b001000)) << "inode slot";
  EXPECT_FALSE(well_formed(0x1000 | 0b011001)) << "physical";
  EXPECT_FALSE(well_formed(0x1000 | 0b1001001)) << "reserved bit";
  EXPECT_FALSE(well_formed(0x200000 | 0b001110)) << "indirect block of 2 MiB";
  EXPECT_FALSE(well_formed(0x1000 | 0b101101)) << "unwritten indirect block";
  EXPECT_FALSE(well_formed(0x1080 | 0b001001)) << "unaligned 4 KiB";
  EXPECT_FALSE(well_formed(0x1000 | 0b001010)) << "unaligned 2 MiB";
  EXPECT_FALSE(well_formed(0x200000 | 0b001011)) << "unaligned 1 GiB";
}

}  // namespace
}  // namespace gpu4fs::format
