// Both controllers on files and loop devices: bytes against a copy in memory, merged requests, errors, faults, the end.
#include "block/controller.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "block/controller_fixture.hpp"
#include "support/loop_device.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

using block::ControllerKind;
using block::ControllerOptions;
using block::RequestFaults;
using device::IoOperation;
using device::IoRequest;

constexpr u64 page_count = 256;

class ControllerTest : public testing::TestWithParam<ControllerKind> {
 protected:
  // Skips where io_uring is not allowed.
  void SetUp() override {
    if (GetParam() != ControllerKind::uring) return;
    try {
      const DiskFile file(page_size);
      const ControllerFixture fixture(file.path(), 1, options());
    } catch (const block::DeviceError& error) {
      GTEST_SKIP() << error.what();
    }
  }
  static ControllerOptions options(RequestFaults* faults = nullptr) {
    ControllerOptions options;
    options.kind = GetParam();
    options.faults = faults;
    return options;
  }
};

bool is_read(const IoRequest& request) {
  return request.operation == IoOperation::read;
}

// Requests of one to four pages at random places, some of them submitted together, against an array.
void compare_with_oracle(ControllerFixture& fixture, u32 rounds) {
  constexpr u64 batch_max = 24;
  constexpr u64 pages_max = 4;
  std::vector<u8> oracle(page_count, 0);
  std::mt19937_64 random(7);
  for (u32 round = 0; round < rounds; ++round) {
    const bool reads = random() % 2 == 0;
    const u64 count = 1 + random() % batch_max;
    // Writes that are in flight together have no order, so they have pages of their own.
    std::vector<bool> is_used(page_count, false);
    struct Part {
      u32 slot;
      u64 first;
      u64 pages;
    };
    std::vector<Part> parts;
    for (u64 i = 0; i < count; ++i) {
      const u64 pages = 1 + random() % pages_max;
      const u64 first = random() % (page_count - pages);
      bool is_free = true;
      for (u64 page = first; page < first + pages; ++page) is_free = is_free && !is_used[page];
      if (!is_free) continue;
      for (u64 page = first; page < first + pages; ++page) is_used[page] = true;
      const u8 byte = static_cast<u8>(random());
      for (u64 page = 0; page < pages; ++page) {
        fixture.fill(i * pages_max + page, reads ? 0xee : static_cast<u8>(byte + page));
        if (!reads) oracle[first + page] = static_cast<u8>(byte + page);
      }
      const IoOperation operation = reads ? IoOperation::read : IoOperation::write;
      parts.push_back({fixture.submit(operation, first, i * pages_max, pages), first, pages});
      if (!reads) continue;
      // The frame of the request is found again by its number.
      parts.back().pages |= i << 8;
    }
    fixture.ring();
    for (const Part& part : parts) {
      ASSERT_EQ(fixture.wait(part.slot), Status::ok) << fixture.controller().first_error(test_device);
      if (!reads) continue;
      for (u64 page = 0; page < (part.pages & 0xff); ++page) {
        ASSERT_TRUE(fixture.has((part.pages >> 8) * pages_max + page, oracle[part.first + page])) << round;
      }
    }
  }
}

TEST_P(ControllerTest, RandomRequestsOfAFileAgreeWithAnArray) {
  const DiskFile file(page_count * page_size);
  ControllerFixture fixture(file.path(), 128, options());
  compare_with_oracle(fixture, scaled(400));
}

TEST_P(ControllerTest, RandomRequestsOfABlockDeviceAgreeWithAnArray) {
  const LoopDevice disk(page_count * page_size);
  GPU4FS_REQUIRE_LOOP(disk);
  ControllerFixture fixture(disk.path(), 128, options());
  compare_with_oracle(fixture, scaled(200));
}

TEST_P(ControllerTest, ShortTransfersAreContinued) {
  const DiskFile file(page_count * page_size);
  ControllerOptions short_calls = options();
  short_calls.transfer_bytes_max = 2 * page_size;
  ControllerFixture fixture(file.path(), 128, short_calls);
  compare_with_oracle(fixture, scaled(100));
}

TEST_P(ControllerTest, SeveralThreadsShareTheQueue) {
  const DiskFile file(page_count * page_size);
  ControllerOptions shared = options();
  shared.thread_count = 3;
  shared.depth = 2;
  ControllerFixture fixture(file.path(), 128, shared);
  compare_with_oracle(fixture, scaled(200));
}

