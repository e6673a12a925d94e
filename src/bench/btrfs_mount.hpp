// btrfs as the peer of pools with redundancy, mounted as by a user. Private to the tools; needs root and btrfs-progs.
#pragma once

#include <fmt/format.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/loop_device.hpp"
#include "bench/mounts.hpp"

namespace gpu4fs::bench {

// It discards nothing: a loop device would lose the blocks of its file, which all sides of a comparison need.
class BtrfsMount final : public Mount {
 public:
  // Why there can be none, "" if nothing speaks against it.
  static std::string problem() {
    return has_program("mkfs.btrfs") ? "" : "there is no mkfs.btrfs: install btrfs-progs";
  }

  // Over new loop devices over files.
  BtrfsMount(const std::string& data_folder, std::string folder, u32 device_count, u64 device_bytes,
             const std::string& profile)
      : Mount(std::move(folder)) {
    std::filesystem::create_directories(data_folder);
    for (u32 i = 0; i < device_count; ++i) {
      const std::string file = fmt::format("{}/device{}", data_folder, i);
      run_program({"truncate", "-s", std::to_string(device_bytes), file});
      loops_.push_back(std::make_unique<LoopDevice>(file));
    }
    devices_ = paths_of(loops_);
    make(profile);
  }
  // Over devices of the caller, whose content it replaces.
  BtrfsMount(std::vector<std::string> devices, std::string folder, const std::string& profile)
      : Mount(std::move(folder)), devices_(std::move(devices)) {
    make(profile);
  }
  ~BtrfsMount() override {
    if (is_up_) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  void up() override {
    std::string data = "nodiscard";
    for (const std::string& device : devices_) data += ",device=" + device;
    if (::mount(devices_[0].c_str(), folder_.c_str(), "btrfs", 0, data.c_str()) != 0) fail_by_errno("mounting btrfs");
    is_up_ = true;
  }
  void down() override {
    if (::umount(folder_.c_str()) != 0) fail_by_errno("unmounting btrfs");
    is_up_ = false;
  }

 private:
  void make(const std::string& profile) {
    if (!problem().empty()) throw std::runtime_error(problem());
    std::vector<std::string> words{"mkfs.btrfs", "-q", "-f", "--nodiscard", "-d", profile, "-m", profile};
    words.insert(words.end(), devices_.begin(), devices_.end());
    run_program(words, true);
  }

  LoopDevices loops_;
  std::vector<std::string> devices_;
  bool is_up_ = false;
};

}  // namespace gpu4fs::bench
