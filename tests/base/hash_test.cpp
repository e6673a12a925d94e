// XXH3 and page copies compared with libxxhash.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <vector>

#include "base/group_bodies.hpp"

namespace gpu4fs::test {
namespace {

constexpr u64 seeds[] = {0, 1, 0x1000, 0xdeadbeefcafef00du, ~u64{0}};

TEST(Xxh3, EveryLengthToTwoKibibytesAndMore) {
  std::vector<u8> data(2100000);
  fill_random(data.data(), data.size(), 1);
  for (const u64 seed : seeds) {
    for (u64 length = 0; length <= 2200; ++length) {
      ASSERT_EQ(xxh3_64(data.data() + length % 7, length, seed),
                XXH3_64bits_withSeed(data.data() + length % 7, length, seed))
          << "length " << length << " seed " << seed;
    }
    for (const u64 length : {4095u, 4096u, 4097u, 65536u, 65537u, 1048575u, 2097152u - 4096u, 2000001u}) {
      ASSERT_EQ(xxh3_64(data.data(), length, seed), XXH3_64bits_withSeed(data.data(), length, seed)) << length;
    }
  }
  EXPECT_EQ(xxh3_64(nullptr, 0, 5), XXH3_64bits_withSeed("", 0, 5));
}

TEST(Xxh3, SerialOnAllGroups) {
  GroupMemory<u8> data(1200);
  fill_random(data.data(), data.size(), 2);
  GroupMemory<u64> hashes(2 * 1024);
  for (u64 length = 0; length < 1024; ++length) {
    hashes[2 * length] = XXH3_64bits_withSeed(data.data(), length, 99);
    hashes[2 * length + 1] = XXH3_64bits_withSeed(data.data() + 3, length, 99);
  }
  EXPECT_TRUE(passes_on_all_groups("serial hash", SerialHashBody{data.data(), hashes.data(), 1024, 99}));
}

TEST(Xxh3, PagesOnAllGroups) {
  constexpr u64 page_count = 24;
  GroupMemory<u8> pages(page_count * page_size);
  GroupMemory<u8> scratch(page_size);
  GroupMemory<u64> page_seeds(page_count);
  GroupMemory<u64> hashes(page_count);
  fill_random(pages.data(), pages.size(), 3);
  std::memset(pages.data(), 0, page_size);
  std::memset(pages.data() + page_size, 0xff, page_size);
  for (u64 i = 0; i < page_count; ++i) {
    page_seeds[i] = i < 5 ? seeds[i] : i * 0x10000000001000u;
    hashes[i] = XXH3_64bits_withSeed(pages.data() + i * page_size, page_size, page_seeds[i]);
  }
  EXPECT_TRUE(passes_on_all_groups(
      "page hash", PageHashBody{pages.data(), page_count, page_seeds.data(), hashes.data(), scratch.data()}));
}

// Every single-bit change must change the hash in all implementations (it would not if a chunk
// were skipped).
TEST(Xxh3, EveryChunkCounts) {
  GroupMemory<u8> page(page_size);
  fill_random(page.data(), page_size, 4);
  const u64 original = xxh3_page(Lane{}, page.data(), 11);
  for (u64 at = 0; at < page_size; at += 5) {
    page[at] ^= 0x10;
    const u64 changed = xxh3_page(Lane{}, page.data(), 11);
    ASSERT_NE(changed, original) << at;
    ASSERT_EQ(changed, xxh3::hash_long(page.data(), page_size, 11)) << at;
    page[at] ^= 0x10;
  }
}

TEST(PageCopy, VerifiesAndKeepsToTheRange) {
  GroupMemory<u8> source(page_size + 32);
  GroupMemory<u8> destination(page_size + 64);
  GroupMemory<u64> hashes(16);
  fill_random(source.data(), source.size(), 5);
  for (u64 a = 0; a < 16; ++a) hashes[a] = XXH3_64bits_withSeed(source.data() + a, page_size, 1234);
  EXPECT_TRUE(
      passes_on_all_groups("verify copy", VerifyCopyBody{source.data(), hashes.data(), 1234, destination.data(), 5}));
}

// All ranges that begin or end in the first and last chunk, at three alignments, on a Lane.
TEST(PageCopy, EveryEdgeOfARange) {
  std::vector<u8> page(page_size);
  fill_random(page.data(), page_size, 6);
  const u64 hash = XXH3_64bits_withSeed(page.data(), page_size, 8);
  std::vector<u8> out(page_size + 64);
  for (u32 alignment : {0u, 1u, 8u}) {
    for (u32 from = 0; from <= 33; ++from) {
      for (u32 to : {from, from + 1, 4063u + from, 4096u}) {
        if (to < from || to > page_size) continue;
        std::fill(out.begin(), out.end(), u8{0x33});
        ASSERT_TRUE(verify_copy_page(Lane{}, out.data() + alignment, page.data(), 8, hash, {from, to}));
        for (u32 i = 0; i < out.size(); ++i) {
          const bool inside = i >= alignment && i < alignment + (to - from);
          ASSERT_EQ(out[i], inside ? page[from + i - alignment] : 0x33);
        }
      }
    }
  }
}

TEST(PageCopy, EdgesOnAnEmulatedWarp) {
  GroupMemory<u8> page(page_size);
  fill_random(page.data(), page_size, 6);
  std::vector<u8> out(page_size + 64);
  u64 wrong = 0;
  run_emulated_warp([&](EmulatedWarp g) {
    for (u32 alignment : {0u, 1u, 9u}) {
      for (u32 from : {0u, 1u, 15u, 16u, 17u, 31u}) {
        for (u32 to : {32u, 33u, 47u, 48u, 4080u, 4081u, 4095u, 4096u}) {
          on_leader(g, [&] { std::fill(out.begin(), out.end(), u8{0x33}); });
          PageRegisters<EmulatedWarp> registers = load_page(g, page.data());
          store_page_range(g, registers, out.data() + alignment, {from, to});
          g.sync();
          on_leader(g, [&] {
            for (u32 i = 0; i < out.size(); ++i) {
              const bool inside = i >= alignment && i < alignment + (to - from);
              wrong += out[i] != (inside ? page[from + i - alignment] : 0x33) ? 1 : 0;
            }
          });
        }
      }
    }
  });
  EXPECT_EQ(wrong, 0u);
}

TEST(CopyBytes, AllAlignments) {
  GroupMemory<u64> lengths(10);
  const u64 values[] = {0, 1, 15, 16, 33, 63, 64, 511, 2100, 4096};
  for (u32 i = 0; i < 10; ++i) lengths[i] = values[i];
  GroupMemory<u8> source(4096 + 64);
  GroupMemory<u8> destination(4096 + 64);
  fill_random(source.data(), source.size(), 7);
  EXPECT_TRUE(passes_on_all_groups("copy bytes",
                                   CopyBytesBody{source.data(), destination.data(), lengths.data(), 10, 4096 + 64, 3}));
}

// An emulated warp copies between heap blocks of exact size: a byte read or written outside is an ASan error.
TEST(CopyBytes, StaysInsideItsRanges) {
  for (const u32 length : {1u, 31u, 32u, 47u, 48u, 49u, 64u, 100u, 2048u, 2063u, 2064u, 2081u}) {
    for (u32 to_offset = 0; to_offset < 16; to_offset += 5) {
      std::vector<u8> source(length);
      std::vector<u8> destination(length + to_offset);
      fill_random(source.data(), length, length);
      run_emulated_warp([&](EmulatedWarp g) { copy_bytes(g, destination.data() + to_offset, source.data(), length); });
      ASSERT_EQ(std::memcmp(source.data(), destination.data() + to_offset, length), 0) << length;
    }
  }
}

}  // namespace
}  // namespace gpu4fs::test
