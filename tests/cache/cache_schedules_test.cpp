// The table under every schedule of a few workers with a bounded number of deviations from the plain one. The table is
// one set of one or two lines, so nearly every miss removes a page.
#include "support/schedule_points.hpp"
//
#include "cache/cache_memory.hpp"
#include "cache/pin.hpp"
#include "cache/write_back.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

using cache::LineWord;
using cache::PinMode;
using cache::PinOutcome;
using cache::PinResult;

enum class Role { reads, modifies, overwrites, writes_back, takes_all, flushes, drops };

// What a fiber does, `rounds` times. Each works on its own slot of a page, so no store hides another one.
struct Part {
  Role role;
  u64 page = 0;
  u32 rounds = 1;
};

constexpr u32 part_max = 4;
constexpr u64 page_max = 4;

struct Slots {
  u64 values[part_max];
};
struct Frame {
  u64 page;
  Slots slots;
};

struct Options {
  u32 line_count = 1;
  u32 failing_load = 0;        // this load fails, counted from 1
  u32 failing_write_back = 0;  // this write-back fails
  bool watch_counts = false;   // the counters of dirty lines have schedule points too
  bool watch_sets = false;     // and the bits of dirty sets
};

// All checks note their failure, since a run is part of thousands.
class CacheWorld {
 public:
  CacheWorld(std::vector<Part> parts, u32 deviation_max, Options options)
      : parts_(std::move(parts)),
        options_(options),
        explorer_(static_cast<u32>(parts_.size()), deviation_max, [this](u32 i) { work(i); }),
        memory_(options.line_count, options.line_count) {
    // A miss looks at a line up to four times.
    explorer_.set_spin_loads(5);
    const u8* const begin = reinterpret_cast<const u8*>(table().dirty_sets);
    const u8* const lines = reinterpret_cast<const u8*>(table().lines);
    const u8* const lines_and_lock = reinterpret_cast<const u8*>(&table().sets[0].counts);
    const u8* const all = reinterpret_cast<const u8*>(&table().dirty_counts[1]);
    const u8* const first = options.watch_sets ? begin : lines;
    explorer_.watch(first, static_cast<u64>((options.watch_counts ? all : lines_and_lock) - first));
  }

  // Empty: no schedule failed.
  std::string run_all() {
    do {
      ++schedules_;
      reset();
      const bool ended = explorer_.run();
      if (!ended) expect(false, "somebody waits for ever");
      if (ended) check_end();
      if (!fault_.empty()) return fault_ + ", schedule " + std::to_string(schedules_);
    } while (explorer_.next());
    return {};
  }
  u64 schedules() const { return schedules_; }
  u64 count(PinOutcome outcome) const { return outcomes_[static_cast<u32>(outcome)]; }
  u64 redirtied() const { return redirtied_; }

 private:
  const cache::Cache& table() const { return memory_.cache(); }
  void expect(bool condition, const char* fault) {
    if (!condition && fault_.empty()) fault_ = fault;
  }
  // Without a schedule point.
  LineWord raw_word(u32 line) const { return {__atomic_load_n(&table().lines[line].word, __ATOMIC_SEQ_CST)}; }
  Frame& frame(u32 line) const { return *reinterpret_cast<Frame*>(frame_of(table(), line)); }

  void reset() {
    memory_.clear();
    std::memset(static_cast<void*>(medium_), 0, sizeof(medium_));
    std::memset(static_cast<void*>(marked_), 0, sizeof(marked_));
    std::memset(is_loading_, 0, sizeof(is_loading_));
    std::memset(is_writing_, 0, sizeof(is_writing_));
    loads_ = write_backs_ = 0;
  }

  void check_lines() {
    for (u32 i = 0; i < options_.line_count; ++i) {
      const LineWord word = raw_word(i);
      expect(is_possible(word), "a line is in an impossible state");
      for (u32 k = 0; k < i; ++k) {
        const bool is_same = !word.is_free() && !raw_word(k).is_free() && word.key() == raw_word(k).key();
        expect(!is_same, "two lines have one page");
      }
    }
  }
  void point() {
    check_lines();
    explorer_.point();
  }

  template <class Condition>
  void wait_until(Condition&& condition) {
    while (!condition()) explorer_.wait();
  }

