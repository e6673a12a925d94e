// File commands one at a time, on a CPU engine with a pool: their effects and their errors.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/file_fixture.hpp"
#include "fs/map/map_types.hpp"

namespace gpu4fs::test {
namespace {

constexpr u32 keep_size = 1;
constexpr u32 punch_hole = 2;
constexpr u32 zero_range = 0x10;
constexpr u32 seek_data = 3;
constexpr u32 seek_hole = 4;

class FileBasic : public ::testing::Test {
 protected:
  static FileEngineOptions options() {
    FileEngineOptions options;
    options.pool.chunk_count = 4;
    options.pool.chunk_bytes = u64{16} << 20;
    return options;
  }

  FileEngine engine_{options()};
  FileClient client_{engine_};

  u64 new_file(const std::string& name = "file", u32 mode = 0644) {
    const ring::Completion done = client_.create(name, mode);
    EXPECT_EQ(done.status, Status::ok) << status_name(done.status);
    return done.result;
  }
  void fill(u64 length, u64 seed, u64 shift = 0) { fill_random(client_.data(shift), length, seed); }
  std::string content(u64 inode, u64 offset, u64 length) {
    std::memset(client_.data(), 0xee, length);
    const ring::Completion done = client_.read(inode, offset, length);
    EXPECT_EQ(done.status, Status::ok) << status_name(done.status);
    return std::string(reinterpret_cast<char*>(client_.data()), done.result);
  }
  format::AttributeRecord attributes(u64 inode) {
    EXPECT_EQ(client_.getattr(inode).status, Status::ok);
    return client_.attributes();
  }
  void put(u64 inode, u64 offset, const std::string& text) {
    std::memcpy(client_.data(), text.data(), text.size());
    const ring::Completion done = client_.write(inode, offset, text.size());
    ASSERT_EQ(done.status, Status::ok) << status_name(done.status);
    ASSERT_EQ(done.result, text.size());
  }
  static void fill_random(u8* data, u64 length, u64 seed) {
    u64 state = seed * 0x9e3779b97f4a7c15u + 1;
    for (u64 i = 0; i < length; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      data[i] = static_cast<u8>(state >> 56);
    }
  }
};

TEST_F(FileBasic, ShortFileLivesInItsInode) {
  const u64 inode = new_file();
  put(inode, 3, "hello");
  EXPECT_EQ(attributes(inode).size_bytes, 8u);
  EXPECT_EQ(attributes(inode).blocks_512, 0u);
  EXPECT_EQ(content(inode, 0, 100), std::string("\0\0\0hello", 8));
  put(inode, 100, std::string(28, 'x'));
  EXPECT_EQ(attributes(inode).blocks_512, 0u);
  put(inode, 128, "y");
  EXPECT_EQ(attributes(inode).blocks_512, 8u);
  EXPECT_EQ(content(inode, 0, 200), std::string("\0\0\0hello", 8) + std::string(92, '\0') + std::string(28, 'x') + "y");
  EXPECT_EQ(client_.truncate(inode, 0).status, Status::ok);
  EXPECT_EQ(attributes(inode).blocks_512, 0u);
  put(inode, 0, "again");
  EXPECT_EQ(content(inode, 0, 10), "again");
  EXPECT_EQ(attributes(inode).blocks_512, 0u);
}

TEST_F(FileBasic, InlineContentSurvivesAWriteFarBehindIt) {
  const u64 inode = new_file();
  put(inode, 0, "head");
  put(inode, 1000000, "tail");
  EXPECT_EQ(attributes(inode).size_bytes, 1000004u);
  EXPECT_EQ(attributes(inode).blocks_512, 3 * 8u) << "two pages of data, one of the map";
  EXPECT_EQ(content(inode, 0, 6), std::string("head\0\0", 6));
  EXPECT_EQ(content(inode, 999998, 10), std::string("\0\0tail", 6));
}

TEST_F(FileBasic, LargeTransfersFanOutAndUseWholeBlocks) {
  const u64 inode = new_file();
  constexpr u64 length = 3 << 20;
  fill(length, 1);
  const std::string expected(reinterpret_cast<char*>(client_.data()), length);
  ASSERT_EQ(client_.write(inode, 0, length).result, length);
  EXPECT_TRUE(content(inode, 0, length) == expected);
  EXPECT_TRUE(content(inode, 12345, 2000000) == expected.substr(12345, 2000000));
  // 2 MiB as one block, 1 MiB in single pages of one map page.
  EXPECT_EQ(attributes(inode).blocks_512, (length / 4096 + 1) * 8);
}

TEST_F(FileBasic, ReadsStopAtTheEnd) {
  const u64 inode = new_file();
  put(inode, 0, std::string(5000, 'a'));
  EXPECT_EQ(content(inode, 4990, 100).size(), 10u);
  EXPECT_EQ(content(inode, 5000, 100).size(), 0u);
  EXPECT_EQ(content(inode, u64{1} << 62, 100).size(), 0u);
}

TEST_F(FileBasic, AppendsGoToTheEnd) {
  const u64 inode = new_file();
  for (int i = 0; i < 50; ++i) {
    std::memset(client_.data(), 'a' + i % 26, 333);
    ASSERT_EQ(client_.write(inode, 7, 333, 0, wire::command_flag_append).result, 333u);
  }
  const std::string all = content(inode, 0, 50 * 333 + 10);
  ASSERT_EQ(all.size(), 50u * 333);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(all.substr(i * 333, 333), std::string(333, static_cast<char>('a' + i % 26)));
}

TEST_F(FileBasic, ShrinkingAndGrowingLeavesZeros) {
  const u64 inode = new_file();
  put(inode, 0, std::string(20000, 'z'));
  for (const bool with_checkpoint : {false, true}) {
    if (with_checkpoint) {
      put(inode, 0, std::string(20000, 'z'));
      ASSERT_EQ(client_.checkpoint().status, Status::ok);
    }
    EXPECT_EQ(client_.truncate(inode, 5001).status, Status::ok);
    EXPECT_EQ(client_.attributes().size_bytes, 5001u);
    EXPECT_EQ(client_.attributes().blocks_512, 2 * 8u);
    EXPECT_EQ(client_.truncate(inode, 20000).status, Status::ok);
    EXPECT_EQ(content(inode, 0, 20000), std::string(5001, 'z') + std::string(14999, '\0'));
  }
}

TEST_F(FileBasic, LimitsAreErrors) {
  const u64 inode = new_file();
  EXPECT_EQ(client_.truncate(inode, fs::file_size_max + 1).status, Status::file_too_large);
  EXPECT_EQ(client_.write(inode, fs::file_size_max, 1).status, Status::file_too_large);
  EXPECT_EQ(client_.write(inode, fs::file_size_max - 3, 10).result, 3u);
  EXPECT_EQ(attributes(inode).size_bytes, fs::file_size_max);
  EXPECT_EQ(content(inode, fs::file_size_max - 10, 100).size(), 10u);
  EXPECT_EQ(client_.truncate(inode, 0).status, Status::ok);
  EXPECT_EQ(attributes(inode).blocks_512, 0u);
  EXPECT_EQ(client_.read(format::inode_number_root, 0, 10).status, Status::is_directory);
  EXPECT_EQ(client_.write(format::inode_number_root, 0, 10).status, Status::is_directory);
  EXPECT_EQ(client_.read(2, 0, 10).status, Status::stale);
  EXPECT_EQ(client_.read(u64{1} << 50, 0, 10).status, Status::stale);
  EXPECT_EQ(client_.read(inode, 0, u64{1} << 40).status, Status::bad_address);
}

TEST_F(FileBasic, SeekFindsDataAndHoles) {
  const u64 inode = new_file();
  put(inode, 40960, std::string(4096, 'd'));
  ASSERT_EQ(client_.truncate(inode, 1000000).status, Status::ok);
  EXPECT_EQ(client_.seek(inode, seek_data, 0).result, 40960u);
  EXPECT_EQ(client_.seek(inode, seek_data, 41000).result, 41000u);
  EXPECT_EQ(client_.seek(inode, seek_hole, 41000).result, 45056u);
  EXPECT_EQ(client_.seek(inode, seek_hole, 7).result, 7u);
  EXPECT_EQ(client_.seek(inode, seek_data, 50000).status, Status::no_such_data);
  EXPECT_EQ(client_.seek(inode, seek_hole, 1000000).status, Status::no_such_data);
  EXPECT_EQ(client_.seek(inode, 0, 0).status, Status::invalid_argument);
}

TEST_F(FileBasic, AllocatedRangesReadAsZerosAndKeepTheirPages) {
  const u64 inode = new_file();
  EXPECT_EQ(client_.fallocate(inode, 0, 1000, 50000).status, Status::ok);
  EXPECT_EQ(client_.attributes().size_bytes, 51000u);
  const u64 blocks = client_.attributes().blocks_512;
  EXPECT_EQ(blocks, (13 + 1) * 8u);
  EXPECT_EQ(content(inode, 0, 60000), std::string(51000, '\0'));
  EXPECT_EQ(client_.seek(inode, seek_data, 0).status, Status::no_such_data);
  put(inode, 10000, "text");
  EXPECT_EQ(attributes(inode).blocks_512, blocks) << "the unwritten page was used";
  EXPECT_EQ(content(inode, 9998, 8), std::string("\0\0text\0\0", 8));
  EXPECT_EQ(client_.fallocate(inode, keep_size, 0, 100000).status, Status::ok);
  EXPECT_EQ(client_.attributes().size_bytes, 51000u);
  EXPECT_EQ(client_.attributes().blocks_512, (25 + 1) * 8u);
  EXPECT_EQ(client_.fallocate(inode, 8, 0, 4096).status, Status::not_supported);
  EXPECT_EQ(client_.fallocate(inode, 0, 0, 0).status, Status::invalid_argument);
  EXPECT_EQ(client_.fallocate(inode, 0, fs::file_size_max, 4096).status, Status::file_too_large);
}

TEST_F(FileBasic, PunchedAndZeroedRangesReadAsZeros) {
  const u64 inode = new_file();
  std::string expected(30000, 'p');
  put(inode, 0, expected);
  EXPECT_EQ(client_.fallocate(inode, punch_hole | keep_size, 5000, 10000).status, Status::ok);
  expected.replace(5000, 10000, 10000, '\0');
  EXPECT_TRUE(content(inode, 0, 40000) == expected);
  EXPECT_EQ(attributes(inode).blocks_512, (8 - 1 + 1) * 8u) << "pages 2 alone is whole in the range";
  EXPECT_EQ(client_.fallocate(inode, zero_range, 20000, 20000).status, Status::ok);
  expected.resize(40000);
  expected.replace(20000, 20000, 20000, '\0');
  EXPECT_TRUE(content(inode, 0, 50000) == expected);
  EXPECT_EQ(client_.fallocate(inode, punch_hole | keep_size, 16500, 10).status, Status::ok);
  expected.replace(16500, 10, 10, '\0');
  EXPECT_TRUE(content(inode, 0, 50000) == expected);
}

TEST_F(FileBasic, CopyRangeCopiesWholeAndShiftedPages) {
  const u64 from = new_file("from");
  const u64 to = new_file("to");
  constexpr u64 length = 300000;
  fill(length, 9);
  const std::string source(reinterpret_cast<char*>(client_.data()), length);
  ASSERT_EQ(client_.write(from, 0, length).result, length);
  std::string expected(length + 100000, 't');
  put(to, 0, expected);
  const auto copy = [&](u64 from_offset, u64 to_offset, u64 count) {
    const ring::Completion done = client_.copy_range(from, from_offset, to, to_offset, count);
    ASSERT_EQ(done.status, Status::ok) << status_name(done.status);
    ASSERT_EQ(done.result, minimum(count, length - minimum(from_offset, length)));
    expected.replace(to_offset, done.result, source, from_offset, done.result);
    EXPECT_TRUE(content(to, 0, expected.size() + 10) == expected) << from_offset << ' ' << to_offset;
  };
  copy(0, 4096, 200000);
  copy(100, 4196, 100000);
  copy(100, 7, 100000);
  copy(299999, 399990, 500);
  copy(300000, 0, 10);
  EXPECT_EQ(client_.copy_range(from, 0, from, 100, 4096).status, Status::invalid_argument);
  ASSERT_EQ(client_.copy_range(from, 0, from, length, 10).result, 10u);
  EXPECT_EQ(content(from, length, 100), source.substr(0, 10));
}

TEST_F(FileBasic, CopyRangeFromAndToShortFiles) {
  const u64 from = new_file("from");
  const u64 to = new_file("to");
  put(from, 0, "short source");
  put(to, 0, "target");
  ASSERT_EQ(client_.copy_range(from, 6, to, 3, 100).result, 6u);
  EXPECT_EQ(content(to, 0, 100), "tarsource");
  ASSERT_EQ(client_.copy_range(to, 0, from, 5000, 100).result, 9u);
  EXPECT_EQ(content(from, 0, 20), std::string("short source") + std::string(8, '\0'));
  EXPECT_EQ(content(from, 5000, 20), "tarsource");
}

TEST_F(FileBasic, SetattrChangesWhatTheMaskSays) {
  const u64 inode = new_file("file", 0755);
  format::AttributeRecord record{};
  record.mode = 06711;
  EXPECT_EQ(client_.setattr(inode, format::set_mode, record).status, Status::ok);
  EXPECT_EQ(client_.attributes().mode, 0106711u);
  client_.uid = 1000;
  put(inode, 0, "x");
  EXPECT_EQ(attributes(inode).mode, 0100711u) << "set-id bits go when someone else writes";
  client_.uid = 0;
  record.mode = 06755;
  record.uid = 7;
  record.gid = 8;
  ASSERT_EQ(client_.setattr(inode, format::set_mode, record).status, Status::ok);
  ASSERT_EQ(client_.setattr(inode, format::set_uid | format::set_gid, record).status, Status::ok);
  EXPECT_EQ(client_.attributes().uid, 7u);
  EXPECT_EQ(client_.attributes().gid, 8u);
  EXPECT_EQ(client_.attributes().mode, 0100755u);
  record.access_seconds = 1;
  record.access_nanoseconds = 2;
  record.modification_seconds = 3;
  record.modification_nanoseconds = 4;
  record.size_bytes = 10000;
  const u32 mask = format::set_access_time | format::set_modification_time | format::set_size;
  ASSERT_EQ(client_.setattr(inode, mask, record).status, Status::ok);
  EXPECT_EQ(client_.attributes().access_seconds, 1);
  EXPECT_EQ(client_.attributes().modification_seconds, 3);
  EXPECT_EQ(client_.attributes().modification_nanoseconds, 4u);
  EXPECT_EQ(client_.attributes().size_bytes, 10000u);
  EXPECT_EQ(client_.setattr(format::inode_number_root, format::set_size, record).status, Status::is_directory);
  EXPECT_EQ(client_.setattr(inode, 1u << 20, record).status, Status::invalid_argument);
}

// 1901 to 2446; the bounds are in format.md.
TEST_F(FileBasic, TimesBefore1970AndFarOnesAreKeptOrClamped) {
  constexpr i64 first = -(i64{1} << 31);
  constexpr i64 last = (i64{1} << 34) - (i64{1} << 31) - 1;
  struct Case {
    i64 seconds;
    u32 nanoseconds;
    i64 expected_seconds;
    u32 expected_nanoseconds;
  };
  const Case cases[] = {{first, 0, first, 0},
                        {first, 1, first, 1},
                        {-1, 999999999, -1, 999999999},
                        {0, 0, 0, 0},
                        {last, 999999999, last, 999999999},
                        {first - 1, 999999999, first, 0},
                        {INT64_MIN, 0, first, 0},
                        {last + 1, 0, last, 999999999},
                        {INT64_MAX, 0, last, 999999999}};
  const u64 inode = new_file();
  for (const Case& c : cases) {
    format::AttributeRecord record{};
    record.access_seconds = record.modification_seconds = record.change_seconds = c.seconds;
    record.access_nanoseconds = record.modification_nanoseconds = record.change_nanoseconds = c.nanoseconds;
    const u32 mask = format::set_access_time | format::set_modification_time | format::set_change_time;
    ASSERT_EQ(client_.setattr(inode, mask, record).status, Status::ok);
    const format::AttributeRecord found = attributes(inode);
    EXPECT_EQ(found.access_seconds, c.expected_seconds);
    EXPECT_EQ(found.access_nanoseconds, c.expected_nanoseconds);
    EXPECT_EQ(found.modification_seconds, c.expected_seconds);
    EXPECT_EQ(found.modification_nanoseconds, c.expected_nanoseconds);
    EXPECT_EQ(found.change_seconds, c.expected_seconds);
    EXPECT_EQ(found.change_nanoseconds, c.expected_nanoseconds);
  }
  EXPECT_GT(attributes(inode).birth_seconds, 1'600'000'000) << "nothing sets it";
}

TEST_F(FileBasic, FullPoolIsAnAnswerAndDeletedFilesGiveItBack) {
  const u64 inode = new_file("big");
  ASSERT_EQ(client_.checkpoint().status, Status::ok);
  ASSERT_EQ(client_.statfs().status, Status::ok);
  const u64 free_before = client_.space().page_free;
  fill(1 << 20, 5);
  u64 offset = 0;
  ring::Completion done{};
  do {
    done = client_.write(inode, offset, 1 << 20);
    offset += done.result;
  } while (done.status == Status::ok);
  EXPECT_EQ(done.status, Status::no_space) << status_name(done.status);
  EXPECT_GT(offset, (free_before - 200) * 4096 - (1 << 20));
  EXPECT_EQ(attributes(inode).size_bytes, offset);
  EXPECT_EQ(content(inode, offset - 4096, 4096).size(), 4096u);
  // Shrinking works on a full pool, and so does overwriting pages that no checkpoint refers to.
  EXPECT_EQ(client_.truncate(inode, offset - 5000).status, Status::ok);
  const ring::Completion gone = client_.unlink("big");
  ASSERT_EQ(gone.status, Status::ok);
  EXPECT_EQ(gone.result, inode);
  const ring::Completion reclaimed = client_.reclaim(inode);
  EXPECT_EQ(reclaimed.status, Status::ok) << status_name(reclaimed.status);
  EXPECT_EQ(reclaimed.result, 1u);
  EXPECT_EQ(client_.reclaim(inode).result, 0u);
  EXPECT_EQ(client_.read(inode, 0, 1).status, Status::stale);
  ASSERT_EQ(client_.checkpoint().status, Status::ok);
  ASSERT_EQ(client_.checkpoint().status, Status::ok);
  ASSERT_EQ(client_.statfs().status, Status::ok);
  EXPECT_GE(client_.space().page_free + 8, free_before);
  EXPECT_EQ(engine_.fs().had_error, 0u);
}

}  // namespace
}  // namespace gpu4fs::test
