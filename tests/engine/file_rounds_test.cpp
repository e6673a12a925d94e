// Commands with many commits: each commit is a step of its own, the inode stays locked in between, and the deadline
// applies. The test runs the worker itself, so it sees the engine between two steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/access.hpp"
#include "engine/name_fixture.hpp"
#include "engine/worker.hpp"
#include "fs/map/map_types.hpp"

namespace gpu4fs::test {
namespace {

constexpr u64 block = u64{2} << 20;
constexpr u64 sparse_pages = 150;

FileEngineOptions stepped_on_few_chunks() {
  FileEngineOptions options;
  options.start = false;
  options.pool.chunk_count = 5;
  options.pool.chunk_bytes = u64{16} << 20;
  return options;
}

class FileRounds : public ::testing::Test {
 protected:
  // One page in each of many 2 MiB spans, each below a map page of its own.
  u64 sparse_file() {
    const u64 inode = names_.create(root, "sparse").result;
    for (u64 i = 0; i < sparse_pages; ++i) EXPECT_EQ(files_.write(inode, i * block, 1).status, Status::ok);
    EXPECT_EQ(files_.getattr(inode).status, Status::ok);
    EXPECT_GT(files_.attributes().blocks_512, sparse_pages * 2 * 8);
    // So no later step has to wait for one.
    EXPECT_EQ(files_.checkpoint().status, Status::ok);
    return inode;
  }
  wire::Command on_inode(wire::Opcode opcode, u64 inode, u64 offset = 0, u64 length = 0) {
    wire::Command command = make_command(opcode);
    command.inode = inode;
    command.offset = offset;
    command.length = length;
    return command;
  }
  // Steps of the engine until `command` has ended, at most `limit`.
  u32 steps_of(const wire::Command& command, Status expected, u32 limit = 10000) {
    const u64 position = client_.publish(command);
    ring::Completion completion{Status::engine_died, 0};
    for (u32 steps = 1; steps <= limit; ++steps) {
      engine::worker_step(Lane{}, engine_.engine(), worker_);
      // Between steps no worker is inside a gate: evictions and checkpoints can run.
      EXPECT_EQ(engine::gate_state(engine_.engine().step_gate.word), 0u);
      EXPECT_EQ(engine::gate_state(engine_.engine().commit_gate.word), 0u);
      if (!client_.producer().poll(position, &completion)) continue;
      EXPECT_EQ(completion.status, expected) << status_name(completion.status);
      return steps;
    }
    ADD_FAILURE() << "no end";
    return limit;
  }
  // Starts the published command: a worker may find other work first. A slow build may complete it at once.
  void begin_it() {
    for (u32 turn = 0; turn < 4; ++turn) {
      if (load<Order::acquire, Scope::engine>(&engine_.engine().commands_active) != 0) return;
      engine::worker_step(Lane{}, engine_.engine(), worker_);
    }
  }
  void expect_sound() { EXPECT_EQ(engine_.fs().had_error, 0u); }

