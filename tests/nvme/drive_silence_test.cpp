// When a drive is given up: it is silent, and not merely slow.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "base/emulated_warp.hpp"
#include "device/drives/drive_build.hpp"
#include "device/drives/drive_requests.hpp"
#include "device/nvme/drive/service.hpp"
#include "device/queue/io_queue_build.hpp"
#include "emulated_drive.hpp"
#include "nvme/emulated/served_drive.hpp"
#include "support/heap_allocator.hpp"

namespace gpu4fs::nvme::drive_silence_test {
namespace {

using device::IoOperation;

constexpr u32 slot_count = 64;

// A drive with one queue, whose commands are flushes. The test answers them, and says what time it is.
class SilenceWorld {
 public:
  SilenceWorld(u32 depth, u64 timeout_ns, bool can_abort = false) : timeout_ns_(timeout_ns) {
    void* const memory = heap_.allocate(device::io_queue_shared_bytes(slot_count), cache_line);
    queue_ = device::build_io_queue(heap_, slot_count, {memory, memory}, true);
    set_ = device::drive_set_image(heap_, slot_count, {{nullptr, ~u64{0}, 0}});
    queue_->drives = &set_;
    device::DriveSetup setup;
    setup.block_count = 64;
    setup.has_zeroes = true;
    setup.command_timeout_ns = timeout_ns;
    setup.can_abort = can_abort;
    built_ = device::build_drive(heap_, heap_, setup, 1, depth);
    const device::DriveQueueEntries& entries = built_.entries[0];
    place_drive_queue(
        view_,
        {entries.submissions, entries.completions, entries.submission_doorbell, entries.completion_doorbell, nullptr},
        depth, 1);
    set_.drives[0] = built_.drive;
    set_.connected = 1;
  }

  device::IoQueue& queue() { return *queue_; }
  ServedQueue served() const {
    const device::DriveQueueEntries& entries = built_.entries[0];
    return {entries.submissions,         entries.completions, entries.submission_doorbell,
            entries.completion_doorbell, view_.depth,         1};
  }

  // A slot with a flush that was not submitted yet.
  u32 prepare() {
    const u32 slot = device::take_slot(*queue_);
    device::set_request(*queue_, slot, {IoOperation::flush, 0, 0, 0, 0, nullptr});
    return slot;
  }
  u32 submit_zeroes() {
    const u32 slot = prepare();
    device::set_request(*queue_, slot, {IoOperation::write_zeroes, 0, 0, page_size, 0, nullptr});
    (void)device::submit_to_drives(Lane{}, *queue_, slot);
    ++submitted_;
    return slot;
  }
  u32 submit() {
    const u32 slot = prepare();
    (void)device::submit_to_drives(Lane{}, *queue_, slot);
    ++submitted_;
    return slot;
  }
  bool is_pending(u32 slot) const { return device::poll(*queue_, slot).is_pending; }
  Status status_of(u32 slot) const { return device::poll(*queue_, slot).status; }

  // The drive ends the command that was submitted as number `submission`, and the engine takes it.
  void answer(u32 submission, StatusCode status = StatusCode::success) {
    const SubmissionEntry entry = detail::load_entry(view_, submission);
    detail::post_completion(view_, answered_, submitted_, entry.command_id, status);
    ++answered_;
    EXPECT_EQ(device::poll_drives(Lane{}, *queue_, true), 1u);
  }
  // Somebody looks at the drive every eighth of the time-out.
  void watch(u32 eighths) {
    for (u32 i = 0; i < eighths; ++i) look_after(timeout_ns_ / 8);
  }
  void look_after(u64 pause_ns) {
    now_ns_ += pause_ns;
    (void)device::detail::look_at_drive(Lane{}, *built_.drive, now_ns_, [](const Outcome&) {});
  }
  Failure failure() const { return failure_of(*built_.drive->controller); }
  device::DriveSignal& signal() { return *built_.signal; }
  // The command that the host was told of last.
  device::LateCommand late() { return device::LateCommand::of(signal().late); }
  u16 command_id(u32 submission) const { return detail::load_entry(view_, submission).command_id; }

