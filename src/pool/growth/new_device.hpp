// A device that will become a member of a mounted pool. Host only.
#pragma once

#include <string>

#include "device/memory/mapped_file.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::pool {

struct NewDevice {
  OpenedDevice opened;
  device::MappedFile file;
};

// Opens, locks and clears the device, gives it a UUID and its layout in the pool, and maps it. It has no superblock
// yet, so a crash leaves a blank device. `index` is its number. `force` also accepts a device that holds something.
// PoolError.
NewDevice prepare_new_device(const OpenedPool& pool, u32 index, const std::string& path, bool force);

}  // namespace gpu4fs::pool
