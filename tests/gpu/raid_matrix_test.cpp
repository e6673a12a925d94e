// The matrix of redundancy (tests/raid_matrix) with the GPU engine: devices lost before, during and after writes, one
// loss too many, pages silently corrupted. The CPU engine prepares the pools.
//
// Environment:
//   GPU4FS_TEST_SECONDS    nothing further begins after this time, default 60; no limit with the next two
//   GPU4FS_MATRIX_ALL      1: all of it, which takes hours; otherwise a sample of each pool, all kinds of pools early
//   GPU4FS_MATRIX_SHAPE    only pools with this name, as printed by a failure; all of it
//   GPU4FS_MATRIX_SEED     of the choice and its order, default 0
//   GPU4FS_MATRIX_RUNNING  1: devices are lost while commands run (matrix_engine.hpp)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "gpu/gpu_test_pool.hpp"
#include "raid_matrix/matrix_run.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

void run() {
  const auto begin = std::chrono::steady_clock::now();
  const MatrixEngine engine =
      mapped_matrix_engine<CudaParts>("GPU", crash_pool_options(), number_from("GPU4FS_MATRIX_RUNNING", 0) != 0);
  const char* only = std::getenv("GPU4FS_MATRIX_SHAPE");
  MatrixRun run;
  run.only = only == nullptr ? "" : only;
  run.all = number_from("GPU4FS_MATRIX_ALL", 0) != 0;
  run.seed = number_from("GPU4FS_MATRIX_SEED", 0);
  run.page_step = 1;
  run.page_max = 6;
  const bool is_sample = !run.all && run.only.empty();
  const double seconds = static_cast<double>(number_from("GPU4FS_TEST_SECONDS", is_sample ? 60 : 1'000'000'000));

  const std::string unnoticed = unnoticed_losses(engine);
  check(unnoticed.empty(), "a pool that loses one device more than it bears is noticed: " + unnoticed);
  run.seconds =
      std::max(1.0, seconds - std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  const MatrixResult result = run_matrix(engine, run);
  for (const std::string& failure : result.counts.failures) check(false, failure);
  check(result.counts.failures.empty() && result.counts.losses + result.counts.beyond > 0,
        "pools lose devices, and nothing else");
  std::printf("%s\n", result.text().c_str());
}

}  // namespace
}  // namespace gpu4fs::test

int main() {
  return gpu4fs::test::run_on_gpu(gpu4fs::test::run);
}
