// Staged devices whose media are NVMe drives: the engine's side (device/drives) with emulated drives behind it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cache/line_lookup.hpp"
#include "device/device_access.hpp"
#include "device/drives/drive_build.hpp"
#include "device/drives/drive_requests.hpp"
#include "device/nvme/drive/memory_drive.hpp"
#include "device/queue/io_queue_build.hpp"
#include "device/staged/load_ahead.hpp"
#include "device/staged/pins.hpp"
#include "device/staged/staged_build.hpp"
#include "device/staged/write_back.hpp"
#include "device/transfer.hpp"
#include "emulated_drive.hpp"
#include "nvme/emulated/served_drive.hpp"
#include "served_world.hpp"
#include "support/heap_allocator.hpp"

namespace gpu4fs::nvme::drive_medium_test {
namespace {

using device::Device;
using device::IoOperation;
using test::device_pages;
using test::DriveWorld;
using test::EmulatedDrive;
using test::first_byte;
using test::has;
using test::medium_of;
using test::patient_ns;
using test::ServedWorld;
using test::slot_count;
using DriveOptions = test::DriveOptions;

void store_and_read_all(ServedWorld& served) {
  DriveWorld& world = served.world;
  for (u64 page = 0; page < device_pages; page += 2) world.store(page, static_cast<u8>(first_byte(page) ^ 0x80));
  EXPECT_EQ(device::write_back_all(Lane{}, *world.staged, 0), Status::ok);
  for (u64 page = 0; page < device_pages; ++page) {
    const u8 byte = page % 2 == 0 ? static_cast<u8>(first_byte(page) ^ 0x80) : first_byte(page);
    EXPECT_TRUE(has(served.at(page), byte)) << page;
    world.drop(page);
    EXPECT_EQ(world.read(page, byte), Status::ok);
  }
  EXPECT_FALSE(served.has_complaint());
}

TEST(DriveMedium, PagesReachTheMediumAndComeBack) {
  ServedWorld served(64);
  store_and_read_all(served);
}

TEST(DriveMedium, OnePlaceIsEnough) {
  ServedWorld served(2, 1);
  store_and_read_all(served);
}

TEST(DriveMedium, CompletionsComeInAnyOrder) {
  ServedWorld served(16, 3, 7);
  store_and_read_all(served);
}

// Loads of which each has an owner, more than the queue has places.
TEST(DriveMedium, EachOwnerIsToldOnce) {
  for (const u32 depth : {2u, 8u}) {
    ServedWorld served(depth, 2, 3);
    std::vector<u32> told;
    u32 begun = 0;
    for (u32 page = 0; page < 24; ++page) {
      if (device::begin_detached_load(served.world.device(), page, page)) ++begun;
    }
    EXPECT_EQ(begun, 24u);
    told = served.world.take_until_quiet();
    std::sort(told.begin(), told.end());
    ASSERT_EQ(told.size(), 24u);
    for (u32 page = 0; page < 24; ++page) {
      EXPECT_EQ(told[page], page);
      EXPECT_EQ(served.world.read(page, first_byte(page)), Status::ok);
    }
  }
}

// A drive that is busy gets no hints, so nobody waits for room to give one.
TEST(DriveMedium, HintsLeaveHalfOfTheQueues) {
  std::atomic<bool> goes_on{false};
  ServedWorld served(16, 2, 0, [&](const SubmissionEntry&) -> std::optional<StatusCode> {
    while (!goes_on) std::this_thread::yield();
    return StatusCode::success;
  });
  DriveWorld& world = served.world;
  u32 begun = 0;
  for (u32 page = 0; page < 15; ++page) {
    const device::BegunAhead hint = device::begin_ahead_loads(Lane{}, *world.staged, {&world.device(), page});
    EXPECT_EQ(hint.has_room, page < 8) << page;
    begun += hint.count;
  }
  EXPECT_EQ(begun, 8u);
  goes_on = true;
  (void)world.take_until_quiet();
  EXPECT_TRUE(device::begin_ahead_loads(Lane{}, *world.staged, {&world.device(), 8}).has_room);
  (void)world.take_until_quiet();
  for (u32 page = 0; page < 9; ++page) EXPECT_EQ(world.read(page, first_byte(page)), Status::ok);
}

// Which of a drive's queues a request goes to.
TEST(DriveClasses, EachHasItsQueues) {
  VirtualQueue queues[device::drive_queue_max];
  device::Drive drive{};
  for (u32 i = 0; i < device::drive_queue_max; ++i) drive.queues[i] = &queues[i];
  const auto queue_of = [&](u32 queue_count, IoOperation operation, u32 reports, u32 turn) {
    drive.queue_count = queue_count;
    device::IoRequest request{operation, 0, 0, page_size, 0, nullptr};
    request.reports = reports;
    return static_cast<u32>(device::detail::queue_for(drive, request, turn) - queues);
  };
  for (u32 turn = 0; turn < 12; ++turn) {
    for (const u32 count : {1u, 2u, 3u, 4u, 8u}) {
      for (const IoOperation operation : {IoOperation::read, IoOperation::write, IoOperation::discard}) {
        EXPECT_EQ(queue_of(count, operation, 0, turn), 0u) << "a lane waits";
      }
      EXPECT_EQ(queue_of(count, IoOperation::flush, 1, turn), 0u);
      EXPECT_EQ(queue_of(count, IoOperation::write, 1, turn), count - 1);
    }
    EXPECT_EQ(queue_of(1, IoOperation::read, 1, turn), 0u);
    EXPECT_EQ(queue_of(2, IoOperation::read, 1, turn), 0u);
    EXPECT_EQ(queue_of(3, IoOperation::read, 1, turn), 1u);
    EXPECT_EQ(queue_of(4, IoOperation::read, 1, turn), 1 + turn % 2);
    EXPECT_EQ(queue_of(8, IoOperation::read, 1, turn), 1 + turn % 6);
  }
}

// Loads that the drive does not answer fill their queues; whoever waits for a page has another one.
TEST(DriveClasses, WhoeverWaitsIsNotBehindLoads) {
  std::atomic<bool> goes_on{false};
  std::atomic<u32> held{0};
  ServedWorld served(4, 4, 0, [&](const SubmissionEntry& entry) -> std::optional<StatusCode> {
    if (entry.dword10 < 100 || goes_on) return StatusCode::success;
    ++held;
    return std::nullopt;
  });
  DriveWorld& world = served.world;
  for (u32 i = 0; i < 6; ++i) EXPECT_TRUE(device::begin_detached_load(world.device(), 100 + i, i));
  while (held != 6) std::this_thread::yield();
  for (u64 page = 0; page < 50; ++page) EXPECT_EQ(world.read(page, first_byte(page)), Status::ok);
  EXPECT_EQ(world.in_flight(), 6u);
}

TEST(DriveMedium, LongTransfersAreSeveralCommands) {
  std::atomic<u32> reads{0};
  ServedWorld served(8, 2, 0, [&](const SubmissionEntry& entry) -> std::optional<StatusCode> {
    if (entry.opcode == static_cast<u8>(IoOpcode::read)) ++reads;
    return StatusCode::success;
  });
  // Frames are one piece of memory, and nobody uses them here.
  u8* const memory = served.world.staged->cache.frames;
  EXPECT_EQ(device::read_medium(served.world.device(), 5, 70, memory), Status::ok);
  for (u64 i = 0; i < 70; ++i) EXPECT_TRUE(has(memory + i * page_size, first_byte(5 + i))) << i;
  EXPECT_EQ(reads.load(), 3u);
  std::memset(memory, 0x5a, 70 * page_size);
  EXPECT_EQ(device::write_medium(served.world.device(), 100, 70, memory), Status::ok);
  for (u64 i = 0; i < 70; ++i) EXPECT_TRUE(has(served.at(100 + i), 0x5a)) << i;
  EXPECT_TRUE(has(served.at(99), first_byte(99)));
  EXPECT_TRUE(has(served.at(170), first_byte(170)));
  EXPECT_FALSE(served.has_complaint());
}

TEST(DriveMedium, ZeroesDiscardAndTheEnd) {
  ServedWorld served(8);
  device::IoQueue& queue = served.world.queue();
  const auto request = [&](IoOperation operation, u64 page, u64 pages) {
    return device::detail::carry_out(queue,
                                     {operation, 0, page * page_size, static_cast<u32>(pages * page_size), 0, nullptr});
  };
  EXPECT_EQ(request(IoOperation::write_zeroes, 10, 3), Status::ok);
  EXPECT_EQ(request(IoOperation::discard, 20, 2), Status::ok);
  EXPECT_EQ(request(IoOperation::discard, device_pages - 1, 2), Status::out_of_range);
  for (const u64 page : {10, 11, 12, 20, 21}) EXPECT_TRUE(has(served.at(page), 0)) << page;
  for (const u64 page : {9, 13, 19, 22}) EXPECT_TRUE(has(served.at(page), first_byte(page))) << page;
}

TEST(DriveMedium, ADeviceWithoutADriveHasFailed) {
  ServedWorld served(8);
  device::IoQueue& queue = served.world.queue();
  EXPECT_EQ(device::detail::carry_out(queue, {IoOperation::flush, 1, 0, 0, 0, nullptr}), Status::device_failed);
}

TEST(DriveMedium, ErrorsAreThoseOfTheirPages) {
  ServedWorld served(8, 2, 0, [](const SubmissionEntry& entry) -> std::optional<StatusCode> {
    if (entry.dword10 == 30 && entry.opcode == static_cast<u8>(IoOpcode::read)) {
      return StatusCode::unrecovered_read_error;
    }
    if (entry.dword10 == 40 && entry.opcode == static_cast<u8>(IoOpcode::write)) return StatusCode::write_fault;
    return StatusCode::success;
  });
  DriveWorld& world = served.world;
  EXPECT_EQ(world.read(30, 0), Status::medium_error);
  EXPECT_EQ(world.read(31, first_byte(31)), Status::ok);
  EXPECT_TRUE(device::begin_detached_load(world.device(), 30, 1)) << "the failed load has left no frame";
  EXPECT_EQ(world.take_until_quiet(), std::vector<u32>{1});
  world.store(40, 1);
  world.store(41, 2);
  EXPECT_EQ(device::write_back_all(Lane{}, *world.staged, 0), Status::device_failed);
  EXPECT_TRUE(has(served.at(41), 2));
  EXPECT_TRUE(has(served.at(40), first_byte(40)));
  EXPECT_EQ(served.failure(), Failure::none) << "the drive itself works";
}

TEST(DriveMedium, FlushesTellTheirOwner) {
  std::atomic<u32> flushes{0};
  std::atomic<bool> fails{false};
  ServedWorld served(8, 2, 0, [&](const SubmissionEntry& entry) -> std::optional<StatusCode> {
    if (entry.opcode != static_cast<u8>(IoOpcode::flush)) return StatusCode::success;
    ++flushes;
    return fails ? StatusCode::internal_error : StatusCode::success;
  });
  DriveWorld& world = served.world;
  EXPECT_TRUE(device::begin_detached_flush(world.device(), 9));
  EXPECT_EQ(world.take_until_quiet(), std::vector<u32>{9});
  EXPECT_EQ(device::write_error_of(*world.staged, 0), Status::ok);
  fails = true;
  EXPECT_TRUE(device::begin_detached_flush(world.device(), 10));
  EXPECT_EQ(world.take_until_quiet(), std::vector<u32>{10});
  EXPECT_EQ(device::write_error_of(*world.staged, 0), Status::device_failed);
  EXPECT_EQ(flushes.load(), 2u);
}

// A silent drive is given up; its commands end when it cannot touch memory any more, and not before.
TEST(DriveMedium, ADriveThatDoesNotAnswerIsGivenUp) {
  constexpr u64 timeout_ns = 20000000;
  ServedWorld served(
      8, 2, 0,
      [](const SubmissionEntry& entry) -> std::optional<StatusCode> {
        return entry.dword10 == 50 ? std::nullopt : std::optional(StatusCode::success);
      },
      timeout_ns);
  DriveWorld& world = served.world;
  ASSERT_TRUE(device::begin_detached_load(world.device(), 50, 5));
  while (served.failure() == Failure::none) {
    EXPECT_TRUE(world.take_all().empty());
    std::this_thread::yield();
  }
  EXPECT_EQ(served.failure(), Failure::timed_out);
  EXPECT_TRUE(world.take_all().empty()) << "the drive may still write to the frame";
  EXPECT_EQ(world.read(51, 0), Status::device_failed) << "no command is sent any more";
  served.drive().stop();
  store<Order::release, Scope::system>(&served.signal().is_quiet, 1u);
  EXPECT_EQ(world.take_until_quiet(), std::vector<u32>{5});
  EXPECT_EQ(world.read(50, 0), Status::device_failed);
}

TEST(DriveMedium, AStoppedDriveHasNothingToDo) {
  ServedWorld served(8);
  EXPECT_EQ(served.world.read(1, first_byte(1)), Status::ok);
  served.drive().stop();
  ASSERT_TRUE(device::begin_detached_load(served.world.device(), 2, 4));
  EXPECT_TRUE(served.drive().is_idle()) << "its threads end although a command was shown";
  EXPECT_FALSE(served.drive().is_in_use());
  EXPECT_TRUE(served.world.take_all().empty());
}

// Memory of a bus, as engine memory.
class BusAllocator final : public EngineAllocator {
 public:
  explicit BusAllocator(EmulatedBus& bus) : bus_(bus) {}
  void* allocate(u64 bytes, u64 /*alignment*/) override {
    const DmaBlock block = bus_.allocate(bytes);
    offset = block.bus_address - reinterpret_cast<u64>(block.memory);
    return block.memory;
  }
  void copy_in(void* destination, const void* source, u64 bytes) override { std::memcpy(destination, source, bytes); }
  void zero(void* destination, u64 bytes) override { std::memset(destination, 0, bytes); }

