// gpu4fs umount: ends a mount and waits until the pool's last state is on its devices.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string>

#include "tools/mounted_pool.hpp"
#include "tools/verbs.hpp"

namespace gpu4fs::tools {
namespace {

// Exit statuses of umount(8).
constexpr int status_usage = 1;
constexpr int status_failure = 32;

struct Arguments {
  std::string place;
  bool lazy = false;
  bool verbose = false;
  unsigned timeout_s = 300;
};
Arguments line;

void add_options(cli::CommandLine app) {
  line = {};
  app.option("place", line.place, "The directory, or the pool's device list as mounted")
      .required();
  app.flag("-l,--lazy", line.lazy, "Take the directory out of the tree although it is in use; nothing is waited for");
  app.flag("-v,--verbose", line.verbose, "Say what is done");
  app.option("--timeout", line.timeout_s,
                 "Seconds to wait for the server's last checkpoint (300); 0: do not wait");
}

pid_t server_of(const std::string& mountpoint) {
  const std::string value = server_attribute(mountpoint, "pid");
  const char* end = value.data() + value.size();
  int pid = 0;
  const auto [stop, error] = std::from_chars(value.data(), end, pid);
  return error == std::errc{} && stop == end ? pid : 0;
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

const cli::Verb umount_verb = {"umount",     "end a mount and wait for its last checkpoint", "umount.gpu4fs",
                          add_options, run, status_usage, status_failure};

}  // namespace gpu4fs::tools
