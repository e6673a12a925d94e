// The server's log: stderr in the foreground, the system log in the background. Callable from any thread. Host only.
#pragma once

#include <string>

namespace gpu4fs {

enum class LogLevel { info, warning, error };

void log(LogLevel level, const std::string& text);

// With `background` the log goes to the system log, because nobody reads stderr.
void log_to_system(bool background);

}  // namespace gpu4fs
