// Files on staged devices behind an I/O queue that are read one piece after the other: their pages are loaded before
// the reader asks for them. With workers of the CPU engine and with warps.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/racy_access.hpp"
#include "device/staged/page_cache_counters.hpp"
#include "fault/file_pool.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::read_ahead_test {
namespace {

constexpr u32 file_pages = 3000;  // more than there are frames
constexpr u32 step_pages = 200;   // of a write
constexpr u32 read_pages = 400;
constexpr u32 window_max = 48;

struct Kind {
  const char* name;
  u32 warp_count;
  const char* profile;
};

class ReadAhead : public FilePool<::testing::TestWithParam<Kind>> {
 protected:
  ReadAhead() { fill_content(7, 0, u64{file_pages} * page_size); }

  void SetUp() override {
    TestPoolOptions options;
    options.profile = GetParam().profile;
    options.is_staged = true;
    options.has_queue = true;
    options.tier_bytes = 0;
    options.warp_count = GetParam().warp_count;
    options.memory = {.frame_count = 320, .staging_count = 256, .shard_count = 2};
    options.config.read_ahead_pages = window_max;
    make_pool(options);
    ASSERT_LT(pool_->engine()->fs.space.staged->cache.line_count, file_pages);
    // As the controllers of real media do; otherwise threads of the engine sleep until their next sweep.
    pool_->media().on_report = [engine = pool_->engine()] { engine::wake_workers(*engine, 1); };
    make_file();
    for (u32 page = 0; page < file_pages; page += step_pages) write(inode_, page, step_pages);
    ASSERT_EQ(pool_->checkpoint(), Status::ok);
    // Brings the map into memory, settles the access time, and leaves the last pages in the frames.
    for (u32 page = 0; page < file_pages; page += 7) ASSERT_EQ(read(page, 1), Status::ok);
    began_ = counters();
  }

  // The bytes of these pages of the large file, also into other files.
  void write(u64 inode, u32 page, u32 count) { write_content(inode, u64{page} * page_size, u64{count} * page_size); }
  // `has_content`: otherwise the bytes are zeros.
  Status read_of(u64 inode, u32 page, u32 count, bool has_content = true) {
    const u64 length = u64{count} * page_size;
    std::memset(client_->data(), 0xaa, length);
    const client::Reply reply = client_->simple(wire::Opcode::read, inode, u64{page} * page_size, length);
    if (reply.status != Status::ok) return reply.status;
    EXPECT_EQ(reply.result, length) << page;
    const std::vector<u8> zeros(has_content ? 0 : length);
    const u8* const expected = has_content ? &content_[u64{page} * page_size] : zeros.data();
    EXPECT_EQ(std::memcmp(client_->data(), expected, length), 0) << page;
    return Status::ok;
  }
  Status read(u32 page, u32 count) { return read_of(inode_, page, count); }

  device::PageCacheCounters counters() const {
    return device::page_cache_counters(*pool_->engine()->fs.space.staged, [](void* to, const void* from, u64 bytes) {
      for (u64 i = 0; i < bytes / 8; ++i) static_cast<u64*>(to)[i] = load_racy_8(static_cast<const u64*>(from) + i);
    });
  }
  u64 ahead() const { return counters().ahead - began_.ahead; }
  u64 used() const { return counters().ahead_used - began_.ahead_used; }
  u64 dropped() const { return counters().ahead_dropped - began_.ahead_dropped; }
  u64 misses() const { return counters().misses - began_.misses; }

  enum class Failing { none, first_reads, all_reads };
  // From now on reads of the media fail as `failing_` says: of each page the first one, or all.
  void fail_reads() {
    pool_->media().before = [this](const device::IoRequest& request) {
      const Failing failing = failing_;
      if (request.operation != device::IoOperation::read || failing == Failing::none) return Status::ok;
      if (failing == Failing::all_reads) return Status::medium_error;
      const std::lock_guard<std::mutex> guard(mutex_);
      if (!seen_.insert({request.device, request.offset}).second) return Status::ok;
      return Status::medium_error;
    };
  }

