#include "pool/block_devices.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "pool/mount_table.hpp"

namespace gpu4fs::pool {
namespace {

namespace filesystem = std::filesystem;

filesystem::path folder_of(u64 device_number) {
  return fmt::format("/sys/dev/block/{}:{}", major(device_number), minor(device_number));
}

// The disk of a partition; the device itself if it is none.
u64 whole_disk(u64 device_number) {
  std::error_code none;
  const filesystem::path folder = folder_of(device_number);
  if (!filesystem::exists(folder / "partition", none)) return device_number;
  return device_number_in(folder / "../dev");
}

// Whether the use of one excludes that of the other.
bool overlap(u64 a, u64 b) {
  return a != 0 && b != 0 && (a == b || whole_disk(a) == b || whole_disk(b) == a);
}

// Whether the mount of gpu4fs has a member that is a partition of the device, or its disk. A mount of the device itself
// does not count: it may still be in the table after its server has ended.
bool has_overlapping_member(const MountEntry& mount, u64 device_number) {
  std::istringstream members(mount.source);
  for (std::string path; std::getline(members, path, ':');) {
    const u64 number = path.starts_with('/') ? block_device_number(path) : 0;
    if (number != device_number && overlap(number, device_number)) return true;
  }
  return false;
}

// File systems on several devices have numbers of their own and name one of the devices.
bool is_mount_of(const MountEntry& mount, u64 device_number) {
  if (mount.type == mount_type) return has_overlapping_member(mount, device_number);
  if (major(mount.device_number) != 0) return overlap(mount.device_number, device_number);
  return mount.source.starts_with("/dev/") && overlap(block_device_number(mount.source), device_number);
}

std::string find_mount(u64 device_number) {
  for (const MountEntry& mount : read_mount_table()) {
    if (is_mount_of(mount, device_number)) return mount.directory;
  }
  return "";
}

bool is_swap_space(u64 device_number) {
  std::ifstream file("/proc/swaps");
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::string path;
    std::istringstream(line) >> path;
    if (overlap(block_device_number(path), device_number)) return true;
  }
  return false;
}

bool is_empty_folder(const filesystem::path& folder) {
  std::error_code none;
  return filesystem::directory_iterator(folder, none) == filesystem::directory_iterator();
}

// Partitions have no such file; their disk has.
bool is_removable(const filesystem::path& folder) {
  std::error_code none;
  const filesystem::path disk = filesystem::exists(folder / "partition", none) ? folder / ".." : folder;
  return first_line(disk / "removable") == "1" || first_line(disk / "hidden") == "1";
}

}  // namespace

std::string first_line(const filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

u64 device_number_in(const filesystem::path& path) {
  unsigned major = 0;
  unsigned minor = 0;
  return std::sscanf(first_line(path).c_str(), "%u:%u", &major, &minor) == 2 ? makedev(major, minor) : 0;
}

u64 block_device_number(const std::string& path) {
  struct stat state {};
  return ::stat(path.c_str(), &state) == 0 && S_ISBLK(state.st_mode) ? state.st_rdev : 0;
}

std::string find_block_device_user(u64 device_number) {
  const std::string directory = find_mount(device_number);
  if (!directory.empty()) return "mounted on " + directory;
  if (is_swap_space(device_number)) return "swap space";
  std::error_code none;
  for (const auto& holder : filesystem::directory_iterator(folder_of(device_number) / "holders", none)) {
    return "a part of " + holder.path().filename().string();
  }
  return "";
}

std::vector<std::string> list_block_devices() {
  return list_block_devices("/sys", "/dev");
}

std::vector<std::string> list_block_devices(const std::string& system_folder, const std::string& node_folder) {
  std::vector<std::string> names;
  std::error_code error;
  const filesystem::path all = filesystem::path(system_folder) / "class/block";
  for (filesystem::directory_iterator entry(all, error), end; !error && entry != end; entry.increment(error)) {
    const filesystem::path& folder = entry->path();
    const std::string size = first_line(folder / "size");
    if (size.empty() || size == "0" || is_removable(folder) || !is_empty_folder(folder / "holders")) continue;
    names.push_back(folder.filename().string());
  }
  std::sort(names.begin(), names.end());
  std::vector<std::string> paths;
  for (const std::string& name : names) {
    if (paths.size() == searched_devices_max) break;
    std::string path = node_folder + "/" + name;
    // sysfs writes the slashes of a name like this.
    std::replace(path.begin() + static_cast<std::ptrdiff_t>(node_folder.size()), path.end(), '!', '/');
    const u64 number = block_device_number(path);
    if (number != 0 && number == device_number_in(all / name / "dev")) paths.push_back(std::move(path));
  }
  return paths;
}

}  // namespace gpu4fs::pool
