#include "base/host/log.hpp"

#include <syslog.h>

#include <atomic>
#include <cstdio>

namespace gpu4fs {
namespace {

std::atomic<bool> in_background{false};

int priority_of(LogLevel level) {
  switch (level) {
    case LogLevel::info:
      return LOG_INFO;
    case LogLevel::warning:
      return LOG_WARNING;
    case LogLevel::error:
      return LOG_ERR;
  }
  return LOG_ERR;
}

}  // namespace

void log(LogLevel level, const std::string& text) {
  if (in_background) {
    ::syslog(priority_of(level), "%s", text.c_str());
  } else {
    std::fprintf(stderr, "gpu4fs: %s\n", text.c_str());
  }
}

void log_to_system(bool background) {
  if (background) ::openlog("gpu4fs", LOG_PID | LOG_NDELAY, LOG_DAEMON);
  in_background = background;
}

}  // namespace gpu4fs
