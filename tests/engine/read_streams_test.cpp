// Which reads count as sequential, and which pages are wanted for the next ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/read_streams.hpp"

namespace gpu4fs::engine {
namespace {

constexpr u32 window_max = 64;
constexpr u64 file = 17;
constexpr u64 no_pages = ~u64{0};

class Streams {
 public:
  AheadWish read_bytes(u64 inode, u64 begin, u64 length, bool begins = true) {
    return note_read(*streams_, {inode, begin, begin + length}, window_max, begins);
  }
  AheadWish read(u64 inode, u64 page, u64 count = 1, bool begins = true) {
    return read_bytes(inode, page * page_size, count * page_size, begins);
  }
  // All of the wish is begun, or `count` pages of it.
  AheadWish read_and_begin(u64 inode, u64 page, u64 count = 1, u64 begun = no_pages) {
    const AheadWish wish = read(inode, page, count);
    if (wish.count != 0) note_begun(*streams_, inode, wish, static_cast<u32>(std::min<u64>(begun, wish.count)));
    return wish;
  }
  void begin(u64 inode, const AheadWish& wish) { note_begun(*streams_, inode, wish, wish.count); }
  ReadStreams::Set& set_of(u64 inode) { return streams_->set_of(inode); }
  // The stream that a read of this page continues.
  u32 find(u64 inode, u64 page) const {
    return find_stream(*streams_, {inode, page * page_size, (page + 1) * page_size});
  }

