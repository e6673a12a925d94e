// What is being moved in a mounted pool, for people. Host only.
#pragma once

#include <string>

#include "base/host/json_value.hpp"

namespace gpu4fs::tools {

// The member "relocation" of the server's answers; "" if there was none since the mount.
std::string relocation_text(const JsonValue& report);

}  // namespace gpu4fs::tools
