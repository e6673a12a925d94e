// Free space of files on disk and of block devices that are accessed directly is given back, and existing data stays.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <future>
#include <memory>
#include <thread>

#include "growth/growing_pool.hpp"
#include "session/engine_setup.hpp"
#include "support/loop_device.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::discard_test {
namespace {

using session::DiscardScope;

constexpr u64 mega = u64{1} << 20;
constexpr u64 device_bytes = 64 * mega;
constexpr u32 device_count = 3;

std::string disk_folder() {
  const char* const named = std::getenv("GPU4FS_TEST_DISK");
  return named == nullptr ? "/var/tmp" : named;
}

struct DiscardShape {
  const char* profile;
  bool has_disks;  // loop devices, otherwise files
  friend std::ostream& operator<<(std::ostream& out, const DiscardShape& shape) {
    return out << shape.profile << (shape.has_disks ? " disks" : " files");
  }
};

class Discard : public ::testing::TestWithParam<DiscardShape> {
 protected:
  void SetUp() override {
    const char* const access = std::getenv("GPU4FS_DEVICE_ACCESS");
    if (access != nullptr && std::string(access) != "direct") GTEST_SKIP() << "devices are not accessed directly";
    pool::MakePoolOptions options;
    for (u32 i = 0; i < device_count; ++i) {
      if (!GetParam().has_disks) {
        paths_.push_back(folder_ / fmt::format("device{}", i));
        continue;
      }
      disks_.push_back(std::make_unique<LoopDevice>(device_bytes));
      GPU4FS_REQUIRE_LOOP(*disks_.back());
      paths_.push_back(disks_.back()->path());
    }
    options.device_paths = paths_;
    options.size_bytes = GetParam().has_disks ? 0 : device_bytes;
    options.chunk_size_bytes = 16 * mega;
    options.data_profile = options.metadata_profile = GetParam().profile;
    pool::make_pool(options);
    if (!can_discard()) GTEST_SKIP() << "the devices here cannot discard";
  }
  bool can_discard() {
    GrowthMount mount(paths_, DiscardScope::all);
    return mount.server().trimmer().obstacles().empty();
  }
  u64 all_allocated_bytes() const {
    u64 sum = allocated_bytes(paths_);
    for (const auto& disk : disks_) sum += disk->allocated_bytes();
    return sum;
  }

  static Status checkpoint(GrowthMount& mount) {
    wire::Command command{};
    command.opcode = wire::Opcode::checkpoint;
    command.deadline_ms = session::patient_deadline_ms;
    return mount.server().open_internal_session(page_size)->call(command).status;
  }

