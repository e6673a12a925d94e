// A loop device over a file, for peers and pools of benchmarks. Private to the tools; needs root.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace gpu4fs::bench {

// The kernel detaches it when nobody has it open any more, so it also ends with a process that is killed.
class LoopDevice {
 public:
  // `is_direct`: it accesses the file past the page cache of the system. std::runtime_error, also if it cannot.
  explicit LoopDevice(const std::string& file, bool is_direct = false);
  ~LoopDevice();
  LoopDevice(const LoopDevice&) = delete;
  LoopDevice& operator=(const LoopDevice&) = delete;

  const std::string& path() const { return path_; }

 private:
  // False: somebody else was faster.
  bool take_free(int control, int file, bool is_direct);

  std::string path_;
  int descriptor_ = -1;
};

// std::runtime_error: why this process cannot make loop devices.
void check_loop_devices();

using LoopDevices = std::vector<std::unique_ptr<LoopDevice>>;

inline std::vector<std::string> paths_of(const LoopDevices& devices) {
  std::vector<std::string> paths;
  for (const auto& device : devices) paths.push_back(device->path());
  return paths;
}

}  // namespace gpu4fs::bench
