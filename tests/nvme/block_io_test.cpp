// The driver against emulated controllers: random operations with an oracle, power losses, time-outs, removal.
#include "nvme/block_io.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/emulated_warp.hpp"
#include "device/nvme/submit.hpp"
#include "nvme/emulated_drive.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::nvme::test {
namespace {

using gpu4fs::test::scaled;

constexpr u64 medium_bytes = 2 << 20;

DriveOptions drive_options(u32 block_bytes, bool has_cache) {
  DriveOptions options;
  options.emulated.namespaces = {{1, medium_of(medium_bytes, block_bytes, has_cache)}};
  options.controller.command_timeout_ns = patient_ns;
  options.controller.admin_timeout_ns = patient_ns;
  options.controller.ready_timeout_ns_max = patient_ns;
  return options;
}

void run_threads(BlockIo& io, u32 thread_count, u32 operations, u32 seed) {
  const u64 length = io.size_bytes() / thread_count / io.info().block_bytes * io.info().block_bytes;
  std::vector<std::thread> threads;
  for (u32 i = 0; i < thread_count; ++i) {
    threads.emplace_back([&, i] {
      RandomOperations walk(io, i * length, length, seed + i);
      walk.run(operations);
      walk.check_all();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

struct Variant {
  u32 block_bytes;
  bool has_cache;
  u32 depth;
  u32 queues;
  u32 stride_shift;
  u8 transfer_shift;
  bool in_random_order;
  DriveProfile profile;
};

TEST(BlockIo, RandomOperations) {
  const Variant variants[] = {
      {512, true, 64, 2, 0, 5, true, profile_unlimited}, {4096, false, 2, 1, 0, 1, false, profile_unlimited},
      {512, false, 4, 3, 2, 2, true, profile_p5800x},    {4096, true, 16, 1, 1, 0, true, profile_980_pro},
      {4096, true, 256, 2, 0, 5, true, profile_pm1735},
  };
  for (const Variant& variant : variants) {
    DriveOptions options = drive_options(variant.block_bytes, variant.has_cache);
    options.emulated.doorbell_stride_shift = variant.stride_shift;
    options.emulated.transfer_shift = variant.transfer_shift;
    options.emulated.in_random_order = variant.in_random_order;
    options.emulated.profile = variant.profile;
    options.controller.queue_depth = variant.depth;
    options.controller.queue_count = variant.queues;
    EmulatedDrive drive(options);
    EXPECT_EQ(drive.controller().queue_count(), variant.queues);
    BlockIo io(drive.session(), drive.bus(), 1);
    EXPECT_EQ(io.info().block_bytes, variant.block_bytes);
    run_threads(io, 3, scaled(150), variant.depth);
    EXPECT_EQ(drive.emulated().complaint(), "");
    EXPECT_EQ(drive.session().reset_count(), 0u);
    EXPECT_EQ(failure_of(drive.controller().state()), Failure::none);
  }
}

TEST(BlockIo, TwoNamespacesAndTwoControllers) {
  DriveOptions options = drive_options(512, true);
  options.emulated.namespaces.push_back({7, medium_of(medium_bytes, 4096, false)});
  EmulatedDrive first(options);
  EmulatedDrive second(drive_options(4096, false));
  ASSERT_EQ(first.controller().namespaces().size(), 2u);
  EXPECT_EQ(first.controller().namespaces()[1].id, 7u);
  BlockIo ios[] = {
      {first.session(), first.bus(), 1}, {first.session(), first.bus(), 7}, {second.session(), second.bus(), 1}};
  std::vector<std::thread> threads;
  for (u32 i = 0; i < 3; ++i) threads.emplace_back([&ios, i] { run_threads(ios[i], 1, scaled(200), i); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(first.emulated().complaint() + second.emulated().complaint(), "");
  EXPECT_THROW(BlockIo(first.session(), first.bus(), 2), ControllerError);
}

TEST(BlockIo, RangesAreChecked) {
  EmulatedDrive drive(drive_options(512, false));
  BlockIo io(drive.session(), drive.bus(), 1);
  std::vector<u8> bytes(1024);
  EXPECT_EQ(io.read(1, bytes), Status::unaligned);
  EXPECT_EQ(io.write(0, std::span<const u8>(bytes.data(), 100)), Status::unaligned);
  EXPECT_EQ(io.read(medium_bytes - 512, bytes), Status::out_of_range);
  EXPECT_EQ(io.write(~u64{0} - 511, bytes), Status::out_of_range);
  EXPECT_EQ(io.write_zeroes(medium_bytes, 512, false), Status::out_of_range);
  const BlockIo::Range range{medium_bytes - 512, 1024};
  EXPECT_EQ(io.deallocate(std::span(&range, 1)), Status::out_of_range);
  EXPECT_EQ(io.read(medium_bytes - 1024, bytes), Status::ok);
}

TEST(BlockIo, WhatWasFlushedSurvivesAPowerLoss) {
  for (const PowerLoss how : {PowerLoss::drops, PowerLoss::tears}) {
    DriveOptions options = drive_options(512, true);
    const std::shared_ptr<Medium> medium = options.emulated.namespaces[0].medium;
    std::vector<u8> before(64 * 512, 1);
    std::vector<u8> after(64 * 512, 2);
    {
      EmulatedDrive drive(options);
      BlockIo io(drive.session(), drive.bus(), 1);
      EXPECT_EQ(io.write(0, before), Status::ok);
      EXPECT_GT(medium->cached_blocks(), 0u);
      EXPECT_EQ(io.flush(), Status::ok);
      EXPECT_EQ(io.write(before.size(), before, true), Status::ok);
      EXPECT_EQ(medium->cached_blocks(), 0u);
      EXPECT_EQ(io.write(0, after), Status::ok);
      drive.emulated().lose_power(how, 3);
    }
    EmulatedDrive drive(options);
    BlockIo io(drive.session(), drive.bus(), 1);
    std::vector<u8> found(2 * before.size());
    EXPECT_EQ(io.read(0, found), Status::ok);
    u32 new_blocks = 0;
    for (u32 block = 0; block < 64; ++block) {
      const u8 value = found[block * 512];
      EXPECT_TRUE(value == 1 || value == 2);
      for (u32 i = 0; i < 512; ++i) ASSERT_EQ(found[block * 512 + i], value);
      new_blocks += value == 2 ? 1 : 0;
    }
    EXPECT_EQ(new_blocks > 0, how == PowerLoss::tears);
    EXPECT_TRUE(std::equal(before.begin(), before.end(), found.begin() + before.size()));
  }
}

TEST(BlockIo, ErrorsOfTheDriveAreAnswers) {
  DriveOptions options = drive_options(4096, false);
  std::atomic<u32> injected{0};
  options.emulated.inject = [&](const SubmissionEntry&) { return static_cast<StatusCode>(injected.load()); };
  EmulatedDrive drive(options);
  BlockIo io(drive.session(), drive.bus(), 1);
  std::vector<u8> bytes(4096);
  injected = static_cast<u32>(StatusCode::unrecovered_read_error);
  EXPECT_EQ(io.read(0, bytes), Status::medium_error);
  injected = static_cast<u32>(StatusCode::write_fault);
  EXPECT_EQ(io.write(0, bytes), Status::io_error);
  injected = static_cast<u32>(StatusCode::lba_out_of_range);
  EXPECT_EQ(io.write(0, bytes), Status::out_of_range);
  injected = 0;
  EXPECT_EQ(io.read(0, bytes), Status::ok);
  EXPECT_EQ(drive.session().lost_because(), Failure::none);
}

TEST(BlockIo, CommandsThatADriveDoesNotHave) {
  DriveOptions options = drive_options(4096, false);
  options.emulated.has_zeroes = options.emulated.has_deallocate = false;
  EmulatedDrive drive(options);
  BlockIo io(drive.session(), drive.bus(), 1);
  const BlockIo::Range range{0, 4096};
  EXPECT_EQ(io.write_zeroes(0, 4096, false), Status::not_supported);
  EXPECT_EQ(io.deallocate(std::span(&range, 1)), Status::not_supported);
  EXPECT_EQ(io.flush(), Status::ok);
}

TEST(BlockIo, ALateCommandHasOneResetAndIsRepeated) {
  DriveOptions options = drive_options(512, true);
  options.controller.command_timeout_ns = 300000000;
  std::atomic<u32> silent{0};
  options.emulated.misbehave = [&](const SubmissionEntry&) {
    if (silent == 0) return Misbehaviour::none;
    --silent;
    return Misbehaviour::silence;
  };
  EmulatedDrive drive(options);
  BlockIo io(drive.session(), drive.bus(), 1);
  std::vector<u8> bytes(4096, 5);
  silent = 1;
  EXPECT_EQ(io.write(0, bytes), Status::ok);
  EXPECT_GE(drive.session().reset_count(), 1u);
  // Nobody knows what the reset has lost. This is told once.
  EXPECT_EQ(io.flush(), Status::io_error);
  EXPECT_EQ(io.flush(), Status::ok);
  std::vector<u8> found(4096);
  EXPECT_EQ(io.read(0, found), Status::ok);
  EXPECT_TRUE(found == bytes);
  // A command that is left twice.
  silent = 1000;
  EXPECT_EQ(io.write(0, bytes), Status::device_failed);
  EXPECT_EQ(drive.session().lost_because(), Failure::timed_out);
  EXPECT_EQ(io.read(0, found), Status::device_failed);
  EXPECT_EQ(io.flush(), Status::device_failed);
  EXPECT_EQ(drive.emulated().complaint(), "");
}

TEST(BlockIo, AFatalStatusIsCuredByAReset) {
  DriveOptions options = drive_options(512, false);
  options.controller.command_timeout_ns = patient_ns;
  std::atomic<u32> fatal{0};
  options.emulated.misbehave = [&](const SubmissionEntry&) {
    if (fatal == 0) return Misbehaviour::none;
    --fatal;
    return Misbehaviour::fatal;
  };
  EmulatedDrive drive(options);
  BlockIo io(drive.session(), drive.bus(), 1);
  fatal = 1;
  std::vector<u8> bytes(4096, 5);
  EXPECT_EQ(io.write(0, bytes), Status::ok);
  EXPECT_EQ(drive.session().reset_count(), 1u);
}

TEST(BlockIo, ARemovedDriveIsLostForAllThreads) {
  DriveOptions options = drive_options(512, false);
  EmulatedDrive drive(options);
  BlockIo io(drive.session(), drive.bus(), 1);
  std::atomic<u32> done{0};
  std::vector<std::thread> threads;
  for (u32 i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      std::vector<u8> bytes(4096, static_cast<u8>(i));
      Status status = Status::ok;
      while (status == Status::ok) {
        status = io.write(i * 4096, bytes);
        ++done;
      }
      EXPECT_EQ(status, Status::device_failed);
    });
  }
  while (done < 20) std::this_thread::yield();
  drive.emulated().remove();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(drive.session().lost_because(), Failure::absent);
}

// Two warps share a queue of depth eight, so each batch waits for room several times.
TEST(BlockIo, WarpsShareAQueue) {
  DriveOptions options = drive_options(512, false);
  options.emulated.in_random_order = true;
  options.controller.queue_depth = 8;
  EmulatedDrive drive(options);
  VirtualQueue& queue = drive.controller().queue(0);
  const DmaBlock data = drive.bus().allocate(2 * warp_size * 4096);
  std::vector<u32> outcomes(2 * warp_size * 64);
  const u32 rounds = scaled(60);
  run_emulated_warps(2, [&](EmulatedWarp g, u32 warp) {
    const u32 lane = warp * warp_size + g.rank();
    const auto visit = [&](const Outcome& outcome) {
      EXPECT_EQ(outcome.status, 0u);
      fetch_add<Order::release, Scope::engine>(&outcomes[outcome.cookie], 1u);
    };
    for (u32 round = 0; round < rounds; ++round) {
      SubmissionEntry entry{};
      entry.opcode = static_cast<u8>(IoOpcode::write);
      entry.namespace_id = 1;
      entry.data.prp.first = data.bus_address + lane * 4096;
      entry.dword10 = lane * 8;
      entry.dword12 = 7;
      std::memset(data.memory + lane * 4096, static_cast<int>(lane + round), 4096);
      const bool has_command = (lane + round) % 3 != 0;
      const auto wait = [] { backoff(1000); };
      const SubmitResult result = submit(g, queue, {entry, lane, has_command}, visit, wait);
      EXPECT_EQ(result, has_command ? SubmitResult::submitted : SubmitResult::idle);
      const u32 wanted = has_command ? 1 : 0;
      while (g.any(load<Order::acquire, Scope::engine>(&outcomes[lane]) != wanted)) {
        if (poll(g, queue, visit) == 0) wait();
      }
      store<Order::relaxed, Scope::engine>(&outcomes[lane], 0u);
      g.sync();
    }
  });
  EXPECT_EQ(drive.emulated().complaint(), "");
  EXPECT_EQ(failure_of(drive.controller().state()), Failure::none);
}

}  // namespace
}  // namespace gpu4fs::nvme::test
