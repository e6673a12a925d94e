// The server's JSON parser under the name that tools use. Host only.
#pragma once

#include "server/json_value.hpp"

namespace gpu4fs::tools {

using server::JsonValue;
using server::parse_json;

}  // namespace gpu4fs::tools
