// Fuzz targets.
//
// A target is one file tests/fuzz/<name>_fuzz.cpp that defines target_name and run_input(). cmake/fuzz.cmake makes a
// program of it, gpu4fs_fuzz_<name>. With clang this is a libFuzzer program (preset `fuzz`, `make fuzz TIME=600`). With
// any compiler it is also a test under AddressSanitizer with a driver of our own (fuzz_driver.cpp), which runs the
// files of tests/fuzz/corpus/<name>/ and then seeded mutations of them. Both print the number of inputs in their last
// line: "fuzz <name>: 2040 inputs, 0 failures".
//
// Inputs are bytes of any content and length. They do not contain an image but describe damage to a good one
// (damage.hpp), so nearly every input gets past magics and checksums. A failure is a failed check, a sanitizer's
// report, fail(), an exception, or an input that takes longer than input_seconds_max.
//
// A parser of a new format gets a target of its own here; nothing needs to be registered elsewhere.
#pragma once

#include <cstddef>

#include "base/types.hpp"

namespace gpu4fs::fuzz {

inline constexpr unsigned input_seconds_max = 60;

extern const char target_name[];

// Leaves no state that the next input could see.
void run_input(const u8* data, std::size_t length);

// The input reveals a fault: prints it and ends the process.
[[noreturn]] void fail(const char* what);

inline void require(bool holds, const char* what) {
  if (!holds) fail(what);
}

}  // namespace gpu4fs::fuzz
