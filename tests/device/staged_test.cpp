// Staged devices: pages come into frames when they are announced, stay there for the length of a scope, and reach the
// medium by evictions and flushes. Transfers pass the frames. What the stack was told shows what was accessed.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "cache/cache_statistics.hpp"
#include "device/device_access.hpp"
#include "device/memory/mapped_file.hpp"
#include "device/memory/memory_device.hpp"
#include "device/stack/device_stack.hpp"
#include "device/staged/pins.hpp"
#include "device/staged/staged_build.hpp"
#include "device/staged/write_back.hpp"
#include "device/transfer.hpp"
#include "support/group_runner.hpp"
#include "support/heap_allocator.hpp"
#include "support/on_all_groups.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::device::staged_test {
namespace {

using test::on_all_groups;

enum class Access { read, may_write, written };

// Notes accesses of the medium, and refuses some.
class Listener : public StackLayer {
 public:
  Status may_read(u64 offset, u64 length) override {
    if (on_read) on_read();
    return note_pages(Access::read, offset, length, refused_reads) ? Status::ok : Status::medium_error;
  }
  Status may_write(u64 offset, u64 length) override {
    return note_pages(Access::may_write, offset, length, refused_writes) ? Status::ok : Status::device_failed;
  }
  void write(std::vector<StackWrite>& writes) override {
    (void)note_pages(Access::written, writes[0].offset, writes[0].bytes.size(), {});
  }
  u64 count(Access access) const {
    return static_cast<u64>(
        std::count_if(heard.begin(), heard.end(), [access](const auto& entry) { return entry.first == access; }));
  }

  std::vector<std::pair<Access, u64>> heard;  // with the page
  std::function<void()> on_read;
  std::set<u64> refused_reads;
  std::set<u64> refused_writes;

 private:
  // False, and nothing is noted: one of the pages is refused.
  bool note_pages(Access access, u64 offset, u64 length, const std::set<u64>& refused) {
    EXPECT_EQ(offset % page_size, 0u);
    EXPECT_EQ(length % page_size, 0u);
    const u64 first = offset / page_size;
    const u64 end = first + length / page_size;
    if (refused.lower_bound(first) != refused.lower_bound(end)) return false;
    const std::lock_guard guard(mutex_);
    for (u64 page = first; page < end; ++page) heard.emplace_back(access, page);
    return true;
  }

  std::mutex mutex_;
};

using Heard = std::vector<std::pair<Access, u64>>;

constexpr u64 device_pages = 2048;

// Two staged devices on one table, the first with a stack. Byte 8 * i of a page of the medium is a function of device,
// page and i at the beginning.
class Staged {
 public:
  explicit Staged(u32 worker_count = 1, bool has_stack = true) {
    for (u32 d = 0; d < 2; ++d) {
      files_.push_back(MappedFile::anonymous(device_pages * page_size));
      devices_[d] = files_[d].device(d);
      devices_[d].kind = DeviceKind::staged;
      for (u64 page = 0; page < device_pages; ++page) fill(medium(d, page), first_value(d, page));
    }
    staged = build_staged_devices(heap_, devices_, staged_frames_min(worker_count) / 2, worker_count);
    for (Device& device : devices_) device.staged = staged;
    if (!has_stack) return;
    auto layer = std::make_unique<Listener>();
    listener_ = layer.get();
    std::vector<std::unique_ptr<StackLayer>> layers;
    layers.push_back(std::move(layer));
    stack_ = std::make_unique<DeviceStack>(std::move(layers));
    stack_->attach(device_pages * page_size);
    stack_->map(devices_[0].base, true);
    devices_[0].stack = stack_.get();
  }

  static u64 first_value(u32 device, u64 page) { return (page << 8 | device) * 3 + 1; }
  static void fill(u8* page, u64 value) {
    for (u64 i = 0; i < page_size / 8; ++i) reinterpret_cast<u64*>(page)[i] = value + i;
  }
  static bool has(const u8* page, u64 value) {
    for (u64 i = 0; i < page_size / 8; ++i) {
      if (reinterpret_cast<const u64*>(page)[i] != value + i) return false;
    }
    return true;
  }

