// Drives pass between the kernel's driver and VFIO, by which a process reaches them itself. Host only.
//
// Both ways take several orders to the kernel. If one of them fails, those before it are undone, so the drive stays
// where it was. A process that ends in between leaves a drive without a driver; then either way may be tried again.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "nvme/pci/pci_drives.hpp"

namespace gpu4fs::nvme {

// Who uses a drive.
class DriveUsers {
 public:
  virtual ~DriveUsers() = default;

  // "/dev/nvme0n1p1 is mounted on /srv"; "" if the system says of none.
  virtual std::string find_user(const NamespaceDevice& device) = 0;
  // "process 123 (qemu)": who has the IOMMU group open; "" if nobody.
  virtual std::string find_group_user(u32 group) = 0;
  // Lets nobody else claim the block device as long as the result exists; null if somebody has claimed it.
  virtual std::shared_ptr<void> claim(const NamespaceDevice& device) = 0;
};

enum class HandoverResult { done, was_so };

class Handover {
 public:
  // Both references outlive this.
  Handover(SystemTree& tree, DriveUsers& users) : tree_(tree), users_(users) {}

  // How long give_back() waits until the kernel's driver has brought the drive up.
  void set_live_timeout_ns(u64 timeout_ns) { live_timeout_ns_ = timeout_ns; }

  // From the kernel's driver, or from none, to vfio-pci. Throws std::runtime_error, with nothing changed, if the drive
  // is in use, if there is no IOMMU for it, or if the kernel refuses.
  HandoverResult take(const std::string& address);

  // From vfio-pci, or from no driver, to the one that the kernel chooses. Throws std::runtime_error, with nothing
  // changed, if a process uses the drive's IOMMU group or if no driver takes the drive.
  HandoverResult give_back(const std::string& address);

 private:
  using Claims = std::vector<std::shared_ptr<void>>;

  Claims claim_unused(const PciDrive& drive);
  void rebind(const PciDrive& drive, const std::string& driver_override);
  void undo(const PciDrive& before);
  void change(const PciDrive& before, const std::string& driver_override, const std::function<void()>& verify);
  void wait_until_live(const std::string& address);

  SystemTree& tree_;
  DriveUsers& users_;
  u64 live_timeout_ns_ = 30000000000;
};

}  // namespace gpu4fs::nvme
