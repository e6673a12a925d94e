// Pools with redundancy for benchmarks. Private to the tools.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "bench/limits.hpp"
#include "bench/pool.hpp"
#include "server/pool_server.hpp"

namespace gpu4fs::bench {

struct BenchLevel {
  const char* name;
  const char* profile;
  u32 device_count;
  u32 redundancy;
  RowShape rows;
  // The number of devices whose bytes count for files.
  u32 data_devices() const { return rows.copy_count > 1 ? device_count / 2 : device_count - rows.parity_count; }
};
inline constexpr BenchLevel bench_levels[] = {
    {"raid0", "raid0", 4, 0, {4, 0, 1}},     {"raid1", "raid1", 4, 1, {1, 0, 2}},
    {"raid5-3+1", "raid5", 4, 1, {3, 1, 1}}, {"raid6-4+2", "raid6", 6, 2, {4, 2, 1}},
    {"raid7-5+3", "raid7", 8, 3, {5, 3, 1}},
};

inline bool is_wanted_level(const std::vector<std::string>& levels, const BenchLevel& level) {
  return levels.empty() || std::find(levels.begin(), levels.end(), level.name) != levels.end();
}

// An engine on a pool, for the time of a measurement.
class RaidPool {
 public:
  RaidPool(const BenchLevel& level, u64 file_bytes, session::ServerOptions options)
      : level_(level),
        pool_({.device_bytes =
                   align_up(std::max<u64>(file_bytes / level.data_devices() * 5 / 4, u64{96} << 20), u64{1} << 20) +
                   (u64{64} << 20),
               .device_count = level.device_count,
               .profile = level.profile}),
        options_(std::move(options)) {
    options_.device_paths = pool_.paths();
  }
  ~RaidPool() {
    if (server_) (void)server_->stop();
  }

  server::PoolServer& start() {
    server_ = std::make_unique<server::PoolServer>(options_);
    server_->start();
    return *server_;
  }
  void stop() {
    const bool clean = server_->stop();
    server_.reset();
    if (!clean) throw std::runtime_error("the last checkpoint failed");
  }
  // Moves the first `count` devices to where the mount does not find them; later mounts are without them.
  void take_away(u32 count) {
    for (u32 i = 0; i < count; ++i) {
      const std::string& path = pool_.paths()[i];
      std::filesystem::create_directory(path + ".away");
      std::filesystem::rename(path, path + ".away/device");
    }
    options_.degraded = count != 0;
  }
  // Later mounts use this device instead of device `index`.
  void use_instead(u32 index, const std::string& path) {
    options_.device_paths[index] = path;
    options_.degraded = false;
  }
  const std::string& path(u32 index) const { return options_.device_paths[index]; }
  const BenchLevel& level() const { return level_; }

 private:
  const BenchLevel& level_;
  MemoryPool pool_;
  session::ServerOptions options_;
  std::unique_ptr<server::PoolServer> server_;
};

}  // namespace gpu4fs::bench
