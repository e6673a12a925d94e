// There is no write hole: after a crash at any moment, the loss of as many devices as the level allows, before the
// recovery or after it, loses nothing that was promised and yields no wrong byte (loss_explorer.hpp).
//
// Environment:
//   GPU4FS_LOSS_ALL        1: all histories, every set of devices at every state, without a time limit
//   GPU4FS_LOSS_ID         "history/moment/variant": only this state, every set
//   GPU4FS_LOSS_SECONDS    no further history begins after this time, default 25
//   GPU4FS_LOSS_RANDOM     random histories of each pool, default 20
//   GPU4FS_TEST_SCALE      percent of that time (cmake/tests.cmake)
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <thread>

#include "crash/crash_histories.hpp"
#include "crash/loss_explorer.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::write_hole_test {
namespace {

struct LossPool {
  const char* name;
  CrashPoolShape shape;
};

const LossPool loss_pools[] = {
    {"raid5_3", {3, "raid5", 0}},
    {"raid5_4", {4, "raid5", 0}},
    {"raid6_4", {4, "raid6", 0}},
    {"raid1_2", {2, "raid1", 0}},
    {"raid7_5", {5, "raid7", 0}},
    {"raid5_3_16k", {3, "raid5", 16384}},
    {"raid5_raid1c3_4", {4, "raid5+raid1c3", 0, u64{20} << 20}},
};

// The relevant cases for rows: single pages written into a shared stripe, syncs between them, checkpoints that close
// the stripe, and whole stripes besides.
CrashHistory rows_history() {
  CrashHistory history{"rows", CrashPlace::one_device, 2, {}};
  history.body = [](CrashWriter& w) {
    for (const char* name : {"r1", "r2", "r3"}) {
      w.create(name);
      w.write(name, 0, 5000);
      w.fsync(name);
    }
    w.write("r1", 0, 8 * page_size);
    w.fsync("r1");
    w.checkpoint();
    w.write("r2", 2 * page_size, 6000);
    w.write("r3", 100, 300);
    w.checkpoint();
    w.write("r3", page_size, 4 * page_size + 20);
    w.fsync("r3");
    w.unlink("r1");
    w.write("r2", 0, page_size);
    w.sync();
    w.checkpoint();
    w.write("r2", 0, 12 * page_size);
    w.fsync("r2");
  };
  return history;
}

struct Job {
  u32 pool;
  CrashHistory history;
};

struct PreparedPool {
  CrashBase base;
  LossShape shape;
};

std::vector<PreparedPool> prepare_pools() {
  std::vector<PreparedPool> pools;
  for (const LossPool& pool : loss_pools) {
    PreparedPool prepared{make_crash_base(pool.shape, CrashPlace::one_device), {}};
    prepared.shape = LossShape::of(prepared.base.devices);
    pools.push_back(std::move(prepared));
  }
  return pools;
}

std::vector<Job> make_jobs() {
  std::vector<Job> jobs;
  const u64 random_count = number_from("GPU4FS_LOSS_RANDOM", 20);
  for (u32 pool = 0; pool < std::size(loss_pools); ++pool) {
    std::vector<CrashHistory> histories = {rows_history()};
    for (const NamedStep& step : content_steps()) histories.push_back(detail::alone(step, CrashPlace::one_device));
    for (const NamedStep& step : attribute_steps()) histories.push_back(detail::alone(step, CrashPlace::one_device));
    for (const NamedStep& step : name_steps()) histories.push_back(detail::alone(step, CrashPlace::one_device));
    for (u64 seed = 1; seed <= random_count; ++seed) {
      histories.push_back(detail::random_walk(seed, CrashPlace::one_device));
    }
    for (CrashHistory& history : histories) {
      history.id = std::string(loss_pools[pool].name) + "_" + history.id;
      jobs.push_back({pool, std::move(history)});
    }
  }
  // Histories of all kinds come early; those about rows are first.
  Sequence random(3);
  for (std::size_t i = jobs.size(); i > 1; --i) std::swap(jobs[i - 1], jobs[random.next() % i]);
  std::stable_partition(jobs.begin(), jobs.end(), [](const Job& job) { return job.history.id.ends_with("rows"); });
  return jobs;
}

LossCounts explore_all(const std::vector<Job>& jobs, const std::vector<PreparedPool>& pools, const LossOptions& options,
                       double seconds) {
  const auto begin = std::chrono::steady_clock::now();
  LossCounts sum;
  std::mutex mutex;
  std::atomic<std::size_t> next{0};
  std::atomic<bool> enough{false};
  const auto work = [&] {
    for (std::size_t i = next++; i < jobs.size() && !enough; i = next++) {
      if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > seconds) break;
      LossCounts counts;
      try {
        const PreparedPool& pool = pools[jobs[i].pool];
        LossExplorer explorer(jobs[i].history.id, record_history(jobs[i].history, pool.base), pool.shape, options);
        counts = explorer.explore();
      } catch (const std::exception& error) {
        counts.failures.push_back(jobs[i].history.id + ": " + error.what());
      }
      const std::lock_guard guard(mutex);
      sum.histories += counts.histories;
      sum.states += counts.states;
      sum.lost_before += counts.lost_before;
      sum.lost_after += counts.lost_after;
      for (std::string& failure : counts.failures) sum.failures.push_back(std::move(failure));
      enough = sum.failures.size() >= options.failure_max;
    }
  };
  std::vector<std::thread> threads;
  for (u32 i = 0; i < std::clamp(std::thread::hardware_concurrency(), 1u, 8u); ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  return sum;
}

class WriteHole : public ::testing::Test {
 protected:
  void SetUp() override {
    previous_ = set_check_handler([](const CheckFailure& failure) {
      std::fprintf(stderr, "GPU4FS_LOSS_ID=%s\n%s:%d: check %s fails\n", LossExplorer::current_id().c_str(),
                   failure.file, static_cast<int>(failure.line), failure.expression);
      std::abort();
    });
  }
  void TearDown() override { set_check_handler(previous_); }

