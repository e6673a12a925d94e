// The matrix of redundancy: all levels, 2 to 8 devices, stripe lengths, every set of devices that may be lost, before,
// during and after writes; one loss too many; every page silently corrupted in turn (matrix_pool.hpp).
//
// Environment:
//   GPU4FS_MATRIX_ALL      1: all of it; otherwise a sample
//   GPU4FS_MATRIX_SHAPE    only pools with this name, as printed by a failure; all of it
//   GPU4FS_MATRIX_SECONDS  nothing further begins after this time, default 20
//   GPU4FS_MATRIX_SEED     of the choice and its order, default 0
#include <gtest/gtest.h>

#include <cstdio>
#include <thread>

#include "raid_matrix/matrix_run.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::matrix_test {
namespace {

TEST(RaidMatrix, NothingIsLostThatMayNotBe) {
  const char* only = std::getenv("GPU4FS_MATRIX_SHAPE");
  MatrixRun run;
  run.only = only == nullptr ? "" : only;
  run.all = number_from("GPU4FS_MATRIX_ALL", 0) != 0;
  run.seed = number_from("GPU4FS_MATRIX_SEED", 0);
  run.threads = std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
  if (!run.all && run.only.empty()) {
    run.seconds = static_cast<double>(number_from("GPU4FS_MATRIX_SECONDS", 20)) * scaled(100) / 100;
  }
  const MatrixResult result = run_matrix(lone_matrix_engine(), run);
  ASSERT_GT(result.shape_count, 0u);
  for (const std::string& failure : result.counts.failures) ADD_FAILURE() << failure;
  EXPECT_GT(result.counts.losses + result.counts.beyond, 0u);
  std::printf("%s\n", result.text().c_str());
}

TEST(RaidMatrix, OneLossTooManyIsNoticed) {
  EXPECT_EQ(unnoticed_losses(lone_matrix_engine()), "");
}

}  // namespace
}  // namespace gpu4fs::test::matrix_test
