// Drives of a system whose sysfs is a folder: what is read of them, and how they pass between drivers.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "nvme/pci/handover.hpp"

namespace gpu4fs::nvme::test {
namespace {

namespace filesystem = std::filesystem;

constexpr const char* drive_address = "0000:01:00.0";
constexpr const char* neighbour_address = "0000:01:00.1";

class FakeSystem : public SystemTree {
 public:
  explicit FakeSystem(const std::string& root) : SystemTree(root) {
    for (const char* driver : {kernel_driver, vfio_driver, "ahci"}) {
      filesystem::create_directories(root_ + "/sys/bus/pci/drivers/" + driver);
    }
  }

  void put(const std::string& path, const std::string& text) {
    filesystem::create_directories(filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }

  void add_device(const std::string& address, const std::string& device_class) {
    put(folder(address) + "/class", device_class);
    put(folder(address) + "/vendor", "0x1b36");
    put(folder(address) + "/device", "0x0010");
    put(folder(address) + "/driver_override", "(null)");
  }
  void set_group(const std::string& address, const std::string& group) {
    const std::string place = root_ + "/sys/kernel/iommu_groups/" + group;
    filesystem::create_directories(place + "/devices/" + address);
    filesystem::create_directory_symlink(place, root_ + folder(address) + "/iommu_group");
  }

  // The driver's part: it binds or unbinds the device.
  void bind(const std::string& address, const std::string& driver) {
    filesystem::create_directory_symlink(root_ + "/sys/bus/pci/drivers/" + driver, root_ + folder(address) + "/driver");
    if (driver != kernel_driver) return;
    put(folder(address) + "/nvme/nvme3/state", "live");
    put(folder(address) + "/nvme/nvme3/model", "A model  ");
    put(folder(address) + "/nvme/nvme3/serial", "123 ");
    for (const char* name : {"nvme3n1", "nvme3c3n2", "hwmon1"}) {
      filesystem::create_directories(root_ + folder(address) + "/nvme/nvme3/" + name);
    }
    put("/sys/class/block/nvme3n1/size", "2048");
    put("/sys/class/block/nvme3n1/nvme3n1p1/partition", "1");
    put("/sys/class/block/nvme3n2/size", "16");
  }
  void unbind(const std::string& address) {
    filesystem::remove(root_ + folder(address) + "/driver");
    filesystem::remove_all(root_ + folder(address) + "/nvme");
  }

  void write(const std::string& path, const std::string& text) override {
    ++write_count_;
    if (failing_writes_.contains(write_count_)) throw std::runtime_error(path + ": injected");
    const std::string name = filesystem::path(path).filename().string();
    if (name == "driver_override") {
      put(filesystem::path(path), text == "\n" ? "(null)" : text.substr(0, text.size() - 1));
    } else if (name == "unbind") {
      unbind(text);
    } else if (name == "bind") {
      bind(text, filesystem::path(path).parent_path().filename().string());
    } else if (name == "drivers_probe") {
      const std::string wanted = first_line(folder(text) + "/driver_override");
      const std::string driver = wanted == "(null)" ? kernel_driver : wanted;
      if (!exists(folder(text) + "/driver") && !unwilling_.contains(driver)) bind(text, driver);
    } else {
      throw std::runtime_error("no such file: " + path);
    }
  }

  std::string driver(const std::string& address) const { return link_name(folder(address) + "/driver"); }
  std::string driver_override(const std::string& address) const {
    return first_line(folder(address) + "/driver_override");
  }
  void remove_vfio() { filesystem::remove_all(root_ + "/sys/bus/pci/drivers/vfio-pci"); }
  u32 write_count() const { return write_count_; }
  // Also forgets what fails.
  void reset_write_count() {
    write_count_ = 0;
    failing_writes_.clear();
  }
  void fail_write(u32 number) { failing_writes_.insert(number); }
  void make_unwilling(const std::string& name) { unwilling_.insert(name); }

 private:
  static std::string folder(const std::string& address) { return pci_device_folder(address); }

  u32 write_count_ = 0;
  std::set<u32> failing_writes_;
  std::set<std::string> unwilling_;
};

class FakeUsers : public DriveUsers {
 public:
  std::string find_user(const NamespaceDevice& device) override { return users[device.name]; }
  std::string find_group_user(u32 group) override { return group_users[group]; }
  std::shared_ptr<void> claim(const NamespaceDevice& device) override {
    if (unclaimable == device.name) return nullptr;
    claimed.insert(device.name);
    return std::make_shared<int>(0);
  }

