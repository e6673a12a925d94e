// A table of copies under every schedule of a few workers with a bounded number of deviations from the plain one: who
// copies pages, who changes them, and who reads the copies. The table is one set of one or two lines.
#include "support/schedule_points.hpp"
//
#include "cache/cache_memory.hpp"
#include "cache/copies.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

enum class Role { copies, fails_to_copy, changes, reads };

struct Part {
  Role role;
  u64 page = 0;
  u32 rounds = 1;
};

struct Options {
  u32 line_count = 1;
  bool delay_stores = false;
};

constexpr u64 page_max = 3;

struct Frame {
  u64 page;
  u64 value;
};

// The table, and behind it the pages that are copied: one word each. So both have schedule points.
class CopyMemory {
 public:
  explicit CopyMemory(u32 line_count)
      : bytes_(align_up(cache::table_bytes(line_count, line_count) + sizeof(u64) * page_max, page_size)),
        memory_(static_cast<u8*>(std::aligned_alloc(page_size, bytes_ + line_count * page_size))),
        table_(cache::place_cache(memory_.get(), memory_.get() + bytes_, line_count, line_count)),
        pages_(reinterpret_cast<u64*>(memory_.get() + cache::table_bytes(line_count, line_count))) {}

  const cache::Cache& table() const { return table_; }
  u64* page(u64 page) const { return pages_ + page; }
  Frame& frame(u32 line) const { return *reinterpret_cast<Frame*>(cache::frame_of(table_, line)); }
  void clear() const { std::memset(memory_.get(), 0, bytes_ + table_.line_count * page_size); }
  u64 watched_length() const {
    return static_cast<u64>(reinterpret_cast<const u8*>(pages_ + page_max) - reinterpret_cast<const u8*>(table_.lines));
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  u64 bytes_;
  std::unique_ptr<u8, Free> memory_;
  cache::Cache table_;
  u64* pages_;
};

class CopyWorld {
 public:
  CopyWorld(std::vector<Part> parts, u32 deviation_max, Options options)
      : parts_(std::move(parts)),
        explorer_(static_cast<u32>(parts_.size()), deviation_max, [this](u32 i) { work(i); }),
        memory_(options.line_count) {
    explorer_.set_spin_loads(6);
    explorer_.delay_stores(options.delay_stores);
    explorer_.watch(table().lines, memory_.watched_length());
  }

  // Empty: no schedule failed.
  std::string run_all() {
    do {
      ++schedules_;
      memory_.clear();
      std::memset(changes_, 0, sizeof(changes_));
      const bool ended = explorer_.run();
      if (!ended) expect(false, "somebody waits for ever");
      if (ended) check_end();
      if (!fault_.empty()) return fault_ + ", schedule " + std::to_string(schedules_);
    } while (explorer_.next());
    return {};
  }
  u64 schedules() const { return schedules_; }
  u64 entered() const { return entered_; }
  u64 refused() const { return refused_; }
  u64 dropped() const { return dropped_; }
  u64 found() const { return found_; }

 private:
  const cache::Cache& table() const { return memory_.table(); }
  void expect(bool condition, const char* fault) {
    if (!condition && fault_.empty()) fault_ = fault;
  }
  cache::LineWord raw_word(u32 line) const { return {__atomic_load_n(&table().lines[line].word, __ATOMIC_SEQ_CST)}; }

  void copy(u64 page, bool ok) {
    const u32 line = cache::begin_copy(table(), {0, page});
    if (line == cache::no_line) return;
    Frame& frame = memory_.frame(line);
    frame = {~page, 0};
    const u64 value = load<Order::relaxed, Scope::engine>(memory_.page(page));
    explorer_.point();
    frame = {page, ok ? value : ~u64{0}};
    const bool has_entered = cache::finish_copy(table(), line, ok);
    expect(ok || !has_entered, "a copy that could not be read is in the table");
    ++(has_entered ? entered_ : refused_);
  }

  void change(u64 page) {
    if (cache::drop_copy(table(), {0, page})) ++dropped_;
    const u64 value = changes_[page] + 1;
    store<Order::relaxed, Scope::engine>(memory_.page(page), value);
    if (cache::drop_copy(table(), {0, page})) ++dropped_;
    changes_[page] = value;
  }

