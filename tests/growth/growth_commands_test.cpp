// Commands of growth that are repeated, or sent when there is no plan: each is answered, and the pool continues.
#include "growth/growing_pool.hpp"

namespace gpu4fs::test::growth_commands_test {
namespace {

class GrowthCommands : public ::testing::Test {
 protected:
  GrowthCommands() {
    pool::MakePoolOptions options;
    options.device_paths = {folder_ / "a", folder_ / "b"};
    options.size_bytes = u64{40} << 20;
    options.chunk_size_bytes = u64{8} << 20;
    options.initial_share = 30;
    pool::make_pool(options);
    mount_ = std::make_unique<GrowthMount>(options.device_paths);
    devices_ = options.device_paths;
    session_ = mount_->server().open_internal_session(page_size);
  }
  Status grow(u32 mask) {
    wire::Command command{};
    command.opcode = wire::Opcode::grow;
    command.mask = mask;
    return session_->call(command).status;
  }

  GrowthFolder folder_;
  std::vector<std::string> devices_;
  std::unique_ptr<GrowthMount> mount_;
  std::unique_ptr<session::ServerSession> session_;
};

TEST_F(GrowthCommands, AreAnsweredInAnyOrder) {
  const u64 inode = make_file(mount_->files(), "file");
  EXPECT_EQ(grow(wire::grow_admit), Status::not_found);
  EXPECT_EQ(grow(wire::grow_withdraw), Status::ok);
  EXPECT_EQ(grow(0), Status::invalid_argument);
  for (u32 round = 0; round < 3; ++round) {
    const u32 chunks = mount_->server().superblock().chunk_count;
    ASSERT_EQ(mount_->server().grower().add_chunks(1), 1u);
    EXPECT_EQ(mount_->server().superblock().chunk_count, chunks + 1);
    // The plan is still there.
    EXPECT_EQ(grow(wire::grow_admit), Status::not_found);
    EXPECT_EQ(grow(wire::grow_stage), Status::invalid_argument) << "the chunk has its place";
    EXPECT_EQ(grow(wire::grow_withdraw), Status::ok);
    ASSERT_EQ(write_block(mount_->files(), inode, round, round), Status::ok);
    ASSERT_EQ(mount_->files().simple(wire::Opcode::fsync, inode).status, Status::ok);
  }
  EXPECT_TRUE(has_blocks(mount_->files(), inode, 3, 0));
  session_.reset();
  ASSERT_TRUE(mount_->stop());
  EXPECT_EQ(find_problems(devices_), "");
}

}  // namespace
}  // namespace gpu4fs::test::growth_commands_test
