#include "nvme/pci/system_tree.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace gpu4fs::nvme {

namespace filesystem = std::filesystem;

std::string SystemTree::first_line(const std::string& path) const {
  std::ifstream file(root_ + path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string SystemTree::link_name(const std::string& path) const {
  std::error_code none;
  return filesystem::read_symlink(root_ + path, none).filename().string();
}

std::vector<std::string> SystemTree::names_in(const std::string& folder) const {
  std::vector<std::string> names;
  std::error_code error;
  for (filesystem::directory_iterator entry(root_ + folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool SystemTree::exists(const std::string& path) const {
  std::error_code none;
  return filesystem::exists(root_ + path, none);
}

void SystemTree::write(const std::string& path, const std::string& text) {
  const int file = ::open((root_ + path).c_str(), O_WRONLY | O_CLOEXEC);
  int error = file < 0 ? errno : 0;
  if (file >= 0) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written != static_cast<ssize_t>(text.size())) error = written < 0 ? errno : EIO;
    ::close(file);
  }
  if (error != 0) throw std::runtime_error(fmt::format("{}: {}", path, std::strerror(error)));
}

}  // namespace gpu4fs::nvme
