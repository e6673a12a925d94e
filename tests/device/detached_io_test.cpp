// Loads and write-backs that nobody waits for. The test is the controller: it decides when a request completes, and
// how.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "cache/line_lookup.hpp"
#include "device/device_access.hpp"
#include "device/memory/memory_device.hpp"
#include "device/staged/bring_in.hpp"
#include "device/staged/detached_io.hpp"
#include "device/staged/joined_loads.hpp"
#include "device/staged/load_ahead.hpp"
#include "device/staged/pins.hpp"
#include "device/staged/staged_build.hpp"
#include "device/staged/write_back.hpp"
#include "device/tier/page_tier.hpp"
#include "device/transfer.hpp"
#include "io_queue_memory.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::device::detached_test {
namespace {

constexpr u32 slot_count = 64;
constexpr u64 device_pages = 4096;

class Detached {
 public:
  explicit Detached(u32 worker_count = 1, bool is_bounced = false)
      : queue_(slot_count), medium_(device_pages * page_size) {
    device_.kind = DeviceKind::staged;
    device_.size_bytes = device_pages * page_size;
    device_.needs_flush = 1;
    staged = build_staged_devices(heap_, &device_, staged_frames_min(worker_count), worker_count,
                                  {&queue_.queue(), slot_count, is_bounced ? &heap_ : nullptr});
    device_.staged = staged;
    for (u64 page = 0; page < device_pages; ++page) std::memset(at(page), static_cast<int>(page % 251 + 1), page_size);
  }

  Device& device() { return device_; }
  IoQueue& queue() { return queue_.queue(); }
  void keep_one_slot() { queue_.keep_slots(1); }
  u8* at(u64 page) { return medium_.data() + page * page_size; }
  static bool has(const u8* page, int byte) {
    return std::all_of(page, page + page_size, [byte](u8 found) { return found == byte; });
  }
  static int first_byte(u64 page) { return static_cast<int>(page % 251 + 1); }

  // Carries out the next request. False: there is none.
  bool serve(Status status = Status::ok) {
    return serve_with([status] { return status; });
  }
  // The same; how it ends is decided when there is one.
  template <typename Decide>
  bool serve_with(Decide decide) {
    u32 slot = 0;
    if (!take(queue_.shared(), &slot)) return false;
    const Status status = decide();
    const IoRequest request = request_of(queue_.shared(), slot);
    if (on_request) on_request(request);
    if (status == Status::ok) {
      u8* const place = at(request.offset / page_size);
      if (request.operation == IoOperation::read) std::memcpy(request.memory, place, request.length);
      if (request.operation == IoOperation::write) std::memcpy(place, request.memory, request.length);
    }
    (void)complete(queue_.shared(), slot, status);
    announce_completions(queue_.shared());
    return true;
  }
  // Owners that were told.
  std::vector<u32> take_all() {
    std::vector<u32> told;
    while (take_completions(Lane{}, *staged, [&](u32 owner) { told.push_back(owner); }) != 0) {
    }
    return told;
  }
  cache::LineWord word_of(u64 page) {
    const cache::FoundLine found = cache::find(Lane{}, staged->cache, {0, page});
    return found.line == cache::no_line ? cache::LineWord{0} : found.word;
  }
  u32 line_of(u64 page) { return cache::find(Lane{}, staged->cache, {0, page}).line; }
  void expect_read(u64 page, int byte) {
    const u32 first = begin_pins(Lane{}, *staged);
    ASSERT_EQ(begin_read(device_, page * page_size, page_size), Status::ok);
    EXPECT_TRUE(has(memory_at(device_, page * page_size, page_size), byte)) << page;
    end_pins(Lane{}, *staged, first);
  }
  void store(u64 page, int byte) {
    const u32 first = begin_pins(Lane{}, *staged);
    ASSERT_EQ(begin_write(device_, page * page_size, page_size), Status::ok);
    std::memset(memory_at(device_, page * page_size, page_size), byte, page_size);
    end_write(device_, page * page_size, page_size);
    end_pins(Lane{}, *staged, first);
  }
  u32 in_flight() const { return load<Order::acquire, Scope::engine>(&staged->detached_state->in_flight); }

  StagedDevices* staged = nullptr;
  std::function<void(const IoRequest&)> on_request;  // before it is carried out