TEST_P(ControllerTest, RegisteredMemoryIsUsed) {
  const DiskFile file(page_count * page_size);
  ControllerOptions registered = options();
  std::vector<u8> unused(16 * page_size);
  HeapAllocator allocator;
  u8* const frames = static_cast<u8*>(allocator.allocate(8 * page_size, page_size));
  registered.memory = {{frames, 8 * page_size}};
  ControllerFixture fixture(file.path(), 8, registered);
  for (u64 page = 0; page < 8; ++page) std::memset(frames + page * page_size, static_cast<int>(page + 1), page_size);
  // One operation within, and one that begins within and ends outside of another range.
  const u32 slot =
      device::submit(fixture.queue(), {IoOperation::write, test_device, 4 * page_size, 8 * u32{page_size}, 0, frames});
  fixture.ring();
  ASSERT_EQ(fixture.wait(slot), Status::ok);
  ASSERT_EQ(fixture.carry_out(IoOperation::read, 4, 0, 8), Status::ok);
  for (u64 page = 0; page < 8; ++page) EXPECT_TRUE(fixture.has(page, static_cast<u8>(page + 1)));
}

// The first request is held, so that the others are taken together.
TEST_P(ControllerTest, NeighboursAreMerged) {
  const DiskFile file(page_count * page_size);
  RequestFaults faults;
  ControllerOptions merging = options(&faults);
  merging.thread_count = 1;
  merging.merge_bytes_max = 16 * page_size;
  ControllerFixture fixture(file.path(), 128, merging);
  for (u64 page = 0; page < 64; ++page) fixture.fill(page, static_cast<u8>(page + 1));
  faults.hold([](const IoRequest& request) { return request.operation == IoOperation::write; });
  std::vector<u32> slots;
  // In disorder, with a gap after page 39.
  for (u64 i = 0; i < 64; ++i) {
    const u64 page = i * 37 % 64;
    slots.push_back(fixture.submit(IoOperation::write, page < 40 ? page : page + 1, page));
  }
  fixture.ring();
  faults.wait_until_held(64);
  faults.release_all();
  for (const u32 slot : slots) EXPECT_EQ(fixture.wait(slot), Status::ok);
  const block::OperationStatistics writes = of(fixture.controller().statistics(), IoOperation::write);
  EXPECT_EQ(writes.requests, 64u);
  EXPECT_EQ(writes.bytes, 64 * page_size);
  EXPECT_EQ(writes.errors, 0u);
  // 16, 16 and 8 pages in front of the gap, 16 and 8 behind it.
  EXPECT_EQ(writes.operations, 5u);
  EXPECT_EQ(writes.merged, 59u);
  for (u64 page = 0; page < 64; ++page) {
    ASSERT_EQ(fixture.carry_out(IoOperation::read, page < 40 ? page : page + 1, 100), Status::ok);
    EXPECT_TRUE(fixture.has(100, static_cast<u8>(page + 1))) << page;
  }
}

// One write-back is in flight, again and again. Those that come meanwhile, one at a time and in disorder, are
// collected; reads are not.
TEST(UringControllerTest, WriteBacksAreCollectedWhileTheMediumIsBusy) {
  const DiskFile file(page_count * page_size);
  RequestFaults faults;
  ControllerOptions options;
  options.kind = block::ControllerKind::uring;
  options.faults = &faults;
  options.background_depth = 1;
  ControllerFixture fixture(file.path(), 128, options);
  for (u64 page = 0; page < 32; ++page) fixture.fill(page, static_cast<u8>(page + 1));
  std::atomic<bool> is_busy{true};
  faults.replace_results([&](const IoRequest& request) { return request.offset == 0 && is_busy; }, -EAGAIN, ~u32{0});
  faults.hold([](const IoRequest& request) { return request.operation == IoOperation::write; });
  std::vector<u32> slots;
  const auto issue_next = [&] {
    fixture.ring();
    faults.wait_until_held(1);
    faults.release_oldest();
    while (faults.has_released()) std::this_thread::yield();
  };
  slots.push_back(fixture.submit_background(0, 0));
  issue_next();
  for (u64 i = 1; i < 32; ++i) {
    const u64 page = i * 13 % 32;
    slots.push_back(fixture.submit_background(page, page));
    issue_next();
  }
  ASSERT_EQ(fixture.carry_out(IoOperation::read, 40, 100), Status::ok);
  EXPECT_EQ(of(fixture.controller().statistics(), IoOperation::write).operations, 0u);
  is_busy = false;
  for (const u32 slot : slots) EXPECT_EQ(fixture.wait(slot), Status::ok);
  const block::OperationStatistics writes = of(fixture.controller().statistics(), IoOperation::write);
  EXPECT_EQ(writes.requests, 32u);
  EXPECT_EQ(writes.operations, 2u);
  for (u64 page = 0; page < 32; ++page) {
    ASSERT_EQ(fixture.carry_out(IoOperation::read, page, 100), Status::ok);
    EXPECT_TRUE(fixture.has(100, static_cast<u8>(page + 1))) << page;
  }
}

