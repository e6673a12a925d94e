// A virtual queue with a controller that is played by hand: order, wraps, and all that a controller may write.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <random>
#include <set>
#include <vector>

#include "device/nvme/submit.hpp"
#include "nvme/queue_memory.hpp"
#include "support/on_all_groups.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::nvme::test {
namespace {

using gpu4fs::test::on_all_groups;
using gpu4fs::test::scaled;

// Fetches and completes when it is told to. Entries go out as they are given, right or wrong.
class HandController {
 public:
  explicit HandController(VirtualQueue& queue) : queue_(queue) {}

  void fetch_all() {
    while (fetched_count_ % queue_.depth != *queue_.submission_doorbell) {
      const SubmissionEntry& entry = queue_.submissions[fetched_count_++ % queue_.depth];
      EXPECT_TRUE(is_command_of(entry, entry.namespace_id)) << entry.namespace_id;
      fetched.push_back(entry);
    }
  }
  CompletionEntry answer_to(const SubmissionEntry& entry) const {
    CompletionEntry answer{};
    answer.dword0 = entry.namespace_id * 17;
    answer.submission_head = static_cast<u16>(fetched_count_ % queue_.depth);
    answer.submission_queue = queue_.queue_id;
    answer.command_id = entry.command_id;
    return answer;
  }
  void post(CompletionEntry answer) {
    answer.status = static_cast<u16>((answer.status & ~1u) | ((posted_ / queue_.depth & 1) ^ 1));
    queue_.completions[posted_++ % queue_.depth] = answer;
  }
  void restart() {
    fetched.clear();
    fetched_count_ = posted_ = 0;
  }
  bool has_room() const { return (posted_ - *queue_.completion_doorbell) % queue_.depth + 1 < queue_.depth; }

  std::vector<SubmissionEntry> fetched;

 private:
  VirtualQueue& queue_;
  u32 fetched_count_ = 0;
  u32 posted_ = 0;
};

// Random batches, random completions, in front of the wrap of all counters and far beyond.
template <class Group>
void run_commands(Group g, QueueMemory& memory, HandController& controller, u32 count) {
  VirtualQueue& queue = memory.queue();
  std::mt19937 random(5);  // in step on all ranks
  u32 submitted = 0;
  u32 answered = 0;
  while (answered < count) {
    const u32 wanted = std::min(static_cast<u32>(random() % (Group::size() + 1)), count - submitted);
    const u64 cookie = 1 + submitted + g.rank();
    const SubmitResult result = try_submit(g, queue, {command_of(cookie), cookie, g.rank() < wanted});
    EXPECT_NE(result, SubmitResult::failed);
    submitted += popcount(g.ballot(result == SubmitResult::submitted));
    const u32 choice = static_cast<u32>(random());
    on_leader(g, [&] {
      controller.fetch_all();
      for (u32 i = choice % 5; i > 0 && !controller.fetched.empty() && controller.has_room(); --i) {
        const u64 which = (choice >> 4) % controller.fetched.size();
        controller.post(controller.answer_to(controller.fetched[which]));
        controller.fetched.erase(controller.fetched.begin() + static_cast<std::ptrdiff_t>(which));
      }
    });
    u64 wrong = 0;
    const u32 taken = poll(g, queue, [&](const Outcome& outcome) {
      if (outcome.end != CommandEnd::answered || outcome.status != 0 || outcome.result != outcome.cookie * 17) ++wrong;
    });
    EXPECT_FALSE(g.any(wrong != 0));
    answered += taken;
    EXPECT_LE(submitted - answered, queue.depth - 1);
  }
}

TEST(Queue, CountersWrapAndCompletionsComeInAnyOrder) {
  for (const u32 depth : {2u, 4u, 64u}) {
    on_all_groups([&](auto g) {
      static QueueMemory* memory;
      static HandController* controller;
      on_leader(g, [&] {
        memory = new QueueMemory(depth, 0u - 2 * depth);
        controller = new HandController(memory->queue());
      });
      run_commands(g, *memory, *controller, scaled(2000) + 10 * depth);
      on_leader(g, [&] {
        EXPECT_EQ(failure_of(memory->controller()), Failure::none);
        EXPECT_LT(memory->queue().completed, 1u << 31);
        delete controller;
        delete memory;
      });
    });
  }
}

class BadCompletions : public ::testing::Test {
 protected:
  BadCompletions() : memory_(depth), controller_(memory_.queue()) {}

  static constexpr u32 depth = 8;

