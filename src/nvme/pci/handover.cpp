#include "nvme/pci/handover.hpp"

#include <fmt/format.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "base/access.hpp"
#include "base/mutant.hpp"

namespace gpu4fs::nvme {
namespace {

constexpr std::chrono::milliseconds poll_interval{20};

[[noreturn]] void refuse(const PciDrive& drive, const std::string& why) {
  throw std::runtime_error(fmt::format("{}: {}", drive.address, why));
}

}  // namespace

// In sysfs a line break removes the override.
void Handover::rebind(const PciDrive& drive, const std::string& driver_override) {
  const std::string folder = pci_device_folder(drive.address);
  tree_.write(folder + "/driver_override", driver_override + "\n");
  if (tree_.exists(folder + "/driver")) tree_.write(folder + "/driver/unbind", drive.address);
  tree_.write("/sys/bus/pci/drivers_probe", drive.address);
}

void Handover::undo(const PciDrive& before) {
  const std::string folder = pci_device_folder(before.address);
  const std::string driver = tree_.link_name(folder + "/driver");
  if (find_pci_drive(tree_, before.address).driver_override != before.driver_override) {
    tree_.write(folder + "/driver_override", before.driver_override + "\n");
  }
  if (driver == before.driver) return;
  if (!driver.empty()) tree_.write(folder + "/driver/unbind", before.address);
  if (!before.driver.empty()) tree_.write(fmt::format("/sys/bus/pci/drivers/{}/bind", before.driver), before.address);
}

void Handover::change(const PciDrive& before, const std::string& driver_override, const std::function<void()>& verify) {
  std::string failure;
  try {
    rebind(before, driver_override);
    verify();
    return;
  } catch (const std::runtime_error& error) {
    failure = error.what();
  }
  std::string consequence = before.driver.empty() ? "it is without a driver, as before" : "it is as before";
  try {
    if (GPU4FS_MUTANT(nvme_handover_not_undone, true, false)) undo(before);
  } catch (const std::runtime_error& error) {
    consequence = fmt::format("it could not be given back to {}: {}", before.driver, error.what());
  }
  refuse(before, fmt::format("{}; {}", failure, consequence));
}

// The claims last until the drive has gone: nobody can mount it meanwhile.
Handover::Claims Handover::claim_unused(const PciDrive& drive) {
  Claims claims;
  for (const NamespaceDevice& device : drive.namespaces) {
    const std::string user = users_.find_user(device);
    if (!user.empty()) refuse(drive, "it is in use: " + user);
    std::shared_ptr<void> claim = users_.claim(device);
    if (claim == nullptr) {
      refuse(drive, fmt::format("it is in use: somebody has claimed /dev/{}, perhaps a mount in another mount "
                                "namespace",
                                device.name));
    }
    claims.push_back(std::move(claim));
  }
  return claims;
}

HandoverResult Handover::take(const std::string& address) {
  const PciDrive drive = find_pci_drive(tree_, address);
  if (drive.driver == vfio_driver) return HandoverResult::was_so;
  if (!drive.driver.empty() && drive.driver != kernel_driver) {
    refuse(drive, fmt::format("the driver {} has it, not that of the kernel", drive.driver));
  }
  const std::string obstacle = find_iommu_obstacle(drive);
  if (GPU4FS_MUTANT(nvme_take_without_iommu, !obstacle.empty(), false)) refuse(drive, obstacle);
  if (!tree_.exists(fmt::format("/sys/bus/pci/drivers/{}", vfio_driver))) {
    refuse(drive, "the kernel has no driver vfio-pci: load it with 'modprobe vfio-pci'");
  }
  const Claims claims = claim_unused(drive);
  change(drive, vfio_driver, [&] {
    const std::string driver = tree_.link_name(pci_device_folder(drive.address) + "/driver");
    if (driver != vfio_driver) throw std::runtime_error("vfio-pci does not take it; the kernel's log says why");
  });
  return HandoverResult::done;
}

HandoverResult Handover::give_back(const std::string& address) {
  const PciDrive drive = find_pci_drive(tree_, address);
  if (drive.driver == kernel_driver) {
    // What a give_back() has left that ended half way.
    if (drive.driver_override == vfio_driver) {
      tree_.write(pci_device_folder(drive.address) + "/driver_override", "\n");
    }
    return HandoverResult::was_so;
  }
  if (!drive.driver.empty() && drive.driver != vfio_driver) {
    refuse(drive, fmt::format("the driver {} has it, not vfio-pci", drive.driver));
  }
  // The kernel would wait until that process ends, and a driver of the kernel must not share a group with it.
  const std::string user = drive.iommu_group ? users_.find_group_user(*drive.iommu_group) : "";
  if (!user.empty()) refuse(drive, fmt::format("{} uses its IOMMU group {}", user, *drive.iommu_group));
  change(drive, "", [&] { wait_until_live(drive.address); });
  return HandoverResult::done;
}

void Handover::wait_until_live(const std::string& address) {
  const u64 end_ns = now_monotonic_ns() + live_timeout_ns_;
  for (;;) {
    const PciDrive drive = find_pci_drive(tree_, address);
    if (drive.driver == vfio_driver) {
      throw std::runtime_error("vfio-pci has taken it again: its identifiers were written to vfio-pci's new_id");
    }
    if (drive.driver.empty()) {
      throw std::runtime_error(
          "no driver of the kernel takes it; 'modprobe nvme' loads one, or the kernel's log says why");
    }
    if (drive.driver != kernel_driver || drive.controller_state == "live") return;
    if (now_monotonic_ns() >= end_ns) {
      throw std::runtime_error(fmt::format("the kernel's driver does not bring it up: its state is {}",
                                           drive.controller_state.empty() ? "unknown" : drive.controller_state));
    }
    std::this_thread::sleep_for(poll_interval);
  }
}

}  // namespace gpu4fs::nvme