  CheckHandler previous_ = nullptr;
};

TEST_F(WriteHole, CrashAndLossTakeNothingThatWasPromised) {
  LossOptions options;
  options.all_sets = number_from("GPU4FS_LOSS_ALL", 0) != 0;
  const char* only = std::getenv("GPU4FS_LOSS_ID");
  if (only != nullptr) options.only = only;
  if (!options.all_sets) {
    // Every history ends in the time, with evenly distributed states.
    options.before_every = 4;
    options.after_every = 12;
  }
  std::vector<Job> jobs = make_jobs();
  if (only != nullptr) {
    const std::string history = options.only.substr(0, options.only.find('/'));
    std::erase_if(jobs, [&](const Job& job) { return job.history.id != history; });
  }
  const std::size_t job_count = jobs.size();
  const double seconds = options.all_sets ? 1e9 : static_cast<double>(number_from("GPU4FS_LOSS_SECONDS", 25));
  const LossCounts counts = explore_all(jobs, prepare_pools(), options, seconds * scaled(100) / 100);
  for (const std::string& failure : counts.failures) ADD_FAILURE() << failure;
  if (only != nullptr) {
    EXPECT_EQ(counts.states, 1u) << "no such state: " << only;
  } else if (counts.failures.empty()) {
    EXPECT_GT(counts.lost_before, 0u);
    EXPECT_GT(counts.lost_after, 0u);
  }
  std::printf(
      "%llu of %zu histories, %llu states, %llu recovered without some devices, %llu recovered and then "
      "without some, %zu failures\n",
      static_cast<unsigned long long>(counts.histories), job_count, static_cast<unsigned long long>(counts.states),
      static_cast<unsigned long long>(counts.lost_before), static_cast<unsigned long long>(counts.lost_after),
      counts.failures.size());
}

// The writes of a file system with a write hole.
enum class Hole {
  dropped,    // a parity is never written
  late,       // written after the next superblock
  rewritten,  // a parity on which a checkpoint depends is half overwritten after it
};

// The index of the next entry from `index` on that writes a superblock and has been flushed; the end if there is none.
std::size_t behind_superblock(const std::vector<device::WriteLogEntry>& entries, std::size_t index) {
  bool written = false;
  for (; index < entries.size(); ++index) {
    const device::WriteLogEntry& entry = entries[index];
    const bool is_superblock =
        entry.kind == device::WriteLogKind::write &&
        (entry.offset == format::superblock_offset_a || entry.offset == format::superblock_offset_b);
    written |= is_superblock;
    if (written && entry.kind == device::WriteLogKind::flush_end) return index + 1;
  }
  return index;
}

// Returns whether there was anything to change.
bool make_hole(std::vector<device::WriteLogEntry>& entries, std::size_t parity, Hole hole) {
  device::WriteLogEntry write = entries[parity];
  const std::size_t behind = behind_superblock(entries, parity);
  if (hole != Hole::rewritten) entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(parity));
  if (hole == Hole::dropped) return true;
  if (behind >= entries.size()) return false;
  if (hole == Hole::rewritten) {
    for (u64 i = 0; i < write.bytes.size() / 2; ++i) write.bytes[i] ^= 0x5a;
    entries.insert(entries.begin() + static_cast<std::ptrdiff_t>(behind), write);
  } else {
    entries.insert(entries.begin() + static_cast<std::ptrdiff_t>(behind - 1), write);
  }
  return true;
}

// How many of the mutants, one for each parity that a history writes, are noticed.
void count_caught(Hole hole, u32* made, u32* caught) {
  const CrashBase base = make_crash_base(loss_pools[0].shape, CrashPlace::one_device);
  const LossShape shape = LossShape::of(base.devices);
  const CrashHistory history = rows_history();
  const CrashRecord whole = record_history(history, base);
  std::vector<std::size_t> parities;
  for (std::size_t i = 0; i < whole.entries.size(); ++i) {
    const bool writes = whole.entries[i].kind == device::WriteLogKind::write;
    if (writes && shape.is_parity({whole.entries[i].device, whole.entries[i].offset})) parities.push_back(i);
  }
  ASSERT_GT(parities.size(), 20u);
  // Evenly distributed, and around the superblock that depends on the parity, because each takes a while.
  for (std::size_t i = 0; i < parities.size(); i += parities.size() / 4) {
    CrashRecord record = whole;
    const std::size_t behind = behind_superblock(record.entries, parities[i]);
    if (!make_hole(record.entries, parities[i], hole)) continue;
    LossOptions options;
    options.all_sets = true;
    options.after_every = 1u << 30;
    options.failure_max = 1;
    options.first_moment = behind - 3;
    options.last_moment = behind + 6;
    ++*made;
    *caught += LossExplorer("mutant", std::move(record), shape, options).explore().failures.empty() ? 0 : 1;
  }
}

TEST_F(WriteHole, MutantsWithAHoleAreCaught) {
  for (const Hole hole : {Hole::dropped, Hole::late, Hole::rewritten}) {
    u32 made = 0;
    u32 caught = 0;
    count_caught(hole, &made, &caught);
    std::printf("mutants of kind %d: %u of %u caught\n", static_cast<int>(hole), caught, made);
    EXPECT_GT(made, 0u);
    EXPECT_GT(caught, 0u) << "kind " << static_cast<int>(hole);
  }
}

}  // namespace
}  // namespace gpu4fs::test::write_hole_test
