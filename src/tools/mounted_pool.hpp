// Finding a mounted pool and talking to its server. Host only.
#pragma once

#include <stdexcept>
#include <string>

#include "base/host/json_value.hpp"

namespace gpu4fs::tools {

// The directory of the newest gpu4fs mount that `place` names: its directory, a member device, or the device list
// as mounted. "" if there is none. A mount that neither root nor the caller made counts by its directory alone.
std::string find_mountpoint(const std::string& place);

// The value of an attribute "user.gpu4fs.server.<name>" of a mount's root; "" if it has none.
std::string server_attribute(const std::string& mountpoint, const std::string& name);

struct ControlError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Sends one request, a JSON object in one line, to the server of a mounted pool, and gives its answer. ControlError
// when there is no server, no permission, the socket is not the mount's own, or the answer is not ok.
JsonValue ask_server(const std::string& mountpoint, const std::string& request);
// The same, as it came.
std::string ask_server_text(const std::string& mountpoint, const std::string& request);

}  // namespace gpu4fs::tools
