// The cost of an empty pool that is much larger than the memory it should use: check, mount, and memory.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bench/client.hpp"
#include "bench/parts.hpp"
#include "bench/pool.hpp"
#include "fsck/check/check_pool.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u64 pool_bytes = u64{80} << 30;
constexpr double check_s_max = 1;
constexpr double mount_s_max = 2;
constexpr double memory_gb_max = 1;

u64 available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  u64 kib = 0;
  while (file >> name >> kib) {
    if (name == "MemAvailable:") return kib << 10;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  throw std::runtime_error("/proc/meminfo has no line MemAvailable");
}

// The machine's memory that is allocated between construction and peak_gb().
class MemoryWatch {
 public:
  MemoryWatch() : least_(available_bytes()), before_(least_) {
    thread_ = std::thread([this] {
      while (!ends_) {
        least_ = std::min(least_, available_bytes());
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    });
  }
  ~MemoryWatch() { end(); }
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  double peak_gb() {
    end();
    return static_cast<double>(before_ - least_) / 1e9;
  }

 private:
  void end() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
  }

  u64 least_;  // belongs to the thread until it has ended
  const u64 before_;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

void add_row(BenchResult& result, const char* name, std::string what, const char* unit,
             const std::vector<double>& samples, double max) {
  BenchRow row;
  row.name = name;
  row.what = std::move(what);
  row.unit = unit;
  set_samples(row, samples);
  row.requirement = Requirement::at_most;
  row.required = max;
  result.rows.push_back(std::move(row));
}

}  // namespace

void bench_empty_pool(const BenchScale& scale, session::ServerOptions options, bool on_gpu, BenchResult& result) {
  const MemoryPool pool({.device_bytes = pool_bytes, .device_count = 1, .is_sparse = true});
  options.device_paths = pool.paths();
  fsck::CheckOptions check;
  check.device_paths = pool.paths();
  check.engine = on_gpu ? fsck::CheckEngine::cuda : fsck::CheckEngine::cpu;
  std::vector<double> check_s;
  std::vector<double> check_gb;
  std::vector<double> mount_s;
  std::vector<double> mount_gb;
  for (u32 round = 0; round < scale.repeats; ++round) {
    {
      MemoryWatch memory;
      const double began = now_seconds();
      if (fsck::check_pool(check).findings.error_count() != 0) throw std::runtime_error("the empty pool is damaged");
      check_s.push_back(now_seconds() - began);
      check_gb.push_back(memory.peak_gb());
    }
    MemoryWatch memory;
    const double began = now_seconds();
    server::PoolServer server(options);
    server.start();
    mount_s.push_back(now_seconds() - began);
    mount_gb.push_back(memory.peak_gb());
    if (!server.stop()) throw std::runtime_error("the last checkpoint failed");
  }
  const std::string size = fmt::format("an empty pool of {} GiB", pool_bytes >> 30);
  add_row(result, "empty-check", "check of " + size, "s", check_s, check_s_max);
  add_row(result, "empty-check-memory", "memory for the check of " + size, "GB", check_gb, memory_gb_max);
  add_row(result, "empty-mount", "mount of " + size, "s", mount_s, mount_s_max);
  add_row(result, "empty-mount-memory", "memory for the mount of " + size, "GB", mount_gb, memory_gb_max);
}

}  // namespace gpu4fs::bench
