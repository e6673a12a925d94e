// gpu4fs device add: files become members of a mounted pool.
#pragma once

#include <string>
#include <vector>

namespace gpu4fs::tools {

struct DeviceAddCommand {
  std::string place;               // the directory of the mount, or a device of the pool
  std::vector<std::string> paths;  // of the new members
  bool force = false;
  bool json = false;
};

// Returns the exit status. ControlError: the server refuses, or there is none.
int run_device_add(const DeviceAddCommand& command);

}  // namespace gpu4fs::tools