  u64 offset = 0;  // from addresses to bus addresses

 private:
  EmulatedBus& bus_;
};

// A controller with registers, which was brought up by nvme::Controller, in place of a served drive.
class ControllerWorld {
 public:
  explicit ControllerWorld(EmulatedOptions options, u32 depth)
      : drive_(options_of(std::move(options), depth)), shared_(drive_.bus()) {
    (void)shared_.allocate(page_size, page_size);
    world_ = std::make_unique<DriveWorld>(shared_, shared_.offset);
    device::DriveSetup setup;
    setup.block_count = device_pages;
    setup.has_zeroes = true;
    setup.command_timeout_ns = patient_ns;
    setup.transfer_bytes_max = drive_.controller().info().transfer_bytes_max;
    image_ = device::drive_image(setup);
    image_.controller = &drive_.controller().state();
    image_.signal = &signal_;
    image_.queue_count = drive_.controller().queue_count();
    for (u32 i = 0; i < image_.queue_count; ++i) image_.queues[i] = &drive_.controller().queue(i);
    world_->connect(&image_);
  }

  DriveWorld& world() { return *world_; }
  EmulatedDrive& drive() { return drive_; }
  device::DriveSignal& signal() { return signal_; }

 private:
  static DriveOptions options_of(EmulatedOptions emulated, u32 depth) {
    DriveOptions options;
    emulated.namespaces = {{1, medium_of(device_pages * page_size, 4096, false)}};
    options.emulated = std::move(emulated);
    options.controller.queue_count = 2;
    options.controller.queue_depth = depth;
    return options;
  }

