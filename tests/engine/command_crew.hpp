// Moves commands through their phases without handlers: a step is a callable of the test. For tests of the parts below
// the worker: locks, gates, queues.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "engine/engine_fixture.hpp"
#include "engine/wait_list.hpp"

namespace gpu4fs::test {

class CommandCrew {
 public:
  // ok: this command is done. again: queue it again. Those of is_wait(): it waits there.
  using StepFunction = std::function<Status(engine::CommandState&)>;

  explicit CommandCrew(engine::Engine& engine) : engine_(engine) {}

  // Runs the commands [first, first + count) on `thread_count` threads until all are done.
  void run(u32 first, u32 count, u32 thread_count, const StepFunction& step) {
    left_ = count;
    for (u32 i = first; i < first + count; ++i) {
      engine::CommandState& c = engine_.commands[i];
      c.lock_count = 0;
      c.in_gate = 0;
      engine::enqueue_command(engine_, i);
    }
    std::vector<std::thread> threads;
    for (u32 t = 0; t < thread_count; ++t) threads.emplace_back([&] { work(step); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  void work(const StepFunction& step) {
    while (left_.load() != 0) {
      u32 item = 0;
      if (!engine_.run_queue.pop(&item)) {
        std::this_thread::yield();
        continue;
      }
      engine::CommandState& c = engine_.commands[item];
      engine::set_phase(c, engine::CommandPhase::running);
      for (;;) {
        const Status status = step(c);
        if (is_wait(status) && !engine::park_command(c)) continue;
        if (status == Status::ok) left_.fetch_sub(1);
        if (status == Status::again) engine::enqueue_command(engine_, c.index);
        break;
      }
    }
  }

  engine::Engine& engine_;
  std::atomic<u32> left_{0};
};

}  // namespace gpu4fs::test
