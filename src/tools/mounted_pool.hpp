// Finds a mounted pool and talks to its server. Host only.
#pragma once

#include <stdexcept>
#include <string>

#include "base/host/json_value.hpp"

namespace gpu4fs::tools {

// The directory of the newest gpu4fs mount that `place` names: its directory, a member device, or the device list as it
// was mounted. "" if there is none. A mount that neither root nor the caller made is found only by its directory.
std::string find_mountpoint(const std::string& place);

// The value of an attribute "user.gpu4fs.server.<name>" of a mount's root; "" if it has none.
std::string server_attribute(const std::string& mountpoint, const std::string& name);

struct ControlError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Sends one request, a JSON object in one line, to the server of a mounted pool, and returns its answer. ControlError
// if there is no server or no permission, if the socket is not the mount's own, or if the answer is not ok.
JsonValue ask_server(const std::string& mountpoint, const std::string& request);
// The same, as unparsed text.
std::string ask_server_text(const std::string& mountpoint, const std::string& request);

}  // namespace gpu4fs::tools
