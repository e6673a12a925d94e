// The entry points that libFuzzer and the driver call, with a count of the inputs.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "fuzz/fuzz_target.hpp"

namespace gpu4fs::fuzz {

unsigned long input_count = 0;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "fuzz %s: %s\n", target_name, what);
  std::abort();
}

namespace {

void print_count() {
  std::printf("fuzz %s: %lu inputs, 0 failures\n", target_name, input_count);
  std::fflush(stdout);
}

}  // namespace
}  // namespace gpu4fs::fuzz

extern "C" int LLVMFuzzerInitialize(int* /*argument_count*/, char*** /*arguments*/) {
  std::atexit(gpu4fs::fuzz::print_count);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t length) {
  ++gpu4fs::fuzz::input_count;
  try {
    gpu4fs::fuzz::run_input(data, length);
  } catch (const std::exception& error) {
    gpu4fs::fuzz::fail(error.what());
  }
  return 0;
}
