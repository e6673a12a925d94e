// The checkpoint that asks the server about a plan, while plans are withdrawn and staged: written data is flushed
// before superblocks name it, and an answer is valid for the plan that was asked about.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "growth/growing_pool.hpp"
#include "space/growth.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test::growth_checkpoint_test {
namespace {

using ring::UpcallKind;

// A plan that changes nothing in the pool, in an engine whose server is the test.
class GrowthCheckpoint : public ::testing::Test {
 protected:
  GrowthCheckpoint() : plan_(std::make_unique<space::PoolGrowth>()), pool_(options()) {
    std::memset(static_cast<void*>(plan_.get()), 0, sizeof(*plan_));
    fs::FileSystem& fs = pool_.engine()->fs;
    const format::Superblock& superblock = fs.superblocks[0];
    plan_->device_count = superblock.device_count;
    plan_->chunk_count = superblock.chunk_count;
    plan_->slot_count = fs.space.chunk_count;
    plan_->tree_root = static_cast<u32>(superblock.tree_root);
    plan_->tree_height = superblock.tree_height;
    plan_->tree_replica_count = superblock.tree_replica_count;
    plan_->tree_node_count = superblock.tree_node_count;
    plan_->page_total = superblock.page_total;
    std::memcpy(plan_->device_uuids, superblock.device_uuids, sizeof(plan_->device_uuids));
    fs.growth = plan_.get();
    server_ = std::make_unique<session::ServerSession>(pool_.host(), open_close_,
                                                       session::ServerSession::Kind::internal, 4, page_size);
    session_ = pool_.open_session();
    files_ = std::make_unique<FileClient>(*session_);
  }
  static TestPoolOptions options() {
    TestPoolOptions options;
    options.flush_by_upcall = true;
    return options;
  }

  Status grow(u32 mask) {
    wire::Command command{};
    command.opcode = wire::Opcode::grow;
    command.mask = mask;
    return server_->call(command).status;
  }
  space::GrowthPhase phase() { return space::detail::growth_phase(pool_.engine()->fs); }

  struct Round {
    Status status = Status::ok;
    u32 flush_count = 0;
    std::vector<u32> asked;  // numbers of plans
  };
  // A checkpoint of a change. `at_question`: runs before the server answers about a plan, and returns its answer;
  // `at_flush`: runs before the server reports that everything is flushed.
  Round checkpoint(
      const std::string& name, const std::function<Status()>& at_question,
      const std::function<void()>& at_flush = [] {}) {
    (void)make_file(*files_, name);
    Round round;
    std::atomic<bool> done{false};
    std::thread thread([&] {
      round.status = pool_.checkpoint();
      done = true;
    });
    while (!done) {
      ring::Upcall upcall{};
      if (!pool_.host().wait_upcall(&upcall, 1'000'000) || !ring::wants_answer(upcall.kind)) continue;
      Status answer = Status::ok;
      if (upcall.kind == UpcallKind::flush_device) {
        ++round.flush_count;
        at_flush();
      }
      if (upcall.kind == UpcallKind::write_growth) {
        round.asked.push_back(upcall.detail);
        answer = at_question();
      }
      (void)server_->call(engine::answer_upcall_command(upcall, answer));
    }
    thread.join();
    return round;
  }

  std::unique_ptr<space::PoolGrowth> plan_;
  TestPool pool_;
  std::mutex open_close_;
  std::unique_ptr<session::ServerSession> server_;
  std::unique_ptr<client::Session> session_;
  std::unique_ptr<FileClient> files_;
};

TEST_F(GrowthCheckpoint, PagesAreFlushedAlthoughThePlanIsWithdrawn) {
  const u32 usual = checkpoint("without", [] { return Status::ok; }).flush_count;
  ASSERT_GE(usual, 2u) << "in front of the superblocks, and behind them";
  for (const Status answer : {Status::ok, Status::stale, Status::io_error}) {
    plan_->number += 1;
    ASSERT_EQ(grow(wire::grow_stage), Status::ok);
    const Round round = checkpoint(status_name(answer), [&] {
      EXPECT_EQ(grow(wire::grow_withdraw), Status::ok);
      return answer;
    });
    EXPECT_EQ(round.status, Status::ok) << status_name(answer);
    EXPECT_EQ(round.flush_count, usual) << status_name(answer);
    EXPECT_EQ(round.asked, std::vector<u32>{plan_->number});
    EXPECT_EQ(phase(), space::GrowthPhase::none);
  }
}

// As when the only device that needs a flush is replaced by one that does not.
TEST_F(GrowthCheckpoint, IsPublishedAlthoughNothingNeedsAFlushAnyMore) {
  fs::FileSystem& fs = pool_.engine()->fs;
  const auto answer = [] { return Status::ok; };
  (void)checkpoint("with flushes", answer);
  std::vector<u32> slots;
  for (u32 i = 0; i < fs.space.chunk_count; ++i) slots.push_back(fs.space.chunks[i].slot_newest);
  const Round round = checkpoint("without", answer, [&] {
    for (u32 d = 0; d < fs.space.device_count; ++d) fs.space.devices[d].needs_flush = 0;
  });
  EXPECT_EQ(round.status, Status::ok);
  EXPECT_EQ(round.flush_count, 1u);
  u32 changed = 0;
  for (u32 i = 0; i < fs.space.chunk_count; ++i) {
    EXPECT_EQ(fs.space.chunks[i].staged_changed, 0u) << i;
    changed += fs.space.chunks[i].slot_newest != slots[i] ? 1 : 0;
  }
  EXPECT_GT(changed, 0u);
}

TEST_F(GrowthCheckpoint, AnotherPlanWaitsForTheNextOne) {
  for (const Status answer : {Status::stale, Status::ok}) {
    plan_->number += 1;
    const u32 first = plan_->number;
    ASSERT_EQ(grow(wire::grow_stage), Status::ok);
    const Round round = checkpoint(std::string("first ") + status_name(answer), [&] {
      EXPECT_EQ(grow(wire::grow_withdraw), Status::ok);
      plan_->number += 1;
      EXPECT_EQ(grow(wire::grow_stage), Status::ok);
      return answer;
    });
    EXPECT_EQ(round.status, Status::ok);
    EXPECT_EQ(round.asked, std::vector<u32>{first});
    EXPECT_EQ(phase(), space::GrowthPhase::staged) << status_name(answer);
    EXPECT_EQ(grow(wire::grow_admit), Status::busy);
    const Round second = checkpoint(std::string("second ") + status_name(answer), [] { return Status::ok; });
    EXPECT_EQ(second.asked, std::vector<u32>{first + 1});
    EXPECT_EQ(phase(), space::GrowthPhase::durable);
    EXPECT_EQ(grow(wire::grow_admit), Status::ok);
  }
  files_.reset();
  session_.reset();
  server_.reset();
  pool_.crash();
  EXPECT_EQ(pool_.check().findings.error_count(), 0u) << findings_text(pool_.check());
}

}  // namespace
}  // namespace gpu4fs::test::growth_checkpoint_test
