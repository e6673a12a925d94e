// A loop device over a file, for peers and pools of benchmarks. Private to the tools; needs root and losetup.
#pragma once

#include <unistd.h>

#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/mounts.hpp"

namespace gpu4fs::bench {

class LoopDevice {
 public:
  // `is_direct`: it accesses the file past the page cache of the system. std::runtime_error, also if it cannot.
  explicit LoopDevice(const std::string& file, bool is_direct = false) {
    if (::geteuid() != 0) throw std::runtime_error("a loop device needs root");
    std::vector<std::string> words{"losetup", "--find", "--show"};
    if (is_direct) words.emplace_back("--direct-io=on");
    words.push_back(file);
    path_ = program_output(words);
    path_.erase(path_.find_last_not_of('\n') + 1);
    if (!is_direct || accesses_directly()) return;
    detach();
    throw std::runtime_error(file + ": a loop device cannot access it directly");
  }
  ~LoopDevice() { detach(); }
  LoopDevice(const LoopDevice&) = delete;
  LoopDevice& operator=(const LoopDevice&) = delete;

  const std::string& path() const { return path_; }

 private:
  // The kernel takes the file even if its file system allows no direct access.
  bool accesses_directly() const {
    std::ifstream state("/sys/block" + path_.substr(path_.rfind('/')) + "/loop/dio");
    return state.get() == '1';
  }
  // The kernel does it later if the device is in use.
  void detach() { (void)can_run({"losetup", "--detach", path_}); }

  std::string path_;
};

using LoopDevices = std::vector<std::unique_ptr<LoopDevice>>;

inline std::vector<std::string> paths_of(const LoopDevices& devices) {
  std::vector<std::string> paths;
  for (const auto& device : devices) paths.push_back(device->path());
  return paths;
}

}  // namespace gpu4fs::bench
