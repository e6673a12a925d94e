// Many workers on a small table, with real frames and an array as the medium.
//
// Each worker stores into its own slot of a page, so it always knows what it has to find there. Slots are atomic,
// because a write-back may read them while they are stored. Everything else is plain memory, which only the table
// orders: ThreadSanitizer sees whether it does.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <thread>
#include <vector>

#include "cache/cache_memory.hpp"
#include "cache/cache_statistics.hpp"
#include "cache/pin.hpp"
#include "cache/write_back.hpp"
#include "support/on_all_groups.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

using cache::PinMode;
using cache::PinOutcome;
using cache::PinResult;

constexpr u32 worker_max = 8;
constexpr u32 page_count = 24;
constexpr u32 stress_device = 5;

struct Slots {
  u64 values[worker_max];

  u64 get(u32 worker) const { return load<Order::relaxed, Scope::engine>(&values[worker]); }
  void set(u32 worker, u64 value) { store<Order::relaxed, Scope::engine>(&values[worker], value); }
  void copy(const Slots& other) {
    for (u32 i = 0; i < worker_max; ++i) set(i, other.get(i));
  }
};
struct Frame {
  u64 page;
  Slots slots;
  u8 rest[page_size - 2 * sizeof(u64) - sizeof(Slots)];
  u64 page_again;
};
static_assert(sizeof(Frame) == page_size);

struct MediumPage {
  Slots slots;
  u64 write_count;  // plain
};

struct World {
  World() : memory(8, 4), medium(page_count) {}
  const cache::Cache& table() const { return memory.cache(); }
  Frame& frame(u32 line) const { return *reinterpret_cast<Frame*>(frame_of(table(), line)); }

  void write_back(cache::WriteBack taken, bool ok) {
    MediumPage& page = medium[taken.key.page];
    if (frame(taken.line).page != taken.key.page) ++fault_count;
    if (ok) page.slots.copy(frame(taken.line).slots);
    ++page.write_count;
    finish_write_back(table(), taken.line, ok);
  }

  CacheMemory memory;
  std::vector<MediumPage> medium;
  std::atomic<u64> fault_count{0};
  std::atomic<u64> flush_count{0};
};

// All ranks of a group have a worker with the same seed, and decide the same.
template <class Group>
class Worker {
 public:
  Worker(Group g, World& world, u32 index) : g_(g), world_(world), index_(index), random_(index), stored_(page_count) {}

  void run(u32 steps) {
    for (u32 i = 0; i < steps; ++i) {
      const u32 choice = random(100);
      const u64 page = random(page_count);
      if (choice < 40) {
        use(page, PinMode::read, random(4) == 0);
      } else if (choice < 75) {
        use(page, PinMode::modify, random(4) == 0);
      } else if (choice < 85) {
        use(page, PinMode::overwrite, false);
      } else if (choice < 92) {
        write_all_back();
      } else if (choice < 97) {
        drop(g_, table(), stress_device, page, 3);
      } else {
        flush();
      }
    }
  }
  const std::vector<u64>& stored() const { return stored_; }

 private:
  const cache::Cache& table() const { return world_.table(); }
  u32 random(u32 below) { return static_cast<u32>(random_() % below); }
  void expect(bool condition) {
    if (!condition) ++world_.fault_count;
  }

  bool fill(u32 line, u64 page) {
    const bool ok = random(8) != 0;
    on_leader(g_, [&] {
      Frame& frame = world_.frame(line);
      frame.page = frame.page_again = page;
      frame.rest[0] = static_cast<u8>(world_.medium[page].write_count);
      frame.slots.copy(world_.medium[page].slots);
      finish_load(table(), line, ok);
    });
    return ok;
  }

  // no_line: there is no room, and the caller gives up its pins.
  u32 acquire(u64 page, PinMode mode) {
    for (;;) {
      const PinResult result = pin(g_, table(), {stress_device, page}, mode);
      switch (result.outcome) {
        case PinOutcome::hit:
          return result.line;
        case PinOutcome::must_load:
        case PinOutcome::fills:
          if (fill(result.line, page)) return result.line;
          break;
        case PinOutcome::loading:
          std::this_thread::yield();
          break;
        case PinOutcome::must_write_back: {
          const bool ok = random(4) != 0;
          on_leader(g_, [&] {
            const cache::WriteBack taken = begin_write_back(table(), result.line);
            if (taken.line != cache::no_line) world_.write_back(taken, ok);
          });
          break;
        }
        case PinOutcome::no_room:
          return cache::no_line;
      }
    }
  }

