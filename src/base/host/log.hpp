// The server's log: stderr in the foreground, the system log in the background. Any thread. Host only.
#pragma once

#include <string>

namespace gpu4fs {

enum class LogLevel { info, warning, error };

void log(LogLevel level, const std::string& text);

// Whether stderr is no longer anybody's.
void log_to_system(bool background);

}  // namespace gpu4fs
