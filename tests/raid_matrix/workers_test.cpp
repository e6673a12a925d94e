// A sample of the matrix of redundancy with engines whose workers write directly to the devices' memory, like those of
// a GPU (tests/gpu/raid_matrix_test.cpp): threads, and emulated warps.
//
// Environment: as matrix_test.cpp; GPU4FS_MATRIX_SECONDS: for each engine.
#include <gtest/gtest.h>

#include <cstdio>

#include "raid_matrix/matrix_run.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::workers_test {
namespace {

MatrixEngine threads_engine() {
  TestPoolOptions options = crash_pool_options();
  options.worker_count = 3;
  return mapped_matrix_engine<CpuParts>("CPU, threads", options);
}

MatrixEngine warps_engine() {
  TestPoolOptions options = crash_pool_options();
  options.worker_count = 0;
  options.warp_count = 2;
  return mapped_matrix_engine<CpuParts>("emulated warps", options);
}

void test_engine(const MatrixEngine& engine, u64 seconds) {
  const char* only = std::getenv("GPU4FS_MATRIX_SHAPE");
  MatrixRun run;
  run.only = only == nullptr ? "" : only;
  run.seed = number_from("GPU4FS_MATRIX_SEED", 0);
  run.stripe_bytes_max = 4096;
  run.page_step = 1;
  run.page_max = 6;
  if (run.only.empty()) {
    run.seconds = static_cast<double>(number_from("GPU4FS_MATRIX_SECONDS", seconds)) * scaled(100) / 100;
  }
  const MatrixResult result = run_matrix(engine, run);
  ASSERT_GT(result.shape_count, 0u);
  for (const std::string& failure : result.counts.failures) ADD_FAILURE() << failure;
  EXPECT_GT(result.counts.losses + result.counts.beyond, 0u);
  std::printf("%s: %s\n", engine.name.c_str(), result.text().c_str());
}

TEST(RaidMatrixWorkers, ThreadsLoseNothing) {
  test_engine(threads_engine(), 5);
}
TEST(RaidMatrixWorkers, WarpsLoseNothing) {
  test_engine(warps_engine(), 6);
}
TEST(RaidMatrixWorkers, OneLossTooManyIsNoticed) {
  EXPECT_EQ(unnoticed_losses(threads_engine()), "");
  EXPECT_EQ(unnoticed_losses(warps_engine()), "");
}

}  // namespace
}  // namespace gpu4fs::test::workers_test