TEST_P(ControllerTest, FlushDiscardAndZeros) {
  DiskFile file(page_count * page_size);
  ControllerFixture fixture(file.path(), 8, options());
  for (u64 page = 0; page < 8; ++page) fixture.fill(page, 0x5a);
  ASSERT_EQ(fixture.carry_out(IoOperation::write, 0, 0, 8), Status::ok);
  ASSERT_EQ(fixture.carry_out(IoOperation::flush, 0, 0), Status::ok);
  EXPECT_EQ(file.read(0, 8 * page_size), std::vector<u8>(8 * page_size, 0x5a));
  const bool can_discard = fixture.medium().can_discard();
  EXPECT_EQ(fixture.carry_out(IoOperation::discard, 1, 0, 2), can_discard ? Status::ok : Status::not_supported);
  EXPECT_EQ(fixture.carry_out(IoOperation::write_zeroes, 5, 0, 2), Status::ok);
  ASSERT_EQ(fixture.carry_out(IoOperation::read, 0, 0, 8), Status::ok);
  for (u64 page = 0; page < 8; ++page) {
    const bool is_zero = page == 5 || page == 6 || (can_discard && (page == 1 || page == 2));
    EXPECT_TRUE(fixture.has(page, is_zero ? 0 : 0x5a)) << page;
  }
  EXPECT_EQ(of(fixture.controller().statistics(), IoOperation::flush).requests, 1u);
  EXPECT_EQ(of(fixture.controller().statistics(), IoOperation::write_zeroes).bytes, 2 * page_size);
}

// Of a caller's thread, past the queue.
TEST_P(ControllerTest, DiscardsBesideTheQueue) {
  DiskFile file(16 * page_size);
  RequestFaults faults;
  ControllerFixture fixture(file.path(), 8, options(&faults));
  file.write(0, std::vector<u8>(16 * page_size, 0x5a));
  block::Controller& controller = fixture.controller();
  EXPECT_FALSE(controller.can_discard(test_device - 1));
  EXPECT_EQ(controller.discard(test_device - 1, 0, page_size).status, Status::device_failed);
  EXPECT_EQ(controller.discard(test_device, 15 * page_size, 2 * page_size).status, Status::out_of_range);
  if (!controller.can_discard(test_device)) GTEST_SKIP() << "the file system here makes no holes";
  faults.replace_results([](const IoRequest&) { return true; }, -EIO, 1);
  EXPECT_EQ(controller.discard(test_device, 0, page_size).status, Status::device_failed);
  EXPECT_EQ(controller.first_error(test_device),
            file.path() + ": discard of 4096 bytes at 0 failed: Input/output error");
  const block::Controller::Discarded done = controller.discard(test_device, 2 * page_size, 3 * page_size);
  EXPECT_EQ(done.status, Status::ok);
  EXPECT_EQ(done.bytes, 3 * page_size);
  ASSERT_EQ(fixture.carry_out(IoOperation::read, 1, 0, 5), Status::ok);
  for (u64 page = 0; page < 5; ++page) EXPECT_TRUE(fixture.has(page, page == 0 || page == 4 ? 0x5a : 0)) << page;
  const block::OperationStatistics counted = of(controller.statistics(), IoOperation::discard);
  EXPECT_EQ(counted.requests, 2u);
  EXPECT_EQ(counted.errors, 1u);
  EXPECT_EQ(counted.bytes, 3 * page_size);
  // What the system refuses is not asked for again, until there is another medium.
  faults.replace_results([](const IoRequest&) { return true; }, -EOPNOTSUPP, 1);
  EXPECT_EQ(controller.discard(test_device, 0, page_size).status, Status::not_supported);
  EXPECT_FALSE(controller.can_discard(test_device));
  controller.set_medium(test_device, &fixture.medium());
  EXPECT_TRUE(controller.can_discard(test_device));
}

