#include "daemon/mount_wait.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "pool/mount_table.hpp"
#include "pool/pool_device_file.hpp"
#include "pool/pool_error.hpp"
#include "pool/pool_superblock.hpp"

namespace gpu4fs::daemon {
namespace {

using pool::PoolError;

constexpr auto look_again = std::chrono::milliseconds(20);

// The UUID of the device's pool; "" if it belongs to none or cannot be read.
std::string pool_of(const std::string& device) {
  try {
    const pool::SuperblockProbe probe = pool::probe_superblocks(device);
    const format::Superblock* const superblock = probe.newest();
    if (superblock == nullptr) return "";
    return {reinterpret_cast<const char*>(superblock->pool_uuid), sizeof(superblock->pool_uuid)};
  } catch (const PoolError&) {
    return "";
  }
}

// Whether one of the mounts that are visible here is of the pool.
bool is_mounted(const std::vector<std::string>& devices) {
  const std::string pool = pool_of(devices.front());
  for (const pool::MountEntry& entry : pool::read_mount_table()) {
    if (entry.type != pool::mount_type || !pool::is_trusted(entry)) continue;
    if (std::any_of(devices.begin(), devices.end(), [&](const auto& device) { return names_device(entry, device); })) {
      return true;
    }
    const std::vector<std::string> members = pool::split_device_list(entry.source);
    if (!pool.empty() && !members.empty() && members[0].starts_with('/') && pool_of(members[0]) == pool) return true;
  }
  return false;
}

// False: a signal arrived.
bool pause(const sigset_t& signals) {
  const timespec time{0, std::chrono::nanoseconds(look_again).count()};
  return ::sigtimedwait(&signals, nullptr, &time) < 0;
}

}  // namespace

std::unique_ptr<server::PoolServer> open_when_free(session::ServerOptions options, Holder holder,
                                                   const sigset_t& signals) {
  options.lock_patience.holder_lets_go = [holder, devices = options.device_paths] {
    return holder == Holder::ends || !is_mounted(devices);
  };
  options.lock_patience.pause = [signals] { return pause(signals); };
  return std::make_unique<server::PoolServer>(std::move(options));
}

}  // namespace gpu4fs::daemon