  // Nothing may be older than a change that has ended before the look.
  void read(u64 page) {
    const u64 least = changes_[page];
    const u8* const memory = cache::look_at_copy(table(), {0, page});
    if (memory == nullptr) return;
    ++found_;
    // The frame may have got another page since then.
    const Frame& seen = *reinterpret_cast<const Frame*>(memory);
    if (seen.page == page) expect(seen.value >= least, "an old copy is given out");
  }

  void work(u32 part) {
    const Part& own = parts_[part];
    for (u32 round = 0; round < own.rounds; ++round) {
      switch (own.role) {
        case Role::copies:
        case Role::fails_to_copy:
          copy(own.page, own.role == Role::copies);
          break;
        case Role::changes:
          change(own.page);
          break;
        case Role::reads:
          read(own.page);
          break;
      }
    }
  }

  void check_end() {
    expect(!table().sets[0].lock.is_locked(), "the set stays locked");
    for (u32 i = 0; i < table().line_count; ++i) {
      const cache::LineWord word = raw_word(i);
      expect(cache::is_possible(word), "a line is in an impossible state");
      if (word.is_free()) continue;
      expect(word.is_usable() && word.pins() == 0, "a line is not at rest");
      const u64 page = word.key().page;
      expect(memory_.frame(i).page == page, "a line has a frame with another page");
      expect(memory_.frame(i).value == changes_[page], "an old copy stays");
      for (u32 k = 0; k < i; ++k) {
        expect(raw_word(k).is_free() || raw_word(k).key().page != page, "a page has two copies");
      }
    }
  }

  std::vector<Part> parts_;
  ScheduleExplorer explorer_;
  CopyMemory memory_;
  u64 changes_[page_max] = {};  // that have ended
  u64 schedules_ = 0;
  u64 entered_ = 0;
  u64 refused_ = 0;
  u64 dropped_ = 0;
  u64 found_ = 0;
  std::string fault_;
};

class CopySchedules : public ::testing::Test {
 protected:
  void SetUp() override {
    if (GPU4FS_TSAN != 0) GTEST_SKIP() << "the fibers share the explorer's state";
  }
  u32 deviation_max_ = is_short() ? 2 : 3;
};

TEST_F(CopySchedules, NoCopyIsOlderThanItsPage) {
  Options options;
  for (const bool delays : {false, true}) {
    for (options.line_count = 1; options.line_count <= 2; ++options.line_count) {
      for (const std::vector<Part>& parts : {
               std::vector<Part>{{Role::copies, 0, 2}, {Role::changes, 0, 2}, {Role::reads, 0, 2}},
               std::vector<Part>{{Role::copies, 0}, {Role::changes, 0}, {Role::copies, 0}, {Role::reads, 0}},
               std::vector<Part>{{Role::copies, 0}, {Role::copies, 1}, {Role::changes, 0}, {Role::reads, 0}},
           }) {
        options.delay_stores = delays;
        CopyWorld world(parts, deviation_max_, options);
        EXPECT_EQ(world.run_all(), "");
        EXPECT_GT(world.schedules(), 1000u);
        EXPECT_GT(world.entered(), 0u);
        EXPECT_GT(world.refused(), 0u);
        EXPECT_GT(world.dropped(), 0u);
        EXPECT_GT(world.found(), 0u);
      }
    }
  }
}

TEST_F(CopySchedules, PagesThatDriveEachOtherOut) {
  for (const std::vector<Part>& parts : {
           std::vector<Part>{{Role::copies, 0, 2}, {Role::copies, 1, 2}, {Role::changes, 1}},
           std::vector<Part>{{Role::copies, 0}, {Role::copies, 1}, {Role::changes, 0}, {Role::changes, 1}},
       }) {
    CopyWorld world(parts, deviation_max_, {});
    EXPECT_EQ(world.run_all(), "");
    EXPECT_GT(world.schedules(), 1000u);
    EXPECT_GT(world.dropped(), 0u);
  }
}

TEST_F(CopySchedules, WhatCannotBeReadDoesNotEnter) {
  CopyWorld world({{Role::fails_to_copy, 0, 2}, {Role::changes, 0}, {Role::reads, 0}}, deviation_max_, {});
  EXPECT_EQ(world.run_all(), "");
  EXPECT_EQ(world.entered(), 0u);
  EXPECT_EQ(world.found(), 0u);
}

}  // namespace
}  // namespace gpu4fs::test
