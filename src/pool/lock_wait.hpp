// Waiting for devices that another process has locked: until a process that has ended is gone and none of its requests
// to a medium is in flight, or a server has written its last checkpoint. The waiting process holds no lock meanwhile,
// so two processes that want the same devices do not wait for each other. Host only.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "pool/pool_error.hpp"

namespace gpu4fs::pool {

// The error already_mounted, for one device.
class DeviceInUse : public PoolError {
 public:
  DeviceInUse(const std::string& message, bool is_being_released)
      : PoolError(Status::already_mounted, message), is_being_released_(is_being_released) {}
  // True if only processes that have ended hold the lock.
  [[nodiscard]] bool is_being_released() const { return is_being_released_; }

 private:
  bool is_being_released_;
};

// For which other holders to wait, and how.
struct LockPatience {
  std::function<bool()> holder_lets_go = {};  // whether a running holder will release it; unset: no
  std::function<bool()> pause = {};           // waits some milliseconds; false: give up. Unset: sleeps
};

inline constexpr std::chrono::seconds lock_wait_max{30};
inline constexpr std::chrono::seconds lock_wait_silent{1};  // after this time the log names the device

// Whether to make another attempt, after a pause.
bool waits_for_lock(const LockPatience& patience, const DeviceInUse& error);
// Writes to the log for what somebody waits.
void log_lock_wait(const DeviceInUse& error);

// Returns the result of `attempt`. Repeats it while it ends with DeviceInUse and waiting may help. Passes on its
// exceptions.
template <class Attempt>
auto wait_for_locks(const LockPatience& patience, const Attempt& attempt) {
  const auto begin = std::chrono::steady_clock::now();
  for (bool is_logged = false;;) {
    try {
      return attempt();
    } catch (const DeviceInUse& error) {
      const auto waited = std::chrono::steady_clock::now() - begin;
      if (waited > lock_wait_max || !waits_for_lock(patience, error)) throw;
      if (!is_logged && waited > lock_wait_silent) {
        log_lock_wait(error);
        is_logged = true;
      }
    }
  }
}

}  // namespace gpu4fs::pool
