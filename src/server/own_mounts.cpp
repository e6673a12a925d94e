#include "server/own_mounts.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <utility>

#include "server/mount_table.hpp"

namespace gpu4fs::server {
namespace {

constexpr int loop_depth_max = 16;

std::mutex mutex;
std::map<u64, std::string> directories;  // by device number, under the mutex

std::string own_directory(u64 device_number) {
  const std::lock_guard guard(mutex);
  const auto found = directories.find(device_number);
  return found == directories.end() ? "" : found->second;
}

// What a loop device, or the one that a partition lies on, is made of; "": it is none.
std::string backing_file(u64 block_device) {
  const std::string device = fmt::format("/sys/dev/block/{}:{}", major(block_device), minor(block_device));
  for (const char* place : {"/loop/backing_file", "/../loop/backing_file"}) {
    std::ifstream file(device + place);
    std::string path;
    if (std::getline(file, path) && !path.empty()) return path;
  }
  return "";
}

bool ask(const std::string& path, struct stat* state) {
  if (::stat(path.c_str(), state) == 0) return true;
  // One that is to be made.
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return ::stat(folder.empty() ? "." : folder.c_str(), state) == 0;
}

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
  struct stat state {};
  bool is_found = ask(path, &state);
  for (int depth = 0; is_found && depth < loop_depth_max; ++depth) {
    const u64 number = S_ISBLK(state.st_mode) ? state.st_rdev : state.st_dev;
    const std::string directory = own_directory(number);
    if (!directory.empty()) return directory;
    const std::string below = backing_file(number);
    is_found = !below.empty() && ask(below, &state);
  }
  return "";
}

}  // namespace gpu4fs::server
