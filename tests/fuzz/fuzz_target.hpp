// What a fuzz target is.
//
// A target is one file tests/fuzz/<name>_fuzz.cpp that defines target_name and run_input(); cmake/fuzz.cmake
// makes of it a program of its own, gpu4fs_fuzz_<name>: with clang a libFuzzer program (preset `fuzz`,
// `make fuzz TIME=600`), with any compiler under AddressSanitizer a test with a driver of ours
// (fuzz_driver.cpp), which runs the files of tests/fuzz/corpus/<name>/ and then seeded mutations of them.
// Both print as their last line what they ran: "fuzz <name>: 2040 inputs, 0 failures".
//
// Inputs are bytes of any content and length. They do not hold an image but say how a good one is to be
// damaged (damage.hpp), so that nearly every input gets past magics and checksums. A failure is a failed check,
// a sanitizer's report, fail(), an exception, or an input that takes longer than input_seconds_max.
//
// A parser with a format of its own gets a target of its own here; nothing needs to be registered elsewhere.
#pragma once

#include <cstddef>

#include "base/types.hpp"

namespace gpu4fs::fuzz {

inline constexpr unsigned input_seconds_max = 60;

extern const char target_name[];

// Leaves nothing behind that the next input could see.
void run_input(const u8* data, std::size_t length);

// The input shows that something is wrong: says what and ends the process.
[[noreturn]] void fail(const char* what);

inline void require(bool holds, const char* what) {
  if (!holds) fail(what);
}

}  // namespace gpu4fs::fuzz