  GrowthFolder folder_{disk_folder()};
  std::vector<std::unique_ptr<LoopDevice>> disks_;
  std::vector<std::string> paths_;
};

TEST_P(Discard, TrimGivesSpaceOfRemovedFilesBack) {
  u64 room = 0;
  {
    GrowthMount mount(paths_);
    const u64 kept = make_file(mount.files(), "kept");
    for (u64 block = 0; block < 20; ++block) ASSERT_EQ(write_block(mount.files(), kept, block, block), Status::ok);
    const u64 large = make_file(mount.files(), "large");
    room = fill_file(mount.files(), large, 0, 1000);
    ASSERT_GT(room, 100u);
    ASSERT_EQ(mount.server().trimmer().trim_all().status, Status::ok);
    const u64 full = all_allocated_bytes();
    EXPECT_GT(full, room * growth_write_bytes);
    // As much fits as before, and the same again.
    for (u32 round = 0; round < 2; ++round) {
      empty_file(mount, large);
      const maintenance::TrimReport report = mount.server().trimmer().trim_all();
      EXPECT_EQ(report.status, Status::ok);
      EXPECT_TRUE(report.is_complete);
      EXPECT_EQ(report.failed_count, 0u);
      EXPECT_GE(report.byte_count, room * growth_write_bytes / 2);
      EXPECT_LT(all_allocated_bytes(), full / 2);
      EXPECT_EQ(mount.server().trimmer().trim_all().byte_count, 0u) << "nothing is left to do";
      EXPECT_EQ(fill_file(mount.files(), large, 0, 2000 + 1000 * round), room);
      EXPECT_TRUE(has_blocks(mount.files(), large, room, 2000 + 1000 * round));
    }
    EXPECT_TRUE(has_blocks(mount.files(), kept, 20, 0));
    EXPECT_TRUE(mount.stop());
  }
  EXPECT_EQ(find_problems(paths_), "");
  GrowthMount again(paths_);
  EXPECT_TRUE(has_blocks(again.files(), find_file(again.files(), "kept"), 20, 0));
  EXPECT_TRUE(has_blocks(again.files(), find_file(again.files(), "large"), room, 3000));
}

// In the background, and at the next mount, only if the mount has the option.
TEST_P(Discard, OnlyTheOptionKeepsTheDevicesSmall) {
  const auto fill_and_empty = [&](DiscardScope scope) {
    GrowthMount mount(paths_, scope);
    const u64 large = make_file(mount.files(), scope == DiscardScope::all ? "with" : "without");
    fill_file(mount.files(), large, 0, 1000);
    EXPECT_EQ(mount.files().simple(wire::Opcode::fsync, large).status, Status::ok);
    empty_file(mount, large);
    // A checkpoint each; a region waits for the second search.
    for (u32 round = 0; round < 3; ++round) {
      EXPECT_EQ(checkpoint(mount), Status::ok);
      EXPECT_EQ(mount.server().trimmer().trim(~u64{0}).status, Status::ok);
    }
    EXPECT_TRUE(mount.stop());
    return all_allocated_bytes();
  };
  const u64 kept = fill_and_empty(DiscardScope::memory);
  EXPECT_GT(kept, device_bytes);
  const u64 small = fill_and_empty(DiscardScope::all);
  EXPECT_LT(small, kept / 2);
  // A mount without the option reserves all blocks of files, one with it those of chunks that it uses.
  {
    GrowthMount mount(paths_, DiscardScope::all);
    EXPECT_LT(all_allocated_bytes(), device_count * device_bytes - 16 * mega);
  }
  GrowthMount mount(paths_);
  EXPECT_EQ(all_allocated_bytes() >= device_count * device_bytes, !GetParam().has_disks);
}

// Frames of the page cache with bytes of free pages must not fill holes again.
TEST_P(Discard, NothingIsWrittenToADiscardedRegion) {
  GrowthMount mount(paths_, DiscardScope::all);
  const u64 file = make_file(mount.files(), "file");
  ASSERT_EQ(write_block(mount.files(), file, 0, 1), Status::ok);
  ASSERT_EQ(mount.server().trimmer().trim_all().status, Status::ok);
  // No checkpoint knows these pages, so they are free at once.
  FileOperation op;
  op.opcode = wire::Opcode::write;
  op.inode = file;
  op.length = page_size;
  for (u64 page = 32; page < 32 + 24 * 256; ++page) {
    op.offset = page * page_size;
    ASSERT_EQ(mount.files().call(op, std::vector<u8>(page_size, 7)).status, Status::ok);
  }
  ASSERT_EQ(mount.files().simple(wire::Opcode::truncate, file, growth_write_bytes).status, Status::ok);
  u64 bytes = 0;
  for (u32 round = 0; round < 3; ++round) {
    const maintenance::TrimReport report = mount.server().trimmer().trim(~u64{0});
    ASSERT_EQ(report.status, Status::ok);
    bytes += report.byte_count;
  }
  EXPECT_GT(bytes, 4 * mega);
  const u64 small = all_allocated_bytes();
  ASSERT_EQ(checkpoint(mount), Status::ok);
  EXPECT_LE(all_allocated_bytes(), small + mega);
  EXPECT_TRUE(has_blocks(mount.files(), file, 1, 1));
}

// Random writes and truncations of files against a model, with remounts, while another thread trims all the time.
TEST_P(Discard, RunsBesideWriters) {
  constexpr u64 file_count = 6;
  constexpr u64 blocks_max = 60;
  std::vector<std::vector<u64>> model(file_count);  // seeds of the blocks
  Sequence random(29);
  for (u32 round = 0; round < 3; ++round) {
    GrowthMount mount(paths_, DiscardScope::all);
    std::atomic<bool> ends{false};
    std::atomic<u64> given_back{0};
    Status trimmed = Status::ok;
    std::thread trims([&] {
      while (!ends && trimmed == Status::ok) {
        const maintenance::TrimReport report = mount.server().trimmer().trim_all();
        given_back += report.byte_count;
        trimmed = report.status;
      }
    });
    std::vector<u64> inodes;
    for (u64 i = 0; i < file_count; ++i) {
      const std::string name = fmt::format("file{}", i);
      inodes.push_back(round == 0 ? make_file(mount.files(), name) : find_file(mount.files(), name));
    }
    // On a busy machine the first trim may begin late. Writers go on until it has found something.
    const u32 step_count = scaled(150);
    for (u32 step = 0; step < step_count || (given_back == 0 && step < 20 * step_count); ++step) {
      const u64 i = random.next() % file_count;
      std::vector<u64>& blocks = model[i];
      if (random.next() % 4 == 0) {
        blocks.resize(std::min<u64>(blocks.size(), random.next() % 20));
        EXPECT_EQ(mount.files().simple(wire::Opcode::truncate, inodes[i], blocks.size() * growth_write_bytes).status,
                  Status::ok);
        continue;
      }
      for (u64 count = random.next() % 12; count != 0 && blocks.size() < blocks_max; --count) {
        const u64 seed = random.next();
        const Status status = write_block(mount.files(), inodes[i], blocks.size(), seed);
        if (status == Status::ok) blocks.push_back(seed);
      }
    }
    ends = true;
    trims.join();
    EXPECT_EQ(trimmed, Status::ok);
    EXPECT_GT(given_back, 0u);
    const auto expect_model = [&](GrowthMount& now) {
      for (u64 i = 0; i < file_count; ++i) {
        const u64 inode = find_file(now.files(), fmt::format("file{}", i));
        for (u64 block = 0; block < model[i].size(); ++block) {
          const client::Reply read =
              now.files().simple(wire::Opcode::read, inode, block * growth_write_bytes, growth_write_bytes);
          ASSERT_EQ(read.status, Status::ok) << i << " " << block;
          const std::vector<u8> expected = growth_content(model[i][block]);
          ASSERT_EQ(std::memcmp(now.files().data(), expected.data(), expected.size()), 0) << i << " " << block;
        }
      }
    };
    ASSERT_NO_FATAL_FAILURE(expect_model(mount));
    EXPECT_TRUE(mount.stop());
    ASSERT_EQ(find_problems(paths_), "");
    GrowthMount again(paths_, DiscardScope::all);
    ASSERT_NO_FATAL_FAILURE(expect_model(again));
  }
}

// While a disk takes long to discard, programs write and sync. Whoever needs the chunk itself gets it after the unit.
TEST_P(Discard, NobodyWaitsForASlowDisk) {
  GrowthMount mount(paths_, DiscardScope::all);
  const u64 large = make_file(mount.files(), "large");
  const u64 room = fill_file(mount.files(), large, 0, 1000);
  ASSERT_EQ(mount.files().simple(wire::Opcode::fsync, large).status, Status::ok);
  // The first unit is of one chunk, and the others have room for a while.
  empty_file(mount, large);
  const u64 kept = make_file(mount.files(), "kept");

  std::promise<void> begun;
  std::promise<void> may_go_on;
  std::atomic<u32> unit_count{0};
  mount.server().trimmer().before_units([&] {
    if (unit_count++ != 0) return;
    begun.set_value();
    may_go_on.get_future().wait();
  });
  maintenance::TrimReport report;
  std::thread trims([&] { report = mount.server().trimmer().trim_all(); });
  begun.get_future().wait();
  for (u64 block = 0; block < 4; ++block) {
    EXPECT_EQ(write_block(mount.files(), kept, block, block), Status::ok);
    EXPECT_EQ(mount.files().simple(wire::Opcode::fsync, kept).status, Status::ok);
    EXPECT_EQ(checkpoint(mount), Status::ok);
  }
  EXPECT_EQ(unit_count, 1u);
  may_go_on.set_value();
  const u64 written = fill_file(mount.files(), large, 0, 3000);
  trims.join();
  EXPECT_EQ(report.status, Status::ok);
  EXPECT_GT(unit_count, 1u);
  mount.server().trimmer().before_units(nullptr);
  EXPECT_GT(written, room / 2);
  EXPECT_TRUE(has_blocks(mount.files(), kept, 4, 0));
  EXPECT_TRUE(has_blocks(mount.files(), large, written, 3000));
  EXPECT_TRUE(mount.stop());
  EXPECT_EQ(find_problems(paths_), "");
}

TEST_P(Discard, EndsBetweenTwoUnits) {
  GrowthMount mount(paths_, DiscardScope::all);
  const u64 kept = make_file(mount.files(), "kept");
  ASSERT_EQ(write_block(mount.files(), kept, 0, 7), Status::ok);
  const u64 large = make_file(mount.files(), "large");
  ASSERT_GT(fill_file(mount.files(), large, 0, 1000), 100u);
  empty_file(mount, large);
  u32 unit_count = 0;
  mount.server().trimmer().before_units([&] {
    if (++unit_count == 2) mount.server().trimmer().stop();
  });
  const maintenance::TrimReport report = mount.server().trimmer().trim_all();
  EXPECT_EQ(report.status, Status::cancelled);
  EXPECT_EQ(unit_count, 2u);
  EXPECT_EQ(mount.server().trimmer().trim_all().status, Status::cancelled);
  EXPECT_EQ(write_block(mount.files(), kept, 1, 8), Status::ok);
  EXPECT_TRUE(mount.stop());
  EXPECT_EQ(find_problems(paths_), "");
  GrowthMount again(paths_);
  EXPECT_TRUE(has_blocks(again.files(), find_file(again.files(), "kept"), 2, 7));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Discard,
                         ::testing::Values(DiscardShape{"single", false}, DiscardShape{"single", true},
                                           DiscardShape{"raid1", false}, DiscardShape{"raid0", true},
                                           DiscardShape{"raid5", false}, DiscardShape{"raid5", true}));

}  // namespace
}  // namespace gpu4fs::test::discard_test
