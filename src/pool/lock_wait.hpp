// Waiting for devices that somebody else has locked: until a process that has ended is gone, or a server that is just
// writing its last checkpoint. Whoever waits holds no lock meanwhile, so that two who want the same devices do not wait
// for each other. Host only.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "pool/pool_error.hpp"

namespace gpu4fs::pool {

// already_mounted, of one device.
class DeviceInUse : public PoolError {
 public:
  DeviceInUse(const std::string& message, bool is_being_released)
      : PoolError(Status::already_mounted, message), is_being_released_(is_being_released) {}
  // By processes that have ended.
  [[nodiscard]] bool is_being_released() const { return is_being_released_; }

 private:
  bool is_being_released_;
};

// What is waited for besides processes that have ended, and how.
struct LockPatience {
  std::function<bool()> holder_lets_go = {};  // whether somebody who goes on will; none: nobody
  std::function<bool()> pause = {};           // some milliseconds; false: no longer. None: sleeps
};

inline constexpr std::chrono::seconds lock_wait_max{20};

// Whether another attempt is to be made, after a pause.
bool waits_for_lock(const LockPatience& patience, const DeviceInUse& error);

// What `attempt` answers, which is repeated while it ends with DeviceInUse and waiting may help. Its exceptions.
template <class Attempt>
auto wait_for_locks(const LockPatience& patience, const Attempt& attempt) {
  const auto end = std::chrono::steady_clock::now() + lock_wait_max;
  for (;;) {
    try {
      return attempt();
    } catch (const DeviceInUse& error) {
      if (std::chrono::steady_clock::now() > end || !waits_for_lock(patience, error)) throw;
    }
  }
}

}  // namespace gpu4fs::pool
