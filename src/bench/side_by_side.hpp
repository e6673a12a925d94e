// Work of several threads at once.
#pragma once

#include <barrier>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/types.hpp"
#include "bench/result.hpp"

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

// Times batches of all workers at the same time, each worker in a thread. In each of 1 + `repeats` rounds a worker
// calls prepare_batch(), run_batch() and check_batch(). The clock runs from the moment when all are prepared until all
// have run. Returns the seconds of each round but the first, which warms up. Throws a failure of a worker.
template <class Worker>
std::vector<double> time_batches(std::vector<std::unique_ptr<Worker>>& workers, u32 repeats) {
  std::vector<double> seconds;
  double began = 0;
  const auto count = static_cast<std::ptrdiff_t>(workers.size());
  std::barrier before(count, [&]() noexcept { began = now_seconds(); });
  std::barrier after(count, [&]() noexcept { seconds.push_back(now_seconds() - began); });
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (auto& worker : workers) {
    threads.emplace_back([&, own = worker.get()] {
      for (u32 repeat = 0; repeat <= repeats; ++repeat) {
        try {
          own->prepare_batch();
          before.arrive_and_wait();
          own->run_batch();
          after.arrive_and_wait();
          own->check_batch();
        } catch (...) {
          const std::lock_guard guard(mutex);
          failure = std::current_exception();
          before.arrive_and_drop();
          after.arrive_and_drop();
          return;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  seconds.erase(seconds.begin());
  return seconds;
}

}  // namespace gpu4fs::bench
