// mount -o remount: other flags of the kernel for a directory that is mounted. Host only.
#pragma once

#include <string>

#include "daemon/mount_options.hpp"

namespace gpu4fs::tools {

// The exit status of mount(8); what is wrong is printed. Options of the server keep the values that they have.
int remount(const daemon::MountOptions& options, const std::string& directory);

// The flags that a mounted directory has, as mount(2) wants them.
unsigned long flags_of_mount(const std::string& directory);

}  // namespace gpu4fs::tools