  void submit_some(u32 count) {
    for (u32 i = 0; i < count; ++i) {
      const u64 cookie = next_cookie_++;
      EXPECT_EQ(try_submit(Lane{}, memory_.queue(), {command_of(cookie), cookie}), SubmitResult::submitted);
    }
    controller_.fetch_all();
  }
  u32 poll_all() {
    return poll(Lane{}, memory_.queue(), [this](const Outcome& outcome) { outcomes_.push_back(outcome); });
  }
  void expect_failure(Failure failure) {
    poll_all();
    EXPECT_EQ(failure_of(memory_.controller()), failure);
    // Nothing more is submitted or taken.
    EXPECT_EQ(try_submit(Lane{}, memory_.queue(), {command_of(99), 99}), SubmitResult::failed);
    const u64 before = outcomes_.size();
    EXPECT_EQ(poll_all(), 0u);
    EXPECT_EQ(outcomes_.size(), before);
    // Each command that is left gets one outcome when the controller is quiet.
    memory_.controller().is_quiet = 1;
    poll_all();
    poll_all();
    std::set<u64> cookies;
    for (const Outcome& outcome : outcomes_) EXPECT_TRUE(cookies.insert(outcome.cookie).second);
    EXPECT_EQ(cookies.size(), next_cookie_ - 1);
  }