TEST_P(ControllerTest, ErrorsAreStatusAndText) {
  DiskFile file(16 * page_size);
  ControllerFixture fixture(file.path(), 8, options());
  EXPECT_EQ(fixture.controller().first_error(test_device), "");
  EXPECT_EQ(fixture.carry_out(IoOperation::read, 15, 0, 2), Status::out_of_range);
  EXPECT_EQ(fixture.carry_out(IoOperation::write, 16, 0), Status::out_of_range);
  file.resize(9 * page_size);
  EXPECT_EQ(fixture.carry_out(IoOperation::read, 8, 0), Status::ok);
  EXPECT_EQ(fixture.carry_out(IoOperation::read, 8, 0, 4), Status::medium_error);
  EXPECT_EQ(fixture.controller().first_error(test_device),
            file.path() + ": read of 16384 bytes at 32768 failed: the medium ends before");
  EXPECT_EQ(of(fixture.controller().statistics(), IoOperation::read).errors, 2u);
  // No such device.
  const u32 slot = device::submit(fixture.queue(), {IoOperation::flush, 0, 0, 0, 0, nullptr});
  fixture.ring();
  EXPECT_EQ(fixture.wait(slot), Status::device_failed);
  fixture.controller().set_medium(test_device, nullptr);
  EXPECT_EQ(fixture.carry_out(IoOperation::read, 0, 0), Status::device_failed);
  fixture.controller().set_medium(test_device, &fixture.medium());
  EXPECT_EQ(fixture.carry_out(IoOperation::read, 0, 0), Status::ok);
}

TEST_P(ControllerTest, MediumThatIsReadOnlyIsOnlyRead) {
  const DiskFile file(4 * page_size);
  ControllerFixture fixture(file.path(), 1, options(), {.read_only = true});
  EXPECT_EQ(fixture.carry_out(IoOperation::read, 0, 0), Status::ok);
  EXPECT_EQ(fixture.carry_out(IoOperation::write, 0, 0), Status::read_only);
  EXPECT_EQ(fixture.carry_out(IoOperation::discard, 0, 0), Status::read_only);
}

TEST_P(ControllerTest, ResultsOfTheSystemBecomeStatus) {
  const DiskFile file(16 * page_size);
  RequestFaults faults;
  ControllerFixture fixture(file.path(), 4, options(&faults));
  const auto any = [](const IoRequest&) { return true; };
  fixture.fill(0, 0x11);
  // The call is made again.
  faults.replace_results(any, -EINTR, 2);
  faults.replace_results(any, -EAGAIN, 1);
  EXPECT_EQ(fixture.carry_out(IoOperation::write, 2, 0), Status::ok);
  // The rest is transferred.
  faults.replace_results(is_read, 512, 1);
  EXPECT_EQ(fixture.carry_out(IoOperation::read, 2, 1), Status::ok);
  EXPECT_TRUE(fixture.has(1, 0x11));
  faults.replace_results(any, -EIO, 1);
  EXPECT_EQ(fixture.carry_out(IoOperation::read, 2, 1), Status::medium_error);
  EXPECT_EQ(fixture.controller().first_error(test_device),
            file.path() + ": read of 4096 bytes at 8192 failed: Input/output error");
  for (const IoOperation operation : {IoOperation::write, IoOperation::flush, IoOperation::write_zeroes}) {
    faults.replace_results(any, -EIO, 1);
    EXPECT_EQ(fixture.carry_out(operation, 2, 0), Status::device_failed) << io_operation_name(operation);
  }
  faults.replace_results(any, -ENODEV, 1);
  EXPECT_EQ(fixture.carry_out(IoOperation::read, 2, 1), Status::device_failed);
  faults.replace_results(any, -ENOMEM, 1);
  EXPECT_EQ(fixture.carry_out(IoOperation::read, 2, 1), Status::io_error);
  EXPECT_EQ(fixture.carry_out(IoOperation::read, 2, 1), Status::ok);
}

