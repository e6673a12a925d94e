// The output of the programs in this folder: each failed expectation, and "N passed, N failed" last.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "engine/engine_cuda.hpp"

namespace gpu4fs::test {

inline int passed_count = 0;
inline int failed_count = 0;

inline void check(bool holds, const std::string& what) {
  holds ? ++passed_count : ++failed_count;
  if (!holds) std::printf("FAILED: %s\n", what.c_str());
  std::fflush(stdout);
}

// The exit status of main().
inline int finish() {
  std::printf("%d passed, %d failed\n", passed_count, failed_count);
  return failed_count == 0 && passed_count > 0 ? 0 : 1;
}

// Under compute-sanitizer: kernels are slow, and memory has to be known to the sanitizer when a kernel begins.
inline bool is_sanitized() {
  return std::getenv("GPU4FS_TEST_SANITIZER") != nullptr;
}

inline engine::CudaOptions gpu_test_options() {
  engine::CudaOptions options{};
  options.pause_to_register = is_sanitized();
  if (is_sanitized()) options.exit_timeout_ms = 60000;
  return options;
}

// Whether there is a GPU for the test; none is a failure.
inline bool has_gpu() {
  const engine::CudaAvailability availability = engine::cuda_availability();
  if (!availability.available) check(false, "a usable GPU: " + availability.reason);
  return availability.available;
}

// main() of a program that needs a GPU: runs its tests, whose exceptions are failures, and returns the exit status.
template <class Tests>
int run_on_gpu(Tests&& tests) {
  try {
    if (has_gpu()) tests();
  } catch (const std::exception& error) {
    check(false, error.what());
  }
  return finish();
}

}  // namespace gpu4fs::test
