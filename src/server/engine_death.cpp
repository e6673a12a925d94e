#include "server/engine_death.hpp"

#include "base/host/log.hpp"
#include "fmt/format.h"

namespace gpu4fs::server {

void EngineDeath::report() {
  if (!host_.has_died() || reported_.exchange(true)) return;
  log(LogLevel::error, fmt::format("the engine died, its pending operations fail: {}", host_.fault_text()));
  if (handler_) handler_();
}

}  // namespace gpu4fs::server
