#include "bench/btrfs_ring.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <map>
#include <numeric>
#include <vector>

#include "base/limits.hpp"
#include "bench/btrfs_mount.hpp"
#include "bench/client.hpp"
#include "bench/limits.hpp"
#include "bench/parts.hpp"
#include "bench/raid_pool.hpp"
#include "bench/side_by_side.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u64 call_bytes = 1 << 20;
constexpr double cuda_bandwidth_ratio_min = 8;
constexpr double cuda_cpu_ratio_max = 1.0 / 50;
constexpr double cpu_parity_ratio_min = 1;

struct WriteSamples {
  std::vector<double> gb_per_s;
  double cpu_s_per_gb = 0;  // of the whole machine; over all rounds, because the system counts in ticks of 10 ms
};

using SamplesByCount = std::map<u32, WriteSamples>;  // by the number of files written concurrently

void write_and_sync(const std::string& path, const u8* bytes, u64 length) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) fail_by_errno(path);
  bool good = true;
  for (u64 offset = 0; offset < length && good; offset += call_bytes) {
    good = ::pwrite(file, bytes + offset, call_bytes, static_cast<off_t>(offset)) == ssize_t{call_bytes};
  }
  good = good && ::fsync(file) == 0;
  const int error = errno;
  ::close(file);
  errno = error;
  if (!good) fail_by_errno(path);
}

void read_and_check(const std::string& path, u32 index, std::vector<u64>& content) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail_by_errno(path);
  auto* bytes = reinterpret_cast<u8*>(content.data());
  const u64 length = content.size() * sizeof(u64);
  bool good = true;
  for (u64 offset = 0; offset < length && good; offset += call_bytes) {
    good = ::pread(file, bytes + offset, call_bytes, static_cast<off_t>(offset)) == ssize_t{call_bytes};
  }
  ::close(file);
  if (!good) fail_by_errno(path);
  check_pattern(bytes, index, 0, length / page_size);
}

// The first round, in which both touch their memory for the first time, is not counted.
WriteSamples measure_btrfs(BtrfsMount& mount, u32 count, const BenchScale& scale) {
  WriteSamples samples;
  std::vector<std::vector<u64>> contents(count, std::vector<u64>(scale.file_bytes / sizeof(u64)));
  for (u32 i = 0; i < count; ++i) fill_pattern(contents[i].data(), i, 0, scale.file_bytes / page_size);
  const auto path = [&](u32 i) { return fmt::format("{}/file-{}", mount.folder(), i); };
  const double gigabytes = static_cast<double>(scale.file_bytes) * count / 1e9;
  for (u32 repeat = 0; repeat <= scale.repeats; ++repeat) {
    mount.up();
    const double cpu_began = machine_cpu_seconds();
    const double began = now_seconds();
    run_side_by_side(count, [&](u32 i) {
      write_and_sync(path(i), reinterpret_cast<const u8*>(contents[i].data()), scale.file_bytes);
    });
    const double seconds = now_seconds() - began;
    const double cpu_seconds = machine_cpu_seconds() - cpu_began;
    if (repeat == 0) run_side_by_side(count, [&](u32 i) { read_and_check(path(i), i, contents[i]); });
    for (u32 i = 0; i < count; ++i) {
      if (::unlink(path(i).c_str()) != 0) fail_by_errno(path(i));
    }
    mount.down();
    if (repeat == 0) continue;
    samples.gb_per_s.push_back(gigabytes / seconds);
    samples.cpu_s_per_gb += cpu_seconds / gigabytes / scale.repeats;
  }
  return samples;
}

SamplesByCount measure_btrfs_level(const BenchLevel& level, const std::string& parent, const BenchScale& scale,
                                   const std::vector<u32>& counts) {
  const TemporaryFolder folder(parent);
  const u64 device_bytes =
      align_up(2 * scale.file_count * scale.file_bytes / level.data_devices(), u64{1} << 20) + (u64{1} << 30);
  BtrfsMount mount(folder.path() + "/devices", folder.path() + "/mount", level.device_count, device_bytes,
                   level.profile);
  SamplesByCount samples;
  for (const u32 count : counts) samples[count] = measure_btrfs(mount, count, scale);
  return samples;
}

