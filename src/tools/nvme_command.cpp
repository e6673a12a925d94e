// gpu4fs nvme: NVMe drives that processes reach by VFIO, without the kernel's driver.
//
//   gpu4fs nvme list
//   gpu4fs nvme take ADDRESS...
//   gpu4fs nvme give-back ADDRESS...
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/host/json.hpp"
#include "base/host/size_text.hpp"
#include "tools/drive_users.hpp"
#include "tools/verbs.hpp"

namespace gpu4fs::tools {
namespace {

constexpr int status_failure = 8;
constexpr int status_usage = 16;

struct Arguments {
  std::vector<std::string> addresses;
  bool json = false;
  std::optional<cli::CommandLine> list;
  std::optional<cli::CommandLine> take;
};
Arguments line;

void add_options(cli::CommandLine app) {
  line = {};
  app.require_subcommand();
  cli::CommandLine list = app.subcommand("list", "Show the NVMe drives of this machine and who has them");
  list.flag("--json", line.json, "Print JSON");
  line.list = list;
  const std::string text = "PCI addresses of drives, as 0000:01:00.0";
  cli::CommandLine take = app.subcommand("take", "Take drives from the kernel's driver, so that VFIO reaches them");
  take.option("addresses", line.addresses, text).required();
  line.take = take;
  app.subcommand("give-back", "Give drives back to the kernel's driver")
      .option("addresses", line.addresses, text)
      .required();
}

// A drive as it is shown.
struct ShownDrive {
  nvme::PciDrive drive;
  std::vector<std::string> users;  // of each namespace; "": none
  std::string obstacle;            // why it cannot be taken; "": it can
};

ShownDrive look_at(const nvme::PciDrive& drive, SystemDriveUsers& users) {
  ShownDrive shown{drive, {}, nvme::find_iommu_obstacle(drive)};
  for (const nvme::NamespaceDevice& device : drive.namespaces) {
    shown.users.push_back(users.find_user(device));
    if (shown.obstacle.empty() && !shown.users.back().empty()) shown.obstacle = "it is in use";
  }
  const bool has_foreign_driver =
      !drive.driver.empty() && drive.driver != nvme::kernel_driver && drive.driver != nvme::vfio_driver;
  if (has_foreign_driver) shown.obstacle = fmt::format("the driver {} has it", drive.driver);
  return shown;
}

const char* holder_text(const nvme::PciDrive& drive) {
  if (drive.driver == nvme::vfio_driver) return "gpu4fs";
  if (drive.driver == nvme::kernel_driver) return "kernel";
  return drive.driver.empty() ? "nobody" : "other";
}

void add_json(JsonWriter& json, const ShownDrive& shown) {
  const nvme::PciDrive& drive = shown.drive;
  json.begin_object();
  json.add("address", drive.address);
  json.add("vendor", fmt::format("{:04x}", drive.vendor_id));
  json.add("device", fmt::format("{:04x}", drive.device_id));
  json.add("holder", holder_text(drive));
  json.add("driver", drive.driver);
  json.add("model", drive.model);
  json.add("serial", drive.serial);
  if (drive.iommu_group) json.add("iommu_group", *drive.iommu_group);
  json.begin_array("iommu_group_members");
  for (const nvme::GroupMember& member : drive.group_members) {
    json.begin_object();
    json.add("address", member.address);
    json.add("driver", member.driver);
    json.end();
  }
  json.end();
  json.begin_array("namespaces");
  for (std::size_t i = 0; i < drive.namespaces.size(); ++i) {
    json.begin_object();
    json.add("name", drive.namespaces[i].name);
    json.add("bytes", drive.namespaces[i].bytes);
    json.add("user", shown.users[i]);
    json.end();
  }
  json.end();
  json.add("obstacle", shown.obstacle);
  json.end();
}

void print_drive(const ShownDrive& shown) {
  const nvme::PciDrive& drive = shown.drive;
  const std::string name = drive.model.empty() ? fmt::format("{:04x}:{:04x}", drive.vendor_id, drive.device_id)
                                               : fmt::format("{}, serial {}", drive.model, drive.serial);
  fmt::print("{}  {:<6}  driver {}, IOMMU group {}, {}\n", drive.address, holder_text(drive),
             drive.driver.empty() ? "none" : drive.driver,
             drive.iommu_group ? std::to_string(*drive.iommu_group) : "none", name);
  for (std::size_t i = 0; i < drive.namespaces.size(); ++i) {
    fmt::print("  {:<12}  {:>10}  {}\n", drive.namespaces[i].name, size_text(drive.namespaces[i].bytes),
               shown.users[i].empty() ? "not in use" : shown.users[i]);
  }
  if (!shown.obstacle.empty()) fmt::print("  cannot be taken: {}\n", shown.obstacle);
}

int run_list(nvme::SystemTree& tree, SystemDriveUsers& users) {
  JsonWriter json;
  json.begin_object();
  json.begin_array("drives");
  const std::vector<nvme::PciDrive> drives = nvme::list_pci_drives(tree);
  for (const nvme::PciDrive& drive : drives) {
    const ShownDrive shown = look_at(drive, users);
    if (line.json) {
      add_json(json, shown);
    } else {
      print_drive(shown);
    }
  }
  json.end();
  json.end();
  if (line.json) fmt::print("{}", json.text());
  if (!line.json && drives.empty()) fmt::print("there are no NVMe drives on the PCI bus\n");
  return 0;
}

// One drive. False: it failed, and the reason was printed.
bool hand_over(nvme::Handover& handover, const std::string& address) {
  const bool takes = line.take->is_selected();
  try {
    const nvme::HandoverResult result = takes ? handover.take(address) : handover.give_back(address);
    const bool was_so = result == nvme::HandoverResult::was_so;
    const char* const done = takes ? "taken: VFIO reaches it" : "given back to the kernel";
    const char* const before = takes ? "was taken before" : "the kernel has it already";
    fmt::print("{}: {}\n", address, was_so ? before : done);
    return true;
  } catch (const std::runtime_error& error) {
    fmt::print(stderr, "gpu4fs nvme: {}\n", error.what());
    return false;
  }
}

int run() {
  nvme::SystemTree tree;
  SystemDriveUsers users;
  if (line.list->is_selected()) return run_list(tree, users);
  if (::geteuid() != 0) throw std::runtime_error("only root can change the driver of a drive");
  nvme::Handover handover(tree, users);
  bool is_done = true;
  for (const std::string& address : line.addresses) is_done = hand_over(handover, address) && is_done;
  return is_done ? 0 : status_failure;
}

}  // namespace

const cli::Verb nvme_verb = {
    "nvme",        "list NVMe drives, take them for VFIO, and give them back", nullptr, add_options, run, status_usage,
    status_failure};

}  // namespace gpu4fs::tools