// Four requests that are carried out together fail. Alone, only one of them fails.
TEST_P(ControllerTest, RequestsThatFailTogetherAreTriedAlone) {
  const DiskFile file(16 * page_size);
  RequestFaults faults;
  ControllerOptions merging = options(&faults);
  merging.thread_count = 1;
  ControllerFixture fixture(file.path(), 8, merging);
  for (u64 page = 0; page < 4; ++page) fixture.fill(page, static_cast<u8>(page + 1));
  ASSERT_EQ(fixture.carry_out(IoOperation::write, 0, 0, 4), Status::ok);
  const auto is_at = [](u64 page) { return [page](const IoRequest& r) { return r.offset == page * page_size; }; };
  faults.replace_results(is_at(0), -EIO, 1);
  faults.replace_results(is_at(2), -EIO, 1);
  faults.hold(is_read);
  std::vector<u32> slots;
  for (u64 page = 0; page < 4; ++page) slots.push_back(fixture.submit(IoOperation::read, page, 4 + page));
  fixture.ring();
  faults.wait_until_held(4);
  faults.release_all();
  for (u64 page = 0; page < 4; ++page) {
    EXPECT_EQ(fixture.wait(slots[page]), page == 2 ? Status::medium_error : Status::ok) << page;
    EXPECT_TRUE(page == 2 || fixture.has(4 + page, static_cast<u8>(page + 1))) << page;
  }
  EXPECT_EQ(of(fixture.controller().statistics(), IoOperation::read).errors, 1u);
}

// Writes that a test lets go at once are one operation.
void write_together(ControllerFixture& fixture, RequestFaults& faults, u64 count, std::vector<u32>* slots) {
  slots->clear();
  faults.hold([](const IoRequest& request) { return request.operation == IoOperation::write; });
  for (u64 page = 0; page < count; ++page) slots->push_back(fixture.submit(IoOperation::write, page, page));
  fixture.ring();
  faults.wait_until_held(static_cast<u32>(count));
  faults.release_all();
}

// Each try may take many seconds.
TEST_P(ControllerTest, AMediumThatDoesNoWriteIsNotAskedForEach) {
  constexpr u64 count = 8;
  const DiskFile file(16 * page_size);
  RequestFaults faults;
  ControllerOptions merging = options(&faults);
  merging.thread_count = 1;
  ControllerFixture fixture(file.path(), count, merging);
  std::atomic<u32> tries{0};
  std::atomic<bool> fails{true};
  faults.replace_results(
      [&](const IoRequest&) {
        ++tries;
        return fails.load();
      },
      -EIO, 1000);
  std::vector<u32> slots;
  const auto write_all = [&](Status expected) {
    tries = 0;
    write_together(fixture, faults, count, &slots);
    for (const u32 slot : slots) EXPECT_EQ(fixture.wait(slot), expected);
    return tries.load();
  };
  EXPECT_EQ(write_all(Status::device_failed), 3u) << "all, the first, and the rest";
  EXPECT_EQ(write_all(Status::device_failed), 1u);
  fails = false;
  EXPECT_EQ(write_all(Status::ok), 1u);
  fails = true;
  EXPECT_EQ(write_all(Status::device_failed), 3u) << "it had done one";
}

TEST_P(ControllerTest, ABadSectorIsTheErrorOfItsOwnWrite) {
  DiskFile file(16 * page_size);
  RequestFaults faults;
  ControllerOptions merging = options(&faults);
  merging.thread_count = 1;
  ControllerFixture fixture(file.path(), 6, merging);
  for (u64 page = 0; page < 6; ++page) fixture.fill(page, static_cast<u8>(page + 1));
  const auto is_at = [](u64 page) { return [page](const IoRequest& r) { return r.offset == page * page_size; }; };
  faults.replace_results(is_at(0), -EIO, 1);
  faults.replace_results(is_at(2), -EIO, 1);
  std::vector<u32> slots;
  write_together(fixture, faults, 6, &slots);
  for (u64 page = 0; page < 6; ++page) {
    EXPECT_EQ(fixture.wait(slots[page]), page == 2 ? Status::device_failed : Status::ok) << page;
    // As the faults pretend, the medium has all of them.
    EXPECT_EQ(file.read(page * page_size, 1)[0], static_cast<u8>(page + 1)) << page;
  }
}

