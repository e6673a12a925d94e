// A small file system on a loop device for tests, which another file can fill. It ends with the object.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "support/loop_device.hpp"

namespace gpu4fs::test {

class SmallDisk {
 public:
  explicit SmallDisk(u64 size_bytes) : device_(size_bytes), problem_(device_.problem()) {
    if (problem_.empty() && ::mkdtemp(folder_.data()) == nullptr) problem_ = "no folder";
    if (!problem_.empty()) return;
    if (!make_file_system()) {
      problem_ = "mkfs.ext4 does not work";
    } else if (::mount(device_.path().c_str(), folder_.c_str(), "ext4", 0, nullptr) != 0) {
      problem_ = std::string("mount: ") + std::strerror(errno);
    } else {
      is_mounted_ = true;
      keep_nothing_back();
    }
  }
  ~SmallDisk() {
    if (is_mounted_ && ::umount(folder_.c_str()) != 0) ADD_FAILURE() << "umount: " << std::strerror(errno);
    ::rmdir(folder_.c_str());
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  // Why there is none, "" if there is one.
  const std::string& problem() const { return problem_; }
  std::string operator/(const std::string& name) const { return folder_ + "/" + name; }

  u64 room_bytes() const {
    struct statvfs state {};
    return ::statvfs(folder_.c_str(), &state) == 0 ? u64{state.f_bfree} * state.f_frsize : 0;
  }
  // Another file takes everything.
  void fill() const {
    const int file = ::open(filler().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_GE(file, 0);
    struct stat state {};
    ASSERT_EQ(::fstat(file, &state), 0);
    u64 at = static_cast<u64>(state.st_size);
    for (u64 piece = u64{1} << 20; piece >= page_size;) {
      if (::fallocate(file, 0, static_cast<off_t>(at), static_cast<off_t>(piece)) == 0) {
        at += piece;
      } else {
        piece /= 2;
      }
    }
    ::close(file);
    ASSERT_EQ(room_bytes(), 0u);
  }
  void make_room() const { ASSERT_EQ(::unlink(filler().c_str()), 0); }

 private:
  std::string filler() const { return folder_ + "/filler"; }

  // ext4 keeps some blocks for itself, which statfs calls free.
  void keep_nothing_back() {
    const std::string name = device_.path().substr(device_.path().rfind('/') + 1);
    const int file = ::open(("/sys/fs/ext4/" + name + "/reserved_clusters").c_str(), O_WRONLY | O_CLOEXEC);
    if (file < 0 || ::write(file, "0", 1) != 1) problem_ = "ext4 keeps blocks back";
    if (file >= 0) ::close(file);
  }

  // All blocks are for everybody.
  bool make_file_system() {
    std::string name = "mkfs.ext4";
    std::string arguments[] = {"-q", "-m", "0", "-O", "^has_journal", device_.path()};
    char* list[] = {name.data(),         arguments[0].data(), arguments[1].data(), arguments[2].data(),
                    arguments[3].data(), arguments[4].data(), arguments[5].data(), nullptr};
    pid_t process = 0;
    if (::posix_spawnp(&process, list[0], nullptr, nullptr, list, environ) != 0) return false;
    int status = 0;
    return ::waitpid(process, &status, 0) == process && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  LoopDevice device_;
  std::string problem_;
  std::string folder_ = "/tmp/gpu4fs_disk_XXXXXX";
  bool is_mounted_ = false;
};

}  // namespace gpu4fs::test