  EmulatedDrive drive_;
  BusAllocator shared_;
  std::unique_ptr<DriveWorld> world_;
  device::Drive image_{};
  device::DriveSignal signal_{};
};

TEST(DriveMedium, AControllerWithRegistersServesADevice) {
  for (const u32 depth : {2u, 32u}) {
    EmulatedOptions options;
    options.in_random_order = true;
    ControllerWorld controlled(options, depth);
    DriveWorld& world = controlled.world();
    for (u64 page = 0; page < device_pages; ++page) world.store(page, first_byte(page));
    EXPECT_EQ(device::write_back_all(Lane{}, *world.staged, 0), Status::ok);
    for (u64 page = 0; page < device_pages; ++page) {
      world.drop(page);
      EXPECT_EQ(world.read(page, first_byte(page)), Status::ok);
    }
    EXPECT_EQ(controlled.drive().emulated().complaint(), "");
  }
}

TEST(DriveMedium, AControllerThatLiesLosesTheDevice) {
  for (const Misbehaviour lie :
       {Misbehaviour::unknown_id, Misbehaviour::twice, Misbehaviour::impossible_head, Misbehaviour::wrong_queue}) {
    std::atomic<bool> lies{false};
    EmulatedOptions options;
    options.misbehave = [&](const SubmissionEntry&) { return lies ? lie : Misbehaviour::none; };
    ControllerWorld controlled(options, 16);
    DriveWorld& world = controlled.world();
    EXPECT_EQ(world.read(3, 0), Status::ok);
    lies = true;
    for (u32 page = 10; page < 14; ++page) (void)device::begin_detached_load(world.device(), page, page);
    while (load<Order::acquire, Scope::system>(&controlled.signal().failure) == 0) {
      (void)device::poll_drives(Lane{}, world.queue(), false);
      std::this_thread::yield();
    }
    controlled.drive().controller().quiesce();
    store<Order::release, Scope::system>(&controlled.signal().is_quiet, 1u);
    (void)world.take_until_quiet();
    EXPECT_EQ(world.read(20, 0), Status::device_failed) << static_cast<u32>(lie);
  }
}

}  // namespace
}  // namespace gpu4fs::nvme::drive_medium_test
