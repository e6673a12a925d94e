#include "pool/lock_wait.hpp"

#include <thread>

#include "base/host/log.hpp"
#include "fmt/format.h"

namespace gpu4fs::pool {

bool waits_for_lock(const LockPatience& patience, const DeviceInUse& error) {
  if (!error.is_being_released() && !(patience.holder_lets_go && patience.holder_lets_go())) return false;
  if (patience.pause) return patience.pause();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return true;
}

void log_lock_wait(const DeviceInUse& error) {
  log(LogLevel::warning, fmt::format("waits for at most {} s: {}", lock_wait_max.count(), error.what()));
}

}  // namespace gpu4fs::pool