  // As the host does it.
  void answer_failure() {
    while (load<Order::acquire, Scope::system>(&signal().failure) == 0) std::this_thread::yield();
    store<Order::release, Scope::system>(&signal().is_quiet, 1u);
  }

 private:
  u64 timeout_ns_;
  gpu4fs::test::HeapAllocator heap_;
  device::IoQueue* queue_ = nullptr;
  device::DriveSet set_{};
  device::BuiltDrive built_;
  DriveQueue view_{};
  u32 submitted_ = 0;
  u32 answered_ = 0;
  // Ahead of the clock, so that polls of the test find that no look is due.
  u64 now_ns_ = now_monotonic_ns() + 1000000000000;
};

// The last of eight waits for seven times nearly the time-out.
TEST(DriveSilence, ADriveThatAnswersOneAfterTheOtherIsNotGivenUp) {
  SilenceWorld world(16, device::drive_timeout_ns);
  std::vector<u32> slots;
  for (u32 i = 0; i < 8; ++i) slots.push_back(world.submit());
  for (u32 i = 0; i < 8; ++i) {
    world.watch(8);
    EXPECT_EQ(world.failure(), Failure::none) << i;
    EXPECT_TRUE(world.is_pending(slots[i]));
    world.answer(i);
    EXPECT_EQ(world.status_of(slots[i]), Status::ok);
  }
  world.watch(20);
  EXPECT_EQ(world.failure(), Failure::none) << "nothing is outstanding";
}

TEST(DriveSilence, ACommandThatIsForgottenAmongOthersIsNoticed) {
  SilenceWorld world(16, device::drive_timeout_ns);
  const u32 forgotten = world.submit();
  for (u32 i = 1; i < 10; ++i) {
    (void)world.submit();
    world.watch(1);
    EXPECT_EQ(world.failure(), Failure::none) << i;
    world.answer(i);
  }
  (void)world.submit();
  world.watch(1);
  EXPECT_EQ(world.failure(), Failure::timed_out);
  EXPECT_TRUE(world.is_pending(forgotten)) << "the drive is not quiet yet";
}

// The answer may have been there all the time.
TEST(DriveSilence, ThePauseOfTheEngineDoesNotCount) {
  SilenceWorld world(16, device::drive_timeout_ns);
  (void)world.submit();
  world.watch(3);
  world.look_after(10 * device::drive_timeout_ns);
  world.watch(8);
  EXPECT_EQ(world.failure(), Failure::none);
  world.watch(1);
  EXPECT_EQ(world.failure(), Failure::timed_out);
}

// Each of them in turn, without another time-out. Requests are repeated, but nobody knows what an aborted flush has
// done.
TEST(DriveSilence, LateCommandsAreAborted) {
  SilenceWorld world(16, device::drive_timeout_ns, true);
  std::vector<u32> slots;
  for (u32 i = 0; i < 3; ++i) slots.push_back(world.submit_zeroes());
  slots.push_back(world.submit());
  world.watch(9);
  EXPECT_EQ(world.signal().late, 0u);
  world.watch(1);
  for (u32 i = 0; i < slots.size(); ++i) {
    EXPECT_EQ(world.late().number, i + 1);
    EXPECT_EQ(world.late().queue, 0u);
    EXPECT_EQ(world.late().command_id, world.command_id(i));
    EXPECT_TRUE(world.is_pending(slots[i]));
    world.answer(i, StatusCode::abort_requested);
    EXPECT_EQ(world.status_of(slots[i]), i < 3 ? Status::again : Status::device_failed);
    world.watch(1);
  }
  world.watch(40);
  EXPECT_EQ(world.late().number, slots.size()) << "nothing is outstanding";
  EXPECT_EQ(world.failure(), Failure::none);
}

TEST(DriveSilence, ADriveThatAnswersNoAbortIsGivenUp) {
  SilenceWorld world(16, device::drive_timeout_ns, true);
  (void)world.submit();
  world.watch(10);
  EXPECT_EQ(world.late().number, 1u);
  world.watch(2);
  EXPECT_EQ(world.failure(), Failure::none) << "it has some time for the Abort";
  world.watch(1);
  EXPECT_EQ(world.failure(), Failure::timed_out);
  EXPECT_EQ(world.late().number, 1u);
}

TEST(DriveSilence, ADriveThatIsLateTooOftenIsGivenUp) {
  SilenceWorld world(16, device::drive_timeout_ns, true);
  u32 submission = 0;
  for (; submission < device::detail::late_command_max; ++submission) {
    (void)world.submit_zeroes();
    world.watch(10);
    ASSERT_EQ(world.late().number, submission + 1);
    world.answer(submission, StatusCode::abort_requested);
    world.watch(1);
  }
  // It keeps its time for long.
  world.watch(8 * device::detail::kept_time_outs + 8);
  for (u32 i = 0; i < device::detail::late_command_max; ++i, ++submission) {
    (void)world.submit_zeroes();
    world.watch(10);
    ASSERT_EQ(world.failure(), Failure::none) << i;
    world.answer(submission, StatusCode::abort_requested);
    world.watch(1);
  }
  (void)world.submit_zeroes();
  world.watch(10);
  EXPECT_EQ(world.failure(), Failure::timed_out);
}

// Nobody polls but those who wait for a place in the queue.
TEST(DriveSilence, WhoeverWaitsForAPlaceNoticesIt) {
  SilenceWorld world(2, 20000000);
  std::thread host([&] { world.answer_failure(); });
  const u32 first = world.submit();
  const u32 second = world.submit();
  host.join();
  EXPECT_EQ(world.failure(), Failure::timed_out);
  EXPECT_EQ(world.status_of(second), Status::device_failed);
  while (world.is_pending(first)) (void)device::poll_drives(Lane{}, world.queue(), true);
  EXPECT_EQ(world.status_of(first), Status::device_failed);
  EXPECT_EQ(world.status_of(world.submit()), Status::device_failed) << "nothing is sent any more";
}

TEST(DriveSilence, AGroupThatWaitsForPlacesNoticesIt) {
  SilenceWorld world(4, 20000000);
  std::thread host([&] { world.answer_failure(); });
  std::vector<u32> slots(32);
  for (u32& slot : slots) slot = world.prepare();
  run_emulated_warp([&](EmulatedWarp g) { (void)device::submit_to_drives(g, world.queue(), slots[g.rank()]); });
  host.join();
  for (const u32 slot : slots) {
    while (world.is_pending(slot)) (void)device::poll_drives(Lane{}, world.queue(), true);
    EXPECT_EQ(world.status_of(slot), Status::device_failed);
  }
}

// A command of the medium takes longer than the drive takes commands at a time.
TEST(ServedDrive, ASlowMediumAnswersOneAfterTheOther) {
  SilenceWorld world(16, test::patient_ns);
  ServedDrive drive({world.served()}, profile_unlimited, [](const SubmissionEntry&) {
    const u64 end_ns = now_monotonic_ns() + 2000000;
    while (now_monotonic_ns() < end_ns) {
    }
    return StatusCode::success;
  });
  for (u32 i = 0; i < 4; ++i) (void)world.submit();
  for (u32 i = 0; i < 4; ++i) {
    const ServedDrive::Step step = drive.step();
    EXPECT_EQ(step.taken, 1u) << i;
    EXPECT_EQ(step.completed, 1u) << i;
  }
}

}  // namespace
}  // namespace gpu4fs::nvme::drive_silence_test
