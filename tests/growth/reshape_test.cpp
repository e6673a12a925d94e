// Removals of devices, balances, and spares, as run by the server.
#include <functional>

#include "growth/growing_pool.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::test::reshape_test {
namespace {

constexpr u64 reshape_device_bytes = u64{40} << 20;

class Reshaping : public ::testing::Test {
 protected:
  void make(const std::string& profile, u32 device_count, u32 initial_share) {
    for (u32 i = 0; i < device_count; ++i) devices_.push_back(folder_ / fmt::format("device{}", i));
    pool::MakePoolOptions options;
    options.device_paths = devices_;
    options.size_bytes = reshape_device_bytes;
    options.chunk_size_bytes = u64{8} << 20;
    options.data_profile = options.metadata_profile = profile;
    options.initial_share = initial_share;
    pool::make_pool(options);
  }
  std::string new_device(const std::string& name, u64 bytes = reshape_device_bytes) {
    pool::DeviceFile::create(folder_ / name, bytes);
    return folder_ / name;
  }
  // It ends by itself; only the test's own time limit applies.
  static maintenance::ReshapeReport await(maintenance::Reshaper& reshaper) {
    for (;;) {
      const maintenance::ReshapeReport report = reshaper.report();
      if (report.state != maintenance::JobState::running) return report;
      std::this_thread::yield();
    }
  }
  static u64 lost(GrowthMount& mount) { return mount.server().open_inspector().lost_devices(); }

