// The matrix of redundancy: all levels, 2 to 8 devices, stripe lengths, every set of devices that may be lost, before,
// during and after writes; one loss more; every page silently corrupted in turn (matrix_pool.hpp).
//
// Environment:
//   GPU4FS_MATRIX_ALL      1: all of it; else a sample
//   GPU4FS_MATRIX_SHAPE    only pools of this name, as a failure prints it; all of it
//   GPU4FS_MATRIX_SECONDS  no further pool is begun after this time, 20 if not given
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <thread>

#include "raid_matrix/matrix_pool.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::matrix_test {
namespace {

MatrixCounts explore(const MatrixShape& shape, bool all, u64 seed) {
  MatrixPool pool(shape);
  MatrixCounts& counts = pool.counts();
  counts.shapes = 1;
  Sequence random(seed);
  const std::vector<u32> sets = pool.layout().sets();
  for (const LossTime time : {LossTime::before, LossTime::during, LossTime::after}) {
    const u64 chosen = random.next();
    for (std::size_t i = 0; i < sets.size() && counts.failures.empty(); ++i) {
      if (all || i == chosen % sets.size()) pool.lose(time, sets[i], random.next());
    }
  }
  for (u64 i = 0; i < (all ? 12 : 2) && counts.failures.empty(); ++i) pool.lose_beyond(random.next());
  if (pool.is_redundant() && counts.failures.empty()) pool.corrupt_each(random.next(), all ? 1 : 60);
  return std::move(counts);
}

TEST(RaidMatrix, NothingIsLostThatMayNotBe) {
  const CheckHandler previous = set_check_handler([](const CheckFailure& failure) {
    std::fprintf(stderr, "GPU4FS_MATRIX_SHAPE=%s\n%s:%d: check %s fails\n", LossExplorer::current_id().c_str(),
                 failure.file, static_cast<int>(failure.line), failure.expression);
    std::abort();
  });
  const char* only = std::getenv("GPU4FS_MATRIX_SHAPE");
  const bool all = only != nullptr || number_from("GPU4FS_MATRIX_ALL", 0) != 0;
  std::vector<MatrixShape> shapes = matrix_shapes();
  if (only != nullptr) std::erase_if(shapes, [&](const MatrixShape& shape) { return shape.name() != only; });
  // Pools with the longest stripes are large.
  if (!all) std::erase_if(shapes, [](const MatrixShape& shape) { return shape.stripe_length_bytes == 1u << 20; });
  ASSERT_FALSE(shapes.empty());
  // Of all kinds from the beginning on, should the time be short.
  Sequence random(5);
  for (std::size_t i = shapes.size(); i > 1; --i) std::swap(shapes[i - 1], shapes[random.next() % i]);
  const double seconds = all ? 1e9 : static_cast<double>(number_from("GPU4FS_MATRIX_SECONDS", 20)) * scaled(100) / 100;
  const auto begin = std::chrono::steady_clock::now();
  MatrixCounts sum;
  std::mutex mutex;
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < shapes.size(); i = next++) {
      if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > seconds) break;
      MatrixCounts counts;
      try {
        counts = explore(shapes[i], all, i);
      } catch (const std::exception& error) {
        counts.failures.push_back(shapes[i].name() + ": " + error.what());
      }
      const std::lock_guard guard(mutex);
      sum.shapes += counts.shapes;
      sum.losses += counts.losses;
      sum.beyond += counts.beyond;
      sum.corrupted += counts.corrupted;
      sum.repaired += counts.repaired;
      for (std::string& failure : counts.failures) sum.failures.push_back(std::move(failure));
    }
  };
  std::vector<std::thread> threads;
  for (u32 i = 0; i < std::clamp(std::thread::hardware_concurrency(), 1u, 8u); ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  set_check_handler(previous);
  for (const std::string& failure : sum.failures) ADD_FAILURE() << failure;
  EXPECT_GT(sum.losses + sum.beyond, 0u);
  std::printf("%llu of %zu pools, %llu losses of devices, %llu rows beyond their limit, %llu pages corrupted (%llu of "
              "files stood there again), %zu failures\n",
              static_cast<unsigned long long>(sum.shapes), shapes.size(), static_cast<unsigned long long>(sum.losses),
              static_cast<unsigned long long>(sum.beyond), static_cast<unsigned long long>(sum.corrupted),
              static_cast<unsigned long long>(sum.repaired), sum.failures.size());
}

}  // namespace
}  // namespace gpu4fs::test::matrix_test
