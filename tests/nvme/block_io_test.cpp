// The driver against emulated controllers: random operations with an oracle, power losses, time-outs, removal.
#include "nvme/block_io.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

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

// After its end, and after an end behind a failure: the next driver finds a controller that does nothing.
TEST(ControllerEnd, LeavesTheControllerDisabled) {
  for (const bool has_failed : {false, true}) {
    const DriveOptions options = drive_options(512, true);
    EmulatedBus bus(8 << 20);
    EmulatedController emulated(bus, options.emulated);
    {
      Controller controller(emulated, bus, options.controller);
      EXPECT_NE(emulated.read_32(static_cast<u32>(Register::csts)) & csts_ready, 0u);
      if (has_failed) fail(controller.state(), Failure::timed_out);
    }
    EXPECT_EQ(emulated.read_32(static_cast<u32>(Register::cc)) & cc_enable, 0u);
    EXPECT_EQ(emulated.read_32(static_cast<u32>(Register::csts)) & csts_ready, 0u);
    EXPECT_FALSE(emulated.is_dma_allowed());
    EXPECT_EQ(emulated.complaint(), "");
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
  options.controller.abort_timeout_ns = 200000000;
  options.emulated.has_abort = false;
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
  EXPECT_GE(drive.emulated().abort_count(), 1u);
  EXPECT_EQ(drive.session().abort_count(), 0u);
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

// The next `silent` commands are never answered.
DriveOptions silent_options(std::atomic<u32>& silent) {
  DriveOptions options = drive_options(512, true);
  options.controller.command_timeout_ns = 200000000;
  options.controller.abort_timeout_ns = patient_ns;
  options.emulated.misbehave = [&silent](const SubmissionEntry&) {
    if (silent == 0) return Misbehaviour::none;
    --silent;
    return Misbehaviour::silence;
  };
  return options;
}

TEST(BlockIo, AnAbortSavesTheReset) {
  std::atomic<u32> silent{0};
  EmulatedDrive drive(silent_options(silent));
  BlockIo io(drive.session(), drive.bus(), 1);
  std::vector<u8> bytes(4096, 5);
  silent = 1;
  EXPECT_EQ(io.write(0, bytes), Status::ok);
  EXPECT_GE(drive.session().abort_count(), 1u);
  EXPECT_EQ(drive.session().reset_count(), 0u);
  // So nothing was lost.
  EXPECT_EQ(io.flush(), Status::ok);
  std::vector<u8> found(4096);
  EXPECT_EQ(io.read(0, found), Status::ok);
  EXPECT_TRUE(found == bytes);
  EXPECT_EQ(drive.emulated().complaint(), "");
}

TEST(BlockIo, ACommandThatIsLateAgainHasAReset) {
  std::atomic<u32> silent{0};
  EmulatedDrive drive(silent_options(silent));
  BlockIo io(drive.session(), drive.bus(), 1);
  std::vector<u8> bytes(4096, 5);
  silent = 2;
  EXPECT_EQ(io.write(0, bytes), Status::ok);
  EXPECT_GE(drive.session().abort_count(), 2u);
  EXPECT_GE(drive.session().reset_count(), 1u);
  // Always late: the end comes, with two aborts in front of each step.
  silent = 1000;
  EXPECT_EQ(io.write(0, bytes), Status::device_failed);
  EXPECT_EQ(drive.session().lost_because(), Failure::timed_out);
  EXPECT_EQ(drive.emulated().complaint(), "");
}

// Late commands of several threads are aborted while others go on.
TEST(BlockIo, AbortsBesideOtherCommands) {
  std::atomic<u32> number{0};
  DriveOptions options = drive_options(512, false);
  options.controller.command_timeout_ns = 200000000;
  options.controller.abort_timeout_ns = patient_ns;
  options.controller.queue_count = 2;
  options.emulated.misbehave = [&number](const SubmissionEntry&) {
    return ++number % 100 == 50 ? Misbehaviour::silence : Misbehaviour::none;
  };
  EmulatedDrive drive(options);
  BlockIo io(drive.session(), drive.bus(), 1);
  run_threads(io, 3, 60, 7);
  EXPECT_GE(drive.session().abort_count(), 1u);
  EXPECT_EQ(drive.session().lost_because(), Failure::none);
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

// Three controllers with two namespaces each, of both formats and with different limits of a transfer. One is pulled
// out under way: the others do not notice.
TEST(BlockIo, ARemovedDriveAmongOthers) {
  std::vector<std::unique_ptr<EmulatedDrive>> drives;
  std::vector<std::unique_ptr<BlockIo>> ios;
  for (u32 i = 0; i < 3; ++i) {
    DriveOptions options = drive_options(512, i == 0);
    options.emulated.namespaces.push_back({5 + i, medium_of(medium_bytes, 4096, i == 1)});
    options.emulated.transfer_shift = static_cast<u8>(i);
    options.controller.queue_count = 1 + i;
    drives.push_back(std::make_unique<EmulatedDrive>(options));
    EmulatedDrive& drive = *drives.back();
    ios.push_back(std::make_unique<BlockIo>(drive.session(), drive.bus(), 1));
    ios.push_back(std::make_unique<BlockIo>(drive.session(), drive.bus(), 5 + i));
  }
  std::atomic<u32> done{0};
  std::vector<std::thread> threads;
  for (u32 i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      std::vector<u8> bytes(8192, static_cast<u8>(i));
      Status status = Status::ok;
      while (status == Status::ok) {
        status = ios[i]->write(0, bytes);
        ++done;
      }
      EXPECT_EQ(status, Status::device_failed);
      EXPECT_EQ(ios[i]->flush(), Status::device_failed);
    });
  }
  for (u32 i = 2; i < 6; ++i) threads.emplace_back([&ios, i] { run_threads(*ios[i], 1, scaled(150), i); });
  while (done < 20) std::this_thread::yield();
  drives[0]->emulated().remove();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(drives[0]->session().lost_because(), Failure::absent);
  for (u32 i = 1; i < 3; ++i) {
    EXPECT_EQ(drives[i]->session().lost_because(), Failure::none);
    EXPECT_EQ(drives[i]->session().reset_count(), 0u);
    EXPECT_EQ(drives[i]->emulated().complaint(), "");
  }
}

// Whoever comes after the removal, or flushes, learns of it too.
TEST(BlockIo, ADriveThatWasRemovedBeforeTheCall) {
  DriveOptions options = drive_options(4096, true);
  EmulatedDrive drive(options);
  BlockIo io(drive.session(), drive.bus(), 1);
  std::vector<u8> bytes(4096, 1);
  EXPECT_EQ(io.write(0, bytes), Status::ok);
  drive.emulated().remove();
  EXPECT_EQ(io.flush(), Status::device_failed);
  EXPECT_EQ(io.read(0, bytes), Status::device_failed);
  EXPECT_EQ(io.write_zeroes(0, 4096, false), Status::device_failed);
  const BlockIo::Range range{0, 4096};
  EXPECT_EQ(io.deallocate(std::span(&range, 1)), Status::device_failed);
}

// No command is longer than the controller allows, and none is shorter than it could be.
TEST(BlockIo, LongTransfersAreCutToTheLimit) {
  for (const u32 block_bytes : {512u, 4096u}) {
    for (const u8 shift : {u8{0}, u8{1}, u8{3}, u8{8}}) {
      std::mutex mutex;
      std::vector<u64> lengths;
      DriveOptions options = drive_options(block_bytes, false);
      options.emulated.transfer_shift = shift;
      options.emulated.inject = [&](const SubmissionEntry& entry) {
        const std::lock_guard<std::mutex> guard(mutex);
        lengths.push_back(((entry.dword12 & 0xffff) + 1) * u64{block_bytes});
        return StatusCode::success;
      };
      EmulatedDrive drive(options);
      BlockIo io(drive.session(), drive.bus(), 1);
      const u64 limit = shift == 0 ? 1 << 20 : std::min<u64>(u64{4096} << shift, 1 << 20);
      EXPECT_EQ(drive.controller().info().transfer_bytes_max, limit);
      std::vector<u8> bytes(medium_bytes - 4096);
      std::mt19937 random(shift);
      for (u8& byte : bytes) byte = static_cast<u8>(random());
      EXPECT_EQ(io.write(4096, bytes), Status::ok);
      const std::vector<u64> written = std::exchange(lengths, {});
      EXPECT_EQ(written.size(), (bytes.size() + limit - 1) / limit);
      EXPECT_EQ(written.front(), limit);
      EXPECT_EQ(written.back(), (bytes.size() - 1) % limit + 1);
      std::vector<u8> found(bytes.size());
      EXPECT_EQ(io.read(4096, found), Status::ok);
      EXPECT_TRUE(found == bytes);
      EXPECT_TRUE(lengths == written);
      EXPECT_EQ(drive.emulated().complaint(), "");
    }
  }
}

// More than 65,536 blocks, which one command names at most, and more than 256 ranges.
TEST(BlockIo, ZeroesAndRangesOfSeveralCommands) {
  constexpr u64 large_bytes = u64{65536 + 100} * 512;
  std::atomic<u32> zeroes{0};
  std::atomic<u32> trims{0};
  DriveOptions options = drive_options(512, false);
  options.emulated.namespaces = {{1, medium_of(large_bytes, 512, false)}};
  options.emulated.inject = [&](const SubmissionEntry& entry) {
    if (entry.opcode == static_cast<u8>(IoOpcode::write_zeroes)) ++zeroes;
    if (entry.opcode == static_cast<u8>(IoOpcode::dataset_management)) ++trims;
    return StatusCode::success;
  };
  EmulatedDrive drive(options);
  BlockIo io(drive.session(), drive.bus(), 1);
  std::vector<u8> ones(64 << 10, 1);
  for (u64 offset : {u64{0}, large_bytes - ones.size()}) EXPECT_EQ(io.write(offset, ones), Status::ok);
  EXPECT_EQ(io.write_zeroes(512, large_bytes - 1024, true), Status::ok);
  EXPECT_EQ(zeroes, 2u);
  std::vector<u8> found(64 << 10);
  for (u64 offset : {u64{0}, large_bytes - ones.size()}) {
    EXPECT_EQ(io.read(offset, found), Status::ok);
    const u64 kept = offset == 0 ? 0 : found.size() - 512;
    for (u64 i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], i - kept < 512 ? 1 : 0) << i;
  }
  std::vector<BlockIo::Range> ranges;
  EXPECT_EQ(io.write(0, ones), Status::ok);
  for (u64 i = 0; i < 300; ++i) ranges.push_back({i * 1024, 512});
  EXPECT_EQ(io.deallocate(ranges), Status::ok);
  EXPECT_EQ(trims, 2u);
  EXPECT_TRUE(drive.controller().namespaces()[0].deallocated_reads_zero);
  EXPECT_EQ(io.read(0, found), Status::ok);
  for (u64 i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], i / 512 % 2 == 0 ? 0 : 1) << i;
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
