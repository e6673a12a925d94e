#include "nvme/pci/pci_drives.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <regex>
#include <stdexcept>

namespace gpu4fs::nvme {
namespace {

constexpr const char* devices_folder = "/sys/bus/pci/devices";
// Base class, subclass and programming interface (NVM Express over PCIe Transport 1.0, clause 3.8.1).
constexpr const char* nvme_class = "0x010802";
// A bridge between PCI buses has no DMA of its own.
constexpr const char* bridge_class = "0x0604";
constexpr u64 sector_bytes = 512;

std::string trimmed(std::string text) {
  text.erase(text.find_last_not_of(" \n") + 1);
  return text;
}

u32 number_in(const std::string& text, int base) {
  return static_cast<u32>(std::strtoul(text.c_str(), nullptr, base));
}

bool is_nvme(const SystemTree& tree, const std::string& address) {
  return tree.first_line(pci_device_folder(address) + "/class") == nvme_class;
}

// The block devices of a controller: nvme0n1; or with several paths to a namespace nvme0c1n1 for the path and nvme0n1,
// of the subsystem, for programs.
std::string block_device_of(const std::string& name) {
  static const std::regex pattern("(nvme[0-9]+)(c[0-9]+)?(n[0-9]+)");
  std::smatch match;
  return std::regex_match(name, match, pattern) ? match[1].str() + match[3].str() : "";
}

NamespaceDevice read_namespace_device(const SystemTree& tree, const std::string& name) {
  const std::string folder = "/sys/class/block/" + name;
  NamespaceDevice device{
      name, std::strtoull(tree.first_line(folder + "/size").c_str(), nullptr, 10) * sector_bytes, {}};
  for (const std::string& inner : tree.names_in(folder)) {
    if (tree.exists(folder + "/" + inner + "/partition")) device.partitions.push_back(inner);
  }
  return device;
}

void read_controller(const SystemTree& tree, PciDrive& drive) {
  const std::string folder = pci_device_folder(drive.address) + "/nvme";
  const std::vector<std::string> names = tree.names_in(folder);
  if (names.empty()) return;
  drive.controller = names.front();
  const std::string controller = folder + "/" + drive.controller;
  drive.controller_state = tree.first_line(controller + "/state");
  drive.model = trimmed(tree.first_line(controller + "/model"));
  drive.serial = trimmed(tree.first_line(controller + "/serial"));
  for (const std::string& name : tree.names_in(controller)) {
    const std::string device = block_device_of(name);
    if (!device.empty()) drive.namespaces.push_back(read_namespace_device(tree, device));
  }
}

void read_group(const SystemTree& tree, PciDrive& drive) {
  const std::string group = tree.link_name(pci_device_folder(drive.address) + "/iommu_group");
  u32 number = 0;
  if (std::from_chars(group.data(), group.data() + group.size(), number).ec != std::errc{}) return;
  drive.iommu_group = number;
  for (const std::string& address : tree.names_in("/sys/kernel/iommu_groups/" + group + "/devices")) {
    if (address == drive.address) continue;
    const std::string folder = pci_device_folder(address);
    drive.group_members.push_back(
        {address, tree.link_name(folder + "/driver"), tree.first_line(folder + "/class").starts_with(bridge_class)});
  }
}

PciDrive read_drive(const SystemTree& tree, const std::string& address) {
  const std::string folder = pci_device_folder(address);
  PciDrive drive;
  drive.address = address;
  drive.vendor_id = number_in(tree.first_line(folder + "/vendor"), 16);
  drive.device_id = number_in(tree.first_line(folder + "/device"), 16);
  drive.driver = tree.link_name(folder + "/driver");
  const std::string name = tree.first_line(folder + "/driver_override");
  if (name != "(null)") drive.driver_override = name;
  read_group(tree, drive);
  if (drive.driver == kernel_driver) read_controller(tree, drive);
  return drive;
}

}  // namespace

std::string pci_device_folder(const std::string& address) {
  return fmt::format("{}/{}", devices_folder, address);
}

std::string full_pci_address(const std::string& text) {
  static const std::regex pattern("([0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\\.[0-7]");
  std::string address = text;
  for (char& c : address) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::smatch match;
  if (!std::regex_match(address, match, pattern)) return "";
  return match[1].matched ? address : "0000:" + address;
}

std::vector<PciDrive> list_pci_drives(const SystemTree& tree) {
  std::vector<PciDrive> drives;
  for (const std::string& address : tree.names_in(devices_folder)) {
    if (is_nvme(tree, address)) drives.push_back(read_drive(tree, address));
  }
  return drives;
}

PciDrive find_pci_drive(const SystemTree& tree, const std::string& address) {
  const std::string full = full_pci_address(address);
  if (full.empty()) {
    throw std::runtime_error(fmt::format("{} is not a PCI address like 0000:01:00.0", address));
  }
  if (!tree.exists(pci_device_folder(full))) throw std::runtime_error(full + ": there is no such PCI device");
  if (!is_nvme(tree, full)) throw std::runtime_error(full + ": this PCI device is not an NVMe drive");
  return read_drive(tree, full);
}

std::string find_iommu_obstacle(const PciDrive& drive) {
  if (!drive.iommu_group) {
    return "there is no IOMMU for it: turn on VT-d or AMD-Vi in the firmware, and start the kernel with intel_iommu=on "
           "if the processor is Intel's";
  }
  for (const GroupMember& member : drive.group_members) {
    const bool is_harmless =
        member.is_bridge || member.driver.empty() || member.driver == vfio_driver || member.driver == "pci-stub";
    if (is_harmless) continue;
    return fmt::format("the IOMMU cannot tell it from {}, which the driver {} has: both are in group {}",
                       member.address, member.driver, *drive.iommu_group);
  }
  return "";
}

}  // namespace gpu4fs::nvme
