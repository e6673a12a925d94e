// Directories that this process itself serves. A server that reads or writes there sends requests to itself, and an
// engine that touches memory of a file there waits for its own answer. So no part of a pool may lie in its own mount.
// Callable from any thread. Host only.
#pragma once

#include <string>

#include "base/types.hpp"

namespace gpu4fs::pool {

// While this object exists, the newest mount on `directory` is this process's own.
class OwnMount {
 public:
  explicit OwnMount(std::string directory);
  ~OwnMount();
  OwnMount(const OwnMount&) = delete;
  OwnMount& operator=(const OwnMount&) = delete;

  [[nodiscard]] u64 device_number() const { return device_number_; }  // 0: it is not in the kernel's table

 private:
  u64 device_number_ = 0;
};

// The directory of the own mount in which the file lies, also below loop devices, device mappers, partitions and
// subvolumes; "" if there is none. The file need not exist. Files below an overlay or another server are not
// recognised.
std::string find_own_mount(const std::string& path);
// The same for a block device, as sysfs in `system_folder` describes it.
std::string find_own_mount_below(u64 block_device, const std::string& system_folder);

}  // namespace gpu4fs::pool