 private:
  std::unique_ptr<ReadStreams> streams_ = std::make_unique<ReadStreams>();
};

TEST(ReadStreams, TheSecondReadOpensAWindow) {
  Streams streams;
  EXPECT_EQ(streams.read(file, 10).count, 0u);
  const AheadWish wish = streams.read(file, 11);
  EXPECT_EQ(wish.first, 12u);
  EXPECT_EQ(wish.count, window_least_pages);
  Streams longer;
  EXPECT_EQ(longer.read(file, 0, 8).count, 0u);
  const AheadWish of_long = longer.read(file, 8, 8);
  EXPECT_EQ(of_long.first, 16u);
  EXPECT_EQ(of_long.count, 16u) << "two reads";
}

TEST(ReadStreams, WindowsDoubleInTheMiddleUpToTheLimit) {
  Streams streams;
  std::vector<u32> windows;
  u64 begun_end = 0;
  for (u64 page = 0; page < 1000; ++page) {
    const AheadWish wish = streams.read_and_begin(file, page);
    if (wish.count != 0) {
      if (begun_end != 0) {
        EXPECT_EQ(wish.first, begun_end) << "each page is wanted once";
        EXPECT_EQ(begun_end - (page + 1), windows.back() - windows.back() / 2) << "in the middle of the last window";
      }
      windows.push_back(wish.count);
      begun_end = wish.first + wish.count;
    }
    EXPECT_LE(begun_end, page + 1 + 2 * window_max);
  }
  ASSERT_GT(windows.size(), 7u);
  EXPECT_EQ(std::vector<u32>(windows.begin(), windows.begin() + 6), (std::vector<u32>{4, 8, 16, 32, 64, 64}));
  EXPECT_EQ(*std::max_element(windows.begin(), windows.end()), window_max);
}

TEST(ReadStreams, ARandomReaderWantsNothing) {
  Streams streams;
  for (u64 i = 0; i < 2000; ++i) EXPECT_EQ(streams.read(file, i * 1237 % 3001).count, 0u) << i;
  for (u64 i = 3000; i > 0; --i) EXPECT_EQ(streams.read(file + 1, i).count, 0u) << "backwards " << i;
  for (u64 i = 0; i < 3000; i += 2) EXPECT_EQ(streams.read(file + 2, i).count, 0u) << "in strides " << i;
}

TEST(ReadStreams, RandomAccessAfterwardsWantsNothing) {
  Streams streams;
  for (u64 page = 0; page < 500; ++page) streams.read_and_begin(file, page);
  for (u64 i = 0; i < 300; ++i) EXPECT_EQ(streams.read(file, 10'000 + i * 1237 % 3001).count, 0u) << i;
}

TEST(ReadStreams, ReadersOfOneFileHaveStreamsOfTheirOwn) {
  Streams streams;
  u32 wanted = 0;
  for (u64 page = 0; page < 200; ++page) {
    for (const u64 base : {0, 10'000, 50'000}) {
      const AheadWish wish = streams.read_and_begin(file, base + page);
      if (wish.count != 0) {
        EXPECT_EQ(wish.first / 10'000, base / 10'000);
      }
      wanted += wish.count;
    }
  }
  EXPECT_GE(wanted, 3u * 200);
}

TEST(ReadStreams, ReadsThatOvertakeEachOtherStayInTheirStream) {
  Streams streams;
  for (u64 page = 0; page < 64; ++page) streams.read_and_begin(file, page);
  u64 begun_end = 0;
  for (u64 page = 64; page < 400; page += 4) {
    for (const u64 swapped : {page + 2, page + 3, page, page + 1}) {
      const AheadWish wish = streams.read_and_begin(file, swapped);
      if (wish.count == 0) continue;
      if (begun_end != 0) {
        EXPECT_EQ(wish.first, begun_end);
      }
      begun_end = wish.first + wish.count;
    }
    if (page > 128) {
      EXPECT_GE(begun_end, page + window_max / 2) << page;
    }
  }
}

TEST(ReadStreams, WhatHadNoRoomIsWantedAgain) {
  Streams streams;
  (void)streams.read(file, 0);
  AheadWish wish = streams.read_and_begin(file, 1, 1, 1);
  EXPECT_EQ(wish.first, 2u);
  EXPECT_EQ(wish.count, 4u);
  wish = streams.read_and_begin(file, 2, 1, 0);
  EXPECT_EQ(wish.first, 3u);
  EXPECT_EQ(wish.count, 3u) << "the same window";
  wish = streams.read_and_begin(file, 3);
  EXPECT_EQ(wish.first, 4u) << "nobody loads what has been read";
  // A reader whose wishes find no room never wants much.
  Streams busy;
  for (u64 page = 0; page < 1000; ++page) {
    const AheadWish none = busy.read_and_begin(file, page, 1, 0);
    if (none.count == 0) continue;
    EXPECT_EQ(none.first, page + 1);
    EXPECT_LE(none.count, window_max);
  }
}

TEST(ReadStreams, AStreamOutlivesRandomReadsBesideIt) {
  Streams streams;
  u64 page = 0;
  for (; page < 300; ++page) streams.read_and_begin(file, page);
  for (u64 i = 0; i < stream_age_max - streams_per_set; ++i) (void)streams.read(file, 100'000 + 7 * i);
  EXPECT_NE(streams.find(file, page), no_stream);
  streams.read_and_begin(file, page);
  // One that has ended makes room, also for streams with windows.
  for (u64 i = 0; i < 2 * stream_age_max; ++i) (void)streams.read(file, 200'000 + 7 * i);
  EXPECT_EQ(streams.find(file, (page + 1)), no_stream);
}

// The end of the first reading is near, but nobody has overtaken anybody.
TEST(ReadStreams, ASmallFileIsReadAgain) {
  Streams streams;
  for (u64 page = 0; page < 100; ++page) streams.read_and_begin(file, page);
  EXPECT_EQ(streams.read_and_begin(file, 0).count, 0u);
  EXPECT_EQ(streams.read_and_begin(file, 1).count, window_least_pages);
}

// Another file has taken the place of the stream.
TEST(ReadStreams, WhatWasBegunIsNotedForItsFileOnly) {
  Streams streams;
  (void)streams.read(file, 1000);
  const AheadWish wish = streams.read(file, 1001);
  ASSERT_NE(wish.count, 0u);
  u64 other = file;
  for (u32 taken = 0; taken < 40 * stream_age_max; ++other) {
    if (&streams.set_of(other) != &streams.set_of(file) || other == file) continue;
    (void)streams.read(other, 7);
    ++taken;
  }
  EXPECT_EQ(streams.find(file, 1002), no_stream);
  streams.begin(file, wish);
  for (u64 i = file; i < other; ++i) EXPECT_EQ(streams.find(i, 900), no_stream) << i;
}

TEST(ReadStreams, ReadsOfPagesInMemoryOnlyContinueStreams) {
  Streams streams;
  for (u64 page = 0; page < 20; ++page) EXPECT_EQ(streams.read(file, page, 1, false).count, 0u);
  EXPECT_EQ(streams.find(file, 20), no_stream);
  (void)streams.read(file, 20);
  EXPECT_NE(streams.find(file, 21), no_stream);
  EXPECT_EQ(streams.read(file, 21, 1, false).count, window_least_pages);
}

TEST(ReadStreams, PartsOfAPageAreNoProgress) {
  Streams streams;
  u32 wanted = 0;
  for (u64 i = 0; i < 200; ++i) {
    const AheadWish wish = streams.read_bytes(file, 0, 512);
    if (wish.count != 0) streams.begin(file, wish);
    wanted += wish.count;
  }
  EXPECT_LE(wanted, window_least_pages) << "the same bytes again and again";
  for (u64 offset = 512; offset < 100 * page_size; offset += 512) {
    const AheadWish wish = streams.read_bytes(file, offset, 512);
    if (wish.count != 0) streams.begin(file, wish);
    wanted += wish.count;
  }
  EXPECT_GE(wanted, 100u);
  EXPECT_LE(wanted, 100u + 2 * window_max);
}

}  // namespace
}  // namespace gpu4fs::engine
