#include "tools/remount.hpp"

#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "pool/mount_table.hpp"
#include "tools/mounted_pool.hpp"

namespace gpu4fs::tools {
namespace {

constexpr int status_failure = 32;

struct Flag {
  const char* set;
  const char* clear;
  unsigned long bit;
};
constexpr Flag flags[] = {{"nosuid", "suid", MS_NOSUID}, {"nodev", "dev", MS_NODEV}, {"noexec", "exec", MS_NOEXEC}};

int fail(const std::string& directory, const std::string& what) {
  fmt::print(stderr, "mount.gpu4fs: {}: {}\n", directory, what);
  return status_failure;
}

bool is_gpu4fs(const std::string& directory) {
  std::string type;
  for (const pool::MountEntry& entry : pool::read_mount_table()) {
    if (entry.directory == directory) type = entry.type;
  }
  return type == pool::mount_type;
}

}  // namespace

unsigned long flags_of_mount(const std::string& directory) {
  struct statvfs state {};
  if (::statvfs(directory.c_str(), &state) != 0) return 0;
  // Those of statvfs(3) that have the same numbers in mount(2).
  constexpr unsigned long alike =
      ST_RDONLY | ST_NOSUID | ST_NODEV | ST_NOEXEC | ST_SYNCHRONOUS | ST_NOATIME | ST_NODIRATIME;
  return (state.f_flag & alike) | ((state.f_flag & ST_RELATIME) != 0 ? MS_RELATIME : 0);
}

int remount(const daemon::MountOptions& options, const std::string& directory) {
  if (!is_gpu4fs(directory)) return fail(directory, "no gpu4fs pool is mounted there");
  unsigned long wanted = flags_of_mount(directory);
  if (options.access.has_value()) {
    wanted = *options.access == daemon::MountAccess::read_only ? wanted | MS_RDONLY : wanted & ~MS_RDONLY;
  }
  if ((wanted & MS_RDONLY) == 0 && ask_server(directory, R"({"request": "status"})")["read_only"].boolean) {
    return fail(directory, "the pool was opened read-only: unmount it and mount it again");
  }
  for (const std::string& word : options.fuse.kernel_flags) {
    for (const Flag& flag : flags) {
      if (word == flag.set) wanted |= flag.bit;
      if (word == flag.clear) wanted &= ~flag.bit;
    }
  }
  if (::mount(nullptr, directory.c_str(), nullptr, MS_REMOUNT | wanted, nullptr) == 0) return 0;
  return fail(directory, std::strerror(errno));
}

}  // namespace gpu4fs::tools
