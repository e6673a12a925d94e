// What is mounted, as the kernel says (/proc/self/mountinfo): reading it asks no file system anything. Host only.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"

namespace gpu4fs::pool {

inline constexpr const char* mount_type = "fuse.gpu4fs";

struct MountEntry {
  u64 id;             // as statx(2) has it
  u64 device_number;  // st_dev of its files
  std::string directory;
  std::string type;
  std::string source;
  u32 user;  // who made a FUSE mount and answers there; ~0: it is none
};

// Later mounts last.
std::vector<MountEntry> read_mount_table();

// Whether its source can be believed: root made it, or the caller. Others mount servers of their own, by any name.
bool is_trusted(const MountEntry& entry);

// Whether it is a gpu4fs mount that names the device, one of a list with colons or all of it.
bool names_device(const MountEntry& entry, const std::string& device);

}  // namespace gpu4fs::pool
