// Recognises the content of a device, so mkfs does not destroy it by mistake.
#pragma once

#include <string>

#include "pool/pool_device_file.hpp"

namespace gpu4fs::pool {

// The number of bytes at the beginning of a device that are examined; anything other than zeros counts as content.
inline constexpr u64 foreign_probe_bytes = 256 * 1024;

// "" for a blank device, otherwise its content: "a gpu4fs pool", "an ext2/3/4 file system", "an XFS file system", "a
// btrfs file system", "a swap area", "a GPT partition table", "an MBR partition table" or "data".
std::string describe_content(const DeviceFile& device);

}  // namespace gpu4fs::pool
