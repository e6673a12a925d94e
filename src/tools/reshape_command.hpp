// Common parts of `gpu4fs balance`, `gpu4fs device remove` and `gpu4fs device spare`. Host only.
#pragma once

#include <string>

#include "base/host/json_value.hpp"

namespace gpu4fs::tools {

// The member `spares` of the server's answer as text; "" if there are none.
std::string spares_text(const JsonValue& spares);

struct ReshapeCommand {
  std::string request;  // device-remove, balance
  std::string place;
  std::string device;  // of device-remove
  std::string rate;
  bool pauses = false;
  bool resumes = false;
  bool cancels = false;
  bool only_status = false;
  bool waits = false;
  bool json = false;
};

// The exit status. ControlError.
int run_reshape(const ReshapeCommand& command);

struct SpareCommand {
  std::string request;  // spare-add, spare-remove, spare-list
  std::string place;
  std::string path;
  bool force = false;
  bool json = false;
};

int run_spare(const SpareCommand& command);

}  // namespace gpu4fs::tools