// A ring has registered its file, which has the lock.
TEST_P(ControllerTest, AMediumThatIsForgottenCanBeClosed) {
  const DiskFile file(16 * page_size);
  ControllerFixture fixture(file.path(), 4, options());
  EXPECT_EQ(fixture.carry_out(IoOperation::write, 0, 0), Status::ok);
  EXPECT_THROW(block::BlockMedium::open(file.path()), block::DeviceError);
  fixture.close_medium();
  EXPECT_EQ(fixture.carry_out(IoOperation::write, 0, 0), Status::device_failed);
  // Older kernels close it a moment later.
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  bool is_free = false;
  while (!is_free && std::chrono::steady_clock::now() < limit) {
    try {
      (void)block::BlockMedium::open(file.path());
      is_free = true;
    } catch (const block::DeviceError&) {
      std::this_thread::yield();
    }
  }
  EXPECT_TRUE(is_free);
}

TEST_P(ControllerTest, FaultsFailHoldAndReorder) {
  const DiskFile file(16 * page_size);
  RequestFaults faults;
  ControllerFixture fixture(file.path(), 4, options(&faults));
  faults.fail([](const IoRequest& request) { return request.offset == 5 * page_size; }, Status::medium_error);
  EXPECT_EQ(fixture.carry_out(IoOperation::read, 5, 0), Status::medium_error);
  EXPECT_EQ(fixture.carry_out(IoOperation::read, 6, 0), Status::ok);

  faults.hold(is_read);
  const u32 first = fixture.submit(IoOperation::read, 1, 0);
  const u32 second = fixture.submit(IoOperation::read, 3, 1);
  fixture.ring();
  faults.wait_until_held(2);
  EXPECT_EQ(fixture.carry_out(IoOperation::flush, 0, 0), Status::ok) << "passes those that are held";
  faults.release_latest();
  EXPECT_EQ(fixture.wait(second), Status::ok);
  EXPECT_TRUE(device::poll(fixture.queue(), first).is_pending);
  faults.release_oldest();
  EXPECT_EQ(fixture.wait(first), Status::ok);
}

TEST_P(ControllerTest, EndWaitsForRequestsInFlight) {
  DiskFile file(page_count * page_size);
  for (u32 round = 0; round < scaled(20); ++round) {
    RequestFaults faults;
    ControllerOptions few = options(&faults);
    few.depth = 4;
    ControllerFixture fixture(file.path(), 128, few);
    if (round % 2 != 0) faults.hold([](const IoRequest& request) { return request.offset % (2 * page_size) == 0; });
    std::vector<u32> slots;
    for (u64 page = 0; page < 64; ++page) {
      fixture.fill(page, static_cast<u8>(page + round));
      slots.push_back(fixture.submit(IoOperation::write, 3 * page, page));
    }
    slots.push_back(fixture.submit(IoOperation::write_zeroes, 200, 0, 20));
    if (round % 3 != 0) fixture.ring();
    fixture.stop();
    for (const u32 slot : slots) {
      const device::IoProgress progress = device::poll(fixture.queue(), slot);
      ASSERT_FALSE(progress.is_pending);
      ASSERT_EQ(progress.status, Status::ok);
    }
    for (u64 page = 0; page < 64; ++page) {
      ASSERT_EQ(file.read(3 * page * page_size, 1)[0], static_cast<u8>(page + round));
    }
  }
}

