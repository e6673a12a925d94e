// How a step may end, and what the engine refuses.
#include <gtest/gtest.h>

#include <stdexcept>

#include "base/check.hpp"
#include "engine/engine_fixture.hpp"
#include "engine/execute.hpp"

namespace gpu4fs::test::step_test {
namespace {

using engine::CommandPhase;
using engine::CommandState;
using engine::Step;
using engine::StepKind;
using engine::detail::Decision;
using engine::detail::Next;

struct FailedCheck : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Steps : public ::testing::Test {
 protected:
  Steps() {
    previous_ = set_check_handler([](const CheckFailure& failure) { throw FailedCheck(failure.expression); });
    engine::set_phase(command_, CommandPhase::running);
    command_.prepared = engine::Prepared::yes;
    command_.operation = fs::Operation{};
  }
  ~Steps() override { set_check_handler(previous_); }

  engine::Engine& engine() { return fixture_.engine(); }
  Decision end_with(const Step& step) { return engine::detail::after_step(engine(), command_, step); }

  CheckHandler previous_;
  EngineFixture fixture_{EngineOptions{.worker_count = 1, .command_count = 64, .config = {}, .start = false}};
  CommandState& command_ = fixture_.engine().commands[1];
};

TEST_F(Steps, AStatusHasOneKind) {
  for (u32 code = 0; code < status_count; ++code) {
    const Status status = static_cast<Status>(code);
    const StepKind expected = status == Status::again ? StepKind::again
                              : is_control(status)    ? StepKind::waits
                                                      : StepKind::done;
    EXPECT_EQ(Step::end(status).kind(), expected) << status_name(status);
    EXPECT_EQ(Step::end(status).status(), status);
  }
  EXPECT_EQ(Step::complete(7).kind(), StepKind::done);
  EXPECT_EQ(Step::complete(7).result(), 7u);
  EXPECT_EQ(Step::fan_out(3).kind(), StepKind::tasks);
  EXPECT_EQ(Step::fan_out(3).task_count(), 3u);
  EXPECT_THROW(Step::fan_out(0), FailedCheck);
}

TEST_F(Steps, TheEngineDoesWhatTheKindSays) {
  const Decision done = end_with(Step::complete(7));
  EXPECT_EQ(done.next, Next::end);
  EXPECT_EQ(done.status, Status::ok);
  EXPECT_EQ(done.result, 7u);
  EXPECT_EQ(end_with(Step::end(Status::exists)).status, Status::exists);
  EXPECT_EQ(end_with(Step::fan_out(3)).next, Next::tasks);
  EXPECT_EQ(end_with(Step::again()).next, Next::leave);
  u32 item = 0;
  ASSERT_TRUE(engine().run_queue.pop(&item));
  EXPECT_EQ(item, command_.index);
}

TEST_F(Steps, AWaitIsParkedUntilItIsWoken) {
  engine::announce_wait(command_, Status::waits_for_gate);
  EXPECT_EQ(end_with(Step::end(Status::waits_for_gate)).next, Next::leave);
  EXPECT_EQ(engine::phase_of(command_), CommandPhase::parked);
  engine::wake_command(engine(), command_.index);
  EXPECT_EQ(engine::phase_of(command_), CommandPhase::queued);
}

TEST_F(Steps, AWaitThatIsOverRunsTheStepAgain) {
  engine::announce_wait(command_, Status::waits_for_gate);
  engine::wake_command(engine(), command_.index);
  EXPECT_EQ(end_with(Step::end(Status::waits_for_gate)).next, Next::step);
  EXPECT_EQ(engine::phase_of(command_), CommandPhase::running);
}

// The command is in a list: it must not end, run on, or wait for anything else.
TEST_F(Steps, AStepEndsAsItHasAnnounced) {
  engine::announce_wait(command_, Status::waits_for_lock);
  for (const Step& step : {Step::complete(), Step::end(Status::exists), Step::again(), Step::fan_out(1),
                           Step::end(Status::waits_for_gate), Step::end(Status::retry_after_checkpoint)}) {
    EXPECT_THROW(end_with(step), FailedCheck) << status_name(step.status());
  }
}

// Nobody would wake it.
TEST_F(Steps, NothingWaitsWithoutAnAnnouncement) {
  for (const Status status : {Status::waits_for_lock, Status::waits_for_answer}) {
    EXPECT_THROW(end_with(Step::end(status)), FailedCheck) << status_name(status);
  }
}

TEST_F(Steps, AChunkThatNobodyNamedIsDamage) {
  const Decision decision = end_with(Step::end(Status::chunk_not_mapped));
  EXPECT_EQ(decision.next, Next::end);
  EXPECT_EQ(decision.status, Status::corrupt_structure);
}

// The server is asked, the command is parked, and the answer is taken before the next step.
TEST_F(Steps, ANewChunkIsAskedFor) {
  command_.stage = 3;
  EXPECT_EQ(end_with(Step::end(space::want_new_chunk(command_.operation, 2))).next, Next::leave);
  EXPECT_EQ(engine::phase_of(command_), CommandPhase::parked);
  EXPECT_EQ(command_.stage, 0u);
  ring::Upcall upcall{};
  ASSERT_TRUE(fixture_.host().wait_upcall(&upcall, 0));
  EXPECT_EQ(upcall.kind, ring::UpcallKind::make_chunk);
  EXPECT_EQ(upcall.argument, 2u);
  ASSERT_EQ(engine::answer_upcall(engine(), upcall.id, static_cast<u64>(Status::no_space)), Status::ok);
  engine::set_phase(command_, CommandPhase::running);
  EXPECT_EQ(engine::detail::before_step(engine(), command_).next, Next::step);
  EXPECT_EQ(command_.operation.refused_classes, u64{1} << 2);
  EXPECT_EQ(command_.ended_with, Status::ok);
}

// A late answer, or one that was taken already, must not pass for that to another request.
TEST_F(Steps, AnAnswerIsTakenOnce) {
  EXPECT_EQ(engine::post_upcall(engine(), command_, ring::UpcallKind::flush_device, 0), Status::waits_for_answer);
  EXPECT_THROW(engine::take_answer(command_), FailedCheck);
  ring::Upcall upcall{};
  ASSERT_TRUE(fixture_.host().wait_upcall(&upcall, 0));
  ASSERT_EQ(engine::answer_upcall(engine(), upcall.id, static_cast<u64>(Status::device_failed), 5), Status::ok);
  const engine::UpcallAnswer answer = engine::take_answer(command_);
  EXPECT_EQ(answer.status, Status::device_failed);
  EXPECT_EQ(answer.failed_devices, 5u);
  EXPECT_THROW(engine::take_answer(command_), FailedCheck);
  engine::set_phase(command_, CommandPhase::running);
  EXPECT_EQ(engine::post_upcall(engine(), command_, ring::UpcallKind::flush_device, 0), Status::waits_for_answer);
  EXPECT_THROW(engine::take_answer(command_), FailedCheck);
}

}  // namespace
}  // namespace gpu4fs::test::step_test
