// Classes of commands on a virtual queue under every schedule of a few lanes and a controller with a bounded number of
// deviations from the plain one: shares, what is in front of a command of the log, and that nobody waits for ever.
#include "support/schedule_points.hpp"
//
#include "device/nvme/classes.hpp"
#include "nvme/queue_memory.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::nvme::test {
namespace {

using gpu4fs::test::is_short;
using gpu4fs::test::ScheduleExplorer;

constexpr u32 cookie_max = 32;
constexpr u32 wait_max = 3000;
constexpr u32 class_depth = 8;

// Lane i has `rounds` commands of class lanes[i], one after the other.
class ClassWorld {
 public:
  ClassWorld(std::vector<ServiceClass> lanes, const ClassWeights& weights, u32 rounds, u32 deviation_max)
      : lanes_(std::move(lanes)),
        weights_(weights),
        rounds_(rounds),
        memory_(class_depth, 0u - 2 * class_depth, sizeof(ClassQueue)),
        classes_(*reinterpret_cast<ClassQueue*>(memory_.extra())),
        explorer_(static_cast<u32>(lanes_.size()) + 1, deviation_max, [this](u32 i) { work(i); }) {
    explorer_.watch(memory_.watched(), memory_.watched_bytes());
    explorer_.set_spin_loads(6);
  }

  std::string run_all() {
    do {
      ++schedules_;
      reset();
      if (!explorer_.run()) expect(false, "somebody waits for ever");
      if (fault_.empty()) check_end();
      if (!fault_.empty()) return fault_ + ", schedule " + std::to_string(schedules_);
    } while (explorer_.next());
    return {};
  }
  u64 schedules() const { return schedules_; }
  u32 unfinished_max(ServiceClass service_class) const { return unfinished_max_[static_cast<u32>(service_class)]; }
  u32 share(ServiceClass service_class) const { return classes_.gates[static_cast<u32>(service_class)].share; }
  u32 before_log_max() const { return before_log_max_; }

 private:
  struct Fetched {
    u16 id;
    u32 cookie;
  };
  struct Seen {
    u32 numbers[9 + 2 * service_class_count];
    friend bool operator==(const Seen&, const Seen&) = default;
  };

  u32 lane_count() const { return static_cast<u32>(lanes_.size()); }
  VirtualQueue& queue() { return memory_.queue(); }
  void expect(bool condition, const char* fault) {
    if (!condition && fault_.empty()) fault_ = fault;
  }
  void reset() {
    memory_.reset(0u - 2 * class_depth);
    place_classes(classes_, &queue(), weights_);
    std::memset(outcomes_, 0, sizeof(outcomes_));
    std::memset(unfinished_, 0, sizeof(unfinished_));
    for (Seen& seen : seen_) seen = {};
    fetched_.clear();
    fetched_count_ = posted_ = waits_ = lanes_done_ = outcome_count_ = 0;
  }
  Seen look() {
    const VirtualQueue& all = queue();
    Seen seen{{all.completed, all.tail, all.next_ticket, all.poll_token, all.tail_lock, posted_, fetched_count_,
               outcome_count_, lanes_done_}};
    for (u32 i = 0; i < service_class_count; ++i) {
      seen.numbers[9 + 2 * i] = classes_.gates[i].next_ticket;
      seen.numbers[10 + 2 * i] = classes_.gates[i].ended;
    }
    return seen;
  }
  void wait(u32 fiber) {
    expect(++waits_ < wait_max, "nobody makes progress");
    if (!fault_.empty()) fail(memory_.controller(), Failure::timed_out);
    const Seen now = look();
    if (now == seen_[fiber]) return explorer_.wait();
    seen_[fiber] = now;
    explorer_.point();
  }
  bool has_fault() { return !fault_.empty() || memory_.controller().failure != 0; }
  u32 class_of(u32 cookie) const { return static_cast<u32>(lanes_[(cookie - 1) / rounds_]); }

  void work(u32 fiber) {
    if (fiber == lane_count()) return control();
    const auto visit = [this](const Outcome& outcome) {
      expect(outcome.cookie < cookie_max && outcome.service_class == class_of(static_cast<u32>(outcome.cookie)),
             "another class comes back");
      ++outcomes_[outcome.cookie % cookie_max];
      ++outcome_count_;
      explorer_.note_change();
    };
    for (u32 round = 0; round < rounds_ && !has_fault(); ++round) {
      const u32 cookie = 1 + fiber * rounds_ + round;
      const SubmitResult result = submit_class(Lane{}, classes_, lanes_[fiber], {command_of(cookie), cookie}, visit,
                                               [this, fiber] { wait(fiber); });
      expect(result == SubmitResult::submitted, "a command is not submitted");
      while (outcomes_[cookie] == 0 && !has_fault()) {
        if (poll_classes(Lane{}, classes_, visit) == 0) wait(fiber);
      }
    }
    ++lanes_done_;
    explorer_.note_change();
  }

