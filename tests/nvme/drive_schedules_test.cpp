// Two workers of a drive on one queue, with lanes of the driver on the other end, under every schedule with a bounded
// number of deviations from the plain one. Counters begin in front of their wrap, and the queue is shallow.
#include "support/schedule_points.hpp"
//
#include "device/nvme/drive/service.hpp"
#include "device/nvme/submit.hpp"
#include "nvme/queue_memory.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::nvme::test {
namespace {

using gpu4fs::test::is_short;
using gpu4fs::test::ScheduleExplorer;

constexpr u32 worker_count = 2;
constexpr u32 block_bytes = 512;
constexpr u32 block_max = 8;
constexpr u32 wait_max = 3000;
constexpr u64 buffer_address = u64{1} << 40;

// Each lane writes its block and reads it back.
class DriveWorld {
 public:
  DriveWorld(u32 lane_count, u32 depth, bool has_latency, u32 deviation_max)
      : lane_count_(lane_count),
        depth_(depth),
        memory_(depth, 0u - 2 * depth, sizeof(DriveQueue)),
        drive_queue_(*reinterpret_cast<DriveQueue*>(memory_.extra())),
        explorer_(lane_count + worker_count, deviation_max, [this](u32 i) { work(i); }) {
    drive_.memory.windows[0] = {buffer_address, sizeof(buffers_), buffers_};
    drive_.memory.window_count = 1;
    drive_.namespaces[0] = {{1, block_bytes, block_max}, medium_};
    drive_.namespace_count = 1;
    drive_.latency_ns = has_latency ? 1 : 0;
    drive_.queues = &drive_queue_;
    drive_.queue_count = 1;
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
  bool both_worked() const { return both_worked_; }

 private:
  struct Seen {
    u32 numbers[12];
    friend bool operator==(const Seen&, const Seen&) = default;
  };

  VirtualQueue& queue() { return memory_.queue(); }
  void expect(bool condition, const char* fault) {
    if (!condition && fault_.empty()) fault_ = fault;
  }
  void reset() {
    memory_.reset(0u - 2 * depth_);
    place_drive_queue(
        drive_queue_,
        {queue().submissions, queue().completions, queue().submission_doorbell, queue().completion_doorbell, arrivals_},
        depth_, QueueMemory::queue_id);
    // In step with the driver's counters.
    drive_queue_.position = drive_queue_.seen = 0u - 2 * depth_;
    drive_.complaint = 0;
    std::memset(medium_, 0, sizeof(medium_));
    std::memset(outcomes_, 0, sizeof(outcomes_));
    std::memset(served_, 0, sizeof(served_));
    for (Seen& seen : seen_) seen = {};
    waits_ = lanes_done_ = outcome_count_ = 0;
  }
  Seen look() {
    const VirtualQueue& all = queue();
    return {{all.completed, all.tail, all.next_ticket, all.poll_token, all.tail_lock, drive_queue_.position,
             drive_queue_.token, *all.submission_doorbell, *all.completion_doorbell, outcome_count_, lanes_done_,
             served_[0] + served_[1]}};
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

  void work(u32 fiber) {
    if (fiber >= lane_count_) return serve(fiber);
    u8* const buffer = &buffers_[fiber * block_bytes];
    for (const IoOpcode opcode : {IoOpcode::write, IoOpcode::read}) {
      std::memset(buffer, opcode == IoOpcode::write ? static_cast<int>(fiber + 1) : 0, block_bytes);
      execute(fiber, opcode);
    }
    expect(buffer[0] == fiber + 1 && buffer[block_bytes - 1] == fiber + 1, "other bytes come back");
    ++lanes_done_;
    explorer_.note_change();
  }
  void execute(u32 fiber, IoOpcode opcode) {
    const auto visit = [this](const Outcome& outcome) {
      expect(outcome.status == 0, "a command fails");
      ++outcomes_[outcome.cookie % block_max];
      ++outcome_count_;
      explorer_.note_change();
    };
    SubmissionEntry entry{};
    entry.opcode = static_cast<u8>(opcode);
    entry.namespace_id = 1;
    entry.data.prp.first = buffer_address + fiber * block_bytes;
    entry.dword10 = fiber;
    const u32 before = outcomes_[fiber];
    submit(Lane{}, queue(), {entry, fiber}, visit, [this, fiber] { wait(fiber); });
    while (outcomes_[fiber] == before && !has_fault()) {
      if (poll(Lane{}, queue(), visit) == 0) wait(fiber);
    }
  }
  void serve(u32 fiber) {
    while (lanes_done_ < lane_count_ && !has_fault()) {
      const u32 count = serve_queue(Lane{}, drive_, drive_queue_);
      served_[fiber - lane_count_] += count;
      if (count == 0) wait(fiber);
    }
  }

  void check_end() {
    expect(memory_.controller().failure == 0, "the driver gives the drive up");
    expect(drive_.complaint == 0, "the drive complains");
    expect(served_[0] + served_[1] == 2 * lane_count_, "not one completion for a command");
    expect(drive_queue_.token == 0, "a token is still held");
    for (u32 i = 0; i < lane_count_; ++i) expect(medium_[i * block_bytes + 9] == i + 1, "the medium has other bytes");
    if (served_[0] > 0 && served_[1] > 0) both_worked_ = true;
  }

  u32 lane_count_;
  u32 depth_;
  QueueMemory memory_;
  DriveQueue& drive_queue_;
  MemoryDrive drive_{};
  ScheduleExplorer explorer_;
  alignas(16) u8 medium_[block_max * block_bytes];
  alignas(16) u8 buffers_[block_max * block_bytes];
  u64 arrivals_[block_max];
  u32 outcomes_[block_max];
  u32 served_[worker_count];
  Seen seen_[block_max];
  u32 waits_ = 0;
  u32 lanes_done_ = 0;
  u32 outcome_count_ = 0;
  u64 schedules_ = 0;
  bool both_worked_ = false;
  std::string fault_;
};

class DriveSchedules : public ::testing::Test {
 protected:
  void SetUp() override {
    if (GPU4FS_TSAN != 0) GTEST_SKIP() << "the fibers share the explorer's state";
  }
};

TEST_F(DriveSchedules, TwoWorkersOnAQueue) {
  for (const u32 depth : {2u, 4u}) {
    DriveWorld world(2, depth, false, is_short() ? 1 : 2);
    EXPECT_EQ(world.run_all(), "") << depth;
    EXPECT_GT(world.schedules(), is_short() ? 50u : 1000u);
    EXPECT_TRUE(world.both_worked());
  }
}

// Workers that do not keep out of each other's way need two deviations to meet.
TEST_F(DriveSchedules, TwoWorkersForOneLane) {
  DriveWorld world(1, 2, false, 2);
  EXPECT_EQ(world.run_all(), "");
  EXPECT_TRUE(world.both_worked());
}

TEST_F(DriveSchedules, WithALatency) {
  DriveWorld world(2, 4, true, is_short() ? 1 : 2);
  EXPECT_EQ(world.run_all(), "");
  EXPECT_TRUE(world.both_worked());
}

}  // namespace
}  // namespace gpu4fs::nvme::test
