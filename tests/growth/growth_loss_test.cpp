// A device is lost at any access while chunks are created and deleted: everything synced is present without it, and the
// pool can be mounted.
#include <algorithm>

#include "growth/growing_pool.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::test::growth_loss_test {
namespace {

constexpr u64 loss_device_bytes = u64{40} << 20;
constexpr u32 loss_device_count = 3;
constexpr u64 loss_blocks = 2;

class GrowthLosses : public ::testing::TestWithParam<const char*> {
 protected:
  GrowthLosses() {
    for (u32 i = 0; i < loss_device_count; ++i) devices_.push_back(folder_ / fmt::format("device{}", i));
  }

  void make() {
    for (const std::string& path : devices_) std::filesystem::remove(path);
    pool::MakePoolOptions options;
    options.device_paths = devices_;
    options.size_bytes = loss_device_bytes;
    options.chunk_size_bytes = u64{8} << 20;
    options.data_profile = options.metadata_profile = GetParam();
    options.initial_share = 30;
    pool::make_pool(options);
  }

  // The last device is lost at its nth access. True: this happens after the mount, and the device is lost.
  bool change_with_loss(u64 nth) {
    std::vector<std::string> devices = devices_;
    devices.back() = fmt::format("fault=gone#{}:{}", nth, devices_.back());
    try {
      GrowthMount mount(devices);
      const u64 inode = make_file(mount.files(), "file");
      for (u64 block = 0; block < loss_blocks; ++block) {
        EXPECT_EQ(write_block(mount.files(), inode, block, 3 + block), Status::ok);
      }
      EXPECT_EQ(mount.files().simple(wire::Opcode::fsync, inode).status, Status::ok);
      const bool was_lost = mount.server().open_inspector().lost_devices() != 0;
      bool has_changed = true;
      try {
        maintenance::PoolGrower& grower = mount.server().grower();
        const u32 before = grower.usage().back().chunk;
        grower.add_chunks(2);
        std::vector<u32> made;
        for (const maintenance::ChunkUsage& chunk : grower.usage()) {
          if (chunk.chunk > before && chunk.pages_taken == 0) made.push_back(chunk.chunk);
        }
        grower.erase_chunks(made);
        grower.add_chunks(1);
      } catch (const pool::PoolError&) {
        // With a missing device, or with one that the server cannot write, the pool does not change.
        has_changed = false;
      }
      const bool is_lost = mount.server().open_inspector().lost_devices() != 0;
      EXPECT_TRUE(has_blocks(mount.files(), inode, loss_blocks, 3));
      mount.crash();
      if (!is_lost && has_changed) ends_ = true;
      return is_lost && !was_lost;
    } catch (const pool::PoolError&) {
      return false;  // too early: there is no mount
    }
  }

  // With the device in its current state, and without it.
  void expect_mountable(bool is_there) {
    session::ServerOptions options;
    options.device_paths = devices_;
    options.engine = session::EngineChoice::cpu;
    options.worker_count = 2;
    options.commit_interval_s = 0;
    options.cache_bytes = u64{16} << 20;
    options.degraded = true;
    if (!is_there) {
      std::filesystem::remove(devices_.back());
      options.device_paths.pop_back();
    }
    server::PoolServer server(options);
    server.start();
    {
      server::LocalSession local = server.open_session(u64{1} << 20);
      client::Session session(client::Connection{local.producer, local.port, std::move(local.owner)});
      FileClient files(session);
      EXPECT_TRUE(has_blocks(files, find_file(files, "file"), loss_blocks, 3));
    }
    EXPECT_TRUE(server.stop());
  }

  GrowthFolder folder_;
  std::vector<std::string> devices_;
  bool ends_ = false;
};

TEST_P(GrowthLosses, LeaveAPoolThatCanBeMounted) {
  constexpr u64 stride = 1;
  u32 losses = 0;
  for (u64 nth = 10; nth < 2000 && !ends_ && !HasFailure(); nth += stride) {
    make();
    if (!change_with_loss(nth)) continue;
    ++losses;
    ASSERT_NO_THROW(expect_mountable(losses % 2 == 0)) << "access " << nth;
  }
  EXPECT_TRUE(ends_ || HasFailure());
  EXPECT_GE(losses, 4u);
  std::printf("%u losses\n", losses);
}

INSTANTIATE_TEST_SUITE_P(Profiles, GrowthLosses, ::testing::Values("raid1", "raid5"));

}  // namespace
}  // namespace gpu4fs::test::growth_loss_test
