// Who uses NVMe drives of this machine: mounts, swap space, arrays, volumes and processes.
#pragma once

#include "nvme/pci/handover.hpp"

namespace gpu4fs::tools {

class SystemDriveUsers : public nvme::DriveUsers {
 public:
  std::string find_user(const nvme::NamespaceDevice& device) override;
  std::string find_group_user(u32 group) override;
  std::shared_ptr<void> claim(const nvme::NamespaceDevice& device) override;
};

}  // namespace gpu4fs::tools