  std::map<std::string, std::string> users;
  std::map<u32, std::string> group_users;
  std::string unclaimable;
  std::set<std::string> claimed;
};

class HandoverOfDrives : public ::testing::Test {
 protected:
  HandoverOfDrives()
      : root_(::testing::TempDir() + "handover." + std::to_string(::getpid())),
        system_((filesystem::remove_all(root_), root_)),
        handover_(system_, users_) {
    system_.add_device("0000:00:1f.0", "0x060100");
    system_.add_device(drive_address, "0x010802");
    system_.set_group(drive_address, "7");
    system_.bind(drive_address, kernel_driver);
    handover_.set_live_timeout_ns(0);
  }
  ~HandoverOfDrives() override { filesystem::remove_all(root_); }

  void expect_refusal(const std::function<void()>& action, const std::string& text) {
    try {
      action();
      ADD_FAILURE() << "not refused; expected: " << text;
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  }
  // Before the kernel was asked for anything.
  void expect_take_refused(const std::string& text) {
    const std::string driver = system_.driver(drive_address);
    system_.reset_write_count();
    expect_refusal([&] { handover_.take(drive_address); }, text);
    EXPECT_EQ(system_.write_count(), 0u);
    EXPECT_EQ(system_.driver(drive_address), driver);
  }

  std::string root_;
  FakeSystem system_;
  FakeUsers users_;
  Handover handover_;
};

TEST_F(HandoverOfDrives, AreListed) {
  const std::vector<PciDrive> drives = list_pci_drives(system_);
  ASSERT_EQ(drives.size(), 1u);
  const PciDrive& drive = drives[0];
  EXPECT_EQ(drive.address, drive_address);
  EXPECT_EQ(drive.vendor_id, 0x1b36u);
  EXPECT_EQ(drive.device_id, 0x10u);
  EXPECT_EQ(drive.driver, "nvme");
  EXPECT_EQ(drive.driver_override, "");
  EXPECT_EQ(drive.iommu_group, 7u);
  EXPECT_EQ(drive.controller, "nvme3");
  EXPECT_EQ(drive.controller_state, "live");
  EXPECT_EQ(drive.model, "A model");
  EXPECT_EQ(drive.serial, "123");
  ASSERT_EQ(drive.namespaces.size(), 2u);
  // A path to a namespace of a subsystem is its namespace.
  EXPECT_EQ(drive.namespaces[0].name, "nvme3n2");
  EXPECT_EQ(drive.namespaces[1].name, "nvme3n1");
  EXPECT_EQ(drive.namespaces[1].bytes, u64{1} << 20);
  EXPECT_EQ(drive.namespaces[1].partitions, std::vector<std::string>{"nvme3n1p1"});
}

TEST_F(HandoverOfDrives, AddressesAreCompleted) {
  EXPECT_EQ(full_pci_address("01:00.0"), "0000:01:00.0");
  EXPECT_EQ(full_pci_address("10000:0A:1F.7"), "10000:0a:1f.7");
  for (const char* text : {"", "nvme0", "/dev/nvme0n1", "1:0.0", "0000:01:00.8", "0000:01:00.0/..", "../01:00.0"}) {
    EXPECT_EQ(full_pci_address(text), "") << text;
  }
}

TEST_F(HandoverOfDrives, PassToVfioAndBack) {
  EXPECT_EQ(handover_.take("01:00.0"), HandoverResult::done);
  EXPECT_EQ(system_.driver(drive_address), "vfio-pci");
  EXPECT_EQ(users_.claimed, (std::set<std::string>{"nvme3n1", "nvme3n2"}));
  system_.reset_write_count();
  EXPECT_EQ(handover_.take(drive_address), HandoverResult::was_so);
  EXPECT_EQ(system_.write_count(), 0u);

  EXPECT_EQ(handover_.give_back(drive_address), HandoverResult::done);
  EXPECT_EQ(system_.driver(drive_address), "nvme");
  EXPECT_EQ(system_.driver_override(drive_address), "(null)");
  system_.reset_write_count();
  EXPECT_EQ(handover_.give_back(drive_address), HandoverResult::was_so);
  EXPECT_EQ(system_.write_count(), 0u);
}

TEST_F(HandoverOfDrives, OthersAreLeftAlone) {
  expect_refusal([&] { handover_.take("0000:00:1f.0"); }, "not an NVMe drive");
  expect_refusal([&] { handover_.take("0000:02:00.0"); }, "no such PCI device");
  expect_refusal([&] { handover_.give_back("nvme0"); }, "not a PCI address");
  system_.unbind(drive_address);
  system_.bind(drive_address, "ahci");
  expect_take_refused("the driver ahci has it");
  expect_refusal([&] { handover_.give_back(drive_address); }, "the driver ahci has it");
}

TEST_F(HandoverOfDrives, UsesAreRefused) {
  users_.users["nvme3n1"] = "/dev/nvme3n1p1 is mounted on /srv";
  expect_take_refused("in use: /dev/nvme3n1p1 is mounted on /srv");
  users_.users.clear();
  users_.unclaimable = "nvme3n2";
  expect_take_refused("somebody has claimed /dev/nvme3n2");
  users_.unclaimable.clear();
  EXPECT_EQ(handover_.take(drive_address), HandoverResult::done);

  users_.group_users[7] = "process 5 (qemu)";
  expect_refusal([&] { handover_.give_back(drive_address); }, "process 5 (qemu) uses its IOMMU group 7");
  EXPECT_EQ(system_.driver(drive_address), "vfio-pci");
  users_.group_users.clear();
  EXPECT_EQ(handover_.give_back(drive_address), HandoverResult::done);
}

TEST_F(HandoverOfDrives, NeedAnIommu) {
  filesystem::remove(root_ + pci_device_folder(drive_address) + "/iommu_group");
  expect_take_refused("there is no IOMMU");
}

TEST_F(HandoverOfDrives, NeedVfio) {
  system_.remove_vfio();
  expect_take_refused("modprobe vfio-pci");
}

TEST_F(HandoverOfDrives, NeedTheirWholeGroup) {
  system_.add_device(neighbour_address, "0x010601");
  system_.set_group(neighbour_address, "7");
  system_.bind(neighbour_address, "ahci");
  expect_take_refused("cannot tell it from 0000:01:00.1, which the driver ahci has");
  // A bridge, or a device without a driver, is no danger.
  system_.add_device("0000:00:01.0", "0x060400");
  system_.set_group("0000:00:01.0", "7");
  system_.bind("0000:00:01.0", "ahci");
  system_.unbind(neighbour_address);
  EXPECT_EQ(handover_.take(drive_address), HandoverResult::done);
}

// Each order to the kernel fails in turn.
TEST_F(HandoverOfDrives, AreAsBeforeIfAnOrderFails) {
  for (const u32 failing : {1u, 2u, 3u}) {
    system_.reset_write_count();
    system_.fail_write(failing);
    expect_refusal([&] { handover_.take(drive_address); }, "it is as before");
    EXPECT_EQ(system_.driver(drive_address), "nvme") << failing;
    EXPECT_EQ(system_.driver_override(drive_address), "(null)") << failing;
  }
  system_.reset_write_count();
  EXPECT_EQ(handover_.take(drive_address), HandoverResult::done);
  for (const u32 failing : {1u, 2u, 3u}) {
    system_.reset_write_count();
    system_.fail_write(failing);
    expect_refusal([&] { handover_.give_back(drive_address); }, "it is as before");
    EXPECT_EQ(system_.driver(drive_address), "vfio-pci") << failing;
    EXPECT_EQ(system_.driver_override(drive_address), "vfio-pci") << failing;
  }
}

TEST_F(HandoverOfDrives, StayIfTheNextDriverDoesNotTakeThem) {
  system_.make_unwilling(vfio_driver);
  expect_refusal([&] { handover_.take(drive_address); }, "vfio-pci does not take it");
  EXPECT_EQ(system_.driver(drive_address), "nvme");
}

TEST_F(HandoverOfDrives, StayTakenIfTheKernelDoesNotTakeThem) {
  handover_.take(drive_address);
  system_.make_unwilling(kernel_driver);
  expect_refusal([&] { handover_.give_back(drive_address); }, "no driver of the kernel takes it");
  EXPECT_EQ(system_.driver(drive_address), "vfio-pci");
}

// What is left by a process that ended half way.
TEST_F(HandoverOfDrives, WithoutADriverGoEitherWay) {
  system_.unbind(drive_address);
  EXPECT_EQ(handover_.take(drive_address), HandoverResult::done);
  EXPECT_EQ(system_.driver(drive_address), "vfio-pci");
  system_.unbind(drive_address);
  EXPECT_EQ(handover_.give_back(drive_address), HandoverResult::done);
  EXPECT_EQ(system_.driver(drive_address), "nvme");

  system_.put(pci_device_folder(drive_address) + "/driver_override", "vfio-pci");
  EXPECT_EQ(handover_.give_back(drive_address), HandoverResult::was_so);
  EXPECT_EQ(system_.driver_override(drive_address), "(null)");
}

TEST_F(HandoverOfDrives, AFailedUndoIsSaid) {
  system_.fail_write(3);
  system_.fail_write(5);
  expect_refusal([&] { handover_.take(drive_address); }, "it could not be given back to nvme");
}

}  // namespace
}  // namespace gpu4fs::nvme::test
