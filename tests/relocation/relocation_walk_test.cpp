// Random operations compared with the POSIX model, with pages moving to other places in between: chunks are frozen,
// emptied step by step and released, files get their requested profile or are defragmented. Users must not see any of
// this.
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>

#include "model/model_walk.hpp"
#include "stress/stress_client.hpp"
#include "support/relocation_driver.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test::relocation_walk_test {
namespace {

// The work between the operations.
class Upheaval {
 public:
  Upheaval(TestPool& pool, u64 seed) : pool_(pool), random_(seed) {}

  // "" or the fault.
  std::string act() {
    RelocationDriver driver = relocation_of(pool_);
    const u32 chunk_count = pool_.engine()->fs.space.chunk_count;
    const u32 chunk = static_cast<u32>(random_.next() % chunk_count);
    Status status = Status::ok;
    switch (random_.next() % 6) {
      case 0:
        status = driver.step(wire::RelocateStep::freeze, chunk).status;
        if (status == Status::ok) frozen_.insert(chunk);
        break;
      case 1:
        status = driver.step(wire::RelocateStep::unfreeze, chunk).status;
        frozen_.erase(chunk);
        break;
      case 2:
        status = move_some(driver, wire::relocate_frozen);
        break;
      case 3:
        status = move_some(driver, wire::relocate_class);
        break;
      case 4:
        status = move_some(driver, wire::relocate_scattered);
        break;
      default:
        return empty(driver);
    }
    moved_count_ += driver.moved_count();
    return is_expected(status) ? "" : std::string("a relocation answers ") + status_name(status);
  }
  // A mount forgets frozen chunks.
  void forget() { frozen_.clear(); }
  u64 moved_count() const { return moved_count_; }
  u64 emptied_count() const { return emptied_count_; }

 private:
  static bool is_expected(Status status) {
    return status == Status::ok || status == Status::no_space || status == Status::stale;
  }
  Status move_some(RelocationDriver& driver, u32 mask) {
    const std::vector<u64> inodes = driver.inodes();
    Status status = Status::ok;
    for (u32 i = 0; i < 3 && is_expected(status); ++i) {
      const u64 inode = inodes[random_.next() % inodes.size()];
      status = driver.move(wire::RelocateStep::data, inode, mask, random_.next() % 3 == 0 ? 2 : 0);
      if (is_expected(status)) status = driver.move(wire::RelocateStep::metadata, inode);
    }
    return status;
  }
  std::string empty(RelocationDriver& driver) {
    const Status status = driver.move_everything();
    moved_count_ += driver.moved_count();
    if (status == Status::no_space) return "";
    if (status != Status::ok) return std::string("emptying chunks answers ") + status_name(status);
    if (pool_.checkpoint() != Status::ok) return "a checkpoint fails";
    for (const u32 chunk : frozen_) {
      const wire::ChunkUsage usage = driver.usage(chunk);
      if (usage.occupied != 0) return fmt::format("chunk {} still has {} pages", chunk, usage.occupied);
      ++emptied_count_;
    }
    return "";
  }

