// Shared parts of benchmarks of mounts: programs, folders, and a pool as a mounted directory. Private to the tools.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/types.hpp"

namespace gpu4fs::bench {

// Throws std::runtime_error with errno's text.
[[noreturn]] void fail_by_errno(const std::string& what);

// `quiet`: its output is discarded. std::runtime_error if it cannot be started.
pid_t start_program(const std::vector<std::string>& words, bool quiet = false);
// Starts it and waits for it. std::runtime_error if it fails.
void run_program(const std::vector<std::string>& words, bool quiet = false);
// Starts it, waits for it, discards its output. False if it cannot be started or fails.
bool can_run(const std::vector<std::string>& words);
// Whether $PATH has a program that can tell its version by -V.
bool has_program(const std::string& name);
// Returns its standard output.
std::string program_output(const std::vector<std::string>& words);

class OpenFile {
 public:
  // New files get the permissions 0644.
  OpenFile(const std::string& path, int flags) : descriptor_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (descriptor_ < 0) fail_by_errno(path);
  }
  ~OpenFile() { ::close(descriptor_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& parent) {
    path_ = parent + "/gpu4fs-bench-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) fail_by_errno(parent);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A served directory that programs mount and unmount, as for users.
class Mount {
 public:
  virtual ~Mount() = default;
  virtual void up() = 0;
  virtual void down() = 0;
  const std::string& folder() const { return folder_; }

 protected:
  explicit Mount(std::string folder) : folder_(std::move(folder)) { std::filesystem::create_directories(folder_); }

  dev_t device() const {
    struct stat state {};
    return ::stat(folder_.c_str(), &state) == 0 ? state.st_dev : 0;
  }

  std::string folder_;
};

class PoolMount final : public Mount {
 public:
  // Four devices in `data_folder` with `pool_bytes` in total; `options` are for the mount.
  PoolMount(const std::string& data_folder, std::string folder, u64 pool_bytes, std::string options = "engine=cpu",
            const std::string& profile = "single");
  // Over devices of the caller, whose content it replaces.
  PoolMount(const std::vector<std::string>& devices, std::string folder, std::string options,
            const std::string& profile);
  ~PoolMount() override;
  void up() override;
  void down() override;

 private:
  std::string program_;
  std::string options_;
  std::string devices_;
  bool is_up_ = false;
};

}  // namespace gpu4fs::bench
