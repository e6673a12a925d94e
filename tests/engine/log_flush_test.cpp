// The worker that writes the log for all others: a command that gives up or restarts leaves this to the others, and
// never waits for itself.
#include <gtest/gtest.h>

#include "engine/engine_fixture.hpp"
#include "engine/handlers/file_write.hpp"

namespace gpu4fs::test::log_flush_test {
namespace {

using engine::CommandPhase;
using engine::CommandState;

class LogFlush : public ::testing::Test {
 protected:
  LogFlush() {
    for (CommandState* c : {&writer_, &waiter_}) engine::set_phase(*c, CommandPhase::running);
    EXPECT_TRUE(becomes_writer(writer_, goal));
    EXPECT_EQ(engine::await_log(engine(), waiter_, goal, &is_writer_), Status::waits_for_log);
    EXPECT_TRUE(engine::park_command(waiter_));
  }
  engine::Engine& engine() { return fixture_.engine(); }
  bool becomes_writer(CommandState& c, u64 lsn) {
    return engine::await_log(engine(), c, lsn, &is_writer_) == Status::ok && is_writer_;
  }
  bool waiter_runs() {
    u32 item = 0;
    return engine().run_queue.pop(&item) && item == waiter_.index;
  }

  static constexpr u64 goal = 4096;
  EngineFixture fixture_{EngineOptions{.worker_count = 1, .command_count = 64, .config = {}, .start = false}};
  bool is_writer_ = false;
  CommandState& writer_ = fixture_.engine().commands[1];
  CommandState& waiter_ = fixture_.engine().commands[2];
};

// It has lost its pages: a restart may take another path and not reach the log again.
TEST_F(LogFlush, AWriteThatBeginsAnewLeavesItToTheOthers) {
  writer_.stage = static_cast<u32>(engine::detail::RoundStage::fill);
  const engine::Step step = engine::detail::end_write(Lane{}, engine(), writer_, Status::chunk_not_mapped);
  EXPECT_EQ(step.status(), Status::chunk_not_mapped);
  EXPECT_EQ(writer_.stage, 0u);
  EXPECT_EQ(engine().log_queue.flusher, no_command);
  ASSERT_TRUE(waiter_runs());
  engine::set_phase(waiter_, CommandPhase::running);
  EXPECT_TRUE(becomes_writer(waiter_, goal));
  EXPECT_EQ(engine::await_log(engine(), writer_, goal, &is_writer_), Status::waits_for_log) << "behind the other";
}

TEST_F(LogFlush, AWriteThatGoesOnKeepsIt) {
  for (const Status status : {Status::again, Status::waits_for_gate, Status::waits_for_log, Status::waits_for_answer}) {
    writer_.stage = static_cast<u32>(engine::detail::RoundStage::fill);
    EXPECT_EQ(engine::detail::end_write(Lane{}, engine(), writer_, status).status(), status);
    EXPECT_EQ(writer_.stage, static_cast<u32>(engine::detail::RoundStage::fill));
    EXPECT_EQ(engine().log_queue.flusher, writer_.index);
    EXPECT_FALSE(waiter_runs());
  }
}

TEST_F(LogFlush, NobodyWaitsForItself) {
  EXPECT_TRUE(becomes_writer(writer_, 2 * goal));
  EXPECT_EQ(engine().log_queue.head, waiter_.index);
  EXPECT_EQ(engine().log_queue.tail, waiter_.index);
  engine::end_log_flush(engine(), writer_, goal, false);
  ASSERT_TRUE(waiter_runs());
  engine::set_phase(waiter_, CommandPhase::running);
  EXPECT_EQ(engine::await_log(engine(), waiter_, goal, &is_writer_), Status::ok);
  EXPECT_FALSE(is_writer_);
}

}  // namespace
}  // namespace gpu4fs::test::log_flush_test
