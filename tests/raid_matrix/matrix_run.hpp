// Runs the matrix of redundancy, or a sample of it, with an engine.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "raid_matrix/matrix_pool.hpp"

namespace gpu4fs::test {

struct MatrixRun {
  std::string only;              // not empty: only pools with this name, and all of their cases
  bool all = false;              // for each pool all sets of devices and all pages; otherwise a sample
  u32 stripe_bytes_max = 65536;  // of a sample: pools with longer stripes are large
  u64 page_step = 60;            // of a sample: the step between corrupted pages
  u64 page_max = ~u64{0};        // of a sample: approximate number of corrupted pages of a pool
  double seconds = 1e9;          // nothing begins after this time, except for the first pool
  u32 threads = 1;               // number of pools at the same time
  u64 seed = 0;
};

struct MatrixResult {
  MatrixCounts counts;
  std::size_t shape_count = 0;

  std::string text() const {
    return fmt::format(
        "{} of {} pools, {} losses of devices, {} rows beyond their limit, {} pages corrupted ({} of files stood there "
        "again), {} failures",
        counts.shapes, shape_count, counts.losses, counts.beyond, counts.corrupted, counts.repaired,
        counts.failures.size());
  }
};

namespace detail {

// Names the pool when a check fails.
class MatrixCheckHandler {
 public:
  MatrixCheckHandler() {
    previous_ = set_check_handler([](const CheckFailure& failure) {
      std::fprintf(stderr, "GPU4FS_MATRIX_SHAPE=%s\n%s:%d: check %s fails\n", LossExplorer::current_id().c_str(),
                   failure.file, static_cast<int>(failure.line), failure.expression);
      std::abort();
    });
  }
  ~MatrixCheckHandler() { set_check_handler(previous_); }
  MatrixCheckHandler(const MatrixCheckHandler&) = delete;
  MatrixCheckHandler& operator=(const MatrixCheckHandler&) = delete;

 private:
  CheckHandler previous_;
};

inline void shuffle_shapes(std::vector<MatrixShape>& shapes, Sequence& random) {
  for (std::size_t i = shapes.size(); i > 1; --i) std::swap(shapes[i - 1], shapes[random.next() % i]);
}

// Each profile once, then each once more, and so on: all kinds come early, in case the time is short.
inline std::vector<MatrixShape> shapes_to_run(const MatrixRun& run) {
  std::vector<MatrixShape> shapes = matrix_shapes();
  if (!run.only.empty()) std::erase_if(shapes, [&](const MatrixShape& shape) { return shape.name() != run.only; });
  if (!run.all && run.only.empty()) {
    std::erase_if(shapes, [&](const MatrixShape& shape) { return shape.stripe_length_bytes > run.stripe_bytes_max; });
  }
  Sequence random(5 + run.seed);
  shuffle_shapes(shapes, random);
  std::map<std::string, u64> seen;
  std::map<u64, std::vector<MatrixShape>> rounds;
  for (const MatrixShape& shape : shapes) rounds[seen[shape.profile]++].push_back(shape);
  shapes.clear();
  for (const auto& [number, round] : rounds) shapes.insert(shapes.end(), round.begin(), round.end());
  return shapes;
}

// `goes_on`: whether there is time.
template <class GoesOn>
MatrixCounts explore_shape(const MatrixShape& shape, const MatrixEngine& engine, const MatrixRun& run, u64 seed,
                           GoesOn&& goes_on) {
  MatrixPool pool(shape, engine);
  MatrixCounts& counts = pool.counts();
  counts.shapes = 1;
  const auto is_fine = [&] { return counts.failures.empty() && goes_on(); };
  const bool all = run.all || !run.only.empty();
  Sequence random(seed);
  const std::vector<u32> sets = pool.layout().sets();
  for (const LossTime time : loss_times) {
    const u64 chosen = random.next();
    for (std::size_t i = 0; i < sets.size() && is_fine(); ++i) {
      if (all || i == chosen % sets.size()) pool.lose(time, sets[i], random.next());
    }
  }
  for (u64 i = 0; i < (all ? 12 : 2) && is_fine(); ++i) pool.lose_beyond(random.next());
  if (!pool.is_redundant() || !is_fine()) return std::move(counts);
  const u64 step = all ? 1 : std::max(run.page_step, pool.count_pages() / run.page_max);
  pool.corrupt_each(random.next(), step, goes_on);
  return std::move(counts);
}

inline void add_counts(MatrixCounts& sum, MatrixCounts&& counts) {
  sum.shapes += counts.shapes;
  sum.losses += counts.losses;
  sum.beyond += counts.beyond;
  sum.corrupted += counts.corrupted;
  sum.repaired += counts.repaired;
  for (std::string& failure : counts.failures) sum.failures.push_back(std::move(failure));
}

}  // namespace detail

inline MatrixResult run_matrix(const MatrixEngine& engine, const MatrixRun& run) {
  const detail::MatrixCheckHandler handler;
  const std::vector<MatrixShape> shapes = detail::shapes_to_run(run);
  MatrixResult result;
  result.shape_count = shapes.size();
  const auto begin = std::chrono::steady_clock::now();
  const auto goes_on = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() <= run.seconds;
  };
  std::mutex mutex;
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < shapes.size(); i = next++) {
      // However slow the machine: one pool is explored, so the result is meaningful.
      const auto may_go_on = [&] { return i == 0 || goes_on(); };
      if (!may_go_on()) break;
      MatrixCounts counts;
      try {
        counts = detail::explore_shape(shapes[i], engine, run, run.seed * 1000 + i, may_go_on);
      } catch (const std::exception& error) {
        counts.failures.push_back(shapes[i].name() + ": " + error.what());
      }
      const std::lock_guard guard(mutex);
      detail::add_counts(result.counts, std::move(counts));
    }
  };
  std::vector<std::thread> threads;
  for (u32 i = 0; i < run.threads; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  return result;
}

// A pool that loses one device too many must be noticed. Returns "" if it was, otherwise the case that was not.
inline std::string unnoticed_losses(const MatrixEngine& engine) {
  const detail::MatrixCheckHandler handler;
  std::string unnoticed;
  for (const MatrixShape& shape : {MatrixShape{"raid1", 2, 0}, MatrixShape{"raid5", 3, 4096}}) {
    MatrixPool pool(shape, engine);
    for (const std::string& failure : pool.counts().failures) unnoticed += failure + "\n";
    for (const LossTime time : loss_times) {
      if (!pool.lose_and_compare(time, 3, 1).empty()) continue;
      unnoticed += fmt::format("{} lost two devices {} its writes\n", shape.name(), loss_time_name(time));
    }
  }
  return unnoticed;
}

}  // namespace gpu4fs::test
