// Recognises the content of a device, so mkfs does not destroy it by mistake.
#pragma once

#include <string>

#include "pool/pool_device_file.hpp"

namespace gpu4fs::pool {

// The number of bytes at the beginning of a device that are examined; anything other than zeros counts as content. At
// the end of a block device only signatures count.
inline constexpr u64 foreign_probe_bytes = 256 * 1024;

// "" for a blank device, otherwise its content: "a gpu4fs pool", "an ext2/3/4 file system", "a GPT partition table",
// "an LVM volume" and so on, or "data" if it is not known.
std::string describe_content(const DeviceFile& device);

}  // namespace gpu4fs::pool
