#include "nvme/pci/open_files.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace gpu4fs::nvme {
namespace {

namespace filesystem = std::filesystem;

bool has_device_open(const filesystem::path& process, u64 device_number, mode_t kind) {
  std::error_code error;
  for (filesystem::directory_iterator file(process / "fd", error), end; !error && file != end; file.increment(error)) {
    struct stat state {};
    if (::stat(file->path().c_str(), &state) != 0) continue;
    if ((state.st_mode & S_IFMT) == kind && state.st_rdev == device_number) return true;
  }
  return false;
}

}  // namespace

std::string find_process_with_device(u64 device_number, bool is_block_device) {
  const std::string own = std::to_string(::getpid());
  std::error_code error;
  for (filesystem::directory_iterator process("/proc", error), end; !error && process != end;
       process.increment(error)) {
    const std::string name = process->path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos || name == own) continue;
    if (!has_device_open(process->path(), device_number, is_block_device ? S_IFBLK : S_IFCHR)) continue;
    std::ifstream file(process->path() / "comm");
    std::string program;
    std::getline(file, program);
    return fmt::format("process {} ({})", name, program);
  }
  return "";
}

}  // namespace gpu4fs::nvme
