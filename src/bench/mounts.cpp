#include "bench/mounts.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>

extern char** environ;

namespace gpu4fs::bench {

namespace {

std::string main_program() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "gpu4fs").string();
}

}  // namespace

void fail_by_errno(const std::string& what) {
  throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

pid_t start_program(const std::vector<std::string>& words, bool quiet) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  if (quiet) {
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  }
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error(fmt::format("{}: {}", words[0], std::strerror(error)));
  return child;
}

void run_program(const std::vector<std::string>& words, bool quiet) {
  int status = 0;
  if (::waitpid(start_program(words, quiet), &status, 0) < 0 || status != 0) {
    throw std::runtime_error(fmt::format("{} {} failed", words[0], words.size() > 1 ? words[1] : ""));
  }
}

bool can_run(const std::vector<std::string>& words) {
  try {
    run_program(words, true);
  } catch (const std::runtime_error&) {
    return false;
  }
  return true;
}

bool has_program(const std::string& name) {
  return can_run({name, "-V"});
}

std::string program_output(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += fmt::format("{}'{}'", line.empty() ? "" : " ", word);
  std::FILE* const pipe = ::popen(line.c_str(), "re");
  if (pipe == nullptr) fail_by_errno(words[0]);
  std::string text;
  char buffer[4096];
  for (std::size_t count = 0; (count = std::fread(buffer, 1, sizeof(buffer), pipe)) != 0;) text.append(buffer, count);
  if (::pclose(pipe) != 0) throw std::runtime_error(words[0] + " failed");
  return text;
}

PoolMount::PoolMount(const std::string& data_folder, std::string folder, u64 pool_bytes, std::string options,
                     const std::string& profile)
    : Mount(std::move(folder)), program_(main_program()), options_(std::move(options)) {
  std::filesystem::create_directories(data_folder);
  for (int i = 0; i < 4; ++i) devices_ += fmt::format("{}{}/device{}", i == 0 ? "" : ":", data_folder, i);
  run_program({program_, "mkfs", "-q", "-d", profile, "--size", std::to_string(pool_bytes / 4), devices_});
}

PoolMount::PoolMount(const std::vector<std::string>& devices, std::string folder, std::string options,
                     const std::string& profile)
    : Mount(std::move(folder)),
      program_(main_program()),
      options_(std::move(options)),
      devices_(fmt::format("{}", fmt::join(devices, ":"))) {
  run_program({program_, "mkfs", "-q", "-f", "-d", profile, "-m", profile, devices_});
}

// Others may use the devices afterwards, so the server has to end first. A mount that is in use only leaves the tree.
PoolMount::~PoolMount() {
  if (!is_up_) return;
  try {
    run_program({program_, "umount", folder_}, true);
  } catch (const std::runtime_error&) {
    (void)::waitpid(start_program({"fusermount3", "-uz", folder_}), nullptr, 0);
  }
}

void PoolMount::up() {
  run_program({program_, "mount", "-o", options_, devices_, folder_});
  is_up_ = true;
}

void PoolMount::down() {
  run_program({program_, "umount", folder_});
  is_up_ = false;
}

}  // namespace gpu4fs::bench
