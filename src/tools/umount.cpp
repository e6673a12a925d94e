// gpu4fs umount: ends a mount and waits until the pool's last state is on its devices.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "tools/verb.hpp"

namespace gpu4fs::tools {
namespace {

// Exit statuses of umount(8).
constexpr int status_usage = 1;
constexpr int status_failure = 32;

struct CommandLine {
  std::string place;
  bool lazy = false;
  bool verbose = false;
  unsigned timeout_s = 300;
};
CommandLine line;

void add_options(CLI::App& app) {
  line = {};
  app.add_option("place", line.place, "The directory, or the pool's device list as mounted")
      ->required();
  app.add_flag("-l,--lazy", line.lazy, "Take the directory out of the tree although it is in use; nothing is waited for");
  app.add_flag("-v,--verbose", line.verbose, "Say what is done");
  app.add_option("--timeout", line.timeout_s,
                 "Seconds to wait for the server's last checkpoint (300); 0: do not wait");
}

// /proc writes blanks and backslashes of paths as \ooo.
std::string unescape(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      result += static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8));
      i += 3;
    } else {
      result += text[i];
    }
  }
  return result;
}

// The directory of the newest gpu4fs mount that `place` names, empty if there is none.
std::string find_mountpoint(const std::string& place) {
  char* resolved = ::realpath(place.c_str(), nullptr);
  const std::string path = resolved != nullptr ? resolved : place;
  std::free(resolved);
  std::ifstream mounts("/proc/self/mounts");
  std::string text;
  std::string found;
  while (std::getline(mounts, text)) {
    std::istringstream fields(text);
    std::string source;
    std::string directory;
    std::string type;
    fields >> source >> directory >> type;
    if (type != "fuse.gpu4fs") continue;
    source = unescape(source);
    directory = unescape(directory);
    const bool is_member = (":" + source + ":").find(":" + path + ":") != std::string::npos;
    if (directory == path || source == place || is_member) found = directory;
  }
  return found;
}

pid_t server_of(const std::string& mountpoint) {
  char value[32];
  const ssize_t length =
      ::getxattr(mountpoint.c_str(), "user.gpu4fs.server.pid", value, sizeof(value));
  if (length <= 0) return 0;
  int pid = 0;
  const auto [stop, error] = std::from_chars(value, value + length, pid);
  return error == std::errc{} && stop == value + length ? pid : 0;
}

// False with a message when the kernel refuses.
bool unmount(const std::string& mountpoint) {
  if (::geteuid() == 0) {
    if (::umount2(mountpoint.c_str(), line.lazy ? MNT_DETACH : 0) == 0) return true;
    fmt::print(stderr, "gpu4fs umount: {}: {}\n", mountpoint, std::strerror(errno));
    return false;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    if (line.lazy) {
      ::execlp("fusermount3", "fusermount3", "-u", "-z", mountpoint.c_str(), nullptr);
    } else {
      ::execlp("fusermount3", "fusermount3", "-u", mountpoint.c_str(), nullptr);
    }
    ::_exit(127);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) < 0) return false;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int run() {
  const std::string mountpoint = find_mountpoint(line.place);
  if (mountpoint.empty()) {
    fmt::print(stderr, "gpu4fs umount: {}: no gpu4fs pool is mounted there\n", line.place);
    return status_failure;
  }
  const bool waits = line.timeout_s != 0 && !line.lazy;
  const pid_t server = waits ? server_of(mountpoint) : 0;
  // The descriptor names this very process even if its number is used again.
  const int handle =
      server > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, server, 0)) : -1;
  if (!unmount(mountpoint)) return status_failure;
  if (handle < 0) return 0;
  if (line.verbose) fmt::print("waiting for the server, process {}\n", server);
  pollfd ended{handle, POLLIN, 0};
  const int count = ::poll(&ended, 1, static_cast<int>(line.timeout_s) * 1000);
  ::close(handle);
  if (count > 0) return 0;
  fmt::print(stderr, "gpu4fs umount: {} is unmounted, but its server, process {}, has not ended\n",
             mountpoint, server);
  return status_failure;
}

}  // namespace

const Verb umount_verb = {"umount",     "end a mount and wait for its last checkpoint", "umount.gpu4fs",
                          add_options, run, status_usage, status_failure};

}  // namespace gpu4fs::tools
