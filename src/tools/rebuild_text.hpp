// How far the rebuild of a device has come, for people. Host only.
#pragma once

#include <string>

#include "base/host/json_value.hpp"

namespace gpu4fs::tools {

// Of the member `rebuild` of the server's answer; "" if there was none since the mount.
std::string rebuild_text(const JsonValue& rebuild);

}  // namespace gpu4fs::tools
