// Commands that wait until fewer pages are being written. The test is the controller of the medium.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "cache/line_lookup.hpp"
#include "device/device_access.hpp"
#include "device/io_queue_memory.hpp"
#include "device/staged/pins.hpp"
#include "device/staged/staged_build.hpp"
#include "engine/device_poll.hpp"

namespace gpu4fs::engine {
namespace {

constexpr u32 command_count = 4;
constexpr u32 slot_count = 16;
constexpr u64 device_pages = 1024;

// What device_poll.hpp uses of an engine.
class BusyEngine {
 public:
  BusyEngine() : queue_(slot_count), engine_(std::make_unique<Engine>()), commands_(command_count) {
    device_.kind = device::DeviceKind::staged;
    device_.size_bytes = device_pages * page_size;
    staged_ = device::build_staged_devices(heap_, &device_, device::staged_frames_min(1), 1,
                                           {&queue_.queue(), slot_count, nullptr});
    device_.staged = staged_;
    engine_->fs.space.staged = staged_;
    engine_->commands = commands_.data();
    engine_->config.command_count = command_count;
    engine_->media_queue.head = no_command;
    engine_->media_queue.tail = no_command;
    for (u32 i = 0; i < command_count; ++i) {
      commands_[i].index = i;
      set_phase(commands_[i], CommandPhase::running);
    }
  }

  Engine& engine() { return *engine_; }
  CommandState& command(u32 index) { return commands_[index]; }
  u32 busy_count() const { return staged_->busy_write_count; }

  void begin_write(u64 page) {
    const u32 first = device::begin_pins(Lane{}, *staged_);
    ASSERT_EQ(device::begin_write(device_, page * page_size, page_size), Status::ok);
    std::memset(device::memory_at(device_, page * page_size, page_size), 1, page_size);
    device::end_write(device_, page * page_size, page_size);
    device::end_pins(Lane{}, *staged_, first);
    ASSERT_TRUE(device::begin_detached_write(device_, page));
  }
  void make_busy() {
    for (u32 page = 0; page < busy_count(); ++page) begin_write(page);
  }
  // Completes one write.
  void serve() {
    u32 slot = 0;
    ASSERT_TRUE(device::take(queue_.shared(), &slot));
    (void)device::complete(queue_.shared(), slot, Status::ok);
  }
  bool poll() { return step_from_devices(Lane{}, *engine_); }
  bool was_woken(u32 index) {
    if (phase_of(commands_[index]) != CommandPhase::woken) return false;
    set_phase(commands_[index], CommandPhase::running);
    announce_wait(commands_[index], Status::ok);
    return true;
  }

 private:
  device::SingleWorkerGuard worker_;
  test::HeapAllocator heap_;
  test::IoQueueMemory queue_;
  device::Device device_{};
  device::StagedDevices* staged_ = nullptr;
  std::unique_ptr<Engine> engine_;
  std::vector<CommandState> commands_;
};

TEST(MediaQueue, WithoutStagedDevicesNobodyWaits) {
  BusyEngine world;
  world.make_busy();
  world.engine().fs.space.staged = nullptr;
  EXPECT_EQ(await_media(world.engine(), world.command(0)), Status::ok);
}

TEST(MediaQueue, LoadsDoNotMakeTheMediaBusy) {
  BusyEngine world;
  for (u32 page = 1; page < world.busy_count(); ++page) world.begin_write(page);
  EXPECT_EQ(await_media(world.engine(), world.command(0)), Status::ok);
  EXPECT_EQ(world.command(0).waits_for, static_cast<u32>(Status::ok));
  EXPECT_TRUE(device::begin_detached_load(*world.engine().fs.space.staged->devices, 900, device::no_io_owner));
  EXPECT_EQ(await_media(world.engine(), world.command(0)), Status::ok);
  world.begin_write(0);
  EXPECT_EQ(await_media(world.engine(), world.command(0)), Status::waits_for_media);
}

TEST(MediaQueue, AllAreWokenWhenOneWriteLessIsInFlight) {
  BusyEngine world;
  world.make_busy();
  world.begin_write(world.busy_count());
  for (u32 i = 0; i < 3; ++i) {
    EXPECT_EQ(await_media(world.engine(), world.command(i)), Status::waits_for_media);
    EXPECT_EQ(world.command(i).waits_for, static_cast<u32>(Status::waits_for_media));
  }
  world.serve();
  EXPECT_TRUE(world.poll());
  for (u32 i = 0; i < 3; ++i) EXPECT_FALSE(world.was_woken(i)) << "still busy";
  world.serve();
  EXPECT_TRUE(world.poll());
  for (u32 i = 0; i < 3; ++i) EXPECT_TRUE(world.was_woken(i)) << i;
  EXPECT_EQ(await_media(world.engine(), world.command(0)), Status::ok);
  EXPECT_EQ(world.engine().media_queue.head, no_command);
}

TEST(MediaQueue, OnlyWhoIsLateLeavesTheList) {
  BusyEngine world;
  world.make_busy();
  for (u32 i = 0; i < 3; ++i) {
    world.command(i).deadline_ns = i == 1 ? 100 : 0;
    EXPECT_EQ(await_media(world.engine(), world.command(i)), Status::waits_for_media);
  }
  for (u32 i = 0; i < 3; ++i) EXPECT_EQ(cancel_media_wait(world.engine(), i, 200), i == 1) << i;
  world.serve();
  EXPECT_TRUE(world.poll());
  EXPECT_TRUE(world.was_woken(0));
  EXPECT_FALSE(world.was_woken(1));
  EXPECT_TRUE(world.was_woken(2));
}

}  // namespace
}  // namespace gpu4fs::engine
