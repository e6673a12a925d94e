// Memory of removed files returns to the system, existing data stays, and the space is available when it is needed.
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "growth/growing_pool.hpp"

namespace gpu4fs::test::trim_test {
namespace {

constexpr u64 mega = u64{1} << 20;
constexpr u64 device_bytes = 96 * mega;

class Trim : public ::testing::TestWithParam<const char*> {
 protected:
  void make(const GrowthFolder& folder) {
    pool::MakePoolOptions options;
    for (u32 i = 0; i < 3; ++i) options.device_paths.push_back(folder / fmt::format("device{}", i));
    options.size_bytes = device_bytes;
    options.chunk_size_bytes = 16 * mega;
    options.data_profile = options.metadata_profile = GetParam();
    pool::make_pool(options);
    paths_ = options.device_paths;
  }

  std::vector<std::string> paths_;
};

TEST_P(Trim, GivesMemoryOfRemovedFilesBack) {
  const GrowthFolder folder;
  make(folder);
  u64 room = 0;
  {
    GrowthMount mount(paths_);
    const u64 kept = make_file(mount.files(), "kept");
    for (u64 block = 0; block < 20; ++block) ASSERT_EQ(write_block(mount.files(), kept, block, block), Status::ok);
    const u64 large = make_file(mount.files(), "large");
    room = fill_file(mount.files(), large, 0, 1000);
    ASSERT_GT(room, 100u);
    const u64 full = allocated_bytes(paths_);
    empty_file(mount, large);
    const maintenance::TrimReport report = mount.server().trimmer().trim_all();
    EXPECT_EQ(report.status, Status::ok);
    EXPECT_TRUE(report.is_complete);
    EXPECT_GE(report.byte_count, room * growth_write_bytes / 2);
    EXPECT_LT(allocated_bytes(paths_), full - report.byte_count / 2);
    EXPECT_LT(allocated_bytes(paths_), full / 2);
    EXPECT_TRUE(has_blocks(mount.files(), kept, 20, 0));
    // As much fits as before, and the same again.
    for (u32 round = 0; round < 2; ++round) {
      EXPECT_EQ(fill_file(mount.files(), large, 0, 2000 + 1000 * round), room);
      EXPECT_TRUE(has_blocks(mount.files(), large, room, 2000 + 1000 * round));
      empty_file(mount, large);
      EXPECT_EQ(mount.server().trimmer().trim_all().status, Status::ok);
      EXPECT_LT(allocated_bytes(paths_), full / 2);
    }
    EXPECT_TRUE(has_blocks(mount.files(), kept, 20, 0));
    EXPECT_TRUE(mount.stop());
  }
  EXPECT_EQ(find_problems(paths_), "");
  GrowthMount again(paths_);
  EXPECT_TRUE(has_blocks(again.files(), find_file(again.files(), "kept"), 20, 0));
  EXPECT_EQ(fill_file(again.files(), find_file(again.files(), "large"), 0, 5000), room);
}

// In chunks that the engine has not accessed yet.
TEST_P(Trim, GivesBackWhatAFormerMountLeft) {
  const GrowthFolder folder;
  make(folder);
  {
    GrowthMount mount(paths_);
    const u64 kept = make_file(mount.files(), "kept");
    ASSERT_EQ(write_block(mount.files(), kept, 0, 1), Status::ok);
    const u64 large = make_file(mount.files(), "large");
    fill_file(mount.files(), large, 0, 1000);
    empty_file(mount, large);
    EXPECT_TRUE(mount.stop());
  }
  const u64 full = allocated_bytes(paths_);
  {
    GrowthMount mount(paths_);
    const maintenance::TrimReport report = mount.server().trimmer().trim_all();
    EXPECT_EQ(report.status, Status::ok);
    EXPECT_LT(allocated_bytes(paths_), full / 2);
    // No work is left.
    EXPECT_EQ(mount.server().trimmer().trim_all().byte_count, 0u);
    EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "kept"), 1, 1));
    const u64 large = find_file(mount.files(), "large");
    const u64 room = fill_file(mount.files(), large, 0, 3000);
    EXPECT_TRUE(has_blocks(mount.files(), large, room, 3000));
    EXPECT_TRUE(mount.stop());
  }
  EXPECT_EQ(find_problems(paths_), "");
}

