// The mount table of the kernel (/proc/self/mountinfo). Reading it sends no request to any file system. Host only.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"

namespace gpu4fs::pool {

inline constexpr const char* mount_type = "fuse.gpu4fs";

struct MountEntry {
  u64 id;             // as statx(2) reports it
  u64 device_number;  // st_dev of its files
  std::string directory;
  std::string type;
  std::string source;
  u32 user;  // the user who made a FUSE mount and serves it; ~0: not FUSE
};

// Later mounts last.
std::vector<MountEntry> read_mount_table();

// Whether its source can be trusted: root or the caller made the mount. Other users mount servers of their own under
// any name.
bool is_trusted(const MountEntry& entry);

// Whether it is a gpu4fs mount that names the device, either alone or in a list with colons.
bool names_device(const MountEntry& entry, const std::string& device);

}  // namespace gpu4fs::pool
