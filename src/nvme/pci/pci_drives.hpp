// NVMe controllers on the PCI bus as the kernel shows them, whichever driver has them. Host only.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "nvme/pci/system_tree.hpp"

namespace gpu4fs::nvme {

inline constexpr const char* kernel_driver = "nvme";
inline constexpr const char* vfio_driver = "vfio-pci";

// A block device that the kernel's driver makes of a namespace.
struct NamespaceDevice {
  std::string name;  // as in /dev: nvme0n1
  u64 bytes;
  std::vector<std::string> partitions;  // nvme0n1p1
};

// Another device of the same IOMMU group.
struct GroupMember {
  std::string address;
  std::string driver;  // "": none
  bool is_bridge;
};

struct PciDrive {
  std::string address;  // 0000:01:00.0
  u32 vendor_id = 0;
  u32 device_id = 0;
  std::string driver;           // "": none
  std::string driver_override;  // "": the kernel chooses by the device's class
  // None without an IOMMU.
  std::optional<u32> iommu_group;
  std::vector<GroupMember> group_members;
  // Known while the kernel's driver has the drive.
  std::string controller;        // nvme0
  std::string controller_state;  // "live"
  std::string model;
  std::string serial;
  std::vector<NamespaceDevice> namespaces;
};

std::string pci_device_folder(const std::string& address);

// The address with domain and small letters: "01:00.0" is 0000:01:00.0. "" if it is not an address.
std::string full_pci_address(const std::string& text);

// All, by address.
std::vector<PciDrive> list_pci_drives(const SystemTree& tree);

// Throws std::runtime_error if there is no NVMe controller at this address.
PciDrive find_pci_drive(const SystemTree& tree, const std::string& address);

// Why no process may use the drive by VFIO while the members of its IOMMU group have their drivers, or because there is
// no IOMMU. "": it may. What the drive is used for is not looked at.
std::string find_iommu_obstacle(const PciDrive& drive);

}  // namespace gpu4fs::nvme
