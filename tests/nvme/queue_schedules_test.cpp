// A virtual queue under every schedule of a few lanes and a controller with a bounded number of deviations from the
// plain one. Counters begin in front of their wrap.
#include "support/schedule_points.hpp"
//
#include "device/nvme/submit.hpp"
#include "nvme/queue_memory.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::nvme::test {
namespace {

using gpu4fs::test::is_short;
using gpu4fs::test::ScheduleExplorer;

enum class Role {
  waits,  // submit()
  tries,  // try_submit() until there is room
};

constexpr u32 lane_max = 4;
constexpr u64 cookie_max = 32;
// Nobody waits so long in a schedule that ends.
constexpr u32 wait_max = 3000;

struct Options {
  u32 depth = 2;
  u32 rounds = 2;             // commands of each lane, one after the other
  bool newest_first = true;   // the controller completes what it fetched last
  u32 fetch_max = 4;          // commands that it has before it completes one
  bool only_submits = false;  // lanes leave without polling
};

// All checks note their failure, since a run is part of thousands.
class QueueWorld {
 public:
  QueueWorld(std::vector<Role> lanes, u32 deviation_max, Options options)
      : lanes_(std::move(lanes)),
        options_(options),
        memory_(options.depth, first_ticket()),
        explorer_(static_cast<u32>(lanes_.size()) + 1, deviation_max, [this](u32 i) { work(i); }) {
    explorer_.watch(memory_.watched(), memory_.watched_bytes());
    explorer_.set_spin_loads(6);
  }

  // Empty: no schedule failed.
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
  u32 bypass_max() const { return bypass_max_; }
  bool completed_out_of_order() const { return completed_out_of_order_; }
  bool rang_for_several() const { return rang_for_several_; }

 private:
  struct Fetched {
    u16 id;
    u64 cookie;
  };

  u32 first_ticket() const { return 0u - 2 * options_.depth; }
  u32 lane_count() const { return static_cast<u32>(lanes_.size()); }
  VirtualQueue& queue() { return memory_.queue(); }
  void expect(bool condition, const char* fault) {
    if (!condition && fault_.empty()) fault_ = fault;
  }

  void reset() {
    memory_.reset(first_ticket());
    std::memset(outcomes_, 0, sizeof(outcomes_));
    std::memset(fetches_, 0, sizeof(fetches_));
    for (Seen& seen : seen_) seen = {};
    outcome_count_ = 0;
    fetched_count_ = posted_ = doorbell_ = waits_ = lanes_done_ = 0;
    fetched_.clear();
  }

  // All that a fiber may wait for.
  struct Seen {
    u32 numbers[10];
    friend bool operator==(const Seen&, const Seen&) = default;
  };
  Seen look() {
    const VirtualQueue& all = queue();
    return {{all.completed, all.tail, all.next_ticket, all.poll_token, all.tail_lock, posted_, fetched_count_,
             outcome_count_, lanes_done_, *all.completion_doorbell}};
  }
  // Sleeps only if nothing has changed since the fiber came here last: the loop around has then seen all there is.
  void wait(u32 fiber) {
    expect(++waits_ < wait_max, "nobody makes progress");
    // Ends the lanes.
    if (!fault_.empty()) fail(memory_.controller(), Failure::timed_out);
    const Seen now = look();
    if (now == seen_[fiber]) return explorer_.wait();
    seen_[fiber] = now;
    explorer_.point();
  }
  bool has_fault() const { return !fault_.empty() || memory_failed(); }
  bool memory_failed() const { return const_cast<QueueWorld*>(this)->memory_.controller().failure != 0; }

  void work(u32 fiber) {
    if (fiber == lane_count()) return control();
    const auto visit = [this](const Outcome& outcome) {
      expect(outcome.cookie < cookie_max, "an unknown cookie");
      ++outcomes_[outcome.cookie % cookie_max];
      ++outcome_count_;
      expect(outcome.result == outcome.cookie * 17, "the outcome of another command");
      explorer_.note_change();
    };
    for (u32 round = 0; round < options_.rounds && !has_fault(); ++round) {
      const u64 cookie = 1 + fiber * options_.rounds + round;
      submit_one(fiber, cookie, visit);
      while (outcomes_[cookie] == 0 && !has_fault() && !options_.only_submits) {
        if (poll(Lane{}, queue(), visit) == 0) wait(fiber);
      }
    }
    ++lanes_done_;
    explorer_.note_change();
  }