  GrowthFolder folder_;
  std::vector<std::string> devices_;
};

TEST_F(Reshaping, ADeviceWithEmptyChunksIsRemoved) {
  make("raid1", 3, 30);
  const std::string added = new_device("added");
  GrowthMount mount(devices_);
  const u64 inode = make_file(mount.files(), "file");
  ASSERT_EQ(write_block(mount.files(), inode, 0, 5), Status::ok);
  ASSERT_EQ(mount.server().grower().add_device(added, false), 3u);
  mount.server().grower().add_chunks(~u64{0});
  ASSERT_FALSE(mount.server().grower().chunks_on(3).empty());
  maintenance::Reshaper& reshaper = mount.server().reshaper();
  EXPECT_NE(reshaper.start_removal(0, 0).find("chunk tree"), std::string::npos);
  EXPECT_NE(reshaper.start_removal(9, 0).find("no device 9"), std::string::npos);
  EXPECT_EQ(reshaper.start_removal(3, 0), "");
  const maintenance::ReshapeReport report = await(reshaper);
  EXPECT_EQ(report.state, maintenance::JobState::finished) << report.problem;
  EXPECT_EQ(report.chunk_count, report.chunk_total);
  EXPECT_NE(reshaper.start_removal(3, 0), "");
  EXPECT_EQ(pool::probe_superblocks(added).newest(), nullptr);
  EXPECT_TRUE(has_blocks(mount.files(), inode, 1, 5));
  ASSERT_TRUE(mount.stop());
  EXPECT_EQ(find_problems(devices_), "");
}

// It stops, continues, and can be cancelled; then the device is a member as before.
TEST_F(Reshaping, ARemovalIsPausedAndCancelled) {
  make("raid1", 3, 30);
  const std::string added = new_device("added");
  GrowthMount mount(devices_);
  ASSERT_EQ(mount.server().grower().add_device(added, false), 3u);
  mount.server().grower().add_chunks(~u64{0});
  maintenance::Reshaper& reshaper = mount.server().reshaper();
  EXPECT_NE(reshaper.job().pause(), "");
  EXPECT_NE(reshaper.job().resume(), "");
  EXPECT_NE(reshaper.job().cancel(), "");
  EXPECT_NE(reshaper.job().set_rate(7), "");
  ASSERT_EQ(reshaper.start_removal(3, 0), "");
  ASSERT_EQ(reshaper.job().pause(), "");
  (void)reshaper.job().set_rate(u64{1} << 30);
  (void)reshaper.job().cancel();
  while (reshaper.report().state == maintenance::JobState::paused) std::this_thread::yield();
  // It may have been about to end.
  if (reshaper.report().state == maintenance::JobState::cancelled) {
    // Chunks get columns there again.
    mount.server().grower().add_chunks(~u64{0});
    EXPECT_FALSE(mount.server().grower().chunks_on(3).empty());
    ASSERT_EQ(reshaper.start_removal(3, 0), "");
  }
  EXPECT_EQ(await(reshaper).state, maintenance::JobState::finished);
  ASSERT_TRUE(mount.stop());
  EXPECT_EQ(find_problems(devices_), "");
}

TEST_F(Reshaping, AProfileThatNeedsTheDeviceKeepsIt) {
  make("raid1", 2, 30);
  GrowthMount mount(devices_);
  const std::string refusal = mount.server().reshaper().start_removal(1, 0);
  EXPECT_NE(refusal.find("profile raid1 needs 2 devices"), std::string::npos) << refusal;
  EXPECT_EQ(mount.server().reshaper().report().state, maintenance::JobState::never);
  ASSERT_TRUE(mount.stop());
}

// Empty chunks are deleted if there is more room elsewhere.
TEST_F(Reshaping, ABalanceEvensOutAndDropsWhatIsEmpty) {
  make("single", 2, 100);
  const std::string added = new_device("added", 2 * reshape_device_bytes);
  GrowthMount mount(devices_);
  maintenance::PoolGrower& grower = mount.server().grower();
  const u64 inode = make_file(mount.files(), "file");
  ASSERT_EQ(write_block(mount.files(), inode, 0, 5), Status::ok);
  ASSERT_EQ(grower.add_device(added, false), 2u);
  const u32 before = mount.server().superblock().chunk_count;
  ASSERT_EQ(mount.server().reshaper().start_balance(0), "");
  const maintenance::ReshapeReport report = await(mount.server().reshaper());
  // Another part of the server moves chunks in use; without it a balance says so.
  const bool is_refused = report.problem.find("cannot be emptied") != std::string::npos;
  EXPECT_TRUE(report.state == maintenance::JobState::finished || is_refused) << report.problem;
  EXPECT_LT(mount.server().superblock().chunk_count, before);
  u32 empty = 0;
  for (const maintenance::ChunkUsage& chunk : grower.usage()) empty += chunk.pages_taken == 0 ? 1 : 0;
  EXPECT_LE(empty, 2u);
  const u64 blocks = 1 + fill_file(mount.files(), inode, 1, 5);
  EXPECT_TRUE(has_blocks(mount.files(), inode, blocks, 5));
  ASSERT_TRUE(mount.stop());
  devices_.push_back(added);
  EXPECT_EQ(find_problems(devices_), "");
}

// The file of a pool that is mounted with these options has all its blocks.
void expect_file_with(const session::ServerOptions& options, u64 blocks) {
  server::PoolServer server(options);
  server.start();
  {
    server::LocalSession local = server.open_session(u64{1} << 20);
    client::Session session(client::Connection{local.producer, local.port, std::move(local.owner)});
    FileClient files(session);
    EXPECT_TRUE(has_blocks(files, find_file(files, "file"), blocks, 3));
  }
  ASSERT_TRUE(server.stop());
}

class Spares : public Reshaping {
 protected:
  // A mirror whose device `index` fails permanently on request.
  session::ServerOptions options(const std::vector<std::string>& devices) const {
    session::ServerOptions options;
    options.device_paths = devices;
    options.engine = session::EngineChoice::cpu;
    options.worker_count = 2;
    options.commit_interval_s = 0;
    options.cache_bytes = u64{16} << 20;
    return options;
  }

  static constexpr u64 file_blocks = 40;

  static u64 make_full_file(GrowthMount& mount) {
    const u64 inode = make_file(mount.files(), "file");
    for (u64 i = 0; i < file_blocks; ++i) EXPECT_EQ(write_block(mount.files(), inode, i, 3 + i), Status::ok);
    return inode;
  }