  // The controller: fetches all that is shown, and then completes one command.
  void control() {
    while (lanes_done_ < lane_count() && !has_fault()) {
      const u32 tail = __atomic_load_n(queue().submission_doorbell, __ATOMIC_SEQ_CST);
      if (tail != fetched_count_ % class_depth) {
        fetch();
        explorer_.point();
      } else if (!fetched_.empty()) {
        complete();
      } else {
        explorer_.wait();
      }
    }
  }
  // A command is unfinished for the controller from its fetch to its completion, which is a part of the time that its
  // class counts.
  void fetch() {
    const SubmissionEntry entry = queue().submissions[fetched_count_++ % class_depth];
    const u32 cookie = entry.namespace_id;
    expect(cookie != 0 && is_command_of(entry, cookie), "a torn entry is shown");
    if (!fault_.empty()) return;
    const u32 which = class_of(cookie);
    if (which == static_cast<u32>(ServiceClass::log)) {
      const u32 before = unfinished_[static_cast<u32>(ServiceClass::background)];
      before_log_max_ = std::max(before_log_max_, before);
      expect(before <= share(ServiceClass::background), "the log waits for more than a share of the background");
    }
    const u32 count = ++unfinished_[which];
    unfinished_max_[which] = std::max(unfinished_max_[which], count);
    expect(count <= classes_.gates[which].share, "a class has more than its share");
    fetched_.push_back({entry.command_id, cookie});
  }
  void complete() {
    const Fetched done = fetched_.back();
    fetched_.pop_back();
    --unfinished_[class_of(done.cookie)];
    CompletionEntry entry{};
    entry.submission_head = static_cast<u16>(fetched_count_ % class_depth);
    entry.submission_queue = QueueMemory::queue_id;
    entry.command_id = done.id;
    entry.status = posted_ / class_depth % 2 == 0 ? 1 : 0;
    u32 words[4];
    std::memcpy(words, &entry, sizeof(words));
    u32* const place = reinterpret_cast<u32*>(&queue().completions[posted_++ % class_depth]);
    for (u32 i = 0; i < 3; ++i) __atomic_store_n(&place[i], words[i], __ATOMIC_SEQ_CST);
    __atomic_store(&place[3], &words[3], __ATOMIC_SEQ_CST);
  }

  void check_end() {
    expect(memory_.controller().failure == 0, "a good controller has failed");
    for (u32 cookie = 1; cookie <= lane_count() * rounds_; ++cookie) {
      expect(outcomes_[cookie] == 1, "not one outcome for a command");
    }
    for (const ClassGate& gate : classes_.gates) expect(gate.next_ticket == gate.ended, "a class is not at rest");
  }

  std::vector<ServiceClass> lanes_;
  ClassWeights weights_;
  u32 rounds_;
  QueueMemory memory_;
  ClassQueue& classes_;
  ScheduleExplorer explorer_;
  u32 outcomes_[cookie_max];
  u32 unfinished_[service_class_count];
  u32 unfinished_max_[service_class_count] = {};
  u32 before_log_max_ = 0;
  std::vector<Fetched> fetched_;
  u32 fetched_count_ = 0;
  u32 posted_ = 0;
  u32 waits_ = 0;
  u32 lanes_done_ = 0;
  u32 outcome_count_ = 0;
  Seen seen_[6];
  u64 schedules_ = 0;
  std::string fault_;
};

class ClassSchedules : public ::testing::Test {
 protected:
  void SetUp() override {
    if (GPU4FS_TSAN != 0) GTEST_SKIP() << "the fibers share the explorer's state";
  }
};

// Capacity is seven: four places and three by weight.
TEST_F(ClassSchedules, TheBackgroundKeepsToItsShare) {
  const ServiceClass background = ServiceClass::background;
  ClassWorld world({background, background, background, ServiceClass::log}, {{3, 0, 0, 0}}, 1, is_short() ? 1 : 2);
  EXPECT_EQ(world.run_all(), "");
  EXPECT_GT(world.schedules(), is_short() ? 20u : 500u);
  EXPECT_EQ(world.share(background), 1u);
  EXPECT_EQ(world.share(ServiceClass::log), 4u);
  EXPECT_EQ(world.unfinished_max(background), 1u);
  EXPECT_EQ(world.before_log_max(), 1u);
}

TEST_F(ClassSchedules, AShareIsUsedToItsEnd) {
  const ServiceClass background = ServiceClass::background;
  ClassWorld world({background, background, background, ServiceClass::log}, {{1, 0, 0, 2}}, 1, is_short() ? 1 : 2);
  EXPECT_EQ(world.run_all(), "");
  EXPECT_EQ(world.share(background), 3u);
  EXPECT_EQ(world.unfinished_max(background), 3u);
  EXPECT_EQ(world.before_log_max(), 3u);
}

// As if the lanes behind it had submitted, and their commands had ended, between its ticket and its look at the class.
TEST_F(ClassSchedules, ACommandThatWasOvertakenGoesOn) {
  QueueMemory memory(class_depth);
  ClassQueue classes;
  place_classes(classes, &memory.queue(), {{1, 0, 0, 2}});
  classes.gates[3].ended = 2;
  const auto wait = [&] { fail(memory.controller(), Failure::timed_out); };
  const SubmissionEntry entry = command_of(1);
  const RankCommand command{entry, 1};
  EXPECT_EQ(submit_class(
                Lane{}, classes, ServiceClass::background, command, [](const Outcome&) {}, wait),
            SubmitResult::submitted);
}

TEST_F(ClassSchedules, AllClassesComeToTheirEnd) {
  ClassWorld world({ServiceClass::log, ServiceClass::metadata, ServiceClass::data, ServiceClass::background},
                   {{1, 1, 1, 1}}, 2, is_short() ? 1 : 2);
  EXPECT_EQ(world.run_all(), "");
  EXPECT_EQ(world.unfinished_max(ServiceClass::log), 1u);
}

}  // namespace
}  // namespace gpu4fs::nvme::test
