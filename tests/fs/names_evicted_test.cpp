// Directories whose map pages are not in memory when names are inserted, as after a mount.
#include <gtest/gtest.h>

#include <string>

#include "fs/names/permissions.hpp"
#include "support/directory_driver.hpp"

namespace gpu4fs::test {
namespace {

std::string long_name(u64 number) {
  return std::string(200, 'n') + std::to_string(number);
}

TEST(DirectoryEvicted, GrowsOnWhenItsLastMapPageIsNotInMemory) {
  DirectoryDriver directory;
  const u32 type = fs::entry_type(fs::mode_regular);
  u64 count = 0;
  const auto grow_to = [&](u64 page_count) {
    while (directory.page_count() < page_count) {
      const std::string name = long_name(count);
      ASSERT_EQ(directory.insert(Lane{}, directory.hashed(name), 100 + count, type), Status::ok) << name;
      ++count;
    }
  };
  // Several map pages, so the leaf to split and the page after the end are below different ones.
  for (u64 target = 1100; target <= 1400; target += 30) {
    ASSERT_NO_FATAL_FAILURE(grow_to(target));
    ASSERT_EQ(directory.forget_pages(), Status::ok);
  }
  EXPECT_EQ(directory.entry_count(), count);
  for (u64 i = 0; i < count; ++i) {
    fs::FoundName found{};
    const std::string name = long_name(i);
    ASSERT_EQ(directory.find(Lane{}, directory.hashed(name), &found), Status::ok) << name;
    ASSERT_EQ(found.inode, 100 + i);
  }
}

}  // namespace
}  // namespace gpu4fs::test