  Device& device(u32 d = 0) { return devices_[d]; }
  Listener& listener() { return *listener_; }
  u8* medium(u32 d, u64 page) { return files_[d].base() + page * page_size; }
  u32 frame_count() const { return staged->cache.line_count; }
  u32 pinned_lines() const {
    u32 count = 0;
    for (u32 line = 0; line < frame_count(); ++line)
      count += cache::peek(staged->cache.lines[line]).pins() != 0 ? 1 : 0;
    return count;
  }

  Status read(u32 d, u64 page, u64 expected) {
    GPU4FS_TRY(begin_read(devices_[d], page * page_size, page_size));
    EXPECT_TRUE(has(memory_at(devices_[d], page * page_size, page_size), expected)) << d << ":" << page;
    return Status::ok;
  }
  Status write(u32 d, u64 page, u64 value) {
    GPU4FS_TRY(begin_write(devices_[d], page * page_size, page_size));
    fill(memory_at(devices_[d], page * page_size, page_size), value);
    end_write(devices_[d], page * page_size, page_size);
    return Status::ok;
  }
  Status flush(u32 d) { return write_back_all(Lane{}, *staged, d); }

  StagedDevices* staged = nullptr;

 private:
  SingleWorkerGuard worker_;
  test::HeapAllocator heap_;
  std::vector<MappedFile> files_;
  Device devices_[2] = {};
  std::unique_ptr<DeviceStack> stack_;
  Listener* listener_ = nullptr;
};

// A scope of one lane.
class Scope {
 public:
  explicit Scope(Staged& world) : staged_(*world.staged), first_(begin_pins(Lane{}, staged_)) {}
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope() { end_pins(Lane{}, staged_, first_); }

