// Profiles of files in their attribute user.gpu4fs.raid. Host only.
#pragma once

#include <string>

namespace gpu4fs::tools {

// Sets the profile of a file or directory, and with `below` of everything below it; "default" removes it. False: errors
// were printed, by `gpu4fs <verb>`.
bool set_profile(const char* verb, const std::string& profile, const std::string& path, bool below);

}  // namespace gpu4fs::tools