  template <class Visit>
  void submit_one(u32 fiber, u64 cookie, Visit&& visit) {
    if (lanes_[fiber] == Role::waits) {
      const SubmitResult result =
          submit(Lane{}, queue(), {command_of(cookie), cookie}, visit, [this, fiber] { wait(fiber); });
      expect(result == SubmitResult::submitted, "a command is not submitted");
      return;
    }
    while (!has_fault()) {
      const SubmitResult result = try_submit(Lane{}, queue(), {command_of(cookie), cookie});
      if (result == SubmitResult::submitted) return;
      if (poll(Lane{}, queue(), visit) == 0) wait(fiber);
    }
  }

  // The controller: fetches in order what the doorbell shows, and completes in any order.
  void control() {
    while (lanes_done_ < lane_count() && !has_fault()) {
      const u32 tail = __atomic_load_n(queue().submission_doorbell, __ATOMIC_SEQ_CST);
      const bool can_fetch = tail != fetched_count_ % options_.depth && fetched_.size() < options_.fetch_max;
      if (tail != doorbell_) check_doorbell(tail);
      if (can_fetch) {
        fetch();
        explorer_.point();
      } else if (!fetched_.empty()) {
        complete();
      } else {
        explorer_.wait();
      }
    }
  }
  void check_doorbell(u32 tail) {
    const u32 shown = (tail - doorbell_) % options_.depth;
    if (shown > 1) rang_for_several_ = true;
    doorbell_ = tail;
  }
  void fetch() {
    SubmissionEntry& place = queue().submissions[fetched_count_ % options_.depth];
    const SubmissionEntry entry = place;
    std::memset(static_cast<void*>(&place), 0xee, sizeof(place));
    const u64 cookie = entry.namespace_id;
    expect(cookie != 0 && cookie < cookie_max && is_command_of(entry, cookie), "a torn or outdated entry is shown");
    if (cookie >= cookie_max) return;
    expect(++fetches_[cookie] == 1, "a command is shown twice");
    for (const Fetched& other : fetched_) expect(other.id != entry.command_id, "two commands have one identifier");
    expect(entry.command_id != command_id_reserved, "a reserved identifier");
    // Tickets are fetched in their order, so a command is bypassed by none that has a later one.
    const u32 ticket = queue().slots[entry.command_id % options_.depth].ticket;
    expect(ticket == first_ticket() + fetched_count_, "a command with a later ticket is shown first");
    // A lane has one command at a time. So a ticket waits for those of the other lanes at most.
    const u32 unfetched = queue().next_ticket - first_ticket() - fetched_count_;
    expect(unfetched <= lane_count(), "a lane is bypassed too often");
    bypass_max_ = std::max(bypass_max_, unfetched - 1);
    ++fetched_count_;
    fetched_.push_back({entry.command_id, cookie});
  }
  void complete() {
    const u32 head = __atomic_load_n(queue().completion_doorbell, __ATOMIC_SEQ_CST);
    expect((posted_ - head) % options_.depth + 1 < options_.depth, "the completion queue overflows");
    const u64 which = options_.newest_first ? fetched_.size() - 1 : 0;
    if (which != 0) completed_out_of_order_ = true;
    const Fetched done = fetched_[which];
    fetched_.erase(fetched_.begin() + static_cast<std::ptrdiff_t>(which));
    CompletionEntry entry{};
    entry.dword0 = static_cast<u32>(done.cookie * 17);
    entry.submission_head = static_cast<u16>(fetched_count_ % options_.depth);
    entry.submission_queue = QueueMemory::queue_id;
    entry.command_id = done.id;
    entry.status = posted_ / options_.depth % 2 == 0 ? 1 : 0;
    u32 words[4];
    std::memcpy(words, &entry, sizeof(words));
    u32* const place = reinterpret_cast<u32*>(&queue().completions[posted_ % options_.depth]);
    ++posted_;
    for (u32 i = 0; i < 3; ++i) __atomic_store_n(&place[i], words[i], __ATOMIC_SEQ_CST);
    __atomic_store(&place[3], &words[3], __ATOMIC_SEQ_CST);
  }

