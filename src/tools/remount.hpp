// mount -o remount: changes the kernel's flags of a mounted directory. Host only.
#pragma once

#include <string>

#include "daemon/mount_options.hpp"

namespace gpu4fs::tools {

// Returns the exit status of mount(8); errors are printed. Options of the server keep their values.
int remount(const daemon::MountOptions& options, const std::string& directory);

// The flags of a mounted directory in the form for mount(2).
unsigned long flags_of_mount(const std::string& directory);

}  // namespace gpu4fs::tools
