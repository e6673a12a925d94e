#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "format/format_text.hpp"

namespace gpu4fs::format {
namespace {

using Page = std::array<std::uint8_t, 4096>;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(FormatText, pointers) {
  EXPECT_EQ(to_text(BlockPointer::hole()), "hole");
  EXPECT_EQ(to_text(BlockPointer::data(0x800000, BlockSize::page_4k)), "data 4 KiB at 0x800000");
  EXPECT_EQ(to_text(BlockPointer::unwritten(0x800000, BlockSize::block_2m)), "unwritten 2 MiB at 0x800000");
  EXPECT_EQ(to_text(BlockPointer::indirect(0x801000)), "indirect at 0x801000");
  EXPECT_EQ(to_text(BlockPointer{0x1}), "malformed 0x1");
  EXPECT_EQ(to_text(ColumnAddress::make(3, 0x50000)), "device 3 offset 0x50000");
}

TEST(FormatText, times_and_names) {
  EXPECT_EQ(time_text(encode_time(1704164645, 6)), "2024-01-02T03:04:05.000000006Z");
  EXPECT_EQ(time_text(encode_time(0, 0)), "1970-01-01T00:00:00.000000000Z");
  EXPECT_EQ(time_text(encode_time(-1, 999999999)), "1969-12-31T23:59:59.999999999Z");
  EXPECT_EQ(time_text(0), "1901-12-13T20:45:52.000000000Z");
  EXPECT_EQ(time_text(encode_time(std::int64_t{1} << 40, 0)), "2446-05-10T22:38:55.999999999Z");
  EXPECT_EQ(escape_name("a b\\\"\n\xff"), "a b\\x5c\\x22\\x0a\\xff");
  const std::uint8_t uuid[16] = {0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef,
                                 0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10};
  EXPECT_EQ(uuid_text(uuid), "01234567-89ab-cdef-fedc-ba9876543210");
}

TEST(FormatText, inode_shows_slots_or_inline_content) {
  Inode inode{};
  inode.mode = 0100644;
  inode.slots[2] = BlockPointer::data(0x900000, BlockSize::page_4k);
  EXPECT_TRUE(contains(to_text(inode), "slot 2: data 4 KiB at 0x900000"));
  EXPECT_FALSE(contains(to_text(inode), "slot 1"));
  EXPECT_TRUE(contains(to_text(inode), "type: regular file"));
  EXPECT_FALSE(contains(to_text(inode), "("));
  inode.flags = inode_flag_inline | inode_flag_immutable;
  EXPECT_TRUE(contains(to_text(inode), "flags: 0x5 (inline, immutable)"));
  inode.size_bytes = 5;
  std::memcpy(inode.inline_data(), "hello", 5);
  EXPECT_TRUE(contains(to_text(inode), "content: \"hello\""));
  EXPECT_FALSE(contains(to_text(inode), "slot 2"));
}

TEST(FormatText, directory_leaf_and_node) {
  Page page{};
  DirectoryPageHeader header{};
  header.magic = directory_leaf_magic;
  header.version = 1;
  header.entry_count = 2;
  header.heap_begin = 4080;
  std::memcpy(page.data(), &header, sizeof(header));
  const DirectorySlot good{0x42, 4080, 3, 8, 0};
  const DirectorySlot outside{0x43, 4090, 200, 8, 0};
  std::memcpy(page.data() + 32, &good, sizeof(good));
  std::memcpy(page.data() + 48, &outside, sizeof(outside));
  const std::uint64_t inode = 77;
  std::memcpy(page.data() + 4080, &inode, 8);
  std::memcpy(page.data() + 4088, "abc", 3);
  const std::string leaf = directory_page_text(page.data());
  EXPECT_TRUE(contains(leaf, "inode 77 type 8 name \"abc\"")) << leaf;
  EXPECT_TRUE(contains(leaf, "slot 1: entry at 4090 length 200 outside the page")) << leaf;

  header.magic = directory_node_magic;
  std::memcpy(page.data(), &header, sizeof(header));
  for (std::uint32_t i = 0; i < 512; ++i) {
    const std::uint32_t child = i < 256 ? 1 : 2;
    std::memcpy(page.data() + 2048 + 4 * i, &child, 4);
  }
  const std::string node = directory_page_text(page.data());
  EXPECT_TRUE(contains(node, "slots 0 to 255: page 1\n  slots 256 to 511: page 2")) << node;
}

// Arbitrary bytes: the printers must stay inside the structure whatever its content (run under ASan too).
TEST(FormatText, random_bytes_are_harmless) {
  std::mt19937_64 random(7);
  // Heap pages of exactly 4096 bytes, so an access after them is detected.
  const auto page = std::make_unique<Page>();
  for (int round = 0; round < 200; ++round) {
    for (auto& byte : *page) byte = static_cast<std::uint8_t>(random());
    const std::uint32_t magics[] = {directory_leaf_magic, directory_node_magic, attribute_page_magic};
    std::memcpy(page->data(), &magics[round % 3], 4);
    EXPECT_FALSE(directory_page_text(page->data()).empty());
    EXPECT_FALSE(attribute_page_text(page->data()).empty());
    Superblock superblock;
    std::memcpy(&superblock, page->data(), sizeof(superblock));
    EXPECT_TRUE(contains(to_text(superblock), "(wrong)"));
    EXPECT_FALSE(to_text(superblock.inode_file).empty());
  }
}

}  // namespace
}  // namespace gpu4fs::format