  void check_end() {
    expect(!memory_failed(), "a good controller has failed");
    const u32 count = lane_count() * options_.rounds;
    if (options_.only_submits) return expect(queue().tail == first_ticket() + count, "an entry is not shown");
    for (u64 cookie = 1; cookie <= count; ++cookie) expect(outcomes_[cookie] == 1, "not one outcome for a command");
    const u32 end = first_ticket() + count;
    expect(queue().next_ticket == end && queue().tail == end && queue().completed == end, "the queue is not at rest");
    expect(queue().tail_lock == 0 && queue().poll_token == 0, "a lock is still held");
    u64 free_ids = 0;
    for (u32 i = 0; i < options_.depth; ++i) free_ids |= u64{1} << queue().free_ids[i];
    expect(free_ids == (u64{1} << options_.depth) - 1, "an identifier is lost");
  }

  std::vector<Role> lanes_;
  Options options_;
  QueueMemory memory_;
  ScheduleExplorer explorer_;
  u32 outcomes_[cookie_max];
  u32 fetches_[cookie_max];
  std::vector<Fetched> fetched_;
  u32 fetched_count_ = 0;
  u32 posted_ = 0;
  u32 doorbell_ = 0;
  u32 waits_ = 0;
  u32 lanes_done_ = 0;
  u32 outcome_count_ = 0;
  Seen seen_[lane_max + 1];
  u64 schedules_ = 0;
  u32 bypass_max_ = 0;
  bool completed_out_of_order_ = false;
  bool rang_for_several_ = false;
  std::string fault_;
};

// ThreadSanitizer takes fibers for threads, and the explorer has no other synchronisation between them.
class QueueSchedules : public ::testing::Test {
 protected:
  void SetUp() override {
    if (GPU4FS_TSAN != 0) GTEST_SKIP() << "the fibers share the explorer's state";
  }
  static u32 deviations(u32 usual) { return is_short() ? usual - 1 : usual; }
};

TEST_F(QueueSchedules, TwoToFourLanesOnAQueueOfDepthTwo) {
  for (u32 lanes = 2; lanes <= lane_max; ++lanes) {
    Options options;
    options.rounds = lanes == 4 ? 1 : 2;
    QueueWorld world(std::vector<Role>(lanes, Role::waits), deviations(2), options);
    EXPECT_EQ(world.run_all(), "") << lanes << " lanes";
    EXPECT_GT(world.schedules(), is_short() ? 200u : 1000u);
    // The bound is reached.
    EXPECT_EQ(world.bypass_max(), lanes - 1);
  }
}

TEST_F(QueueSchedules, LanesThatTryAndLanesThatWait) {
  for (const std::vector<Role>& lanes : {
           std::vector<Role>{Role::tries, Role::tries},
           std::vector<Role>{Role::tries, Role::waits, Role::waits},
           std::vector<Role>{Role::tries, Role::tries, Role::waits, Role::waits},
       }) {
    Options options;
    options.rounds = lanes.size() == 2 ? 2 : 1;
    QueueWorld world(lanes, deviations(2), options);
    EXPECT_EQ(world.run_all(), "");
    EXPECT_GT(world.schedules(), is_short() ? 200u : 1000u);
  }
}

TEST_F(QueueSchedules, CompletionsInAnyOrder) {
  Options options;
  options.depth = 4;
  for (options.newest_first = false;; options.newest_first = true) {
    QueueWorld world(std::vector<Role>(3, Role::waits), deviations(2), options);
    EXPECT_EQ(world.run_all(), "");
    EXPECT_EQ(world.completed_out_of_order(), options.newest_first);
    EXPECT_TRUE(world.rang_for_several());
    if (options.newest_first) break;
  }
}

// Nobody polls here. Three lanes need more than the rounds of one holder of the tail.
TEST_F(QueueSchedules, TwoLanesLeaveNoEntryUnshown) {
  Options options;
  options.depth = 4;
  options.rounds = 1;
  options.only_submits = true;
  QueueWorld world(std::vector<Role>(2, Role::tries), deviations(3), options);
  EXPECT_EQ(world.run_all(), "");
  EXPECT_GT(world.schedules(), is_short() ? 50u : 500u);
}

TEST_F(QueueSchedules, MoreLanesThanTheTailWaitsFor) {
  Options options;
  options.depth = 8;
  options.rounds = 1;
  QueueWorld world(std::vector<Role>(4, Role::waits), deviations(2), options);
  EXPECT_EQ(world.run_all(), "");
  EXPECT_TRUE(world.rang_for_several());
}

}  // namespace
}  // namespace gpu4fs::nvme::test
