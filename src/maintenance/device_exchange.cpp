#include "maintenance/device_exchange.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/host/log.hpp"
#include "base/mutant.hpp"
#include "fmt/format.h"
#include "format/format_text.hpp"
#include "pool/pool_error.hpp"
#include "pool/pool_replace.hpp"

namespace gpu4fs::maintenance {

namespace {

bool is_same_path(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return a == b || std::filesystem::weakly_canonical(a, ignored) == std::filesystem::weakly_canonical(b, ignored);
}

}  // namespace

u32 DeviceExchange::find_device(const std::string& text) const {
  const std::shared_lock lock(mounted_.tables);
  const std::vector<pool::OpenedDevice>& devices = mounted_.pool.devices;
  u32 index = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, index);
  const bool is_index = error == std::errc{} && stop == end && index < devices.size();
  if (is_index && devices[index].state != pool::MemberState::removed) return index;
  for (u32 i = 0; i < devices.size(); ++i) {
    if (devices[i].state == pool::MemberState::removed) continue;
    if (text == format::uuid_text(devices[i].part.device_uuid)) return i;
    const std::string& path = devices[i].file.path();
    if (!path.empty() && path[0] == '/' && is_same_path(path, text)) return i;
  }
  throw pool::PoolError(Status::not_found,
                        fmt::format("'{}' is no device of the pool: neither index, nor path, nor UUID", text));
}

// The stale device whose file is present.
u32 DeviceExchange::find_stale() const {
  const u64 lost = mounted_.lost_devices();
  std::optional<u32> found;
  for (u32 i = 0; i < mounted_.pool.devices.size(); ++i) {
    if ((lost >> i & 1) == 0 || mounted_.pool.devices[i].state == pool::MemberState::missing) continue;
    if (found) throw pool::PoolError(Status::invalid_argument, "several devices are stale: say which one");
    found = i;
  }
  if (!found)
    throw pool::PoolError(Status::not_found, "no device of the pool is stale; 'device replace' fills another one");
  return *found;
}

std::string DeviceExchange::fill(u32 device, bool is_fresh, u64 page_total, u64 rate_limit) {
  RebuildJob job;
  job.device = device;
  job.path = mounted_.pool.devices[device].file.path();
  job.is_fresh = is_fresh;
  job.page_total = page_total;
  job.rate_limit = rate_limit;
  return rebuilder_.start(job);
}

std::string DeviceExchange::replace(const std::string& device_text, const std::string& path, bool force,
                                    u64 rate_limit) {
  const std::lock_guard guard(busy_);
  if (mounted_.pool.read_only) return "the pool is mounted read-only";
  if (rebuilder_.is_busy()) return "a rebuild is running";
  const GrowthHold hold(grower_);
  try {
    const u32 device = find_device(device_text);
    // Everything that can be refused is refused before the old device is given up.
    Entrant entrant = open_new(device, path, force);
    map_file(device, entrant);
    try {
      make_stale(device);
    } catch (const pool::PoolError&) {
      if (entrant.is_fresh) entrant.file.free_blocks();
      throw;
    }
    const bool is_fresh = entrant.is_fresh;
    log(LogLevel::info, fmt::format("device {} is replaced by {}", device, entrant.file.path()));
    const u64 page_total = enter(device, std::move(entrant));
    return fill(device, is_fresh, page_total, rate_limit);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

std::string DeviceExchange::rebuild(const std::string& device_text, u64 rate_limit) {
  const std::lock_guard guard(busy_);
  if (mounted_.pool.read_only) return "the pool is mounted read-only";
  if (rebuilder_.is_busy()) return "a rebuild is running";
  const GrowthHold hold(grower_);
  try {
    const u32 device = device_text.empty() ? find_stale() : find_device(device_text);
    if ((mounted_.lost_devices() >> device & 1) == 0) return fmt::format("device {} lacks nothing", device);
    pool::OpenedDevice& opened = mounted_.pool.devices[device];
    if (opened.state == pool::MemberState::missing)
      return fmt::format("device {} is missing; 'device replace' fills another one", device);
    std::optional<session::DirectMedia::Prepared> renewal = prepare_renewal(device);
    make_stale(device);
    u64 page_total = 0;
    // A device that failed while it was mounted is still mapped. The content of its mapping may have reached only the
    // system's cache, which forgets a failed write, so it must be written again.
    const bool is_mapped = opened.file.fd() >= 0;
    if (is_mapped) {
      await_quiet(device);
      if (GPU4FS_MUTANT(failed_drive_kept, renewal.has_value(), false))
        mounted_.setup.direct->install(device, std::move(*renewal));
      pool::prepare_replacement(mounted_.pool, opened.file, opened.part, false);
      mapper_.prepare_memory(device, mounted_.setup.files[device], grower_.usage());
      {
        // Not during a trim of the same file: the engine's mapping would differ from the file.
        const std::shared_lock lock(mounted_.tables);
        const std::unique_lock reach = mapper_.hold_reach();
        mapper_.map_device(device, mounted_.setup.files[device], opened.part);
      }
      page_total = begin(device, opened.part);
    } else {
      pool::DeviceFile file = pool::DeviceFile::open(opened.file.path(), pool::DeviceFile::Access::read_write,
                                                     pool::DeviceFile::Locking::lock);
      const format::DevicePart part = pool::stale_part(mounted_.pool, device, file);
      Entrant entrant{std::move(file), part, false, false, opened.file.path()};
      map_file(device, entrant);
      page_total = enter(device, std::move(entrant));
    }
    return fill(device, is_mapped, page_total, rate_limit);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

}  // namespace gpu4fs::maintenance
