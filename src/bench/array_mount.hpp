// ext4 on an array of the kernel's md, as the peer of pools with redundancy. Private to the tools; needs root and mdadm.
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

class ArrayMount final : public Mount {
 public:
  // Why there can be none, "" if nothing speaks against it.
  static std::string problem() {
    if (!std::filesystem::exists("/proc/mdstat")) return "the kernel has no md";
    if (!has_program("mdadm")) return "there is no mdadm: install mdadm";
    return has_program("mkfs.ext4") ? "" : "there is no mkfs.ext4: install e2fsprogs";
  }

  // Over devices of the caller, whose content it replaces. `profile`: raid1 or raid5.
  ArrayMount(std::vector<std::string> devices, std::string folder, const std::string& profile)
      : Mount(std::move(folder)), devices_(std::move(devices)) {
    // The devices count as synchronous: nothing but the file system's own bytes is read.
    std::vector<std::string> words{"mdadm",      "--create", array,
                                   "--run",      "--quiet",  "--assume-clean",
                                   "--metadata", "1.2",      "--level=" + profile.substr(4)};
    words.push_back(fmt::format("--raid-devices={}", devices_.size()));
    words.insert(words.end(), devices_.begin(), devices_.end());
    run_program(words, true);
    try {
      // Nothing is left to write in the background.
      run_program({"mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", array}, true);
    } catch (...) {
      stop();
      throw;
    }
  }
  ~ArrayMount() override {
    if (is_up_) ::umount2(folder_.c_str(), MNT_DETACH);
    stop();
  }
  void up() override {
    if (::mount(array, folder_.c_str(), "ext4", 0, nullptr) != 0) fail_by_errno("mounting ext4 on md");
    is_up_ = true;
  }
  void down() override {
    if (::umount(folder_.c_str()) != 0) fail_by_errno("unmounting ext4 on md");
    is_up_ = false;
  }

 private:
  static constexpr const char* array = "/dev/md/gpu4fs-bench";

  void stop() {
    try {
      run_program({"mdadm", "--quiet", "--stop", array}, true);
      std::vector<std::string> words{"mdadm", "--quiet", "--zero-superblock"};
      words.insert(words.end(), devices_.begin(), devices_.end());
      run_program(words, true);
    } catch (const std::runtime_error&) {  // the loop devices go away
    }
  }

  std::vector<std::string> devices_;
  bool is_up_ = false;
};

}  // namespace gpu4fs::bench