  // Pinned, and the frame has the page.
  u32 acquire(u32 part, u64 page, PinMode mode) {
    for (;;) {
      const PinResult result = pin(Lane{}, table(), {0, page}, mode);
      ++outcomes_[static_cast<u32>(result.outcome)];
      switch (result.outcome) {
        case PinOutcome::hit:
          return result.line;
        case PinOutcome::must_load:
        case PinOutcome::fills:
          if (fill(result.line, page)) return result.line;
          break;
        case PinOutcome::loading:
          wait_until([&] { return !raw_word(result.line).is_loading(); });
          break;
        case PinOutcome::must_write_back:
          write_back(begin_write_back(table(), result.line));
          break;
        case PinOutcome::no_room:
          wait_until([&] {
            bool is_full = true;
            for (u32 i = 0; i < options_.line_count; ++i) {
              const LineWord word = raw_word(i);
              if (word.pins() == 0 && !word.is_loading() && !word.is_writing()) is_full = false;
              if (!word.is_free() && word.key().page == page) is_full = false;
            }
            return !is_full;
          });
          break;
      }
      (void)part;
    }
  }

  bool fill(u32 line, u64 page) {
    const u32 number = ++loads_;
    expect(!is_loading_[page], "two load a page at once");
    expect(!is_writing_[page], "a page is loaded while it is being written");
    is_loading_[page] = true;
    frame(line).page = ~page;
    frame(line).slots = medium_[page];
    point();
    frame(line).page = page;
    is_loading_[page] = false;
    const bool ok = number != options_.failing_load;
    if (!ok) frame(line).page = ~page;
    finish_load(table(), line, ok);
    return ok;
  }

  void write_back(cache::WriteBack taken) {
    if (taken.line == cache::no_line) return;
    const u32 number = ++write_backs_;
    const u64 page = taken.key.page;
    expect(!is_writing_[page], "two write a page at once");
    is_writing_[page] = true;
    Slots bytes;
    for (u32 i = 0; i < parts_.size(); ++i) {
      expect(frame(taken.line).page == page, "a frame changes its page while it is being written");
      bytes.values[i] = frame(taken.line).slots.values[i];
      if (i == 0) point();
    }
    const bool ok = number != options_.failing_write_back;
    if (ok) medium_[page] = bytes;
    is_writing_[page] = false;
    if (raw_word(taken.line).is_dirty()) ++redirtied_;
    finish_write_back(table(), taken.line, ok);
  }

  void use(u32 line, u64 page) {
    expect(frame(line).page == page, "the frame of a pin has another page");
    point();
    expect(frame(line).page == page && raw_word(line).key().page == page, "a pinned page has left its frame");
    expect(raw_word(line).pins() > 0, "the pin is gone");
  }

  void store(u32 part, u64 page, PinMode mode) {
    const u32 line = acquire(part, page, mode);
    use(line, page);
    const u64 value = frame(line).slots.values[part] + 1;
    expect(value == marked_[page].values[part] + 1, "a store is lost");
    frame(line).slots.values[part] = value;
    point();
    mark_dirty(table(), line);
    marked_[page].values[part] = value;
    unpin(table(), line);
  }

  void flush() {
    Slots before[page_max];
    std::memcpy(before, marked_, sizeof(before));
    u64 number = 0;
    const auto& lines = table().dirty_counts[0].lines;
    while ((number = cache::begin_flush(table(), 0)) == 0) {
      wait_until([&] { return lines.running[(lines.phase_count + 1) % 2] == 0; });
      std::memcpy(before, marked_, sizeof(before));
    }
    for (;;) {
      write_all_back();
      if (cache::has_flushed(table(), 0, number)) break;
      wait_until([&] { return lines.running[(number - 1) % 2] == 0 || some_line_is_dirty(); });
    }
    for (u64 page = 0; page < page_max; ++page) {
      for (u32 i = 0; i < parts_.size(); ++i) {
        expect(medium_[page].values[i] >= before[page].values[i], "a flush ends before its pages are written");
      }
    }
  }
  // And a search finds it.
  bool some_line_is_dirty() const {
    if (!has_dirty_bit()) return false;
    for (u32 i = 0; i < options_.line_count; ++i) {
      if (raw_word(i).is_dirty() && !raw_word(i).is_writing()) return true;
    }
    return false;
  }
  bool has_dirty_bit() const { return (__atomic_load_n(&table().dirty_sets[0], __ATOMIC_SEQ_CST) & 1) != 0; }
  void write_all_back() {
    for (u32 from = 0;;) {
      const cache::WriteBack taken = take_dirty(Lane{}, table(), 0, from);
      if (taken.line == cache::no_line) break;
      write_back(taken);
      from = taken.line + 1;
    }
  }

