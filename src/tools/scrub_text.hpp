// A scrub's progress for people. Host only.
#pragma once

#include <string>

#include "base/host/json_value.hpp"

namespace gpu4fs::tools {

// Lines, from the member "scrub" of a server's answer.
std::string scrub_text(const JsonValue& scrub);

// "3:07", "12 s": how long something takes.
std::string duration_text(double seconds);

}  // namespace gpu4fs::tools