  // From now on reads of the media last until is_held_ is false.
  void hold_reads() {
    const auto wait = [](const auto& is_over) {
      while (!is_over()) std::this_thread::sleep_for(std::chrono::microseconds(20));
    };
    const device::StagedDevices& staged = *pool_->engine()->fs.space.staged;
    wait([&] { return !device::has_detached(staged); });
    is_held_ = true;
    pool_->media().before = [this, wait](const device::IoRequest& request) {
      if (request.operation == device::IoOperation::read) wait([this] { return !is_held_; });
      return Status::ok;
    };
  }
  // The commands that have left their workers until devices answer.
  u32 parked_count() const {
    const engine::Engine& engine = *pool_->engine();
    u32 count = 0;
    for (u32 i = 0; i < engine.config.command_count; ++i) {
      const engine::CommandState& c = engine.commands[i];
      const bool is_parked = engine::phase_of(c) == engine::CommandPhase::parked;
      const u32 waits_for = load<Order::acquire, Scope::engine>(&c.waits_for);
      if (is_parked && waits_for == static_cast<u32>(Status::waits_for_io)) ++count;
    }
    return count;
  }
  bool are_parked_soon(u32 count) const {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (parked_count() != count && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    return parked_count() == count;
  }

  device::PageCacheCounters began_{};
  std::atomic<bool> is_held_{false};
  std::atomic<Failing> failing_{Failing::first_reads};
  std::mutex mutex_;
  std::set<std::pair<u32, u64>> seen_;  // pages of devices
};

INSTANTIATE_TEST_SUITE_P(Kinds, ReadAhead,
                         ::testing::Values(Kind{"threads", 0, "single"}, Kind{"warps", 3, "single"},
                                           Kind{"threads_raid1", 0, "raid1"}, Kind{"warps_raid5", 2, "raid5+raid1"}),
                         [](const auto& kind) { return std::string(kind.param.name); });

TEST_P(ReadAhead, ASequentialReaderFindsItsPages) {
  for (u32 page = 0; page < read_pages; ++page) {
    ASSERT_EQ(read(page, 1), Status::ok) << page;
    ASSERT_LE(ahead(), page + 1 + 2 * window_max) << "the window is limited";
  }
  // Some of the pages are in frames from the beginning.
  EXPECT_GE(ahead(), read_pages / 3);
  EXPECT_LE(ahead() - used(), 2 * window_max + dropped()) << "what the reader has passed was used";
  EXPECT_LE(used(), read_pages);
  EXPECT_LE(misses(), read_pages / 8) << "somebody had to wait for these";
}

TEST_P(ReadAhead, LongerReadsAreFollowedAsWell) {
  for (u32 page = 0; page < read_pages; page += 8) ASSERT_EQ(read(page, 8), Status::ok) << page;
  EXPECT_GE(ahead(), read_pages / 3);
  EXPECT_LE(ahead() - used(), 2 * window_max + dropped()) << "what the reader has passed was used";
  EXPECT_LE(misses(), read_pages / 8);
}

TEST_P(ReadAhead, ARandomReaderCausesNoLoads) {
  for (u32 i = 0; i < read_pages; ++i) ASSERT_EQ(read(i * 1237 % file_pages, 1), Status::ok);
  for (u32 i = 0; i < read_pages / 8; ++i) ASSERT_EQ(read(i * 1237 % (file_pages - 8), 8), Status::ok);
  EXPECT_EQ(ahead(), 0u);
  EXPECT_GT(misses(), read_pages / 8);
}

TEST_P(ReadAhead, NothingIsLoadedOfHolesAndBehindTheEnd) {
  const u64 sparse = create("sparse");
  write(sparse, 0, 4);
  ASSERT_EQ(client_->simple(wire::Opcode::truncate, sparse, u64{200} * page_size).status, Status::ok);
  const FileOperation reserve = on_inode(wire::Opcode::fallocate, sparse, u64{300} * page_size, u64{100} * page_size);
  ASSERT_EQ(client_->call(reserve).status, Status::ok);
  for (u32 page = 4; page < 400; page += 2) ASSERT_EQ(read_of(sparse, page, 2, false), Status::ok);
  EXPECT_EQ(ahead(), 0u) << "holes, and pages that nobody has written";
  // The end of a file that has left its frames.
  for (u32 page = 0; page < file_pages; page += 7) ASSERT_EQ(read(page, 1), Status::ok);
  began_ = counters();
  for (u32 page = file_pages - 60; page < file_pages; page += 4) ASSERT_EQ(read(page, 4), Status::ok);
  EXPECT_LE(ahead(), 60u);
}

TEST_P(ReadAhead, ErrorsAreReportedToNobody) {
  for (u32 page = 0; page < 4; ++page) ASSERT_EQ(read(page, 1), Status::ok);
  fail_reads();
  // Pages that fail are loaded again by their reader.
  for (u32 page = 4; page < read_pages; ++page) ASSERT_EQ(read(page, 1), Status::ok) << page;
  EXPECT_GE(dropped(), read_pages / 4);
  // An error of a page that is read is one.
  failing_ = Failing::all_reads;
  u32 error_count = 0;
  for (u32 i = 0; i < 200; ++i) error_count += read(500 + i * 619 % 2400, 1) == Status::ok ? 0 : 1;
  EXPECT_GT(error_count, 0u);
  failing_ = Failing::none;
  for (u32 page = 0; page < read_pages; ++page) EXPECT_EQ(read(page, 1), Status::ok) << page;
}

// A command that needs a page on its way leaves its worker, as one does whose page nobody loads. So do others that need
// the same page; the last of them is restarted again and again.
TEST_P(ReadAhead, NoWorkerWaitsForAPageOnItsWay) {
  constexpr u32 begin = 8;
  for (u32 page = 0; page < begin; ++page) ASSERT_EQ(read(page, 1), Status::ok);
  hold_reads();
  const u64 missed = misses();
  std::atomic<u32> wanted{begin};
  std::thread reader([&] {
    for (; wanted < begin + 2 * window_max; ++wanted) EXPECT_EQ(read(wanted, 1), Status::ok);
  });
  EXPECT_TRUE(are_parked_soon(1));
  EXPECT_EQ(misses(), missed) << "only the read-ahead has begun loads";
  std::vector<std::thread> others;
  for (u32 i = 0; i < 2; ++i) {
    others.emplace_back([&, page = wanted.load()] {
      const std::unique_ptr<client::Session> session = pool_->open_session();
      FileClient client(*session);
      const u64 offset = u64{page} * page_size;
      EXPECT_EQ(client.simple(wire::Opcode::read, inode_, offset, page_size).status, Status::ok);
      EXPECT_EQ(std::memcmp(client.data(), &content_[offset], page_size), 0);
    });
  }
  EXPECT_TRUE(are_parked_soon(2));
  is_held_ = false;
  reader.join();
  for (std::thread& other : others) other.join();
}

// Pages are replaced, freed and given to other files while they are on their way.
TEST_P(ReadAhead, FilesChangeMeanwhile) {
  constexpr u32 changed_pages = 600;
  const u64 other = create("changed");
  for (u32 page = 0; page < changed_pages; page += step_pages) write(other, page, step_pages);
  std::atomic<bool> is_done{false};
  std::thread writer([&] {
    const std::unique_ptr<client::Session> session = pool_->open_session();
    FileClient client(*session);
    Sequence sequence(11);
    while (!is_done) {
      const u64 page = sequence.next() % changed_pages;
      const u64 count = std::min<u64>(1 + sequence.next() % 32, changed_pages - page);
      if (sequence.next() % 8 == 0) {
        (void)client.simple(wire::Opcode::truncate, other, page * page_size);
        (void)client.simple(wire::Opcode::truncate, other, u64{changed_pages} * page_size);
        continue;
      }
      const u8* const begin = &content_[page * page_size];
      const FileOperation op = on_inode(wire::Opcode::write, other, page * page_size, count * page_size);
      EXPECT_EQ(client.call(op, {begin, begin + count * page_size}).status, Status::ok);
    }
  });
  const std::vector<u8> zeros(page_size);
  // The writer may leave nothing but a hole for the reader of a round.
  const auto goes_on = [&](u32 round) { return round < scaled(6) || (ahead() == 0 && round < 60); };
  for (u32 round = 0; goes_on(round) && !HasFailure(); ++round) {
    const u32 count = round % 2 == 0 ? 1 : 4;
    for (u32 page = 0; page < changed_pages; page += count) {
      const u64 length = u64{count} * page_size;
      const client::Reply reply = client_->simple(wire::Opcode::read, other, u64{page} * page_size, length);
      ASSERT_EQ(reply.status, Status::ok) << page;
      for (u64 at = 0; at + page_size <= reply.result; at += page_size) {
        const u8* const found = client_->data() + at;
        const bool is_content = std::memcmp(found, &content_[u64{page} * page_size + at], page_size) == 0;
        EXPECT_TRUE(is_content || std::memcmp(found, zeros.data(), page_size) == 0) << page + at / page_size;
      }
    }
    // Other pages drive them out of the frames.
    for (u32 page = 0; page < file_pages; page += step_pages) ASSERT_EQ(read(page, step_pages), Status::ok);
  }
  is_done = true;
  writer.join();
  EXPECT_GT(ahead(), 0u);
}

TEST(ReadAheadOff, LoadsNothing) {
  TestPoolOptions options;
  options.is_staged = true;
  options.has_queue = true;
  options.config.read_ahead_pages = 0;
  TestPool pool(options);
  EXPECT_EQ(engine::read_ahead_limit(*pool.engine()), 0u);
  TestPoolOptions mapped;
  mapped.is_staged = false;
  TestPool in_memory(mapped);
  EXPECT_EQ(engine::read_ahead_limit(*in_memory.engine()), 0u) << "pages of memory need no loads";
}

}  // namespace
}  // namespace gpu4fs::test::read_ahead_test