SamplesByCount measure_ring_level(const BenchLevel& level, bool on_gpu, const BenchScale& scale,
                                  const std::vector<u32>& counts, BenchResult& result) {
  session::ServerOptions options;
  options.engine = on_gpu ? session::EngineChoice::cuda : session::EngineChoice::cpu;
  options.commit_interval_s = 0;  // checkpoints happen only when a sync requests them
  RaidPool pool(level, 4 * scale.file_count * scale.file_bytes, options);
  SamplesByCount samples;
  {
    server::PoolServer& server = pool.start();
    touch_memory(server, scale);
    for (const u32 count : counts) {
      const BenchScale own = scale.for_rows(count);
      BenchContext context{server, own, Limits{}, on_gpu, result};
      const FileRates rates = measure_files(context, count);
      const std::vector<double>& cpu = rates.synced_cpu_s_per_gb;
      samples[count] = {rates.synced_gb_per_s,
                        std::accumulate(cpu.begin(), cpu.end(), 0.0) / static_cast<double>(cpu.size())};
    }
  }
  pool.stop();
  return samples;
}

BenchRow row_of(std::string name, std::string what, const char* unit, const std::vector<double>& own,
                const std::vector<double>& peer) {
  BenchRow row;
  row.name = std::move(name);
  row.what = std::move(what);
  row.unit = unit;
  set_samples(row, own);
  if (!peer.empty()) {
    BenchRow limit;
    set_samples(limit, peer);
    row.limit = limit.value;
    row.limit_what = "btrfs";
  }
  return row;
}

// A requirement applies only if there is a peer.
void require(BenchRow& row, Requirement requirement, double required) {
  if (row.limit_what.empty()) return;
  row.requirement = requirement;
  row.required = required;
}

void add_ring_rows(const BenchLevel& level, bool on_gpu, const BenchScale& scale, const SamplesByCount& own,
                   const SamplesByCount& peer, BenchResult& result) {
  const char* engine = on_gpu ? "cuda" : "cpu";
  for (const auto& [count, samples] : own) {
    const std::string what = fmt::format("{} file{} of {} MiB through the ring, {}, engine {}", count,
                                         count == 1 ? "" : "s", scale.file_bytes >> 20, level.name, engine);
    const std::string suffix = fmt::format("{}-{}-{}", level.name, count == 1 ? "one" : "many", engine);
    const std::vector<double> peer_rates = peer.count(count) != 0 ? peer.at(count).gb_per_s : std::vector<double>{};
    BenchRow write =
        row_of("btrfs-ring-write-" + suffix, "write and sync " + what, "GB/s", samples.gb_per_s, peer_rates);
    std::vector<double> peer_cpu;
    if (peer.count(count) != 0) peer_cpu.push_back(peer.at(count).cpu_s_per_gb);
    BenchRow cpu =
        row_of("btrfs-ring-write-cpu-" + suffix, "CPU time, writing " + what, "s/GB", {samples.cpu_s_per_gb}, peer_cpu);
    if (on_gpu) {
      require(write, Requirement::at_least, cuda_bandwidth_ratio_min);
      require(cpu, Requirement::at_most, cuda_cpu_ratio_max);
    } else if (level.rows.parity_count != 0) {
      require(write, Requirement::at_least, cpu_parity_ratio_min);
    }
    result.rows.push_back(std::move(write));
    result.rows.push_back(std::move(cpu));
  }
}

void measure_level(const BenchLevel& level, const std::string& folder, const std::vector<bool>& engines,
                   const BenchScale& scale, BenchResult& result) {
  const std::vector<u32> counts{1, scale.file_count};
  report_part(fmt::format("{}, btrfs", level.name));
  SamplesByCount peer;
  try {
    peer = measure_btrfs_level(level, folder, scale, counts);
  } catch (const std::exception& error) {
    result.left_out.push_back(fmt::format("btrfs, {}: {}", level.name, error.what()));
  }
  for (const bool on_gpu : engines) {
    report_part(fmt::format("{}, engine {}", level.name, on_gpu ? "cuda" : "cpu"));
    try {
      add_ring_rows(level, on_gpu, scale, measure_ring_level(level, on_gpu, scale, counts, result), peer, result);
    } catch (const std::exception& error) {
      result.left_out.push_back(fmt::format("{}, engine {}: {}", level.name, on_gpu ? "cuda" : "cpu", error.what()));
    }
  }
}

}  // namespace

void measure_rings_and_btrfs(const std::string& folder, bool is_quick, BenchResult& result) {
  const bool has_gpu = gpu_problem().empty();
  const BenchScale scale = is_quick || !has_gpu ? BenchScale::quick() : BenchScale::full();
  std::vector<bool> engines{false};
  if (has_gpu) engines.push_back(true);
  for (const BenchLevel& level : bench_levels) {
    // btrfs has no third parity.
    if (level.rows.parity_count <= 2) measure_level(level, folder, engines, scale, result);
  }
}

}  // namespace gpu4fs::bench