  void use(u64 page, PinMode mode, bool keeps_another) {
    const u64 other = random(page_count);
    u32 other_line = keeps_another ? acquire(other, PinMode::read) : cache::no_line;
    u32 line = acquire(page, mode);
    while (line == cache::no_line) {
      if (other_line != cache::no_line) on_leader(g_, [&] { unpin(table(), other_line); });
      other_line = cache::no_line;
      std::this_thread::yield();
      line = acquire(page, mode);
    }
    check(line, page);
    if (mode != PinMode::read) {
      ++stored_[page];
      on_leader(g_, [&] {
        world_.frame(line).slots.set(index_, stored_[page]);
        mark_dirty(table(), line);
      });
    }
    check(line, page);
    if (other_line != cache::no_line) check(other_line, other);
    on_leader(g_, [&] {
      unpin(table(), line);
      if (other_line != cache::no_line) unpin(table(), other_line);
    });
  }
  void check(u32 line, u64 page) {
    const Frame& frame = world_.frame(line);
    expect(frame.page == page && frame.page_again == page);
    expect(frame.slots.get(index_) == stored_[page]);
  }

  void write_all_back() {
    const bool ok = random(4) != 0;
    for (u32 from = 0;;) {
      const cache::WriteBack taken = take_dirty(g_, table(), stress_device, from);
      if (taken.line == cache::no_line) return;
      on_leader(g_, [&] { world_.write_back(taken, ok); });
      from = taken.line + 1;
    }
  }

  void flush() {
    const u64 number = on_leader(g_, [&] { return begin_flush(table(), stress_device); });
    if (number == 0) return;
    while (!on_leader(g_, [&] { return has_flushed(table(), stress_device, number); })) {
      write_all_back();
      std::this_thread::yield();
    }
    for (u64 page = 0; page < page_count; ++page) {
      expect(world_.medium[page].slots.get(index_) == stored_[page]);
    }
    on_leader(g_, [&] { ++world_.flush_count; });
  }

  Group g_;
  World& world_;
  u32 index_;
  std::mt19937_64 random_;
  std::vector<u64> stored_;  // by page: the newest value of the worker's slot
};

void check_end(World& world, const std::vector<std::vector<u64>>& stored) {
  EXPECT_EQ(world.fault_count, 0u);
  EXPECT_GT(world.flush_count, 0u);
  const u64 number = begin_flush(world.table(), stress_device);
  ASSERT_NE(number, 0u);
  for (;;) {
    const cache::WriteBack taken = take_dirty(Lane{}, world.table(), stress_device, 0);
    if (taken.line == cache::no_line) break;
    world.write_back(taken, true);
  }
  EXPECT_TRUE(has_flushed(world.table(), stress_device, number));
  for (u32 worker = 0; worker < stored.size(); ++worker) {
    for (u64 page = 0; page < page_count; ++page) {
      EXPECT_EQ(world.medium[page].slots.get(worker), stored[worker][page]) << "page " << page;
    }
  }
  EXPECT_EQ(drop(Lane{}, world.table(), stress_device, 0, page_count), 0u);
  const cache::CacheStatistics counts = read_statistics(Lane{}, world.table());
  EXPECT_GT(counts.hits, 0u);
  EXPECT_GT(counts.misses, 0u);
  EXPECT_GT(counts.dirty_misses, 0u);
}

TEST(CacheStress, Threads) {
  World world;
  std::vector<std::vector<u64>> stored(worker_max);
  std::vector<std::thread> threads;
  for (u32 i = 0; i < worker_max; ++i) {
    threads.emplace_back([&, i] {
      Worker<Lane> worker(Lane{}, world, i);
      worker.run(scaled(30000));
      stored[i] = worker.stored();
    });
  }
  for (std::thread& thread : threads) thread.join();
  check_end(world, stored);
}

TEST(CacheStress, Warps) {
  World world;
  std::vector<std::vector<u64>> stored(4);
  run_emulated_warps(4, [&](EmulatedWarp g, u32 i) {
    Worker<EmulatedWarp> worker(g, world, i);
    worker.run(scaled(2000));
    if (g.leader()) stored[i] = worker.stored();
  });
  check_end(world, stored);
}

}  // namespace
}  // namespace gpu4fs::test
