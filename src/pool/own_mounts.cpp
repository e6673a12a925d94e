#include "pool/own_mounts.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "pool/block_devices.hpp"
#include "pool/mount_table.hpp"

namespace gpu4fs::pool {
namespace {

constexpr std::size_t devices_max = 1024;  // the limit of a search

std::mutex mutex;
std::map<u64, std::string> directories;  // by device number, under the mutex

std::string own_directory(u64 device_number) {
  const std::lock_guard guard(mutex);
  const auto found = directories.find(device_number);
  return found == directories.end() ? "" : found->second;
}

bool has_own_mounts() {
  const std::lock_guard guard(mutex);
  return !directories.empty();
}

// The mount that the file lies in, or nullptr if the system does not say.
const MountEntry* mount_of(const std::vector<MountEntry>& mounts, const std::string& path) {
  struct statx state {};
  if (::statx(AT_FDCWD, path.c_str(), 0, STATX_MNT_ID, &state) != 0 || (state.stx_mask & STATX_MNT_ID) == 0)
    return nullptr;
  const auto found =
      std::find_if(mounts.begin(), mounts.end(), [&](const auto& mount) { return mount.id == state.stx_mnt_id; });
  return found == mounts.end() ? nullptr : &*found;
}

// Descends from a file or block device to its underlying devices until it finds an own mount.
class Search {
 public:
  explicit Search(std::filesystem::path system) : system_(std::move(system)) {}

  void add_file(std::string path) {
    struct stat state {};
    if (::stat(path.c_str(), &state) != 0) {
      // A file that will be created.
      path = std::filesystem::path(path).parent_path().string();
      if (path.empty()) path = ".";
      if (::stat(path.c_str(), &state) != 0) return;
    }
    add(S_ISBLK(state.st_mode) ? state.st_rdev : state.st_dev);
    if (S_ISBLK(state.st_mode) || major(state.st_dev) != 0) return;
    // The number is not that of a device. For a subvolume of btrfs it is not even that of the mount.
    const std::vector<MountEntry> mounts = read_mount_table();
    const MountEntry* const mount = mount_of(mounts, path);
    if (mount == nullptr) return;
    add(mount->device_number);
    if (mount->source.starts_with('/') && ::stat(mount->source.c_str(), &state) == 0 && S_ISBLK(state.st_mode)) {
      add(state.st_rdev);
    }
  }
  void add(u64 device) {
    if (device != 0 && devices_.size() < devices_max && seen_.insert(device).second) devices_.push_back(device);
  }
  std::string run() {
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      const std::string directory = own_directory(devices_[i]);
      if (!directory.empty()) return directory;
      look_below(devices_[i]);
    }
    return "";
  }

 private:
  void look_below(u64 device) {
    const std::filesystem::path folder = system_ / "dev/block" / fmt::format("{}:{}", major(device), minor(device));
    const std::string file = first_line(folder / "loop/backing_file");
    if (!file.empty()) add_file(file);
    std::error_code none;
    if (std::filesystem::exists(folder / "partition", none)) add(device_number_in(folder / "../dev"));
    add_all(folder / "slaves");
    // A file system on several devices names one of them.
    for (const auto& pool : std::filesystem::directory_iterator(system_ / "fs/btrfs", none)) {
      for (const auto& member : std::filesystem::directory_iterator(pool.path() / "devices", none)) {
        if (device_number_in(member.path() / "dev") == device) add_all(pool.path() / "devices");
      }
    }
  }
  void add_all(const std::filesystem::path& folder) {
    std::error_code none;
    for (const auto& device : std::filesystem::directory_iterator(folder, none))
      add(device_number_in(device.path() / "dev"));
  }

  const std::filesystem::path system_;
  std::set<u64> seen_;
  std::vector<u64> devices_;  // in the order of the search
};

}  // namespace

OwnMount::OwnMount(std::string directory) {
  for (const MountEntry& entry : read_mount_table()) {
    if (entry.directory == directory) device_number_ = entry.device_number;
  }
  if (device_number_ == 0) return;
  const std::lock_guard guard(mutex);
  directories[device_number_] = std::move(directory);
}

OwnMount::~OwnMount() {
  const std::lock_guard guard(mutex);
  directories.erase(device_number_);
}

std::string find_own_mount(const std::string& path) {
  if (!has_own_mounts()) return "";
  Search search("/sys");
  search.add_file(path);
  return search.run();
}

std::string find_own_mount_below(u64 block_device, const std::string& system_folder) {
  Search search(system_folder);
  search.add(block_device);
  return search.run();
}

}  // namespace gpu4fs::pool