  TestPool& pool_;
  Sequence random_;
  std::set<u32> frozen_;
  u64 moved_count_ = 0;
  u64 emptied_count_ = 0;
};

std::vector<ModelVariant> walk_variants() {
  std::vector<ModelVariant> list;
  ModelVariant plain{"plain", 201, 700, {}, {}, false};
  plain.source.offset_max = u64{3} << 20;
  list.push_back(plain);
  ModelVariant tasks = plain;
  tasks.name = "three_workers";
  tasks.seed = 202;
  tasks.pool.worker_count = 3;
  tasks.pool.config.inline_transfer_pages = 2;  // most transfers fan out
  tasks.pool.config.task_pages = 3;
  list.push_back(tasks);
  ModelVariant parities{"raid5", 203, 500, {}, {}, false};
  parities.pool.profile = "raid5";
  parities.pool.device_count = 4;
  list.push_back(parities);
  ModelVariant mixed{"raid1_raid6_raid0", 204, 500, {}, {}, false};
  mixed.pool.profile = "raid6+raid1";
  mixed.pool.device_count = 4;
  mixed.pool.more_profiles = {{"raid0", 0.3}};
  mixed.source.profiles = {"raid0", "raid6"};
  list.push_back(mixed);
  ModelVariant logged = plain;
  logged.name = "syncs_and_crashes";
  logged.seed = 205;
  logged.steps = 400;
  logged.sync_every = 7;
  logged.crash_every = 29;
  list.push_back(logged);
  ModelVariant warp{"one_warp", 206, 24, {}, {}, false};
  warp.pool.warp_count = 1;
  warp.pool.memory = {.frame_count = 400, .staging_count = 256, .shard_count = 2};
  warp.source.offset_max = 20'000;
  warp.source.length_max = 9'000;
  warp.source.big_length = 40'000;
  warp.source.sparse = false;
  warp.source.node_max = 14;
  list.push_back(warp);
  return list;
}

class RelocationWalk : public ::testing::TestWithParam<ModelVariant> {};

TEST_P(RelocationWalk, NothingIsSeenOfIt) {
  const ModelVariant variant = as_asked_for(GetParam());
  TestPool pool(variant.pool);
  ModelRunner runner(pool, variant.tight);
  OperationSource source(variant.seed, variant.source);
  Upheaval upheaval(pool, variant.seed + 1);
  std::string problem;
  bool same = true;
  u64 step = 0;
  while (step < variant.steps && same && problem.empty()) {
    ++step;
    same = runner.step(source.next(runner.model()));
    if (same && step % 4 == 0) problem = upheaval.act();
    if (variant.sync_every != 0 && same && step % variant.sync_every == 0) same = runner.step(sync_operation());
    if (same && step % 61 == 0) same = runner.check_tree();
    const bool mounts = step % variant.crash_every == 0 || step % 173 == 0;
    if (!same || !mounts) continue;
    upheaval.forget();
    same = step % variant.crash_every == 0 ? runner.crash() : step % 2 == 0 ? runner.remount() : runner.check_medium();
  }
  same = same && runner.check_tree() && runner.check_medium();
  EXPECT_EQ(problem, "") << "after " << step << " steps\n" << runner.history();
  EXPECT_EQ(runner.difference(), "") << "after " << step << " steps\n" << runner.history();
  if (variant.steps >= 300) {
    EXPECT_GT(upheaval.moved_count(), 100u);
    EXPECT_GT(upheaval.emptied_count(), 0u);
  }
  runner.close();
}

INSTANTIATE_TEST_SUITE_P(Variants, RelocationWalk, ::testing::ValuesIn(walk_variants()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

u64 make_directory(FileClient& client, const std::string& name) {
  FileOperation op;
  op.opcode = wire::Opcode::mkdir;
  op.inode = 1;
  op.name = name;
  op.mode = 0755;
  return client.call(op).result;
}

// Writers and readers work while every chunk in turn is frozen and emptied.
TEST(RelocationStress, ChunksAreEmptiedUnderLoad) {
  TestPoolOptions options;
  options.worker_count = 2;
  options.config.inline_transfer_pages = 2;
  options.config.task_pages = 3;
  TestPool pool(options);
  StressArea area;
  std::vector<std::unique_ptr<StressClient>> clients;
  for (u32 i = 0; i < 3; ++i) clients.push_back(std::make_unique<StressClient>(pool, area, i));
  FileClient& first = clients[0]->client();
  for (const char* name : {"one", "two"}) area.shared_directories.push_back(make_directory(first, name));
  FileOperation op;
  op.opcode = wire::Opcode::create;
  op.inode = 1;
  op.mode = 0644;
  op.name = "log";
  area.log_file = first.call(op).result;
  op.name = "pages";
  area.page_file = first.call(op).result;
  const u64 home = make_directory(first, "home");
  for (auto& client : clients) client->make_private_files(home);

  std::atomic<u32> running{static_cast<u32>(clients.size())};
  std::vector<std::thread> threads;
  for (auto& client : clients) {
    threads.emplace_back([&] {
      client->run(scaled(1500));
      --running;
    });
  }
  RelocationDriver driver = relocation_of(pool);
  const u32 chunk_count = pool.engine()->fs.space.chunk_count;
  u32 emptied = 0;
  // At least one round, whichever side is faster.
  for (u32 i = 0; (running != 0 || i < chunk_count) && !::testing::Test::HasFailure(); ++i) {
    const u32 chunk = i % chunk_count;
    const Status frozen = driver.step(wire::RelocateStep::freeze, chunk).status;
    ASSERT_TRUE(frozen == Status::ok || frozen == Status::no_space) << status_name(frozen);
    for (u32 pass = 0; frozen == Status::ok && pass < 10 && driver.usage(chunk).occupied != 0; ++pass) {
      const Status moved = driver.move_everything();
      ASSERT_EQ(moved, Status::ok) << status_name(moved);
      ASSERT_EQ(pool.checkpoint(), Status::ok);
    }
    emptied += frozen == Status::ok && driver.usage(chunk).occupied == 0 ? 1 : 0;
    ASSERT_EQ(driver.step(wire::RelocateStep::unfreeze, chunk).status, Status::ok);
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(area.failure, "");
  EXPECT_GT(emptied, 0u);
  for (auto& client : clients) client->verify();
  ASSERT_EQ(area.failure, "");
  for (auto& client : clients) client->close();
  pool.unmount();
  const fsck::CheckResult result = pool.check();
  EXPECT_EQ(result.findings.error_count(), 0u) << findings_text(result);
}

// The checker notices a page in the wrong place: a map that leads to a free page.
TEST(RelocationCanary, AFileThatIsMovedAndNotCommittedIsNoticed) {
  TestPool pool;
  u64 inode = 0;
  {
    auto session = pool.open_session();
    FileClient client(*session);
    FileOperation op;
    op.opcode = wire::Opcode::create;
    op.inode = 1;
    op.name = "file";
    op.mode = 0644;
    inode = client.call(op).result;
    op = {};
    op.opcode = wire::Opcode::write;
    op.inode = inode;
    op.length = 3 * page_size;
    ASSERT_EQ(client.call(op, content_of(op)).status, Status::ok);
  }
  ASSERT_EQ(pool.checkpoint(), Status::ok);
  // The old page is freed although the map still has it.
  fs::FileSystem& fs = pool.engine()->fs;
  fs::Operation op{};
  fs::InodeRef ref{};
  ASSERT_EQ(fs::get_inode(Lane{}, fs, op, inode, &ref), Status::ok);
  space::free_extent(Lane{}, fs, {fs::load_slot(&ref.inode->slots[0]).address(), 1, 0});
  RelocationDriver driver = relocation_of(pool);
  ASSERT_EQ(driver.move(wire::RelocateStep::metadata, 0), Status::ok);
  ASSERT_EQ(driver.step(wire::RelocateStep::freeze, 0).status, Status::ok);
  ASSERT_EQ(driver.move_everything(), Status::ok);
  pool.unmount();
  EXPECT_GT(pool.check().findings.error_count(), 0u);
}

}  // namespace
}  // namespace gpu4fs::test::relocation_walk_test
