// Reports about a failed device to and from the server: they name its file, also if another device has its place
// meanwhile.
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <thread>

#include "growth/growing_pool.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test::loss_report_test {
namespace {

// The engine's next report of a loss.
ring::Upcall next_loss(TestPool& pool) {
  ring::Upcall upcall{};
  while (upcall.kind != ring::UpcallKind::device_lost) {
    if (!pool.host().wait_upcall(&upcall, 10'000'000'000)) break;
  }
  return upcall;
}

TEST(LossReport, SaysWhichFileWasTheDevice) {
  TestPoolOptions options;
  options.profile = "raid1";
  TestPool pool(options);
  for (u32 file_number = 0; file_number < 3; ++file_number) {
    const wire::Command give_up = TestPool::rebuild_command(wire::RebuildStep::give_up, 1);
    ASSERT_EQ(pool.call_internal(give_up).status, Status::ok);
    ASSERT_EQ(pool.checkpoint(), Status::ok);
    const ring::Upcall upcall = next_loss(pool);
    EXPECT_EQ(upcall.kind, ring::UpcallKind::device_lost);
    EXPECT_EQ(upcall.argument, 1u);
    EXPECT_EQ(upcall.detail, file_number);
    ASSERT_EQ(pool.begin_rebuild(1, true), Status::ok);
    TestPool::RebuildRound round{};
    for (u32 i = 0; i < 5 && (i == 0 || round.left != 0); ++i) {
      round = pool.rebuild_round(true);
      ASSERT_EQ(round.status, Status::ok);
    }
    ASSERT_EQ(round.left, 0u);
  }
}

TEST(LossReport, DoesNotNameTheFileThatTookThePlace) {
  GrowthFolder folder;
  pool::MakePoolOptions make;
  make.device_paths = {folder / "old0", folder / "old1"};
  make.size_bytes = u64{24} << 20;
  make.chunk_size_bytes = u64{8} << 20;
  make.data_profile = make.metadata_profile = "raid1";
  pool::make_pool(make);
  pool::DeviceFile::create(folder / "new1", make.size_bytes);
  testing::internal::CaptureStderr();
  {
    GrowthMount mount(make.device_paths);
    const u64 inode = make_file(mount.files(), "file");
    EXPECT_EQ(write_block(mount.files(), inode, 0, 1), Status::ok);
    EXPECT_EQ(mount.server().exchange().replace("1", folder / "new1", false, 0), "");
    while (mount.server().rebuilder().is_busy()) std::this_thread::yield();
    EXPECT_EQ(mount.server().rebuilder().report().state, maintenance::JobState::finished);
    EXPECT_TRUE(mount.stop());
  }
  std::istringstream lines(testing::internal::GetCapturedStderr());
  u32 failures = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("failed and is not used") == std::string::npos) continue;
    ++failures;
    EXPECT_EQ(line.find("new1"), std::string::npos) << line;
  }
  EXPECT_EQ(failures, 1u);
}

}  // namespace
}  // namespace gpu4fs::test::loss_report_test
