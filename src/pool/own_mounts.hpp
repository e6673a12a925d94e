// Directories that this process itself serves. What the server reads or writes there it asks of itself, and an engine
// that touches memory of a file there waits for its own answer. So nothing of a pool lies in its own mount.
// From any thread. Host only.
#pragma once

#include <string>

#include "base/types.hpp"

namespace gpu4fs::pool {

// While it lives, the mount that was made last on `directory` is this process's own.
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

// The directory of the own mount in which the file lies, be it below loop devices, device mappers, partitions and
// subvolumes; "": in none. The file need not exist. What lies below an overlay or another server is not seen.
std::string find_own_mount(const std::string& path);
// The same of a block device, as sysfs in `system_folder` describes it.
std::string find_own_mount_below(u64 block_device, const std::string& system_folder);

}  // namespace gpu4fs::pool
