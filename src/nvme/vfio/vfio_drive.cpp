#include "nvme/vfio/vfio_drive.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/vfio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "nvme/pci/open_files.hpp"
#include "nvme/pci/pci_drives.hpp"

namespace gpu4fs::nvme {
namespace {

constexpr const char* container_path = "/dev/vfio/vfio";

[[noreturn]] void fail_opening(const std::string& text) {
  throw std::runtime_error(text);
}

std::string error_text() {
  return std::strerror(errno);
}

int open_container(const std::string& address, u64 memory_bytes) {
  // Before anything is done.
  check_locked_memory(read_locked_memory(), memory_bytes);
  const PciDrive drive = find_pci_drive(SystemTree(), address);
  if (drive.driver != vfio_driver) {
    fail_opening(fmt::format("{}: it is not given to gpu4fs: 'gpu4fs nvme take {}'", address, address));
  }
  const std::string obstacle = find_iommu_obstacle(drive);
  if (!obstacle.empty()) fail_opening(fmt::format("{}: {}", address, obstacle));
  const int container = ::open(container_path, O_RDWR | O_CLOEXEC);
  if (container < 0) fail_opening(fmt::format("{}: {}", container_path, error_text()));
  return container;
}

std::string user_of(const std::string& path) {
  struct stat state {};
  if (::stat(path.c_str(), &state) != 0) return "";
  const std::string process = find_process_with_device(state.st_rdev, false);
  return process.empty() ? "" : ": " + process;
}

int open_group(const std::string& address, int container) {
  const u32 number = find_pci_drive(SystemTree(), address).iommu_group.value();
  const std::string path = fmt::format("/dev/vfio/{}", number);
  const int group = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (group < 0 && errno == EBUSY) fail_opening(fmt::format("{}: {} is in use{}", address, path, user_of(path)));
  if (group < 0) fail_opening(fmt::format("{}: {}: {}", address, path, error_text()));
  vfio_group_status status{};
  status.argsz = sizeof(status);
  std::string problem;
  if (::ioctl(group, VFIO_GROUP_GET_STATUS, &status) != 0) {
    problem = "VFIO_GROUP_GET_STATUS: " + error_text();
  } else if ((status.flags & VFIO_GROUP_FLAGS_VIABLE) == 0) {
    problem = fmt::format("a driver of the kernel has another device of its IOMMU group {}", number);
  } else if (::ioctl(group, VFIO_GROUP_SET_CONTAINER, &container) != 0) {
    problem = "VFIO_GROUP_SET_CONTAINER: " + error_text();
  } else if (::ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU) != 0) {
    problem = "VFIO_SET_IOMMU: " + error_text();
  }
  if (problem.empty()) return group;
  ::close(group);
  fail_opening(fmt::format("{}: {}", address, problem));
}

int open_device(const std::string& address, int group) {
  const int device = ::ioctl(group, VFIO_GROUP_GET_DEVICE_FD, address.c_str());
  if (device < 0) fail_opening(fmt::format("{}: VFIO_GROUP_GET_DEVICE_FD: {}", address, error_text()));
  return device;
}

}  // namespace

VfioFile::~VfioFile() {
  if (number_ >= 0) ::close(number_);
}

VfioDrive::VfioDrive(const std::string& address, u64 memory_bytes)
    : container_(open_container(address, memory_bytes)),
      group_(open_group(address, container_.number())),
      device_(open_device(address, group_.number())),
      memory_(container_.number(), memory_bytes),
      registers_(device_.number()) {}

}  // namespace gpu4fs::nvme