  void work(u32 part) {
    const Part& own = parts_[part];
    for (u32 round = 0; round < own.rounds; ++round) {
      switch (own.role) {
        case Role::reads: {
          const u32 line = acquire(part, own.page, PinMode::read);
          use(line, own.page);
          unpin(table(), line);
          break;
        }
        case Role::modifies:
          store(part, own.page, PinMode::modify);
          break;
        case Role::overwrites:
          store(part, own.page, PinMode::overwrite);
          break;
        case Role::writes_back:
          write_all_back();
          break;
        case Role::takes_all:
          take_all_back();
          break;
        case Role::flushes:
          flush();
          break;
        case Role::drops:
          drop(Lane{}, table(), 0, own.page, 1);
          break;
      }
    }
  }

  void take_all_back() {
    std::vector<cache::WriteBack> taken;
    take_all_dirty(
        Lane{}, table(), [](LineWord) { return true; }, [&](const cache::WriteBack& begun) { taken.push_back(begun); });
    for (const cache::WriteBack& begun : taken) write_back(begun);
  }

  void check_end() {
    check_lines();
    expect(!table().sets[0].lock.is_locked(), "the set stays locked");
    write_all_back();
    write_all_back();
    for (u32 i = 0; i < options_.line_count; ++i) {
      const LineWord word = raw_word(i);
      expect(word.pins() == 0 && !word.is_loading() && !word.is_writing() && !word.is_dirty(), "a line is not at rest");
    }
    for (u64 page = 0; page < page_max; ++page) {
      for (u32 i = 0; i < parts_.size(); ++i) {
        expect(medium_[page].values[i] == marked_[page].values[i], "a store is lost");
      }
    }
    expect(cache::dirty_line_count(table(), 0) == 0, "lines are counted that are clean");
  }

  std::vector<Part> parts_;
  Options options_;
  ScheduleExplorer explorer_;
  CacheMemory memory_;
  Slots medium_[page_max];
  Slots marked_[page_max];  // stores whose mark_dirty() has returned
  bool is_loading_[page_max];
  bool is_writing_[page_max];
  u32 loads_ = 0;
  u32 write_backs_ = 0;
  u64 schedules_ = 0;
  u64 outcomes_[6] = {};
  u64 redirtied_ = 0;
  std::string fault_;
};

// ThreadSanitizer takes fibers for threads, and the explorer has no other synchronisation between them.
class CacheSchedules : public ::testing::Test {
 protected:
  void SetUp() override {
    if (GPU4FS_TSAN != 0) GTEST_SKIP() << "the fibers share the explorer's state";
  }
  // Three take a second for each test, and four a minute.
  u32 deviation_max_ = is_short() ? 2 : 3;
};

TEST_F(CacheSchedules, PagesThatDriveEachOtherOut) {
  for (const std::vector<Part>& parts : {
           std::vector<Part>{{Role::reads, 0, 2}, {Role::reads, 1, 2}, {Role::reads, 0}},
           std::vector<Part>{{Role::reads, 0}, {Role::reads, 1}, {Role::reads, 0}, {Role::reads, 1}},
           std::vector<Part>{{Role::reads, 0, 2}, {Role::reads, 1}, {Role::drops, 0, 2}, {Role::reads, 0}},
       }) {
    CacheWorld world(parts, deviation_max_, {});
    EXPECT_EQ(world.run_all(), "");
    EXPECT_GT(world.schedules(), 1000u);
    EXPECT_GT(world.count(PinOutcome::loading), 0u);
    EXPECT_GT(world.count(PinOutcome::no_room), 0u);
  }
}

