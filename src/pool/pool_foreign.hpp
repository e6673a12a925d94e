// Recognises what a device holds already, so that mkfs does not destroy it by mistake.
#pragma once

#include <string>

#include "pool/pool_device_file.hpp"

namespace gpu4fs::pool {

// Bytes at the front of a device that are looked at; anything there but zeros counts as content.
inline constexpr u64 foreign_probe_bytes = 256 * 1024;

// "" for a blank device, else what was found: "a gpu4fs pool", "an ext2/3/4 file system", "an XFS
// file system", "a btrfs file system", "a swap area", "a GPT partition table", "an MBR partition
// table" or "data".
std::string describe_content(const DeviceFile& device);

}  // namespace gpu4fs::pool
