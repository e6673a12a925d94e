// btrfs as the peer of pools with redundancy, mounted as by a user. Private to the tools; needs root and btrfs-progs.
#pragma once

#include <fmt/format.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/mounts.hpp"

namespace gpu4fs::bench {

// btrfs over loop devices over files.
class BtrfsMount final : public Mount {
 public:
  BtrfsMount(const std::string& data_folder, std::string folder, u32 device_count, u64 device_bytes,
             const std::string& profile)
      : Mount(std::move(folder)) {
    if (::geteuid() != 0) throw std::runtime_error("btrfs over loop devices needs root");
    std::filesystem::create_directories(data_folder);
    std::vector<std::string> words{"mkfs.btrfs", "-q", "-f", "-d", profile, "-m", profile};
    try {
      run_program({"mkfs.btrfs", "--version"}, true);
    } catch (const std::runtime_error&) {
      throw std::runtime_error("there is no mkfs.btrfs: install btrfs-progs");
    }
    try {
      for (u32 i = 0; i < device_count; ++i) {
        const std::string file = fmt::format("{}/device{}", data_folder, i);
        run_program({"truncate", "-s", std::to_string(device_bytes), file});
        std::string device = program_output({"losetup", "--find", "--show", file});
        device.erase(device.find_last_not_of('\n') + 1);
        devices_.push_back(device);
        words.push_back(device);
      }
      run_program(words, true);
    } catch (...) {
      detach();
      throw;
    }
  }
  ~BtrfsMount() override {
    if (is_up_) ::umount2(folder_.c_str(), MNT_DETACH);
    detach();
  }
  void up() override {
    std::string data;
    for (const std::string& device : devices_) data += fmt::format("{}device={}", data.empty() ? "" : ",", device);
    if (::mount(devices_[0].c_str(), folder_.c_str(), "btrfs", 0, data.c_str()) != 0) fail_by_errno("mounting btrfs");
    is_up_ = true;
  }
  void down() override {
    if (::umount(folder_.c_str()) != 0) fail_by_errno("unmounting btrfs");
    is_up_ = false;
  }

 private:
  void detach() {
    for (const std::string& device : devices_) {
      try {
        run_program({"losetup", "--detach", device}, true);
      } catch (const std::runtime_error&) {  // the kernel detaches it when it is not in use
      }
    }
    devices_.clear();
  }

  std::vector<std::string> devices_;
  bool is_up_ = false;
};

}  // namespace gpu4fs::bench
