// Work of several threads at once.
#pragma once

#include <exception>
#include <thread>
#include <vector>

#include "base/types.hpp"

namespace gpu4fs::bench {

// Runs work(i) for each i below `count` at the same time, each in a thread. Throws the first failure by number.
template <class Work>
void run_side_by_side(u32 count, const Work& work) {
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> failures(count);
  for (u32 i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        work(i);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace gpu4fs::bench
