// The commands that an engine or a host of a test received. The test's thread reads them and waits for them. Any
// thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "base/types.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::test {

// How long a test waits for an event before it fails instead of hanging.
inline constexpr auto patience = std::chrono::seconds(60);

class CommandList {
 public:
  using Filter = std::function<bool(const wire::Command&)>;

  void add(const wire::Command& command) {
    const std::lock_guard guard(mutex_);
    commands_.push_back(command);
    changed_.notify_all();
  }
  std::vector<wire::Command> all() const {
    const std::lock_guard guard(mutex_);
    return commands_;
  }
  u64 count(const Filter& filter) const {
    const std::lock_guard guard(mutex_);
    return count_locked(filter);
  }
  // False: they did not arrive.
  bool wait_for(u64 count, const Filter& filter) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience, [&] { return count_locked(filter) >= count; });
  }

 private:
  u64 count_locked(const Filter& filter) const {
    return static_cast<u64>(std::count_if(commands_.begin(), commands_.end(), filter));
  }

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<wire::Command> commands_;
};

inline CommandList::Filter of(wire::Opcode opcode) {
  return [opcode](const wire::Command& command) { return command.opcode == opcode; };
}
inline CommandList::Filter of(wire::Opcode opcode, u32 mask) {
  return [=](const wire::Command& command) { return command.opcode == opcode && command.mask == mask; };
}

}  // namespace gpu4fs::test