 private:
  StagedDevices& staged_;
  u32 first_;
};

TEST(Staged, APageIsReadOnceAndWrittenByAFlush) {
  Staged world;
  {
    const Scope scope(world);
    EXPECT_EQ(world.read(0, 5, Staged::first_value(0, 5)), Status::ok);
    EXPECT_EQ(world.read(0, 5, Staged::first_value(0, 5)), Status::ok);
    EXPECT_EQ(world.write(0, 5, 77), Status::ok);
    EXPECT_EQ(world.read(0, 5, 77), Status::ok);
    EXPECT_EQ(world.write(0, 9, 99), Status::ok);
    EXPECT_EQ(world.pinned_lines(), 2u);
  }
  EXPECT_EQ(world.listener().heard, (Heard{{Access::read, 5}})) << "page 9 is replaced, so it is not read";
  EXPECT_TRUE(Staged::has(world.medium(0, 5), Staged::first_value(0, 5))) << "nothing was written yet";
  EXPECT_EQ(world.pinned_lines(), 0u);
  world.listener().heard.clear();
  EXPECT_EQ(world.flush(0), Status::ok);
  EXPECT_TRUE(Staged::has(world.medium(0, 5), 77));
  EXPECT_TRUE(Staged::has(world.medium(0, 9), 99));
  EXPECT_EQ(world.listener().count(Access::may_write), 2u);
  EXPECT_EQ(world.listener().count(Access::written), 2u);
  EXPECT_EQ(world.flush(0), Status::ok);
  EXPECT_EQ(world.listener().heard.size(), 4u) << "clean frames are not written";
}

// Whether the page is in a frame before or not.
TEST(Staged, AWriteThatIsCancelledChangesNothing) {
  Staged world;
  for (const u64 page : {u64{3}, u64{4}}) {
    const Scope scope(world);
    if (page == 4) {
      EXPECT_EQ(world.read(0, 4, Staged::first_value(0, 4)), Status::ok);
    }
    EXPECT_EQ(begin_write(world.device(), page * page_size, page_size), Status::ok);
    cancel_write(world.device(), page * page_size, page_size);
    EXPECT_EQ(world.pinned_lines(), page - 3) << "a page with content stays pinned until the end of the scope";
    EXPECT_EQ(world.flush(0), Status::ok);
    EXPECT_TRUE(Staged::has(world.medium(0, page), Staged::first_value(0, page)));
    EXPECT_EQ(world.read(0, page, Staged::first_value(0, page)), Status::ok);
    EXPECT_EQ(world.write(0, page, 55), Status::ok);
  }
}

// As when the first copy of a page is bad and the write of its others is announced.
TEST(Staged, APageWithoutContentCannotBeReadByItsWriter) {
  Staged world;
  const Scope scope(world);
  EXPECT_EQ(begin_write(world.device(), 3 * page_size, page_size), Status::ok);
  EXPECT_EQ(begin_read(world.device(), 3 * page_size, page_size), Status::medium_error);
  EXPECT_EQ(begin_write(world.device(), 3 * page_size, page_size), Status::ok) << "it has been announced";
  cancel_write(world.device(), 3 * page_size, page_size);
  EXPECT_EQ(world.pinned_lines(), 0u);
}

TEST(Staged, FramesAreReplacedUnderPressure) {
  Staged world;
  on_all_groups([&](auto g) {
    const u64 turn = g.size();
    // Each rank has its own pages.
    for (u64 round = 0; round < device_pages / 64; ++round) {
      const u32 first = begin_pins(g, *world.staged);
      for (u64 i = g.rank(); i < 64; i += g.size()) {
        const u64 page = round * 64 + i;
        const u32 d = static_cast<u32>(i % 2);
        EXPECT_EQ(world.write(d, page, page * 10 + turn), Status::ok);
        EXPECT_EQ(world.read(1 - d, page, Staged::first_value(1 - d, page)), Status::ok);
      }
      end_pins(g, *world.staged, first);
      on_leader(g, [&] { EXPECT_EQ(world.pinned_lines(), 0u); });
    }
    for (u32 d = 0; d < 2; ++d) EXPECT_EQ(write_back_all(g, *world.staged, d), Status::ok);
    on_leader(g, [&] {
      for (u64 page = 0; page < device_pages; ++page) {
        const u32 d = static_cast<u32>(page % 2);
        ASSERT_TRUE(Staged::has(world.medium(d, page), page * 10 + turn)) << page;
        ASSERT_TRUE(Staged::has(world.medium(1 - d, page), Staged::first_value(1 - d, page))) << page;
      }
    });
  });
  const cache::CacheStatistics counts = cache::read_statistics(Lane{}, world.staged->cache);
  EXPECT_GT(counts.misses, device_pages) << "frames were used again";
  EXPECT_GT(counts.dirty_misses, 0u) << "some had to be written before";
  EXPECT_EQ(world.listener().count(Access::may_write), world.listener().count(Access::written));
  EXPECT_EQ(world.staged->pins[0].count, 0u);
  EXPECT_EQ(world.staged->pins[0].scope_count, 0u);
}

TEST(Staged, ScopesEndOnlyTheirOwnPins) {
  Staged world;
  on_all_groups([&](auto g) {
    const u32 outer = begin_pins(g, *world.staged);
    on_leader(g, [&] { EXPECT_EQ(world.read(1, 1, Staged::first_value(1, 1)), Status::ok); });
    for (u32 round = 0; round < 3; ++round) {
      const u32 inner = begin_pins(g, *world.staged);
      EXPECT_EQ(world.read(1, 2 + g.rank(), Staged::first_value(1, 2 + g.rank())), Status::ok);
      on_leader(g, [&] { EXPECT_EQ(world.pinned_lines(), 1 + g.size()); });
      end_pins(g, *world.staged, inner);
      on_leader(g, [&] {
        EXPECT_EQ(world.pinned_lines(), 1u);
        EXPECT_TRUE(Staged::has(memory_at(world.device(1), page_size, page_size), Staged::first_value(1, 1)));
      });
    }
    end_pins(g, *world.staged, outer);
    on_leader(g, [&] { EXPECT_EQ(world.pinned_lines(), 0u); });
  });
}

struct FailedCheck {};

TEST(Staged, WhatIsNotAnnouncedIsNotFound) {
  Staged world;
  {
    const Scope scope(world);
    EXPECT_EQ(world.read(0, 1, Staged::first_value(0, 1)), Status::ok);
  }
  const CheckHandler previous = set_check_handler([](const CheckFailure&) { throw FailedCheck{}; });
  EXPECT_THROW((void)memory_at(world.device(), 2 * page_size, page_size), FailedCheck) << "never announced";
  EXPECT_THROW((void)memory_at(world.device(), page_size, page_size), FailedCheck) << "not pinned any more";
  EXPECT_THROW((void)begin_read(world.device(), 100, page_size), FailedCheck) << "two pages";
  EXPECT_THROW((void)begin_read(world.device(), page_size, page_size), FailedCheck) << "outside of a scope";
  set_check_handler(previous);
}

TEST(Staged, WhatCannotBeReadIsNotPinned) {
  Staged world;
  world.listener().refused_reads = {4};
  const Scope scope(world);
  EXPECT_EQ(begin_read(world.device(), 4 * page_size, page_size), Status::medium_error);
  EXPECT_EQ(begin_known_read(world.device(), 4 * page_size, page_size), Status::medium_error);
  EXPECT_EQ(world.pinned_lines(), 0u);
  EXPECT_EQ(cache::find(Lane{}, world.staged->cache, {0, 4}).line, cache::no_line);
  world.listener().refused_reads.clear();
  EXPECT_EQ(world.read(0, 4, Staged::first_value(0, 4)), Status::ok);
}

// Nobody gets the page before it has its new bytes.
TEST(Staged, APageThatCannotBeReadCanBeReplaced) {
  Staged world(2);
  world.listener().refused_reads = {4};
  {
    const Scope scope(world);
    EXPECT_EQ(begin_write(world.device(), 4 * page_size, page_size), Status::ok);
    EXPECT_TRUE(
        cache::peek(world.staged->cache.lines[cache::find(Lane{}, world.staged->cache, {0, 4}).line]).is_loading());
    std::thread reader([&] {
      const WorkerGuard worker(1);
      const Scope own(world);
      EXPECT_EQ(world.read(0, 4, 123), Status::ok);
    });
    Staged::fill(memory_at(world.device(), 4 * page_size, page_size), 123);
    end_write(world.device(), 4 * page_size, page_size);
    reader.join();
  }
  EXPECT_EQ(world.pinned_lines(), 0u);
  EXPECT_EQ(world.flush(0), Status::ok);
  EXPECT_TRUE(Staged::has(world.medium(0, 4), 123));
}

// Whether a flush or an eviction meets it.
TEST(Staged, AFailedWriteBackIsReportedByFlushes) {
  for (const bool is_evicted : {false, true}) {
    Staged world;
    world.listener().refused_writes = {6};
    {
      const Scope scope(world);
      for (const u64 page : {u64{5}, u64{6}, u64{7}}) EXPECT_EQ(world.write(0, page, page), Status::ok);
    }
    for (u64 page = 0; is_evicted && page < device_pages; ++page) {
      const Scope scope(world);
      EXPECT_EQ(world.write(1, page, page), Status::ok);
    }
    EXPECT_EQ(write_error_of(*world.staged, 0), is_evicted ? Status::device_failed : Status::ok);
    if (is_evicted) {
      // The medium has an older page.
      const Scope scope(world);
      EXPECT_EQ(begin_read(world.device(), 6 * page_size, page_size), Status::device_failed);
      EXPECT_EQ(undecided_errors(*world.staged), 1u);
      end_decision(*world.staged, 0);
      EXPECT_EQ(undecided_errors(*world.staged), 0u);
      EXPECT_EQ(begin_read(world.device(), 6 * page_size, page_size), Status::ok);
    }
    EXPECT_EQ(world.flush(1), Status::ok) << "of another device";
    EXPECT_EQ(world.flush(0), Status::device_failed);
    EXPECT_EQ(world.flush(0), Status::device_failed) << "the bytes are still missing";
    EXPECT_EQ(cache::dirty_line_count(world.staged->cache, 0), 0u);
    EXPECT_TRUE(Staged::has(world.medium(0, 5), 5));
    EXPECT_TRUE(Staged::has(world.medium(0, 6), Staged::first_value(0, 6)));
    EXPECT_TRUE(Staged::has(world.medium(0, 7), 7));
    forget_write_error(*world.staged, 0);
    EXPECT_EQ(world.flush(0), Status::ok);
  }
}

// A write-back fails and its device is given up while somebody reads the older bytes.
TEST(Staged, AFailedDeviceIsNoticedAfterTheRead) {
  for (const bool can_do_without : {true, false}) {
    Staged world;
    world.listener().on_read = [&] {
      detail::note_write_error(*world.staged, 0, Status::device_failed);
      if (can_do_without) world.device().failed = device_failed_for_good;
      end_decision(*world.staged, 0);
    };
    const Scope scope(world);
    EXPECT_EQ(begin_read(world.device(), 6 * page_size, page_size),
              can_do_without ? Status::device_failed : Status::ok);
    EXPECT_EQ(world.pinned_lines(), can_do_without ? 0u : 1u);
    EXPECT_EQ(cache::find(Lane{}, world.staged->cache, {0, 6}).line == cache::no_line, can_do_without);
  }
}

TEST(Staged, AFailedDeviceIsNeitherReadNorWritten) {
  Staged world;
  {
    const Scope scope(world);
    EXPECT_EQ(world.write(0, 5, 55), Status::ok);
    world.listener().refused_reads = {7};
    for (const u64 page : {u64{6}, u64{7}}) {
      EXPECT_EQ(begin_write(world.device(), page * page_size, page_size), Status::ok);
    }
    world.device().failed = device_failed_for_good;
    for (const u64 page : {u64{6}, u64{7}, u64{8}}) end_write(world.device(), page * page_size, page_size);
    EXPECT_EQ(begin_read(world.device(), 5 * page_size, page_size), Status::device_failed);
    EXPECT_EQ(begin_write(world.device(), 5 * page_size, page_size), Status::device_failed);
  }
  EXPECT_EQ(world.flush(0), Status::ok) << "nobody needs its bytes";
  EXPECT_EQ(world.listener().count(Access::may_write), 0u);
  EXPECT_EQ(cache::dirty_line_count(world.staged->cache, 0), 0u);
  EXPECT_EQ(discard(Lane{}, *world.staged, 0, 0, device_pages), 0u);
  world.device().failed = device_rebuilding;
  const Scope scope(world);
  EXPECT_EQ(begin_read(world.device(), 5 * page_size, page_size), Status::device_failed);
  EXPECT_EQ(begin_known_read(world.device(), 5 * page_size, page_size), Status::ok);
  EXPECT_EQ(world.write(0, 5, 56), Status::ok);
}

TEST(Staged, OnlyCleanFramesThatNobodyUsesAreDiscarded) {
  Staged world;
  on_all_groups([&](auto g) {
    const u32 first = begin_pins(g, *world.staged);
    on_leader(g, [&] { EXPECT_EQ(world.read(1, 10, Staged::first_value(1, 10)), Status::ok); });
    on_leader(g, [&] { EXPECT_EQ(world.read(1, 20, Staged::first_value(1, 20)), Status::ok); });
    EXPECT_EQ(discard(g, *world.staged, 1, 0, 15), 1u) << "in use";
    end_pins(g, *world.staged, first);
    on_leader(g, [&] { world.medium(1, 10)[0] ^= 1; });
    EXPECT_EQ(discard(g, *world.staged, 1, 0, 15), 0u);
    on_leader(g, [&] {
      const Scope scope(world);
      EXPECT_EQ(begin_read(world.device(1), 10 * page_size, page_size), Status::ok);
      EXPECT_EQ(memory_at(world.device(1), 10 * page_size, 1)[0], world.medium(1, 10)[0]) << "read again";
      world.medium(1, 10)[0] ^= 1;
      EXPECT_EQ(world.write(1, 10, Staged::first_value(1, 10)), Status::ok);
    });
    EXPECT_EQ(discard(g, *world.staged, 1, 10, 1), 1u) << "dirty";
    EXPECT_EQ(write_back_all(g, *world.staged, 1), Status::ok);
    EXPECT_EQ(discard(g, *world.staged, 1, 10, 1), 0u);
  });
}

TEST(Staged, TransfersPassTheFrames) {
  Staged world;
  {
    const Scope scope(world);
    EXPECT_EQ(world.write(0, 9, 900), Status::ok);
    EXPECT_EQ(world.write(0, 14, 1400), Status::ok);
  }
  world.listener().heard.clear();
  std::vector<u8> source(3 * page_size);
  test::fill_random(source.data(), source.size(), 5);
  std::vector<u8> seen(source.size());
  const std::vector<u8> before(world.medium(0, 10), world.medium(0, 14));
  on_all_groups([&](auto g) {
    on_leader(g, [&] { std::memcpy(world.medium(0, 10), before.data(), before.size()); });
    u8* const to = on_leader(g, [&] { return seen.data(); });
    const u8* const from = on_leader(g, [&] { return source.data(); });
    for (const auto& [offset, length] :
         {std::pair<u64, u64>{0, 64}, {64, 64}, {4000, 4400}, {4095, 8194}, {4096, 4096}}) {
      const u64 at = 10 * page_size + offset;
      on_leader(g, [&] { world.listener().heard.clear(); });
      EXPECT_EQ(write_range(g, world.device(), at, from + 1, length), Status::ok);
      EXPECT_EQ(read_range(g, world.device(), at, length, to), Status::ok);
      on_leader(g, [&] {
        std::vector<u8> expected = before;
        std::copy_n(source.begin() + 1, length, expected.begin() + static_cast<i64>(offset));
        EXPECT_EQ(std::memcmp(to, from + 1, length), 0);
        EXPECT_EQ(std::memcmp(world.medium(0, 10), expected.data(), expected.size()), 0) << offset << "+" << length;
        const u64 pages = (offset + length - 1) / page_size - offset / page_size + 1;
        const u64 parts = (offset % page_size != 0 ? 1 : 0) + ((offset + length) % page_size != 0 ? 1 : 0);
        EXPECT_EQ(world.listener().count(Access::written), pages);
        EXPECT_EQ(world.listener().count(Access::read), pages + std::min(pages, parts));
        std::memcpy(world.medium(0, 10), before.data(), before.size());
      });
    }
  });
  EXPECT_TRUE(Staged::has(world.medium(0, 9), Staged::first_value(0, 9)));
  EXPECT_EQ(world.flush(0), Status::ok);
  EXPECT_TRUE(Staged::has(world.medium(0, 9), 900));
  EXPECT_TRUE(Staged::has(world.medium(0, 14), 1400));
  const CheckHandler previous = set_check_handler([](const CheckFailure&) { throw FailedCheck{}; });
  EXPECT_THROW((void)read_range(Lane{}, world.device(), 13 * page_size, 2 * page_size, seen.data()), FailedCheck)
      << "a page that has a frame";
  set_check_handler(previous);
}

TEST(Staged, TransfersFailWithTheMedium) {
  Staged world;
  std::vector<u8> bytes(2 * page_size, 1);
  world.listener().refused_reads = {3};
  world.listener().refused_writes = {5};
  on_all_groups([&](auto g) {
    u8* const memory = on_leader(g, [&] { return bytes.data(); });
    EXPECT_EQ(read_range(g, world.device(), 2 * page_size, 2 * page_size, memory), Status::medium_error);
    EXPECT_EQ(write_range(g, world.device(), 3 * page_size, memory, page_size), Status::ok) << "as a whole";
    EXPECT_EQ(write_range(g, world.device(), 3 * page_size, memory, 64), Status::medium_error);
    EXPECT_EQ(write_range(g, world.device(), 5 * page_size, memory, 64), Status::device_failed);
    on_leader(g, [&] { world.device().failed = device_failed_for_good; });
    EXPECT_EQ(write_range(g, world.device(), 9 * page_size, memory, 64), Status::device_failed);
    on_leader(g, [&] { world.device().failed = device_rebuilding; });
    EXPECT_EQ(read_range(g, world.device(), 9 * page_size, 64, memory), Status::device_failed);
    EXPECT_EQ(write_range(g, world.device(), 9 * page_size, memory, 64), Status::ok);
    on_leader(g, [&] { world.device().failed = device_in_use; });
  });
}

constexpr auto never = [] { return false; };

// The thread that waits sleeps, and looks whether it still needs the step.
TEST(Staged, AStepWaitsForRoomOrIsNotNeededAnyMore) {
  Staged world(2, false);
  world.staged->holder_max = 1;
  {
    const StagedStep first(world.staged, 0, never);
    EXPECT_TRUE(first.has_begun());
    u32 looks = 0;
    EXPECT_FALSE(StagedStep(world.staged, 1, [&] { return ++looks == 3; }).has_begun());
    EXPECT_EQ(looks, 3u);
    EXPECT_EQ(world.staged->holders, 1u);
  }
  EXPECT_EQ(world.staged->holders, 0u);
  EXPECT_EQ(world.staged->holders_waiting, 0u);
  std::vector<std::thread> threads;
  u32 inside = 0;
  for (u32 t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (u32 i = 0; i < test::scaled(2000); ++i) {
        const StagedStep step(world.staged, t % 2, never);
        EXPECT_TRUE(step.has_begun());
        EXPECT_EQ(++inside, 1u);
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(world.staged->holders, 0u);
}

// Threads with their own pages and a common one that all read, while others evict and flush.
TEST(Staged, WorkersShareFewFrames) {
  constexpr u32 worker_count = 4;
  Staged world(worker_count, false);
  const u32 rounds = std::max(test::scaled(400), 40u);
  std::atomic<u32> bad{0};
  std::vector<std::thread> threads;
  for (u32 w = 0; w < worker_count; ++w) {
    threads.emplace_back([&, w] {
      const WorkerGuard worker(w);
      test::Sequence random(w + 1);
      std::vector<u64> stored(device_pages, 0);
      for (u32 round = 0; round < rounds; ++round) {
        const u32 first = begin_pins(Lane{}, *world.staged);
        for (u32 i = 0; i < 16; ++i) {
          const u64 page = random.next() % (device_pages / worker_count) * worker_count + w;
          Device& device = world.device(static_cast<u32>(page / worker_count % 2));
          const u64 expected = stored[page] != 0 ? stored[page] : Staged::first_value(device.index, page);
          if (begin_read(device, page * page_size, page_size) != Status::ok) ++bad;
          u8* memory = memory_at(device, page * page_size, page_size);
          if (!Staged::has(memory, expected)) ++bad;
          if (random.next() % 2 == 0) continue;
          if (begin_write(device, page * page_size, page_size) != Status::ok) ++bad;
          stored[page] = random.next() | 1;
          Staged::fill(memory, stored[page]);
          end_write(device, page * page_size, page_size);
        }
        end_pins(Lane{}, *world.staged, first);
        if (round % 16 == w && write_back_all(Lane{}, *world.staged, w % 2) != Status::ok) ++bad;
      }
      for (u32 d = 0; d < 2; ++d) bad += write_back_all(Lane{}, *world.staged, d) != Status::ok ? 1 : 0;
      for (u64 page = w; page < device_pages; page += worker_count) {
        const u32 d = static_cast<u32>(page / worker_count % 2);
        if (stored[page] != 0 && !Staged::has(world.medium(d, page), stored[page])) ++bad;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bad, 0u);
  EXPECT_EQ(world.pinned_lines(), 0u);
  const cache::CacheStatistics counts = cache::read_statistics(Lane{}, world.staged->cache);
  EXPECT_GT(counts.misses + counts.dirty_misses, 0u);
  for (u32 w = 0; w < worker_count; ++w) EXPECT_EQ(world.staged->pins[w].count, 0u);
}

}  // namespace
}  // namespace gpu4fs::device::staged_test