  FileEngine engine_{stepped_on_few_chunks()};
  NameClient names_{engine_};
  FileClient files_{engine_};
  Client client_{engine_.host(), ClientOptions{.data_length = 1 << 16, .trusted = true, .internal = true}};
  engine::WorkerState worker_ = engine::WorkerState::make(0);
};

TEST_F(FileRounds, TruncateGivesTheWorkerBackBetweenItsCommits) {
  const u64 inode = sparse_file();
  EXPECT_GT(steps_of(on_inode(wire::Opcode::truncate, inode, block / 2), Status::ok), 3u);
  EXPECT_EQ(files_.getattr(inode).status, Status::ok);
  EXPECT_EQ(files_.attributes().size_bytes, block / 2);
  EXPECT_EQ(files_.attributes().blocks_512, 3 * 8u) << "a page, and the map pages above it";
  expect_sound();
}

TEST_F(FileRounds, NobodyElseGetsTheFileBetweenTheCommits) {
  const u64 inode = sparse_file();
  const u64 truncate = client_.publish(on_inode(wire::Opcode::truncate, inode, 0));
  begin_it();
  Client other(engine_.host(), ClientOptions{.data_length = 1 << 16, .trusted = true, .internal = true});
  wire::Command getattr = on_inode(wire::Opcode::getattr, inode);
  getattr.output = wire::ring_address(0, 4096);
  const u64 look = other.publish(getattr);
  ring::Completion done{};
  ring::Completion seen{};
  u32 looked_early = 0;
  while (!client_.producer().poll(truncate, &done)) {
    engine::worker_step(Lane{}, engine_.engine(), worker_);
    if (other.producer().poll(look, &seen) && !client_.producer().poll(truncate, &done)) ++looked_early;
  }
  EXPECT_EQ(done.status, Status::ok);
  EXPECT_EQ(looked_early, 0u);
  EXPECT_EQ(other.wait(look).status, Status::ok);
  EXPECT_EQ(reinterpret_cast<const format::AttributeRecord*>(other.data() + 4096)->size_bytes, 0u);
}

TEST_F(FileRounds, DeadlineEndsATruncateAndLeavesASoundFile) {
  const u64 inode = sparse_file();
  wire::Command command = on_inode(wire::Opcode::truncate, inode, 0);
  command.deadline_ms = 1;
  const u64 position = client_.publish(command);
  begin_it();
  const u64 begin_ns = now_monotonic_ns();
  while (now_monotonic_ns() < begin_ns + 2'000'000) {
  }
  ring::Completion done{};
  while (!client_.producer().poll(position, &done)) engine::worker_step(Lane{}, engine_.engine(), worker_);
  EXPECT_EQ(done.status, Status::deadline_exceeded);
  EXPECT_EQ(engine_.host().counters().deadlines_exceeded, 1u);
  EXPECT_EQ(files_.getattr(inode).status, Status::ok);
  const u64 size = files_.attributes().size_bytes;
  EXPECT_GT(size, 0u);
  EXPECT_LT(size, (sparse_pages - 1) * block);
  // The rest is unchanged, the removed part is gone.
  EXPECT_EQ(files_.read(inode, 0, page_size).result, page_size);
  EXPECT_EQ(files_.truncate(inode, 0).status, Status::ok);
  EXPECT_EQ(files_.getattr(inode).status, Status::ok);
  EXPECT_EQ(files_.attributes().blocks_512, 0u);
  expect_sound();
}

// Between the tasks of its second round the write gets the signal to end, as from the sweep of deadlines.
TEST_F(FileRounds, AWriteThatTheEngineEndsIsAShortOne) {
  constexpr u64 length = u64{66} << 20;
  Client large(engine_.host(), ClientOptions{.data_length = length, .trusted = true, .internal = true});
  std::fill_n(large.data(), length, u8{0x22});
  const u64 inode = names_.create(root, "file").result;
  EXPECT_EQ(files_.statfs().status, Status::ok);
  const u64 free_before = files_.space().page_free;
  wire::Command command = on_inode(wire::Opcode::write, inode, 0, length);
  command.data = wire::ring_address(0, 0);
  const u64 position = large.publish(command);
  engine::Engine& engine = engine_.engine();
  engine::CommandState* writing = nullptr;
  store<Order::relaxed, Scope::system>(&engine.service.exit_requested, 1u);
  for (u32 steps = 0; steps < 100000 && writing == nullptr; ++steps) {
    engine::worker_step(Lane{}, engine, worker_);
    for (u32 i = 0; i < engine.config.command_count; ++i) {
      engine::CommandState& c = engine.commands[i];
      const bool runs = load<Order::acquire, Scope::engine>(&c.phase) != static_cast<u32>(engine::CommandPhase::free);
      const bool is_write = c.command.opcode == wire::Opcode::write;
      if (runs && is_write && c.prepared != engine::Prepared::no && c.progress != 0) writing = &c;
    }
  }
  ASSERT_NE(writing, nullptr) << "it has several rounds";
  const u64 written = writing->progress;
  store<Order::release, Scope::engine>(&writing->cancel_status, static_cast<u32>(Status::deadline_exceeded));
  store<Order::relaxed, Scope::system>(&engine.service.exit_requested, 0u);
  ring::Completion done{};
  while (!large.producer().poll(position, &done)) engine::worker_step(Lane{}, engine, worker_);
  EXPECT_EQ(done.status, Status::ok) << status_name(done.status);
  EXPECT_EQ(done.result, written);
  EXPECT_LT(written, length);
  EXPECT_EQ(files_.getattr(inode).status, Status::ok);
  EXPECT_EQ(files_.attributes().size_bytes, written);
  EXPECT_EQ(files_.read(inode, written - 1, page_size).result, 1u);
  EXPECT_EQ(*files_.data(), 0x22);
  // The pages that the second round had allocated are free again.
  EXPECT_EQ(files_.statfs().status, Status::ok);
  EXPECT_GE(files_.space().page_free + written / page_size + 64, free_before);
  expect_sound();
}

TEST_F(FileRounds, PunchedAndZeroedRangesTakeManySteps) {
  const u64 inode = sparse_file();
  wire::Command punch = on_inode(wire::Opcode::fallocate, inode, 1, (sparse_pages - 10) * block);
  punch.mode = 3;
  EXPECT_GT(steps_of(punch, Status::ok), 3u);
  EXPECT_EQ(files_.getattr(inode).status, Status::ok);
  // The first page, for its first byte, and those after the hole, each below a map page; and the root.
  EXPECT_EQ(files_.attributes().blocks_512, (11 * 2 + 1) * 8u);
  EXPECT_EQ(files_.attributes().size_bytes, (sparse_pages - 1) * block + 1);
  expect_sound();
}

TEST_F(FileRounds, AllocatingMuchTakesManySteps) {
  const u64 inode = names_.create(root, "large").result;
  EXPECT_GT(steps_of(on_inode(wire::Opcode::fallocate, inode, 0, u64{70} << 20), Status::ok), 1u);
  EXPECT_EQ(files_.getattr(inode).status, Status::ok);
  EXPECT_EQ(files_.attributes().size_bytes, u64{70} << 20);
  EXPECT_GE(files_.attributes().blocks_512, (u64{70} << 20) / 512);
  expect_sound();
}

TEST_F(FileRounds, ReclaimGivesTheWorkerBackAndKeepsItsProgressAtADeadline) {
  const u64 inode = sparse_file();
  ASSERT_EQ(names_.unlink(root, "sparse").result, inode);
  wire::Command late = on_inode(wire::Opcode::reclaim, inode);
  late.deadline_ms = 1;
  const u64 position = client_.publish(late);
  begin_it();
  const u64 begin_ns = now_monotonic_ns();
  while (now_monotonic_ns() < begin_ns + 2'000'000) {
  }
  ring::Completion done{};
  while (!client_.producer().poll(position, &done)) engine::worker_step(Lane{}, engine_.engine(), worker_);
  EXPECT_EQ(done.status, Status::deadline_exceeded);
  EXPECT_EQ(files_.getattr(inode).status, Status::ok);
  EXPECT_GT(files_.attributes().blocks_512, 0u);
  EXPECT_LT(files_.attributes().blocks_512, sparse_pages * 2 * 8);
  EXPECT_GT(steps_of(on_inode(wire::Opcode::reclaim, inode), Status::ok), 2u);
  EXPECT_EQ(files_.getattr(inode).status, Status::stale);
  expect_sound();
}

TEST_F(FileRounds, ReclaimingALargeDirectoryTakesManySteps) {
  const u64 directory = names_.mkdir(root, "directory").result;
  const u64 file = names_.create(root, "file").result;
  constexpr u32 names = 3500;
  const std::string padding(200, 'n');
  for (u32 i = 0; i < names; ++i) {
    ASSERT_EQ(names_.link(file, directory, padding + std::to_string(i)).status, Status::ok);
  }
  // Names can be removed even if there is no room for shrinking the directory.
  fs::PageTable& pages = engine_.engine().fs.pages;
  const u32 staging_count = pages.staging_count;
  pages.staging_count = 100;
  for (u32 i = 0; i < names; ++i) {
    ASSERT_EQ(names_.unlink(directory, padding + std::to_string(i)).status, Status::ok);
  }
  pages.staging_count = staging_count;
  EXPECT_EQ(engine_.engine().fs.directory_pages_given_back, 0u);
  ASSERT_EQ(names_.rmdir(root, "directory").result, directory);
  EXPECT_GT(steps_of(on_inode(wire::Opcode::reclaim, directory), Status::ok), 2u);
  EXPECT_EQ(names_.getattr(directory).status, Status::stale);
  expect_sound();
}

// As at the mount after a crash.
TEST_F(FileRounds, OrphansAreReclaimedInManySteps) {
  const u64 inode = sparse_file();
  ASSERT_EQ(names_.unlink(root, "sparse").result, inode);
  EXPECT_GT(steps_of(make_command(wire::Opcode::reclaim_orphans), Status::ok), 3u);
  EXPECT_EQ(files_.getattr(inode).status, Status::stale);
  expect_sound();
}

}  // namespace
}  // namespace gpu4fs::test