 private:
  SingleWorkerGuard worker_;
  test::HeapAllocator heap_;
  test::IoQueueMemory queue_;
  std::vector<u8> medium_;
  Device device_{};
};

TEST(DetachedIo, LoadsEndWithTheirReports) {
  Detached world;
  EXPECT_TRUE(begin_detached_load(world.device(), 5, 77));
  EXPECT_FALSE(begin_detached_load(world.device(), 5, 78)) << "it is on its way";
  EXPECT_TRUE(begin_detached_load(world.device(), 6, no_io_owner));
  EXPECT_TRUE(world.word_of(5).is_loading());
  EXPECT_TRUE(world.take_all().empty());
  EXPECT_TRUE(world.serve());
  EXPECT_TRUE(world.serve());
  EXPECT_FALSE(world.serve());
  EXPECT_EQ(world.take_all(), std::vector<u32>{77});
  EXPECT_EQ(world.in_flight(), 0u);
  for (const u64 page : {u64{5}, u64{6}}) {
    EXPECT_TRUE(world.word_of(page).is_usable());
    EXPECT_EQ(world.word_of(page).pins(), 0u);
    world.expect_read(page, Detached::first_byte(page));
  }
  EXPECT_FALSE(begin_detached_load(world.device(), 5, 79)) << "it is there";
  EXPECT_FALSE(world.serve()) << "a page that is there is not read again";
}

// A rank has counted its pin and has yet to name it, while another one looks. What was pinned in an older scope is not.
TEST(Pins, ACountedPinIsNoOlderOne) {
  Detached world;
  EXPECT_FALSE(has_pin(*world.staged, 0));
  std::thread controller([&] {
    while (!world.serve()) std::this_thread::yield();
  });
  const u32 first = begin_pins(Lane{}, *world.staged);
  ASSERT_EQ(begin_read(world.device(), 5 * page_size, page_size), Status::ok);
  controller.join();
  const u32 line = world.line_of(5);
  EXPECT_TRUE(has_pin(*world.staged, line));
  end_pins(Lane{}, *world.staged, first);
  EXPECT_FALSE(has_pin(*world.staged, line));
  PinList& list = world.staged->pins[0];
  ++list.count;
  EXPECT_FALSE(has_pin(*world.staged, line));
  EXPECT_FALSE(has_pin(*world.staged, 0));
  --list.count;
}

// Who needs the page does not wait for the report, and the slot stays until somebody takes it.
TEST(DetachedIo, WhoNeedsThePageEndsItsLoad) {
  Detached world;
  EXPECT_TRUE(begin_detached_load(world.device(), 9, 3));
  help_line(*world.staged, world.line_of(9));
  EXPECT_TRUE(world.word_of(9).is_loading()) << "the request has not completed";
  EXPECT_TRUE(world.serve());
  world.expect_read(9, Detached::first_byte(9));
  EXPECT_EQ(world.in_flight(), 1u);
  EXPECT_EQ(world.take_all(), std::vector<u32>{3});
  EXPECT_EQ(world.in_flight(), 0u);
  world.expect_read(9, Detached::first_byte(9));
}

// A link that was read before the slot got another request decides nothing.
TEST(DetachedIo, AnOldLinkEndsNoOtherTransfer) {
  Detached world;
  world.keep_one_slot();
  EXPECT_TRUE(begin_detached_load(world.device(), 1, no_io_owner));
  const u32 line = world.line_of(1);
  const u64 old_link = world.staged->cache.lines[line].link;
  EXPECT_TRUE(world.serve());
  (void)world.take_all();
  cache::drop_page(world.staged->cache, {0, 1});
  EXPECT_TRUE(begin_detached_load(world.device(), 1, no_io_owner));
  ASSERT_EQ(world.line_of(1), line) << "the only free line of the set that was used";
  ASSERT_EQ(static_cast<u32>(world.staged->cache.lines[line].link), static_cast<u32>(old_link)) << "the same slot";
  detail::end_transfer(*world.staged, line, old_link, Status::ok);
  EXPECT_TRUE(world.word_of(1).is_loading());
  EXPECT_TRUE(world.serve());
  (void)world.take_all();
  world.expect_read(1, Detached::first_byte(1));
}

TEST(DetachedIo, ErrorsDoNotConcernASuccessor) {
  Detached world;
  world.store(3, 9);
  EXPECT_TRUE(begin_detached_write(world.device(), 3));
  EXPECT_TRUE(world.serve(Status::device_failed));
  (void)world.take_all();
  EXPECT_EQ(write_error_of(*world.staged, 0), Status::device_failed);
  EXPECT_EQ(undecided_errors(*world.staged), 1u);
  forget_write_error(*world.staged, 0);
  EXPECT_EQ(write_error_of(*world.staged, 0), Status::ok);
  EXPECT_EQ(undecided_errors(*world.staged), 0u);
}

// Its medium may lack what was stored last.
TEST(DetachedIo, ALoadOfADeviceThatFailedMeanwhileLeavesNothing) {
  Detached world;
  world.store(3, 9);
  EXPECT_TRUE(begin_detached_load(world.device(), 5, no_io_owner));
  EXPECT_TRUE(begin_detached_write(world.device(), 3));
  EXPECT_TRUE(world.serve());
  EXPECT_TRUE(world.serve(Status::device_failed));
  help_line(*world.staged, world.line_of(3));
  EXPECT_EQ(undecided_errors(*world.staged), 1u);
  world.device().failed = device_failed_for_good;
  end_decision(*world.staged, 0);
  (void)world.take_all();
  EXPECT_EQ(world.line_of(5), cache::no_line);
}

TEST(DetachedIo, AReaderWaitsForALoadThatIsInFlight) {
  Detached world(2);
  EXPECT_TRUE(begin_detached_load(world.device(), 12, no_io_owner));
  std::atomic<bool> has_read{false};
  std::thread reader([&] {
    const WorkerGuard worker(1);
    world.expect_read(12, Detached::first_byte(12));
    has_read = true;
  });
  EXPECT_FALSE(has_read);
  EXPECT_TRUE(world.serve());
  reader.join();
  EXPECT_TRUE(has_read);
  EXPECT_FALSE(world.serve()) << "it was read once";
}

// The line is free afterwards, and who comes for the page gets the error of a request of his own.
TEST(DetachedIo, ALoadThatFailsLeavesNothing) {
  Detached world(2);
  EXPECT_TRUE(begin_detached_load(world.device(), 7, 4));
  EXPECT_TRUE(world.serve(Status::medium_error));
  EXPECT_EQ(world.take_all(), std::vector<u32>{4});
  EXPECT_EQ(world.line_of(7), cache::no_line);
  std::thread controller([&] {
    while (!world.serve(Status::medium_error)) std::this_thread::yield();
  });
  const u32 first = begin_pins(Lane{}, *world.staged);
  EXPECT_EQ(begin_read(world.device(), 7 * page_size, page_size), Status::medium_error);
  end_pins(Lane{}, *world.staged, first);
  controller.join();
}

TEST(DetachedIo, PagesAreWrittenBehind) {
  Detached world;
  world.store(20, 200);
  EXPECT_TRUE(begin_detached_write(world.device(), 20));
  EXPECT_FALSE(begin_detached_write(world.device(), 20)) << "it is being written";
  EXPECT_FALSE(begin_detached_write(world.device(), 21)) << "it is in no frame";
  world.store(20, 201);
  EXPECT_TRUE(world.serve());
  (void)world.take_all();
  EXPECT_TRUE(world.word_of(20).is_dirty()) << "it was stored into meanwhile";
  EXPECT_TRUE(begin_detached_write(world.device(), 20));
  EXPECT_TRUE(world.serve());
  (void)world.take_all();
  EXPECT_FALSE(world.word_of(20).is_dirty());
  EXPECT_TRUE(Detached::has(world.at(20), 201));
  EXPECT_EQ(write_back_all(Lane{}, *world.staged, 0), Status::ok);
  EXPECT_FALSE(world.serve()) << "nothing is left for the flush";
}

TEST(DetachedIo, AFlushWaitsForWritesInFlightAndAnswersTheirErrors) {
  for (const Status status : {Status::ok, Status::device_failed}) {
    Detached world(2);
    for (u64 page = 0; page < 40; ++page) world.store(page, 99);
    EXPECT_TRUE(begin_detached_write(world.device(), 3));
    std::atomic<bool> is_done{false};
    std::thread controller([&] {
      for (u32 served = 0; !is_done;) served += world.serve(served == 0 ? status : Status::ok) ? 1 : 0;
    });
    EXPECT_EQ(write_back_all(Lane{}, *world.staged, 0), status);
    is_done = true;
    controller.join();
    for (u64 page = 0; page < 40; ++page) {
      EXPECT_EQ(Detached::has(world.at(page), 99), page != 3 || status == Status::ok) << page;
    }
    (void)world.take_all();
    EXPECT_EQ(world.in_flight(), 0u);
  }
}

// So those who wait for their requests always get a slot.
TEST(DetachedIo, WhatTheSystemRefusesIsWrittenLater) {
  Detached world(2);
  world.store(3, 9);
  EXPECT_TRUE(begin_detached_write(world.device(), 3));
  EXPECT_TRUE(world.serve(Status::io_error));
  (void)world.take_all();
  EXPECT_TRUE(world.word_of(3).is_dirty());
  EXPECT_EQ(write_error_of(*world.staged, 0), Status::ok);
  EXPECT_EQ(undecided_errors(*world.staged), 0u);
  std::atomic<bool> is_done{false};
  std::atomic<u32> refusals{5};
  std::thread controller([&] {
    while (!is_done) {
      (void)world.serve_with([&] {
        if (refusals == 0) return Status::ok;
        --refusals;
        return Status::io_error;
      });
    }
  });
  EXPECT_EQ(write_back_all(Lane{}, *world.staged, 0), Status::ok);
  EXPECT_TRUE(Detached::has(world.at(3), 9));
  EXPECT_EQ(refusals, 0u);
  EXPECT_EQ(paused_devices(*world.staged, 1), 0u);
  // Not for ever, but many tries are not enough.
  refusals = ~u32{0};
  const u64 begun_ns = now_monotonic_ns();
  world.store(3, 10);
  EXPECT_EQ(write_back_all(Lane{}, *world.staged, 0), Status::io_error);
  EXPECT_GT(now_monotonic_ns() - begun_ns, detail::refusal_limit_ns);
  EXPECT_EQ(undecided_errors(*world.staged), 1u);
  is_done = true;
  controller.join();
  // Pauses grow, so there are few tries.
  EXPECT_LT(~u32{0} - refusals, 100u);
}

TEST(DetachedIo, ARefusedDevicePausesAndTheOthersDoNot) {
  Detached world(2);
  world.store(3, 9);
  EXPECT_TRUE(begin_detached_write(world.device(), 3));
  EXPECT_TRUE(world.serve(Status::io_error));
  (void)world.take_all();
  // The pause is put off for ever.
  world.staged->error_state->refusals[0].retry_ns = ~u64{0};
  EXPECT_EQ(paused_devices(*world.staged, 3), 1u);
  EXPECT_FALSE(begin_detached_write(world.device(), 3));
  const BegunLines begun = begin_dirty_lines(Lane{}, *world.staged, 1, no_io_owner, [](int) {});
  EXPECT_EQ(begun.in_flight + begun.written, 0u);
  EXPECT_FALSE(world.serve()) << "nothing was begun";
  forget_write_error(*world.staged, 0);
  EXPECT_TRUE(begin_detached_write(world.device(), 3));
  EXPECT_TRUE(world.serve());
  (void)world.take_all();
  EXPECT_TRUE(Detached::has(world.at(3), 9));
}

// The file system below is full. Flushes say so and nothing is lost.
TEST(DetachedIo, AWriteWithoutRoomStaysAndIsNoErrorOfTheDevice) {
  Detached world(2);
  world.store(3, 9);
  std::atomic<bool> is_done{false};
  std::atomic<bool> is_full{true};
  std::thread controller([&] {
    while (!is_done) (void)world.serve_with([&] { return is_full ? Status::no_space : Status::ok; });
  });
  const Status refused = write_back_all(Lane{}, *world.staged, 0);
  EXPECT_EQ(undecided_errors(*world.staged), 0u);
  EXPECT_EQ(write_error_of(*world.staged, 0), Status::ok);
  EXPECT_TRUE(world.word_of(3).is_dirty());
  EXPECT_EQ(write_back_all(Lane{}, *world.staged, 0), Status::no_space) << "at once";
  is_full = false;
  if (refused != Status::no_space || !world.word_of(3).is_dirty()) {
    is_done = true;
    controller.join();
    FAIL() << status_name(refused);
  }
  while (!begin_detached_write(world.device(), 3)) backoff(1000);
  while (world.word_of(3).is_dirty() || world.word_of(3).is_writing()) (void)world.take_all();
  EXPECT_TRUE(Detached::has(world.at(3), 9));
  EXPECT_EQ(write_back_all(Lane{}, *world.staged, 0), Status::ok);
  is_done = true;
  controller.join();
}

TEST(DetachedIo, HalfOfTheSlotsAreLeft) {
  Detached world;
  u32 begun = 0;
  for (u64 page = 0; page < 200; ++page) begun += begin_detached_load(world.device(), page, no_io_owner) ? 1 : 0;
  EXPECT_EQ(begun, slot_count / 2);
  EXPECT_EQ(world.in_flight(), begun);
  EXPECT_EQ(world.line_of(199), cache::no_line) << "its line is free again";
  while (world.serve()) {
  }
  (void)world.take_all();
  EXPECT_TRUE(begin_detached_load(world.device(), 199, no_io_owner));
  EXPECT_TRUE(world.serve());
  (void)world.take_all();
}

// Pages that nobody has asked for.
class LoadAhead : public ::testing::Test {
 protected:
  u32 begin(u64 page) { return begin_ahead_loads(Lane{}, *world.staged, {&world.device(), page}).count; }
  void end_all(Status status = Status::ok) {
    while (world.serve(status)) {
    }
    EXPECT_TRUE(world.take_all().empty()) << "nobody waits for them";
    EXPECT_EQ(world.staged->detached_state->ahead_count, 0u);
  }
  const cache::AheadCounts& counts() const { return *world.staged->cache.ahead; }

