#include "nvme/vfio/vfio_drive.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/vfio.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "nvme/pci/open_files.hpp"
#include "nvme/pci/pci_drives.hpp"

namespace gpu4fs::nvme {
namespace {

constexpr const char* container_path = "/dev/vfio/vfio";

[[noreturn]] void fail_opening(Status status, const std::string& text) {
  throw DriveOpenError(status, text);
}

Status status_of_error() {
  return errno == EACCES || errno == EPERM ? Status::access : Status::io_error;
}

std::string error_text() {
  return std::strerror(errno);
}

PciDrive find_drive(const std::string& address) {
  try {
    return find_pci_drive(SystemTree(), address);
  } catch (const std::runtime_error& error) {
    fail_opening(Status::no_device, error.what());
  }
}

int open_container(const std::string& address, u64 memory_bytes) {
  const PciDrive drive = find_drive(address);
  if (drive.driver != vfio_driver) {
    fail_opening(Status::invalid_argument,
                 fmt::format("{}: it is not given to gpu4fs: 'gpu4fs nvme take {}'", drive.address, drive.address));
  }
  const std::string obstacle = find_iommu_obstacle(drive);
  if (!obstacle.empty()) fail_opening(Status::busy, fmt::format("{}: {}", address, obstacle));
  try {
    check_locked_memory(read_locked_memory(), memory_bytes);
  } catch (const std::runtime_error& error) {
    fail_opening(Status::no_memory, fmt::format("{}: {}", address, error.what()));
  }
  const int container = ::open(container_path, O_RDWR | O_CLOEXEC);
  if (container >= 0) return container;
  const Status status = status_of_error();
  fail_opening(status, fmt::format("{}: {}: {}", address, container_path, error_text()));
}

std::string user_of(const std::string& path) {
  struct stat state {};
  if (::stat(path.c_str(), &state) != 0) return "";
  const std::string process = find_process_with_device(state.st_rdev, false);
  return process.empty() ? "" : ": " + process;
}

// Whether this process has the file open.
bool has_open(const std::string& path) {
  struct stat wanted {};
  if (::stat(path.c_str(), &wanted) != 0) return false;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    struct stat state {};
    if (::stat(entry.path().c_str(), &state) != 0) continue;
    if (S_ISCHR(state.st_mode) && state.st_rdev == wanted.st_rdev) return true;
  }
  return false;
}

[[noreturn]] void refuse_group(const std::string& address, const std::string& path) {
  const int error = errno;
  if (error != EBUSY) {
    const Status status = status_of_error();
    fail_opening(status, fmt::format("{}: {}: {}{}", address, path, std::strerror(error),
                                     status == Status::access ? ": root may, or the owner of this file" : ""));
  }
  if (has_open(path)) {
    fail_opening(Status::busy,
                 fmt::format("{}: another drive of its IOMMU group is in use here; one of them can be", address));
  }
  const std::string user = user_of(path);
  throw DriveOpenError(Status::already_mounted, fmt::format("{}: {} is in use{}", address, path, user), user.empty());
}

int open_group(const std::string& address, int container) {
  const u32 number = find_drive(address).iommu_group.value();
  const std::string path = fmt::format("/dev/vfio/{}", number);
  const int group = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (group < 0) refuse_group(address, path);
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
  fail_opening(Status::busy, fmt::format("{}: {}", address, problem));
}

int open_device(const std::string& address, int group) {
  const int device = ::ioctl(group, VFIO_GROUP_GET_DEVICE_FD, address.c_str());
  if (device < 0)
    fail_opening(Status::io_error, fmt::format("{}: VFIO_GROUP_GET_DEVICE_FD: {}", address, error_text()));
  return device;
}

// The kernel writes to `event` when it wants to take the device away. Without it the kernel waits, so a failure is no
// reason to refuse the drive.
void ask_for_removals(int device, int event) {
  alignas(vfio_irq_set) u8 order[sizeof(vfio_irq_set) + sizeof(i32)];
  vfio_irq_set set{};
  set.argsz = sizeof(order);
  set.flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
  set.index = VFIO_PCI_REQ_IRQ_INDEX;
  set.count = 1;
  std::memcpy(order, &set, sizeof(set));
  const i32 number = event;
  std::memcpy(order + offsetof(vfio_irq_set, data), &number, sizeof(number));
  (void)::ioctl(device, VFIO_DEVICE_SET_IRQS, order);
}

}  // namespace

VfioFile::~VfioFile() {
  close();
}

void VfioFile::close() {
  if (number_ >= 0) ::close(number_);
  number_ = -1;
}

VfioDrive::VfioDrive(const std::string& address, u64 memory_bytes)
    : container_(open_container(address, memory_bytes)),
      group_(open_group(address, container_.number())),
      removal_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      device_(open_device(address, group_.number())) {
  try {
    memory_ = std::make_unique<VfioMemory>(container_.number(), memory_bytes);
    registers_ = std::make_unique<VfioRegisters>(device_.number());
  } catch (const std::runtime_error& error) {
    fail_opening(Status::io_error, fmt::format("{}: {}", address, error.what()));
  }
  if (removal_.number() >= 0) ask_for_removals(device_.number(), removal_.number());
}

std::vector<TranslatedRange> VfioDrive::free_bus_ranges() {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (container_.number() < 0) return {};
  std::vector<TranslatedRange> ranges;
  for (const TranslatedRange& range : read_bus_ranges(container_.number())) {
    const u64 first = std::max(range.first, memory_->bus_end());
    if (first <= range.last) ranges.push_back({first, range.last});
  }
  return ranges;
}

void VfioDrive::map(void* pages, u64 bytes, u64 bus_address) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (container_.number() < 0) throw std::runtime_error("VFIO: the drive was given up");
  check_locked_memory(read_locked_memory(), bytes);
  map_for_container(container_.number(), pages, bytes, bus_address);
}

void VfioDrive::unmap(u64 bus_address, u64 bytes) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (container_.number() >= 0) unmap_for_container(container_.number(), bus_address, bytes);
}

void VfioDrive::release() {
  registers_->release();
  const std::lock_guard<std::mutex> guard(mutex_);
  memory_->forget_container();
  device_.close();
  group_.close();
  container_.close();
}

}  // namespace gpu4fs::nvme
