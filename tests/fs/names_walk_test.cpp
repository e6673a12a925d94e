// Enumeration while names are added and removed: a name that exists all the time is returned exactly once.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/directory_driver.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

class NamesWalk : public testing::TestWithParam<u32> {};

TEST_P(NamesWalk, SeesWhatStaysExactlyOnce) {
  const u32 seed = GetParam();
  std::mt19937_64 random(seed);
  DirectoryDriver directory;
  std::set<std::string> staying;
  std::set<std::string> coming;
  for (u32 i = 0; i < 1500; ++i) {
    const std::string name = "stay " + std::to_string(i) + std::string(random() % 60, 's');
    staying.insert(name);
    ASSERT_EQ(directory.insert(Lane{}, directory.hashed(name), i + 1, 8), Status::ok);
  }
  std::map<std::string, u32> seen;
  u64 cursor = fs::cursor_first_name;
  Status status = Status::ok;
  u32 created = 0;
  while (status == Status::ok) {
    std::vector<std::string> names;
    status = directory.enumerate(&cursor, 1 + random() % 40, &names);
    for (const std::string& name : names) ++seen[name];
    // Between two calls about as many names are added as a leaf has, so leaves split everywhere.
    for (u32 i = 0; i < 60; ++i) {
      if (coming.size() > 50 && random() % 3 == 0) {
        ASSERT_EQ(directory.remove(Lane{}, directory.hashed(*coming.begin())), Status::ok);
        coming.erase(coming.begin());
        continue;
      }
      const std::string name = "come " + std::to_string(created++) + std::string(random() % 60, 'c');
      coming.insert(name);
      ASSERT_EQ(directory.insert(Lane{}, directory.hashed(name), 5, 8), Status::ok);
    }
  }
  ASSERT_EQ(status, Status::not_found);
  for (const std::string& name : staying) ASSERT_EQ(seen[name], 1u) << name;
  for (const auto& [name, count] : seen) ASSERT_EQ(count, 1u) << name;
}
INSTANTIATE_TEST_SUITE_P(Seeds, NamesWalk, testing::Range(0u, 4u));

TEST(NamesWalkCursor, RefusesWhatNoCallGave) {
  fs::DirectoryWalk walk{};
  EXPECT_EQ(fs::directory_begin(3, &walk), Status::invalid_argument);
  EXPECT_EQ(fs::directory_begin(fs::cursor_first_name - 1, &walk), Status::invalid_argument);
  EXPECT_EQ(fs::directory_begin(~u64{0}, &walk), Status::invalid_argument);
  EXPECT_EQ(fs::directory_begin(format::directory_cursor(~u64{0}, 255), &walk), Status::ok);
}

TEST(NamesWalkCursor, BehindTheLastNameIsTheEnd) {
  DirectoryDriver directory;
  ASSERT_EQ(directory.insert(Lane{}, DirectoryDriver::with_hash("last", ~u64{0}), 9, 8), Status::ok);
  ASSERT_EQ(directory.insert(Lane{}, DirectoryDriver::with_hash("first", 0), 10, 8), Status::ok);
  std::vector<std::string> names;
  u64 cursor = fs::cursor_first_name;
  ASSERT_EQ(directory.enumerate(&cursor, 2, &names), Status::ok);
  EXPECT_EQ(names, (std::vector<std::string>{"first", "last"}));
  EXPECT_EQ(cursor >> 63, 0u);
  EXPECT_EQ(directory.enumerate(&cursor, 1, &names), Status::not_found);
}

}  // namespace
}  // namespace gpu4fs::test