TEST_F(CacheSchedules, APageIsLoadedOnce) {
  Options options;
  options.line_count = 2;
  for (const std::vector<Part>& parts : {
           std::vector<Part>{{Role::reads, 0}, {Role::reads, 0}, {Role::reads, 1}},
           std::vector<Part>{{Role::reads, 0}, {Role::reads, 1}, {Role::reads, 2}, {Role::reads, 0}},
           std::vector<Part>{{Role::overwrites, 0}, {Role::reads, 0}, {Role::drops, 0}, {Role::overwrites, 0}},
       }) {
    CacheWorld world(parts, deviation_max_, options);
    EXPECT_EQ(world.run_all(), "");
    EXPECT_GT(world.schedules(), 1000u);
    EXPECT_GT(world.count(PinOutcome::loading), 0u);
  }
}

TEST_F(CacheSchedules, WhoWaitsForALoadThatFailsLoadsThePage) {
  Options options;
  for (options.failing_load = 1; options.failing_load <= 2; ++options.failing_load) {
    const std::vector<Part> parts{{Role::reads, 0}, {Role::modifies, 0}, {Role::reads, 1}};
    CacheWorld world(parts, deviation_max_, options);
    EXPECT_EQ(world.run_all(), "");
    EXPECT_GT(world.count(PinOutcome::loading), 0u);
  }
}

TEST_F(CacheSchedules, NoStoreIsLost) {
  for (const std::vector<Part>& parts : {
           std::vector<Part>{{Role::modifies, 0, 2}, {Role::modifies, 0}, {Role::writes_back, 0, 2}},
           std::vector<Part>{{Role::modifies, 0, 2}, {Role::overwrites, 1}, {Role::writes_back, 0, 2}},
           std::vector<Part>{{Role::modifies, 0}, {Role::modifies, 0}, {Role::reads, 1}, {Role::writes_back}},
       }) {
    CacheWorld world(parts, deviation_max_, {});
    EXPECT_EQ(world.run_all(), "");
    EXPECT_GT(world.schedules(), 1000u);
    if (parts[2].role == Role::writes_back && parts[1].page == 0) {
      EXPECT_GT(world.redirtied(), 0u);
    }
  }
}

TEST_F(CacheSchedules, NoStoreIsLostIfAWriteBackFails) {
  Options options;
  for (options.failing_write_back = 1; options.failing_write_back <= 2; ++options.failing_write_back) {
    const std::vector<Part> parts{{Role::modifies, 0, 2}, {Role::reads, 1}, {Role::writes_back, 0, 2}};
    CacheWorld world(parts, deviation_max_, options);
    EXPECT_EQ(world.run_all(), "");
    EXPECT_GT(world.count(PinOutcome::must_write_back), 0u);
  }
}

// Also of a line whose write-back fails, and while several look at a set.
TEST_F(CacheSchedules, ADirtyLineIsAlwaysFound) {
  Options options;
  options.line_count = 2;
  options.watch_sets = true;
  for (options.failing_write_back = 0; options.failing_write_back <= 1; ++options.failing_write_back) {
    for (const std::vector<Part>& parts : {
             std::vector<Part>{{Role::modifies, 0}, {Role::modifies, 1}, {Role::takes_all, 0, 2}},
             std::vector<Part>{{Role::modifies, 0, 2}, {Role::writes_back}, {Role::takes_all}},
             std::vector<Part>{{Role::overwrites, 0, 2}, {Role::takes_all}, {Role::takes_all}},
         }) {
      CacheWorld world(parts, deviation_max_, options);
      EXPECT_EQ(world.run_all(), "");
      EXPECT_GT(world.schedules(), 1000u);
    }
  }
}

TEST_F(CacheSchedules, AFlushEndsWhenItsPagesAreWritten) {
  Options options;
  options.watch_counts = true;
  for (options.failing_write_back = 0; options.failing_write_back <= 1; ++options.failing_write_back) {
    for (const std::vector<Part>& parts : {
             std::vector<Part>{{Role::modifies, 0, 2}, {Role::flushes}, {Role::writes_back}},
             std::vector<Part>{{Role::modifies, 0}, {Role::modifies, 0}, {Role::flushes}, {Role::writes_back}},
             std::vector<Part>{{Role::modifies, 0, 2}, {Role::flushes}, {Role::flushes}},
         }) {
      CacheWorld world(parts, deviation_max_, options);
      EXPECT_EQ(world.run_all(), "");
      EXPECT_GT(world.schedules(), 1000u);
    }
  }
}

}  // namespace
}  // namespace gpu4fs::test
