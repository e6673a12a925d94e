// gpu4fs umount: ends a mount and waits until the pool's last state is on its devices.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <thread>

#include "pool/mount_table.hpp"
#include "tools/mounted_pool.hpp"
#include "tools/remount.hpp"
#include "tools/verbs.hpp"

namespace gpu4fs::tools {
namespace {

// Exit statuses of umount(8).
constexpr int status_usage = 1;
constexpr int status_failure = 32;

constexpr auto busy_wait = std::chrono::seconds(2);

struct Arguments {
  std::string place;
  bool lazy = false;
  bool verbose = false;
  bool force = false;
  bool read_only = false;
  bool no_mtab = false;
  std::string type;
  std::string name_space;
  unsigned timeout_s = 300;
};
Arguments line;

void add_options(cli::CommandLine app) {
  line = {};
  app.option("place", line.place, "The directory, or the pool's device list as mounted").required();
  app.flag("-l,--lazy", line.lazy, "Take the directory out of the tree although it is in use; nothing is waited for");
  app.flag("-f,--force", line.force, "End what waits for the server, with errors; nothing is waited for");
  app.flag("-r,--read-only", line.read_only, "If it is in use, make it read-only instead");
  app.flag("-n,--no-mtab", line.no_mtab, "For umount(8); there is no mtab to write");
  app.option("-t,--types", line.type, "For umount(8); gpu4fs");
  app.option("-N,--namespace", line.name_space, "For umount(8); not supported");
  app.flag("-v,--verbose", line.verbose, "Say what is done");
  app.option("--timeout", line.timeout_s, "Seconds to wait for the server's last checkpoint (300); 0: do not wait");
}

pid_t server_of(const std::string& mountpoint) {
  const std::string value = server_attribute(mountpoint, "pid");
  const char* end = value.data() + value.size();
  int pid = 0;
  const auto [stop, error] = std::from_chars(value.data(), end, pid);
  return error == std::errc{} && stop == end ? pid : 0;
}

// 0 or errno. An access to the directory, for example by df(1), keeps the mount busy until its request is answered, so
// an unused directory can be busy for a moment.
int unmount_when_unused(const std::string& mountpoint) {
  const int flags = (line.lazy ? MNT_DETACH : 0) | (line.force ? MNT_FORCE : 0);
  const auto limit = std::chrono::steady_clock::now() + busy_wait;
  for (bool is_first = true;; is_first = false) {
    if (::umount2(mountpoint.c_str(), flags) == 0) return 0;
    const int error = errno;
    if (error != EBUSY || std::chrono::steady_clock::now() > limit) return error;
    if (is_first && line.verbose) {
      fmt::print("{}: in use; trying again for {} s\n", mountpoint, busy_wait.count());
      std::fflush(stdout);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

bool unmount_as_root(const std::string& mountpoint) {
  const int error = unmount_when_unused(mountpoint);
  if (error == 0) return true;
  fmt::print(stderr, "gpu4fs umount: {}: {}\n", mountpoint, std::strerror(error));
  if (error != EBUSY || !line.read_only) return false;
  const unsigned long read_only = MS_REMOUNT | MS_RDONLY | flags_of_mount(mountpoint);
  const bool is_done = ::mount(nullptr, mountpoint.c_str(), nullptr, read_only, nullptr) == 0;
  fmt::print(stderr, "gpu4fs umount: {}: {}\n", mountpoint, is_done ? "read-only now" : std::strerror(errno));
  return false;
}

// Prints a message and returns false if the kernel refuses.
bool unmount(const std::string& mountpoint) {
  if (::geteuid() == 0) return unmount_as_root(mountpoint);
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

// st_dev of the mount on the directory, 0: none.
u64 device_number_of(const std::string& mountpoint) {
  u64 number = 0;
  for (const pool::MountEntry& entry : pool::read_mount_table()) {
    if (entry.directory == mountpoint) number = entry.device_number;
  }
  return number;
}

// Under another directory or in another namespace: then the server continues.
bool is_still_mounted(u64 device_number) {
  const std::string place = fmt::format("/sys/class/bdi/{}:{}", major(device_number), minor(device_number));
  return device_number != 0 && ::access(place.c_str(), F_OK) == 0;
}

int run() {
  if (!line.name_space.empty()) {
    fmt::print(stderr, "gpu4fs umount: option '-N' is not supported\n");
    return status_usage;
  }
  const std::string mountpoint = find_mountpoint(line.place);
  if (mountpoint.empty()) {
    fmt::print(stderr, "gpu4fs umount: {}: no gpu4fs pool is mounted there\n", line.place);
    return status_failure;
  }
  const bool waits = line.timeout_s != 0 && !line.lazy && !line.force;
  const pid_t server = waits ? server_of(mountpoint) : 0;
  // The descriptor identifies this process even if its number is reused.
  const int handle = server > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, server, 0)) : -1;
  const u64 device_number = device_number_of(mountpoint);
  if (!unmount(mountpoint)) return status_failure;
  if (handle < 0) return 0;
  if (is_still_mounted(device_number)) {
    if (line.verbose) fmt::print("mounted elsewhere too: the server goes on\n");
    ::close(handle);
    return 0;
  }
  if (line.verbose) fmt::print("waiting for the server, process {}\n", server);
  pollfd ended{handle, POLLIN, 0};
  const int timeout_ms = static_cast<int>(std::min<u64>(u64{line.timeout_s} * 1000, std::numeric_limits<int>::max()));
  int count = 0;
  do {
    count = ::poll(&ended, 1, timeout_ms);
  } while (count < 0 && errno == EINTR);
  ::close(handle);
  if (count > 0) return 0;
  fmt::print(stderr, "gpu4fs umount: {} is unmounted, but its server, process {}, has not ended\n", mountpoint, server);
  return status_failure;
}

}  // namespace

const cli::Verb umount_verb = {
    "umount",      "end a mount and wait for its last checkpoint", "umount.gpu4fs", add_options, run, status_usage,
    status_failure};

}  // namespace gpu4fs::tools