  // Removed by the command that gives a device up, as after an error of its own.
  static void lose_device(GrowthMount& mount, u64 inode) {
    wire::Command give_up{};
    give_up.opcode = wire::Opcode::rebuild;
    give_up.mode = static_cast<u32>(wire::RebuildStep::give_up);
    give_up.inode = 1;
    ASSERT_EQ(mount.server().rebuilder().call(give_up, nullptr, 0).status, Status::ok);
    ASSERT_TRUE(write_round(mount, inode));
  }

  // The checkpoint of a sync reports a loss to the server.
  static bool write_round(GrowthMount& mount, u64 inode) {
    static u64 round = 0;
    const u64 block = round++ % file_blocks;
    return write_block(mount.files(), inode, block, 3 + block) == Status::ok &&
           mount.files().simple(wire::Opcode::fsync, inode).status == Status::ok;
  }

  // Until a device is filled, or each spare was refused or failed while it was being filled.
  static void write_until_no_spare_waits(GrowthMount& mount, u64 inode) {
    const auto has_ended = [&] {
      for (const maintenance::SpareReport& spare : mount.server().spares().list()) {
        if (spare.state != maintenance::SpareState::refused) return false;
      }
      if (mount.server().rebuilder().is_busy()) return false;
      return mount.server().rebuilder().report().state == maintenance::JobState::finished || lost(mount) != 0;
    };
    while (!has_ended()) ASSERT_TRUE(write_round(mount, inode));
  }
};

TEST_F(Spares, AreCheckedAndListed) {
  make("raid1", 2, 100);
  const std::string spare = new_device("spare");
  const std::string small = new_device("small", u64{4} << 20);
  const std::string full = new_device("full");
  pool::DeviceFile::open(full, pool::DeviceFile::Access::read_write, pool::DeviceFile::Locking::none)
      .write_at(70000, "somebody's", 10);
  GrowthMount mount(devices_);
  maintenance::SpareDevices& spares = mount.server().spares();
  EXPECT_EQ(spares.add(spare, false), "");
  EXPECT_NE(spares.add(spare, false).find("already"), std::string::npos);
  EXPECT_NE(spares.add(small, false).find("too small"), std::string::npos);
  EXPECT_NE(spares.add(devices_[0], true).find("a device of the pool"), std::string::npos);
  EXPECT_NE(spares.add(full, false).find("force"), std::string::npos);
  EXPECT_EQ(spares.add(full, true), "");
  ASSERT_EQ(spares.list().size(), 2u);
  EXPECT_EQ(spares.list()[0].path, spare);
  // It is locked as long as it is a spare.
  EXPECT_THROW(pool::DeviceFile::open(spare, pool::DeviceFile::Access::read_write, pool::DeviceFile::Locking::lock),
               pool::PoolError);
  EXPECT_EQ(spares.remove(spare), "");
  EXPECT_NE(spares.remove(spare), "");
  EXPECT_NO_THROW(pool::DeviceFile::open(spare, pool::DeviceFile::Access::read_write, pool::DeviceFile::Locking::lock));
  ASSERT_TRUE(mount.stop());
}

TEST_F(Spares, TakeThePlaceOfALostDevice) {
  make("raid1", 2, 100);
  const std::string small = new_device("small", reshape_device_bytes / 2);
  const std::string spare = new_device("spare");
  {
    GrowthMount mount(devices_);
    const u64 inode = make_full_file(mount);
    mount.server().spares().add(small, false);
    ASSERT_EQ(mount.server().spares().add(spare, false), "");
    lose_device(mount, inode);
    write_until_no_spare_waits(mount, inode);
    EXPECT_EQ(mount.server().rebuilder().report().state, maintenance::JobState::finished);
    EXPECT_EQ(lost(mount), 0u);
    EXPECT_TRUE(has_blocks(mount.files(), inode, file_blocks, 3));
    ASSERT_TRUE(mount.stop());
  }
  EXPECT_EQ(find_problems({devices_[0], spare}), "");
  // The other half of the mirror is lost as well: the spare has everything.
  session::ServerOptions alone = options({spare});
  alone.degraded = true;
  std::filesystem::remove(devices_[0]);
  std::filesystem::remove(devices_[1]);
  expect_file_with(alone, file_blocks);
}

// It fails while it is being installed or filled: the pool is degraded as before, and has everything.
TEST_F(Spares, ThatFailLeaveThePoolDegraded) {
  make("raid1", 2, 100);
  const std::string spare = new_device("spare");
  {
    GrowthMount mount(devices_);
    const u64 inode = make_full_file(mount);
    ASSERT_EQ(mount.server().spares().add("fault=gone#50:" + spare, false), "");
    lose_device(mount, inode);
    write_until_no_spare_waits(mount, inode);
    ASSERT_NE(mount.server().rebuilder().report().state, maintenance::JobState::finished);
    EXPECT_EQ(lost(mount), 2u);
    EXPECT_TRUE(has_blocks(mount.files(), inode, file_blocks, 3));
    ASSERT_TRUE(mount.stop());
  }
  std::filesystem::remove(devices_[1]);
  session::ServerOptions degraded = options({devices_[0]});
  degraded.degraded = true;
  expect_file_with(degraded, file_blocks);
}

class FailingSpares : public Spares, public ::testing::WithParamInterface<u32> {};

TEST_P(FailingSpares, AreFollowedByTheNext) {
  make("raid1", 2, 100);
  const std::string bad = new_device("bad");
  const std::string good = new_device("good");
  {
    GrowthMount mount(devices_);
    const u64 inode = make_full_file(mount);
    ASSERT_EQ(mount.server().spares().add(fmt::format("fault=gone#{}:{}", GetParam(), bad), false), "");
    ASSERT_EQ(mount.server().spares().add(good, false), "");
    lose_device(mount, inode);
    write_until_no_spare_waits(mount, inode);
    EXPECT_EQ(mount.server().rebuilder().report().state, maintenance::JobState::finished);
    EXPECT_EQ(lost(mount), 0u);
    EXPECT_TRUE(has_blocks(mount.files(), inode, file_blocks, 3));
    ASSERT_TRUE(mount.stop());
  }
  EXPECT_EQ(find_problems({devices_[0], good}), "");
}

// Before it is a member, as it becomes one, and while it is filled.
INSTANTIATE_TEST_SUITE_P(AfterCalls, FailingSpares, ::testing::Values(2u, 30u, 40u, 50u, 60u));

TEST_F(Spares, ThatComeAfterTheLossTakeThePlaceToo) {
  make("raid1", 2, 100);
  const std::string spare = new_device("spare");
  GrowthMount mount(devices_);
  const u64 inode = make_full_file(mount);
  lose_device(mount, inode);
  while (lost(mount) == 0) ASSERT_TRUE(write_round(mount, inode));
  ASSERT_EQ(mount.server().spares().add(spare, false), "");
  write_until_no_spare_waits(mount, inode);
  EXPECT_EQ(mount.server().rebuilder().report().state, maintenance::JobState::finished);
  EXPECT_EQ(lost(mount), 0u);
  ASSERT_TRUE(mount.stop());
  EXPECT_EQ(find_problems({devices_[0], spare}), "");
}

TEST_F(Spares, OfADegradedMountComeInByThemselves) {
  make("raid1", 2, 100);
  const std::string spare = new_device("spare");
  {
    GrowthMount mount(devices_);
    const u64 inode = make_file(mount.files(), "file");
    ASSERT_EQ(write_block(mount.files(), inode, 0, 3), Status::ok);
    ASSERT_TRUE(mount.stop());
  }
  std::filesystem::remove(devices_[1]);
  session::ServerOptions with_spare = options({devices_[0]});
  with_spare.degraded = true;
  with_spare.spare_paths = {folder_ / "nothing", spare};
  {
    server::PoolServer server(with_spare);
    server.start();
    EXPECT_EQ(server.warnings().size(), 2u);  // for the missing device, and for the spare that cannot be used
    while (server.rebuilder().report().state != maintenance::JobState::finished) std::this_thread::yield();
    ASSERT_TRUE(server.stop());
  }
  EXPECT_EQ(find_problems({devices_[0], spare}), "");
}

}  // namespace
}  // namespace gpu4fs::test::reshape_test
