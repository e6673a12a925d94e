#include "maintenance/spare_devices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <shared_mutex>
#include <utility>

#include "base/host/log.hpp"
#include "pool/pool_error.hpp"
#include "pool/pool_foreign.hpp"
#include "pool/pool_replace.hpp"

namespace gpu4fs::maintenance {
namespace {

constexpr auto busy_wait = std::chrono::milliseconds(100);

}  // namespace

const char* spare_state_name(SpareState state) {
  switch (state) {
    case SpareState::waiting:
      return "waiting";
    case SpareState::taken:
      return "taken";
    case SpareState::refused:
      return "refused";
  }
  return "unknown";
}

SpareDevices::SpareDevices(MountedPool& mounted, DeviceExchange& exchange, Rebuilder& rebuilder)
    : mounted_(mounted), exchange_(exchange), rebuilder_(rebuilder), thread_([this] { run(); }) {}

SpareDevices::~SpareDevices() {
  stop();
}

void SpareDevices::stop() {
  {
    const std::lock_guard guard(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

// The least size in bytes that a spare needs to replace any member.
u64 SpareDevices::bytes_least() const {
  const std::shared_lock lock(mounted_.tables);
  u64 least = ~u64{0};
  for (u32 i = 0; i < mounted_.pool.devices.size(); ++i) {
    if (mounted_.pool.devices[i].is_here()) least = std::min(least, pool::replacement_size_min(mounted_.pool, i));
  }
  return least;
}

bool SpareDevices::is_member(const pool::DeviceFile& file) const {
  const std::shared_lock lock(mounted_.tables);
  const std::vector<pool::OpenedDevice>& devices = mounted_.pool.devices;
  return std::any_of(devices.begin(), devices.end(), [&](const pool::OpenedDevice& device) {
    return device.file.fd() >= 0 && device.file.is_same_file(file);
  });
}

std::string SpareDevices::add(const std::string& path, bool force) {
  try {
    if (pool::parse_device(path).is_null()) return path + ": keeps nothing; it cannot take a device's place";
    const pool::DeviceFile unlocked = pool::DeviceFile::open_joining(path);
    if (is_member(unlocked)) return path + ": is a device of the pool";
    const u64 least = bytes_least();
    const std::lock_guard guard(mutex_);
    for (const Spare& spare : spares_) {
      if (spare.file.is_same_file(unlocked)) return path + ": is a spare already";
    }
    pool::DeviceFile file =
        pool::DeviceFile::open(path, pool::DeviceFile::Access::read_write, pool::DeviceFile::Locking::lock);
    const std::string content = pool::describe_content(file);
    if (!content.empty() && !force) return fmt::format("{}: holds {}; it is overwritten only by force", path, content);
    if (file.size_bytes() < least) {
      return fmt::format("{}: {} bytes are too small for any member; the least one needs {}", path, file.size_bytes(),
                         least);
    }
    const u64 size_bytes = file.size_bytes();
    spares_.push_back({path, std::move(file), size_bytes});
    // For a device that was lost while there was no spare.
    is_look_due_ = true;
    changed_.notify_all();
    return "";
  } catch (const pool::PoolError& error) {
    return error.what();
  }
}

std::string SpareDevices::remove(const std::string& path) {
  const std::string plain = pool::parse_device(path).path;
  const std::lock_guard guard(mutex_);
  const auto spare = std::find_if(spares_.begin(), spares_.end(),
                                  [&](const Spare& one) { return one.path == path || one.file.path() == plain; });
  if (spare == spares_.end()) return path + ": is no spare";
  if (spare->state == SpareState::taken) return path + ": is taking the place of a device";
  spares_.erase(spare);
  return "";
}

std::vector<SpareReport> SpareDevices::list() const {
  const std::lock_guard guard(mutex_);
  std::vector<SpareReport> reports;
  for (const Spare& spare : spares_) reports.push_back({spare.path, spare.size_bytes, spare.state});
  return reports;
}

void SpareDevices::device_lost() {
  const std::lock_guard guard(mutex_);
  is_look_due_ = true;
  changed_.notify_all();
}

void SpareDevices::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || is_look_due_; });
    if (ending_) return;
    is_look_due_ = false;
    try {
      replace_lost(lock);
    } catch (const std::exception& error) {
      if (!lock.owns_lock()) lock.lock();
      log(LogLevel::error, fmt::format("no spare takes the place of a lost device: {}", error.what()));
    }
  }
}

// Without the lock, because it asks the engine.
u64 SpareDevices::lost_devices(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  const u64 lost = mounted_.lost_devices();
  lock.lock();
  return lost;
}

// One after the other: a pool fills one device at a time. A user may replace a device as well, so each iteration asks
// anew which devices are lost.
void SpareDevices::replace_lost(std::unique_lock<std::mutex>& lock) {
  u64 without = 0;  // no spare is suitable for these
  while (!ending_ && !spares_.empty()) {
    lock.unlock();
    const bool is_busy = rebuilder_.is_busy();
    lock.lock();
    if (is_busy) {
      changed_.wait_for(lock, busy_wait, [this] { return ending_; });
      continue;
    }
    const u64 lost = lost_devices(lock) & ~without;
    if (lost == 0 || ending_) return;
    const u32 device = static_cast<u32>(std::countr_zero(lost));
    if (!find_replacement(lock, device)) without |= u64{1} << device;
  }
}

// The first suitable spare.
bool SpareDevices::find_replacement(std::unique_lock<std::mutex>& lock, u32 device) {
  for (Spare& spare : spares_) spare.state = SpareState::waiting;
  while (!ending_) {
    const auto spare =
        std::find_if(spares_.begin(), spares_.end(), [](const Spare& one) { return one.state == SpareState::waiting; });
    if (spare == spares_.end()) break;
    if (try_spare(lock, spare, device)) return true;
  }
  if (!ending_) {
    log(LogLevel::warning,
        fmt::format("no spare can take the place of device {}; the pool has less redundancy until one does "
                    "('gpu4fs device replace')",
                    device));
  }
  return false;
}

bool SpareDevices::try_spare(std::unique_lock<std::mutex>& lock, std::list<Spare>::iterator spare, u32 device) {
  spare->state = SpareState::taken;
  const std::string path = spare->path;
  // The exchange locks the file itself.
  spare->file = pool::DeviceFile::absent(path);
  lock.unlock();
  std::string problem;
  pool::DeviceFile file = pool::DeviceFile::absent(path);
  try {
    problem = exchange_.replace(std::to_string(device), path, true, 0);
    if (!problem.empty())
      file = pool::DeviceFile::open(path, pool::DeviceFile::Access::read_write, pool::DeviceFile::Locking::lock);
  } catch (const std::exception& error) {
    // For example a file that the pool could not release.
    problem += fmt::format("{}{}; it is no spare any more", problem.empty() ? "" : "; ", error.what());
  }
  lock.lock();
  if (problem.empty()) {
    log(LogLevel::warning, fmt::format("spare {} takes the place of device {}, and is being filled", path, device));
  } else {
    log(LogLevel::error, fmt::format("spare {} cannot take the place of device {}: {}", path, device, problem));
  }
  if (file.fd() >= 0) {
    spare->file = std::move(file);
    spare->state = SpareState::refused;
  } else {
    spares_.erase(spare);
  }
  return problem.empty();
}

}  // namespace gpu4fs::maintenance
