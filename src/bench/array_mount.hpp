// ext4 on an array of the kernel's md, as the peer of pools with redundancy. Private to the tools; needs root, mdadm
// and e2fsprogs.
#pragma once

#include <fmt/format.h>
#include <sys/mount.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/mounts.hpp"

namespace gpu4fs::bench {

// It discards nothing, like BtrfsMount. One at a time on a machine.
class ArrayMount final : public Mount {
 public:
  // Why there can be none, "" if nothing speaks against it. Loads the module of md.
  static std::string problem() {
    if (!has_program("mdadm")) return "there is no mdadm: install mdadm";
    if (!has_program("mkfs.ext4")) return "there is no mkfs.ext4: install e2fsprogs";
    if (!has_md()) (void)can_run({"modprobe", "md-mod"});
    return has_md() ? "" : "the kernel has no md";
  }

  // Over devices of the caller, whose content it replaces. `profile`: raid1 or raid5.
  ArrayMount(std::vector<std::string> devices, std::string folder, const std::string& profile)
      : Mount(std::move(folder)), devices_(std::move(devices)) {
    if (!problem().empty()) throw std::runtime_error(problem());
    // The devices count as synchronous: nothing but the file system's own bytes is read and written.
    std::vector<std::string> words{"mdadm",          "--create",      array,
                                   "--run",          "--quiet",       "--assume-clean",
                                   "--metadata=1.2", "--bitmap=none", "--level=" + profile.substr(4)};
    words.push_back(fmt::format("--raid-devices={}", devices_.size()));
    words.insert(words.end(), devices_.begin(), devices_.end());
    run_program(words);
    try {
      // Nothing is left to write in the background.
      const char* const features = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
      run_program({"mkfs.ext4", "-q", "-F", "-E", features, array}, true);
    } catch (const std::runtime_error&) {
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

  static bool has_md() { return std::filesystem::exists("/proc/mdstat"); }

  // What remains of it ends with the loop devices.
  void stop() {
    std::vector<std::string> words{"mdadm", "--quiet", "--zero-superblock"};
    words.insert(words.end(), devices_.begin(), devices_.end());
    (void)(can_run({"mdadm", "--quiet", "--stop", array}) && can_run(words));
  }

  std::vector<std::string> devices_;
  bool is_up_ = false;
};

}  // namespace gpu4fs::bench
