#include "tools/drive_users.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "nvme/pci/open_files.hpp"
#include "pool/block_devices.hpp"

namespace gpu4fs::tools {
namespace {

// The kernel opens what is behind a loop device without a claim.
std::string find_loop_device(u64 device_number) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/sys/class/block", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string path = pool::first_line(entry->path() / "loop/backing_file");
    if (!path.empty() && pool::block_device_number(path) == device_number) return entry->path().filename().string();
  }
  return "";
}

std::string find_user_of(const std::string& path) {
  const u64 number = pool::block_device_number(path);
  if (number == 0) return "";
  const std::string user = pool::find_block_device_user(number);
  if (!user.empty()) return fmt::format("{} is {}", path, user);
  const std::string loop = find_loop_device(number);
  if (!loop.empty()) return fmt::format("{} is behind {}", path, loop);
  const std::string process = nvme::find_process_with_device(number, true);
  return process.empty() ? "" : fmt::format("{} has {} open", process, path);
}

}  // namespace

// Partitions first: their use is also that of the whole, and the more exact answer.
std::string SystemDriveUsers::find_user(const nvme::NamespaceDevice& device) {
  for (const std::string& partition : device.partitions) {
    const std::string user = find_user_of("/dev/" + partition);
    if (!user.empty()) return user;
  }
  return find_user_of("/dev/" + device.name);
}

std::string SystemDriveUsers::find_group_user(u32 group) {
  const std::string path = fmt::format("/dev/vfio/{}", group);
  struct stat state {};
  if (::stat(path.c_str(), &state) != 0) return "";
  const std::string process = nvme::find_process_with_device(state.st_rdev, false);
  if (!process.empty()) return process;
  // A process in another PID namespace.
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file >= 0) ::close(file);
  return file < 0 && errno == EBUSY ? "a process" : "";
}

std::shared_ptr<void> SystemDriveUsers::claim(const nvme::NamespaceDevice& device) {
  const std::string path = "/dev/" + device.name;
  const int file = ::open(path.c_str(), O_RDONLY | O_EXCL | O_CLOEXEC);
  if (file < 0 && errno == EBUSY) return nullptr;
  if (file < 0) throw std::runtime_error(fmt::format("{}: {}", path, std::strerror(errno)));
  return {new int(file), [](int* number) {
            ::close(*number);
            delete number;
          }};
}

}  // namespace gpu4fs::tools