  Detached world;
};

TEST_F(LoadAhead, CountsWhatIsUsedAndWhatIsNot) {
  for (const u64 page : {1, 2, 3}) EXPECT_EQ(begin(page), 1u);
  EXPECT_EQ(begin(2), 0u) << "it is on its way";
  EXPECT_EQ(world.staged->detached_state->ahead_count, 3u);
  EXPECT_EQ(cache::ahead_waiting(world.staged->cache), 3u);
  end_all();
  EXPECT_EQ(begin(2), 0u) << "it is there";
  EXPECT_EQ(counts().begun, 3u);
  EXPECT_TRUE(world.word_of(1).is_ahead());
  EXPECT_FALSE(deserves_copy(world.device(), 1)) << "nobody has read it";
  world.expect_read(1, Detached::first_byte(1));
  EXPECT_EQ(counts().used, 1u);
  EXPECT_TRUE(deserves_copy(world.device(), 1));
  EXPECT_NE(look_at_frame(world.device(), 2).memory, nullptr);
  EXPECT_EQ(counts().used, 2u);
  world.store(3, 9);
  EXPECT_EQ(counts().dropped, 1u) << "nobody has read it";
  for (const u64 page : {1, 2, 3}) EXPECT_FALSE(world.word_of(page).is_ahead()) << page;
  world.expect_read(1, Detached::first_byte(1));
  EXPECT_NE(look_at_frame(world.device(), 2).memory, nullptr);
  EXPECT_EQ(counts().used, 2u) << "each page once";
  EXPECT_EQ(cache::ahead_waiting(world.staged->cache), 0u);
}

TEST_F(LoadAhead, FailuresAreForgotten) {
  EXPECT_EQ(begin(5), 1u);
  end_all(Status::medium_error);
  EXPECT_TRUE(world.word_of(5).is_free());
  EXPECT_EQ(counts().dropped, 1u);
  EXPECT_EQ(undecided_errors(*world.staged), 0u);
  EXPECT_EQ(begin(5), 1u);
  end_all();
  world.expect_read(5, Detached::first_byte(5));
  EXPECT_EQ(counts().used, 1u);
}

// Whoever needs the page ends the transfer before its report is taken.
TEST_F(LoadAhead, IsEndedByWhoeverNeedsThePage) {
  EXPECT_EQ(begin(5), 1u);
  EXPECT_TRUE(world.serve());
  world.expect_read(5, Detached::first_byte(5));
  EXPECT_EQ(counts().used, 1u);
  EXPECT_EQ(world.staged->detached_state->ahead_count, 1u);
  end_all();
}

TEST_F(LoadAhead, HasAShareOfSlotsAndFrames) {
  u32 in_flight = 0;
  for (; ahead_room(*world.staged) != 0; ++in_flight) EXPECT_EQ(begin(in_flight), 1u);
  EXPECT_EQ(in_flight, slot_count / 4) << "half of those that nobody waits for";
  EXPECT_TRUE(begin_detached_load(world.device(), 2000, 7)) << "others have room";
  while (world.serve()) {
  }
  EXPECT_EQ(world.take_all(), std::vector<u32>{7});
  u32 waiting = in_flight;
  while (ahead_room(*world.staged) != 0) {
    for (; ahead_room(*world.staged) != 0 && world.in_flight() < in_flight; ++waiting) EXPECT_EQ(begin(waiting), 1u);
    end_all();
    ASSERT_LE(waiting, world.staged->cache.line_count);
  }
  EXPECT_EQ(waiting, world.staged->cache.line_count / ahead_frames_share);
  world.expect_read(0, Detached::first_byte(0));
  EXPECT_EQ(ahead_room(*world.staged), 1u);
}

TEST_F(LoadAhead, TakesNoDirtyFrame) {
  const cache::Cache& table = world.staged->cache;
  std::vector<u64> pages;
  for (u64 page = 0; pages.size() <= table.set_size && page < device_pages; ++page) {
    if (cache::set_of(table, {0, page}) == 0) pages.push_back(page);
  }
  ASSERT_EQ(pages.size(), table.set_size + 1u);
  for (u32 i = 0; i < table.set_size; ++i) world.store(pages[i], 9);
  EXPECT_EQ(begin(pages.back()), 0u);
  EXPECT_EQ(world.in_flight(), 0u);
  EXPECT_EQ(world.staged->detached_state->ahead_count, 0u);
  for (u32 i = 0; i < table.set_size; ++i) EXPECT_TRUE(world.word_of(pages[i]).is_dirty()) << i;
}

// The clock passes them once, as the pages that were used.
TEST_F(LoadAhead, PagesLeaveTheirFramesUnusedAfterOthers) {
  const cache::Cache& table = world.staged->cache;
  std::vector<u64> pages;
  for (u64 page = 0; pages.size() < 3 * table.set_size && page < device_pages; ++page) {
    if (cache::set_of(table, {0, page}) == 0) pages.push_back(page);
  }
  ASSERT_EQ(pages.size(), 3 * table.set_size);
  const auto load_and_use = [&](u64 page) {
    EXPECT_TRUE(begin_detached_load(world.device(), page, no_io_owner));
    end_all();
    world.expect_read(page, Detached::first_byte(page));
  };
  u32 next = 0;
  for (; next < table.set_size - 1; ++next) load_and_use(pages[next]);
  const u64 ahead = pages[next++];
  EXPECT_EQ(begin(ahead), 1u);
  end_all();
  load_and_use(pages[next++]);
  EXPECT_TRUE(world.word_of(ahead).is_ahead()) << "it is the youngest page";
  for (u32 i = 0; i < table.set_size; ++i) load_and_use(pages[next++]);
  EXPECT_TRUE(world.word_of(ahead).is_free());
  EXPECT_EQ(counts().dropped, 1u);
  EXPECT_EQ(cache::ahead_waiting(table), 0u);
}

// The lines of a flush, step by step, as a command does it that is restarted in between.
TEST(DetachedIo, AFlushOfFramesWaitsInNoLane) {
  Detached world;
  for (u64 page = 0; page < 50; ++page) world.store(page, 77);
  EXPECT_TRUE(begin_detached_write(world.device(), 7)) << "by somebody else";
  FrameFlush flush{};
  begin_frame_flush(*world.staged, 1, &flush);
  constexpr u32 owner = 5;
  u32 begun = 0;
  i32 counted = 0;
  const auto begin = [&] {
    begun += begin_dirty_lines(Lane{}, *world.staged, flush.devices, owner, [&](int change) {
               counted += change;
             }).in_flight;
    EXPECT_EQ(counted, static_cast<i32>(begun));
  };
  EXPECT_FALSE(frames_are_written(*world.staged, &flush));
  begin();
  EXPECT_EQ(begun, slot_count / 2 - 1) << "there is no room for more";
  while (world.serve()) {
  }
  EXPECT_EQ(world.take_all(), std::vector<u32>(begun, owner));
  EXPECT_FALSE(frames_are_written(*world.staged, &flush));
  begin();
  EXPECT_EQ(begun, 49u);
  world.store(60, 78);
  while (world.serve()) {
  }
  EXPECT_FALSE(frames_are_written(*world.staged, &flush));
  (void)world.take_all();
  EXPECT_TRUE(frames_are_written(*world.staged, &flush)) << "what was stored later is not waited for";
  for (u64 page = 0; page < 50; ++page) EXPECT_TRUE(Detached::has(world.at(page), 77)) << page;
  EXPECT_TRUE(world.word_of(60).is_dirty());
}

TEST(DetachedIo, AFlushOfTheMediumHasASlotAndTellsItsError) {
  for (const Status status : {Status::ok, Status::device_failed}) {
    Detached world;
    for (u64 page = 0; page < 200; ++page) (void)begin_detached_load(world.device(), page, no_io_owner);
    EXPECT_EQ(world.in_flight(), slot_count / 2);
    EXPECT_FALSE(is_flush_in_flight(*world.staged, 0));
    EXPECT_TRUE(begin_detached_flush(world.device(), 9));
    EXPECT_TRUE(is_flush_in_flight(*world.staged, 0));
    while (world.in_flight() > 1) {
      EXPECT_TRUE(world.serve());
      EXPECT_TRUE(world.take_all().empty());
    }
    EXPECT_TRUE(world.serve(status));
    EXPECT_EQ(write_error_of(*world.staged, 0), Status::ok) << "nobody has taken the report";
    EXPECT_EQ(world.take_all(), std::vector<u32>{9});
    EXPECT_FALSE(is_flush_in_flight(*world.staged, 0));
    EXPECT_EQ(write_error_of(*world.staged, 0), status);
    EXPECT_EQ(undecided_errors(*world.staged), status == Status::ok ? 0u : 1u);
    // What was lost stays lost.
    EXPECT_TRUE(begin_detached_flush(world.device(), 9));
    EXPECT_TRUE(world.serve());
    EXPECT_EQ(world.take_all(), std::vector<u32>{9});
    EXPECT_EQ(write_error_of(*world.staged, 0), status);
  }
}

// The last of a flush, which somebody would wait for, and a flush of the medium.
TEST(DetachedIo, AThreadCarriesOutTheRequestThatItWouldWaitFor) {
  struct Own {
    Detached* world;
    Status status;
    std::vector<IoOperation> carried_out;
  };
  for (const Status status : {Status::ok, Status::device_failed}) {
    Detached world;
    Own own{&world, status, {}};
    world.queue().controller = &own;
    world.queue().carry_out = [](void* controller, const IoRequest& request) {
      Own& found = *static_cast<Own*>(controller);
      found.carried_out.push_back(request.operation);
      if (request.operation != IoOperation::write || found.status != Status::ok) return found.status;
      std::memcpy(found.world->at(request.offset / page_size), request.memory, request.length);
      return Status::ok;
    };
    world.store(1, 55);
    EXPECT_EQ(write_back_all(Lane{}, *world.staged, 0), status);
    EXPECT_FALSE(world.serve()) << "nothing was submitted";
    EXPECT_EQ(own.carried_out, std::vector<IoOperation>{IoOperation::write});
    EXPECT_EQ(Detached::has(world.at(1), 55), status == Status::ok);

    forget_write_error(*world.staged, 0);
    end_decision(*world.staged, 0);
    flush_here(world.device());
    EXPECT_EQ(write_error_of(*world.staged, 0), status);
    EXPECT_FALSE(is_flush_in_flight(*world.staged, 0));
    EXPECT_EQ(own.carried_out.back(), IoOperation::flush);
    EXPECT_FALSE(world.serve());

    forget_write_error(*world.staged, 0);
    end_decision(*world.staged, 0);
    for (u64 page = 2; page < 5; ++page) world.store(page, 56);
    FrameFlush flush{};
    begin_frame_flush(*world.staged, 1, &flush);
    const BegunLines begun = begin_dirty_lines(Lane{}, *world.staged, 1, no_io_owner, [](int) {});
    EXPECT_EQ(begun.in_flight, 2u);
    EXPECT_EQ(begun.written, 1u);
    while (world.serve()) {
    }
    (void)world.take_all();
    EXPECT_TRUE(frames_are_written(*world.staged, &flush));
  }
}

TEST(DetachedIo, SomebodyIsToldOfTheNextReport) {
  Detached world;
  EXPECT_FALSE(tell_of_next_report(*world.staged, 4)) << "nothing is in flight";
  EXPECT_TRUE(begin_detached_load(world.device(), 1, 6));
  EXPECT_TRUE(begin_detached_load(world.device(), 2, no_io_owner));
  EXPECT_TRUE(tell_of_next_report(*world.staged, 4));
  EXPECT_FALSE(tell_of_next_report(*world.staged, 5)) << "one at a time";
  EXPECT_TRUE(world.serve());
  EXPECT_EQ(world.take_all(), (std::vector<u32>{6, 4}));
  EXPECT_TRUE(tell_of_next_report(*world.staged, 5));
  EXPECT_TRUE(world.serve());
  EXPECT_EQ(world.take_all(), std::vector<u32>{5});
  EXPECT_FALSE(tell_of_next_report(*world.staged, 5));
}

TEST(DetachedIo, LoadsOfOthersAreJoined) {
  Detached world;
  const auto join = [&world](u64 page, u32 owner) {
    return begin_or_join_loads(Lane{}, *world.staged, {&world.device(), page}, owner);
  };
  EXPECT_EQ(join(5, 6), PageLoad::begun);
  EXPECT_EQ(begin_ahead_loads(Lane{}, *world.staged, {&world.device(), 7}).count, 1u);
  EXPECT_EQ(join(5, no_io_owner), PageLoad::none) << "nobody is to be told";
  EXPECT_EQ(join(5, 0), PageLoad::joined);
  EXPECT_EQ(join(7, 8), PageLoad::joined);
  EXPECT_EQ(join(7, 9), PageLoad::untold) << "one for each load";
  EXPECT_TRUE(world.serve());
  EXPECT_EQ(join(5, 1), PageLoad::untold) << "the report has not been taken";
  EXPECT_EQ(world.take_all(), (std::vector<u32>{6, 0}));
  EXPECT_EQ(join(5, 1), PageLoad::none) << "it is there";
  EXPECT_TRUE(world.serve(Status::medium_error));
  EXPECT_EQ(world.take_all(), std::vector<u32>{8}) << "also if the load has failed";
  EXPECT_EQ(join(7, 9), PageLoad::begun);
  EXPECT_TRUE(world.serve());
  EXPECT_EQ(world.take_all(), std::vector<u32>{9}) << "the waiter of an earlier use of the slot is forgotten";
}

TEST(DetachedIo, LoadsOfLanesCannotBeJoined) {
  Detached world;
  const cache::PinResult pinned = cache::pin(Lane{}, world.staged->cache, {0, 12}, cache::PinMode::read);
  ASSERT_EQ(pinned.outcome, cache::PinOutcome::must_load);
  EXPECT_EQ(begin_or_join_loads(Lane{}, *world.staged, {&world.device(), 12}, 3), PageLoad::untold);
  cache::finish_load(world.staged->cache, pinned.line, false);
  EXPECT_EQ(begin_or_join_loads(Lane{}, *world.staged, {&world.device(), 12}, 3), PageLoad::begun);
  EXPECT_TRUE(world.serve());
  EXPECT_EQ(world.take_all(), std::vector<u32>{3});
}

TEST(DetachedIo, PagesAreForgottenAfterTheirTransfers) {
  Detached world(2);
  EXPECT_TRUE(begin_detached_load(world.device(), 30, no_io_owner));
  world.store(31, 5);
  EXPECT_TRUE(begin_detached_write(world.device(), 31));
  std::thread controller([&] {
    for (u32 served = 0; served < 2;) served += world.serve() ? 1 : 0;
  });
  forget_pages(Lane{}, *world.staged, 0, 0, device_page_max);
  controller.join();
  EXPECT_EQ(world.line_of(30), cache::no_line);
  EXPECT_EQ(world.line_of(31), cache::no_line);
  (void)world.take_all();
}

// The controller accesses frames and the worker's own pages, and nothing else.
TEST(DetachedIo, RangesPassThroughPagesOfTheWorker) {
  Detached world(1, true);
  std::atomic<bool> is_done{false};
  std::thread controller([&] {
    while (!is_done) {
      if (!world.serve()) std::this_thread::yield();
    }
  });
  constexpr u64 offset = 100 * page_size + 1234;
  constexpr u64 length = 40 * page_size;  // more than once through all of them
  std::vector<u8> bytes(length);
  EXPECT_EQ(read_range(Lane{}, world.device(), offset, length, bytes.data()), Status::ok);
  EXPECT_EQ(std::memcmp(bytes.data(), world.at(0) + offset, length), 0);
  for (u64 i = 0; i < length; ++i) bytes[i] = static_cast<u8>(i * 7);
  EXPECT_EQ(write_range(Lane{}, world.device(), offset, bytes.data(), length), Status::ok);
  EXPECT_EQ(std::memcmp(bytes.data(), world.at(0) + offset, length), 0);
  EXPECT_TRUE(std::all_of(world.at(100), world.at(0) + offset, [](u8 b) { return b == Detached::first_byte(100); }));
  EXPECT_TRUE(
      std::all_of(world.at(0) + offset + length, world.at(141), [](u8 b) { return b == Detached::first_byte(140); }));
  is_done = true;
  controller.join();
}

// Somebody stores into it while it is being written.
TEST(DetachedIo, TheLastPageOfAGrowingRangeIsACopy) {
  for (const u64 pages : {u64{1}, u64{3}}) {
    Detached world;
    test::HeapAllocator heap;
    u8* const source = static_cast<u8*>(heap.allocate(pages * page_size, page_size));
    std::memset(source, 7, pages * page_size);
    const u64 last = 50 + pages - 1;
    world.on_request = [&](const IoRequest& request) {
      if (request.offset + request.length == (last + 1) * page_size) {
        std::memset(source + (pages - 1) * page_size, 8, page_size);
      }
    };
    std::atomic<bool> is_done{false};
    std::thread controller([&] {
      while (!is_done) {
        if (!world.serve()) std::this_thread::yield();
      }
    });
    EXPECT_EQ(write_growing_range(Lane{}, world.device(), 50 * page_size, source, pages * page_size), Status::ok);
    is_done = true;
    controller.join();
    for (u64 page = 50; page <= last; ++page) EXPECT_TRUE(Detached::has(world.at(page), 7)) << page;
    EXPECT_TRUE(Detached::has(source + (pages - 1) * page_size, 8));
  }
}

// Readers, writers, loads and write-backs of few pages, with a controller that takes its time.
TEST(DetachedIo, ManyUsersOfFewPages) {
  constexpr u32 users = 4;
  Detached world(users + 1);
  std::atomic<bool> is_done{false};
  std::thread controller([&] {
    while (!is_done || world.in_flight() != 0) {
      if (!world.serve()) std::this_thread::yield();
    }
  });
  std::thread taker([&] {
    while (!is_done || world.in_flight() != 0) {
      (void)world.take_all();
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (u32 user = 0; user < users; ++user) {
    threads.emplace_back([&, user] {
      const WorkerGuard worker(user + 1 == users ? 0 : user + 1);
      // Each user stores into pages of its own, whose values grow; all read all of them.
      std::map<u64, int> own;
      for (u32 round = 0; round < test::scaled(3000); ++round) {
        const u64 page = (u64{round} * 7 + user * 13) % 64;
        (void)begin_detached_load(world.device(), page, no_io_owner);
        if (page % users == user) {
          own[page] = static_cast<int>(round % 200 + 1);
          world.store(page, own[page]);
          (void)begin_detached_write(world.device(), page);
        } else if (own.count(page) == 0) {
          const u32 first = begin_pins(Lane{}, *world.staged);
          EXPECT_EQ(begin_read(world.device(), page * page_size, page_size), Status::ok);
          end_pins(Lane{}, *world.staged, first);
        }
        const u64 mine = page / users * users + user;
        if (own.count(mine) != 0) world.expect_read(mine, own[mine]);
        if (round % 64 == 0) cache::drop_page(world.staged->cache, {0, page});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(write_back_all(Lane{}, *world.staged, 0), Status::ok);
  is_done = true;
  controller.join();
  taker.join();
  EXPECT_EQ(world.in_flight(), 0u);
}

}  // namespace
}  // namespace gpu4fs::device::detached_test
