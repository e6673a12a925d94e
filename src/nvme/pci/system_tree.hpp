// The files in which the kernel shows its PCI devices and takes orders for them (sysfs). Host only.
#pragma once

#include <string>
#include <vector>

namespace gpu4fs::nvme {

// Paths begin with /sys; tests put another folder before them.
class SystemTree {
 public:
  explicit SystemTree(std::string root = "") : root_(std::move(root)) {}
  virtual ~SystemTree() = default;

  // The first line of a file, "" if it cannot be read.
  std::string first_line(const std::string& path) const;
  // The last part of what a symbolic link names, "" if there is no such link.
  std::string link_name(const std::string& path) const;
  // Names in a folder, sorted; none if it cannot be read.
  std::vector<std::string> names_in(const std::string& folder) const;
  bool exists(const std::string& path) const;

  // Writes the text in one call. Returns when the kernel has done what it asks for. Throws std::runtime_error.
  virtual void write(const std::string& path, const std::string& text);

 protected:
  const std::string root_;
};

}  // namespace gpu4fs::nvme
