// What the system knows about block devices: who uses one, and which there are. Reads only sysfs, the mount table and
// the nodes in /dev; no device is opened. Host only.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/types.hpp"

namespace gpu4fs::pool {

// The first line of a file of sysfs, "" if it cannot be read.
std::string first_line(const std::filesystem::path& path);
// The device number that a file of sysfs holds as MAJOR:MINOR, 0 if there is none.
u64 device_number_in(const std::filesystem::path& path);

// The number of the block device that the path names, 0 if it names none.
u64 block_device_number(const std::string& path);

// Who uses the block device, one of its partitions or the disk that it is a partition of: "mounted on /srv", "swap
// space", "a part of dm-0". "" if the system does not say: it does not list programs that have the device open. Mounts
// of gpu4fs on the device itself are left out, because their servers have locked it.
std::string find_block_device_user(u64 device_number);

inline constexpr std::size_t searched_devices_max = 4096;

// The paths in /dev of disks, partitions, loop and device-mapper devices that may be members of a pool, sorted, at most
// searched_devices_max. Left out: devices without a medium, removable ones (floppy disks, optical drives, memory cards,
// most USB sticks), hidden ones, and those that are a part of another one, which then has the same content.
std::vector<std::string> list_block_devices();
// The same for a system whose sysfs and device nodes are in these folders.
std::vector<std::string> list_block_devices(const std::string& system_folder, const std::string& node_folder);

}  // namespace gpu4fs::pool