// In the background there is no second request: chunks without memory do not use up the limit of a step.
TEST_P(Trim, StepsGetThroughAPoolThatHoldsLittle) {
  const GrowthFolder folder;
  make(folder);
  {
    GrowthMount mount(paths_);
    const u64 small = make_file(mount.files(), "small");
    for (u64 block = 0; block < 20; ++block) ASSERT_EQ(write_block(mount.files(), small, block, block), Status::ok);
    EXPECT_TRUE(mount.stop());
  }
  GrowthMount mount(paths_);
  EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "small"), 20, 0));
  const maintenance::TrimReport report = mount.server().trimmer().trim(2);
  EXPECT_TRUE(report.is_complete || report.punch_count == 2) << report.run_count;
  EXPECT_GT(report.run_count, report.punch_count);
  EXPECT_GT(report.byte_count, 0u);
}

// An additional device has chunks of its own.
class TrimAndShrink : public Trim {};

// Frozen chunks, and chunks that are deleted and created, while some of their regions have no memory.
TEST_P(TrimAndShrink, GoTogether) {
  const GrowthFolder folder;
  make(folder);
  const std::string other = folder / "other";
  pool::DeviceFile::create(other, device_bytes);
  GrowthMount mount(paths_);
  mount.server().grower().add_device(other, false);
  mount.server().grower().add_chunks(~u64{0});
  const u64 kept = make_file(mount.files(), "kept");
  for (u64 block = 0; block < 20; ++block) ASSERT_EQ(write_block(mount.files(), kept, block, block), Status::ok);
  const u64 large = make_file(mount.files(), "large");
  fill_file(mount.files(), large, 0, 1000);
  empty_file(mount, large);
  ASSERT_EQ(mount.server().trimmer().trim_all().status, Status::ok);
  const std::vector<u32> chunks = mount.server().grower().chunks_on(3);
  ASSERT_FALSE(chunks.empty());
  mount.server().empty_chunks(chunks, [](const maintenance::RelocationProgress&) { return true; });
  ASSERT_EQ(mount.server().trimmer().trim_all().status, Status::ok);
  ASSERT_NO_THROW(mount.server().grower().erase_chunks(chunks));
  ASSERT_TRUE(mount.server().grower().chunks_on(3).empty());
  ASSERT_NO_THROW(mount.server().grower().remove_device(3));
  mount.server().grower().add_chunks(~u64{0});
  EXPECT_TRUE(has_blocks(mount.files(), kept, 20, 0));
  const u64 room = fill_file(mount.files(), large, 0, 7000);
  EXPECT_TRUE(has_blocks(mount.files(), large, room, 7000));
  EXPECT_TRUE(mount.stop());
  EXPECT_EQ(find_problems(paths_), "");
}

INSTANTIATE_TEST_SUITE_P(Profiles, Trim, ::testing::Values("single", "raid0", "raid1", "raid5"));
INSTANTIATE_TEST_SUITE_P(Profiles, TrimAndShrink, ::testing::Values("single", "raid1"));

// A store into a hole of a full tmpfs would end the process: a command that needs the space gets an error instead.
TEST(TrimOnAFullMedium, IsAnAnswer) {
  const GrowthFolder folder;
  const std::string small = folder / "small";
  std::filesystem::create_directory(small);
  if (::mount("gpu4fs-test", small.c_str(), "tmpfs", 0, "size=160m") != 0)
    GTEST_SKIP() << "a tmpfs cannot be mounted here";
  {
    pool::MakePoolOptions make;
    make.device_paths = {small + "/device"};
    make.size_bytes = 128 * mega;
    make.chunk_size_bytes = 16 * mega;
    pool::make_pool(make);
    GrowthMount mount(make.device_paths);
    const u64 kept = make_file(mount.files(), "kept");
    ASSERT_EQ(write_block(mount.files(), kept, 0, 1), Status::ok);
    const u64 large = make_file(mount.files(), "large");
    const u64 room = fill_file(mount.files(), large, 0, 1000);
    EXPECT_EQ(mount.files().simple(wire::Opcode::truncate, large, 0).status, Status::ok);
    ASSERT_EQ(mount.server().trimmer().trim_all().status, Status::ok);
    // Another user takes the returned memory.
    const std::vector<char> bytes(mega, 'x');
    {
      std::ofstream other(small + "/other", std::ios::binary);
      while (other.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush()) {
      }
    }
    const u64 left = fill_file(mount.files(), large, 0, 2000);
    EXPECT_LT(left, room / 2);
    EXPECT_TRUE(has_blocks(mount.files(), large, left, 2000));
    EXPECT_TRUE(has_blocks(mount.files(), kept, 1, 1));
    std::filesystem::remove(small + "/other");
    EXPECT_EQ(mount.files().simple(wire::Opcode::truncate, large, 0).status, Status::ok);
    EXPECT_EQ(fill_file(mount.files(), large, 0, 3000), room);
    EXPECT_TRUE(mount.stop());
    EXPECT_EQ(find_problems(make.device_paths), "");
  }
  ::umount2(small.c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace gpu4fs::test::trim_test