TEST_P(ControllerTest, ProducersOnManyThreadsGetTheirOwnPages) {
  const DiskFile file(page_count * page_size);
  ControllerFixture fixture(file.path(), 4, options());
  std::atomic<u32> violations{0};
  std::vector<std::thread> threads;
  for (u32 t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (u32 i = 0; i < scaled(500); ++i) {
        const u64 medium_page = t + 4 * (i % 64);
        fixture.fill(t, static_cast<u8>(i));
        if (fixture.carry_out(IoOperation::write, medium_page, t) != Status::ok) ++violations;
        fixture.fill(t, static_cast<u8>(i + 1));
        if (fixture.carry_out(IoOperation::read, medium_page, t) != Status::ok) ++violations;
        if (!fixture.has(t, static_cast<u8>(i))) ++violations;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(violations.load(), 0u);
}

// Past the queue, while others use it.
TEST_P(ControllerTest, ThreadsCarryOutRequestsThemselves) {
  DiskFile file(page_count * page_size);
  ControllerFixture fixture(file.path(), 5, options());
  EXPECT_TRUE(fixture.controller().carries_out_now());
  std::atomic<u32> violations{0};
  std::vector<std::thread> threads;
  const u32 rounds = scaled(300);
  for (u32 t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (u32 i = 0; i < rounds; ++i) {
        const u64 medium_page = t + 4 * (i % 64);
        fixture.fill(t, static_cast<u8>(i));
        if (fixture.carry_out_now(IoOperation::write, medium_page, t) != Status::ok) ++violations;
        fixture.fill(t, static_cast<u8>(i + 1));
        const Status status = t % 2 == 0 ? fixture.carry_out(IoOperation::read, medium_page, t)
                                         : fixture.carry_out_now(IoOperation::read, medium_page, t);
        if (status != Status::ok || !fixture.has(t, static_cast<u8>(i))) ++violations;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(violations.load(), 0u);
  EXPECT_EQ(of(fixture.controller().statistics(), IoOperation::write).requests, u64{4} * rounds);
  EXPECT_EQ(of(fixture.controller().statistics(), IoOperation::read).requests, u64{4} * rounds);

  EXPECT_EQ(fixture.carry_out_now(IoOperation::flush, 0, 0), Status::ok);
  EXPECT_EQ(fixture.carry_out_now(IoOperation::write_zeroes, 3, 0, 2), Status::ok);
  EXPECT_EQ(file.read(3 * page_size, 2 * page_size), std::vector<u8>(2 * page_size, 0));
  EXPECT_EQ(fixture.carry_out_now(IoOperation::read, page_count, 0), Status::out_of_range);
  file.resize(9 * page_size);
  EXPECT_EQ(fixture.carry_out_now(IoOperation::read, 8, 0, 4), Status::medium_error);
  EXPECT_EQ(fixture.controller().first_error(test_device),
            file.path() + ": read of 16384 bytes at 32768 failed: the medium ends before");
  EXPECT_EQ(of(fixture.controller().statistics(), IoOperation::read).errors, 2u);
  fixture.controller().set_medium(test_device, nullptr);
  EXPECT_EQ(fixture.carry_out_now(IoOperation::read, 0, 0), Status::device_failed);
}

TEST_P(ControllerTest, NothingPassesTheQueueWithFaults) {
  const DiskFile file(page_size);
  RequestFaults faults;
  ControllerFixture fixture(file.path(), 1, options(&faults));
  EXPECT_FALSE(fixture.controller().carries_out_now());
}

// Nobody rings: as with a kernel.
TEST_P(ControllerTest, PollsForKernels) {
  const DiskFile file(16 * page_size);
  ControllerFixture fixture(file.path(), 1, options());
  fixture.queue().producer_can_wake = 0;
  for (u32 round = 0; round < 3; ++round) {
    device::set_must_poll(*fixture.queue().shared, true);
    for (u32 i = 0; i < 50; ++i) ASSERT_EQ(fixture.carry_out(IoOperation::read, i % 16, 0), Status::ok);
    device::set_must_poll(*fixture.queue().shared, false);
  }
  fixture.queue().producer_can_wake = 1;
  EXPECT_EQ(fixture.carry_out(IoOperation::read, 0, 0), Status::ok);
}

TEST_P(ControllerTest, SaysWhatItUses) {
  const DiskFile file(page_size);
  const ControllerFixture fixture(file.path(), 1, options());
  const std::string text = const_cast<ControllerFixture&>(fixture).controller().describe();
  EXPECT_EQ(text.find("io_uring") == 0, GetParam() == ControllerKind::uring) << text;
  EXPECT_EQ(text.find("preadv") != std::string::npos, GetParam() == ControllerKind::threads) << text;
}

INSTANTIATE_TEST_SUITE_P(Kinds, ControllerTest, testing::Values(ControllerKind::uring, ControllerKind::threads),
                         [](const auto& test) { return test.param == ControllerKind::uring ? "uring" : "threads"; });

}  // namespace
}  // namespace gpu4fs::test
