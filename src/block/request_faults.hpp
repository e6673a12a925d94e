// Faults between an I/O queue and a medium, for tests: requests that a predicate chooses fail, are kept back, or get
// another result from the system. Host only; any thread. It outlives the controller that has it (ControllerOptions).
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "base/status.hpp"
#include "base/types.hpp"
#include "device/queue/io_request.hpp"

namespace gpu4fs::block {

class RequestFaults {
 public:
  using Predicate = std::function<bool(const device::IoRequest&)>;

  // Requests that are taken from now on. The first rule that fits counts.
  void fail(Predicate chooses, Status status);  // without a try
  void hold(Predicate chooses);                 // until they are released
  // The next `count` operations whose first request is chosen were carried out, and the system seems to have answered
  // `result`: bytes or a negative errno.
  void replace_results(Predicate chooses, i32 result, u32 count);

  void wait_until_held(u32 count);
  // Lets the request that has been held for the longest time go on, or the latest one.
  void release_oldest();
  void release_latest();
  void release_all();  // and holds no others

  // For controllers.
  enum class Fate { passes, fails, held };
  struct Verdict {
    Fate fate;
    Status status;
  };
  void set_wake(std::function<void()> wake);  // called after a release; null: none
  Verdict judge(u32 slot, const device::IoRequest& request);
  bool has_released() const;
  bool take_released(u32* slot);
  i32 result_of(const device::IoRequest& first, i32 result);

 private:
  struct Rule {
    Predicate chooses;
    Verdict verdict;
  };
  struct Replacement {
    Predicate chooses;
    i32 result;
    u32 count;
  };
  void wake();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Rule> rules_;
  std::vector<Replacement> replacements_;
  std::deque<u32> held_;
  std::deque<u32> released_;
  std::function<void()> wake_;
};

}  // namespace gpu4fs::block
