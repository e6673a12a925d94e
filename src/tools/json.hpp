// The server's JSON writer under the name that tools use. Host only.
#pragma once

#include "server/json.hpp"

namespace gpu4fs::tools {

using server::JsonWriter;

}  // namespace gpu4fs::tools