  QueueMemory memory_;
  HandController controller_;
  std::vector<Outcome> outcomes_;
  u64 next_cookie_ = 1;
};
using QueueBadCompletions = BadCompletions;

TEST_F(QueueBadCompletions, ACommandThatIsNotOutstanding) {
  submit_some(3);
  CompletionEntry answer = controller_.answer_to(controller_.fetched[0]);
  answer.command_id = static_cast<u16>(answer.command_id + 5);
  controller_.post(controller_.answer_to(controller_.fetched[1]));
  controller_.post(answer);
  expect_failure(Failure::unknown_command);
  EXPECT_EQ(outcomes_[0].cookie, 2u);
  EXPECT_EQ(outcomes_[0].end, CommandEnd::answered);
  EXPECT_EQ(outcomes_[1].end, CommandEnd::stopped);
}

TEST_F(QueueBadCompletions, TheSameCommandTwice) {
  submit_some(3);
  controller_.post(controller_.answer_to(controller_.fetched[1]));
  controller_.post(controller_.answer_to(controller_.fetched[1]));
  expect_failure(Failure::unknown_command);
}

TEST_F(QueueBadCompletions, TheSameCommandTwiceForOneWarp) {
  submit_some(3);
  controller_.post(controller_.answer_to(controller_.fetched[1]));
  controller_.post(controller_.answer_to(controller_.fetched[1]));
  run_emulated_warp([&](EmulatedWarp g) {
    const u32 taken = poll(g, memory_.queue(), [&](const Outcome& outcome) { outcomes_.push_back(outcome); });
    EXPECT_LE(taken, 1u);
  });
  EXPECT_EQ(outcomes_.size(), 1u);
  expect_failure(Failure::unknown_command);
}

TEST_F(QueueBadCompletions, ALateAnswerToAnIdentifierThatIsInUseAgain) {
  submit_some(1);
  const SubmissionEntry late = controller_.fetched[0];
  controller_.post(controller_.answer_to(late));
  EXPECT_EQ(poll_all(), 1u);
  // The identifiers go round.
  for (u32 i = 0; i < depth - 1; ++i) {
    submit_some(1);
    controller_.post(controller_.answer_to(controller_.fetched.back()));
    EXPECT_EQ(poll_all(), 1u);
  }
  submit_some(1);
  EXPECT_EQ(controller_.fetched.back().command_id % depth, late.command_id % depth);
  EXPECT_NE(controller_.fetched.back().command_id, late.command_id);
  controller_.post(controller_.answer_to(late));
  expect_failure(Failure::unknown_command);
}

TEST_F(QueueBadCompletions, ACommandThatWasNotShown) {
  submit_some(1);
  // As a lane is between its entry and the tail.
  memory_.queue().tail_lock = 1;
  EXPECT_EQ(try_submit(Lane{}, memory_.queue(), {command_of(2), 2}), SubmitResult::submitted);
  next_cookie_ = 3;
  CompletionEntry answer = controller_.answer_to(controller_.fetched[0]);
  answer.command_id = memory_.queue().submissions[1].command_id;
  controller_.post(answer);
  expect_failure(Failure::early_completion);
}

TEST_F(QueueBadCompletions, AnotherQueue) {
  submit_some(2);
  CompletionEntry answer = controller_.answer_to(controller_.fetched[0]);
  answer.submission_queue = 0;
  controller_.post(answer);
  expect_failure(Failure::wrong_queue);
}

TEST_F(QueueBadCompletions, HeadsThatCannotBe) {
  // Commands 0 to 4 are shown. Command 2 is behind head 3, and the tail is 5.
  for (u32 head = 0; head < 2 * depth; ++head) {
    memory_.reset(0);
    controller_.restart();
    outcomes_.clear();
    next_cookie_ = 1;
    submit_some(5);
    CompletionEntry answer = controller_.answer_to(controller_.fetched[2]);
    answer.submission_head = static_cast<u16>(head);
    controller_.post(answer);
    if (head >= 3 && head <= 5) {
      EXPECT_EQ(poll_all(), 1u) << head;
      EXPECT_EQ(failure_of(memory_.controller()), Failure::none) << head;
    } else {
      expect_failure(Failure::impossible_head);
    }
  }
}

TEST_F(QueueBadCompletions, ErrorsAreOutcomes) {
  submit_some(1);
  CompletionEntry answer = controller_.answer_to(controller_.fetched[0]);
  answer.status = static_cast<u16>(0x281u << 1 | 0x8000u);
  controller_.post(answer);
  EXPECT_EQ(poll_all(), 1u);
  EXPECT_EQ(outcomes_[0].status, 0x281u);
  EXPECT_TRUE(outcomes_[0].do_not_retry);
  EXPECT_EQ(failure_of(memory_.controller()), Failure::none);
}

// Random entries never end the test, and a command gets at most one outcome.
TEST_F(QueueBadCompletions, RandomEntries) {
  std::mt19937 random(11);
  u32 failures = 0;
  for (u32 round = 0; round < scaled(3000); ++round) {
    memory_.reset(random() % 2 == 0 ? 0 : 0u - 2 * depth);
    controller_.restart();
    outcomes_.clear();
    next_cookie_ = 1;
    submit_some(1 + random() % (depth - 1));
    for (u32 i = 0; i < 4; ++i) {
      CompletionEntry answer = controller_.answer_to(controller_.fetched[random() % controller_.fetched.size()]);
      u8* const bytes = reinterpret_cast<u8*>(&answer);
      if (random() % 2 == 0) bytes[4 + random() % 12] ^= static_cast<u8>(1u << random() % 8);
      controller_.post(answer);
    }
    while (poll_all() > 0) {
    }
    if (failure_of(memory_.controller()) != Failure::none) ++failures;
    fail(memory_.controller(), Failure::resetting);
    memory_.controller().is_quiet = 1;
    poll_all();
    std::set<u64> cookies;
    for (const Outcome& outcome : outcomes_) EXPECT_TRUE(cookies.insert(outcome.cookie).second);
    EXPECT_EQ(cookies.size(), next_cookie_ - 1);
  }
  EXPECT_GT(failures, 0u);
}

TEST(Queue, AFullQueueHasNoRoomAndLateCommandsAreNoticed) {
  QueueMemory memory(4);
  HandController controller(memory.queue());
  const u64 begin = now_monotonic_ns();
  for (u64 i = 1; i <= 3; ++i) {
    EXPECT_EQ(try_submit(Lane{}, memory.queue(), {command_of(i), i}), SubmitResult::submitted);
  }
  EXPECT_EQ(try_submit(Lane{}, memory.queue(), {command_of(4), 4}), SubmitResult::no_room);
  EXPECT_FALSE(expired(Lane{}, memory.queue(), begin));
  EXPECT_TRUE(expired(Lane{}, memory.queue(), now_monotonic_ns() + 1));
  controller.fetch_all();
  controller.post(controller.answer_to(controller.fetched[1]));
  EXPECT_EQ(poll(Lane{}, memory.queue(), [](const Outcome&) {}), 1u);
  EXPECT_EQ(try_submit(Lane{}, memory.queue(), {command_of(4), 4}), SubmitResult::submitted);
  run_emulated_warp([&](EmulatedWarp g) { EXPECT_TRUE(expired(g, memory.queue(), now_monotonic_ns() + 1)); });
}

// A poll finds nothing new for its own look; the next one takes what comes then.
TEST(Queue, APollThatFindsNothingLeavesTheTokenFree) {
  QueueMemory memory(4);
  HandController controller(memory.queue());
  EXPECT_EQ(try_submit(Lane{}, memory.queue(), {command_of(1), 1}), SubmitResult::submitted);
  controller.fetch_all();
  CompletionEntry bad = controller.answer_to(controller.fetched[0]);
  bad.submission_queue = 9;
  controller.post(bad);
  EXPECT_EQ(poll(Lane{}, memory.queue(), [](const Outcome&) {}), 0u);
  EXPECT_EQ(memory.queue().poll_token, 0u);
}

}  // namespace
}  // namespace gpu4fs::nvme::test
