// gpu4fs bench btrfs: one large file, fsync included, on mounted pools with redundancy and on btrfs of the same level
// over loop devices. All devices are files on the same medium, and the rounds alternate. Measures bandwidth and CPU
// time of the machine. Then it does the same through rings (bench/btrfs_ring.hpp).
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.hpp"
#include "bench/btrfs_mount.hpp"
#include "bench/btrfs_ring.hpp"
#include "bench/client.hpp"
#include "bench/limits.hpp"
#include "bench/mounts.hpp"
#include "bench/result.hpp"
#include "bench/verbs.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u64 call_bytes = 1 << 20;
constexpr u32 device_count = 4;
constexpr const char* profiles[] = {"raid0", "raid1", "raid5", "raid6"};

struct Samples {
  std::vector<double> write;  // GB/s, including the fsync
  std::vector<double> read;
  std::vector<double> write_cpu;  // s/GB
  std::vector<double> read_cpu;
};

// Calls of 1 MiB from or into `bytes`; the machine's CPU seconds for them are stored in `cpu`.
double transfer(const std::string& path, u8* bytes, u64 length, bool writes, double* cpu) {
  const double cpu_began = machine_cpu_seconds();
  const double began = now_seconds();
  const int file = ::open(path.c_str(), (writes ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY) | O_CLOEXEC, 0644);
  if (file < 0) fail_by_errno(path);
  bool good = true;
  for (u64 offset = 0; offset < length && good; offset += call_bytes) {
    const ssize_t done = writes ? ::pwrite(file, bytes + offset, call_bytes, static_cast<off_t>(offset))
                                : ::pread(file, bytes + offset, call_bytes, static_cast<off_t>(offset));
    good = done == ssize_t{call_bytes};
  }
  if (good && writes) good = ::fsync(file) == 0;
  const int error = errno;
  ::close(file);
  errno = error;
  if (!good) fail_by_errno(path);
  const double seconds = now_seconds() - began;
  *cpu = machine_cpu_seconds() - cpu_began;
  return seconds;
}

// Writes, unmounts and mounts again, so nothing comes from a cache; then reads and compares.
void run_round(Mount& mount, u64 length, Samples& samples) {
  std::vector<u64> content(length / 8);
  auto* bytes = reinterpret_cast<u8*>(content.data());
  const std::string path = mount.folder() + "/file";
  const double gigabytes = static_cast<double>(length) / 1e9;
  double cpu = 0;
  fill_pattern(bytes, 0, 0, length / page_size);
  mount.up();
  samples.write.push_back(gigabytes / transfer(path, bytes, length, true, &cpu));
  samples.write_cpu.push_back(cpu / gigabytes);
  mount.down();
  std::fill(content.begin(), content.end(), 0);
  mount.up();
  samples.read.push_back(gigabytes / transfer(path, bytes, length, false, &cpu));
  samples.read_cpu.push_back(cpu / gigabytes);
  check_pattern(bytes, 0, 0, length / page_size);
  if (::unlink(path.c_str()) != 0) fail_by_errno(path);
  mount.down();
}

void add_row(BenchResult& result, const std::string& name, std::string what, const char* unit,
             const std::vector<double>& own, const std::vector<double>& peer) {
  BenchRow row;
  row.name = "btrfs-" + name;
  row.what = std::move(what);
  row.unit = unit;
  set_samples(row, own);
  if (!peer.empty()) {
    BenchRow limit;
    set_samples(limit, peer);
    row.limit = limit.value;
    row.limit_what = "btrfs";
  }
  result.rows.push_back(std::move(row));
}

// `peer` is empty if btrfs is not available.
void add_rows(BenchResult& result, const std::string& profile, const std::string& engine, u64 length,
              const Samples& own, const Samples& peer) {
  const std::string where =
      fmt::format("{} MiB through FUSE, {} on {} devices, engine {}", length >> 20, profile, device_count, engine);
  const std::string suffix = fmt::format("{}-{}", profile, engine);
  add_row(result, "write-" + suffix, "write and fsync " + where, "GB/s", own.write, peer.write);
  add_row(result, "read-" + suffix, "read " + where, "GB/s", own.read, peer.read);
  add_row(result, "write-cpu-" + suffix, "CPU time, writing " + where, "s/GB", own.write_cpu, peer.write_cpu);
  add_row(result, "read-cpu-" + suffix, "CPU time, reading " + where, "s/GB", own.read_cpu, peer.read_cpu);
}

void measure_profile(const std::string& profile, const std::string& folder, u64 length, u32 rounds,
                     BenchResult& result) {
  struct Side {
    std::string name;
    std::unique_ptr<Mount> mount;
    Samples samples;
  };
  std::vector<Side> sides;
  const u64 device_bytes = 2 * length + (u64{256} << 20);
  try {
    auto btrfs =
        std::make_unique<BtrfsMount>(folder + "/btrfs", folder + "/btrfs-mount", device_count, device_bytes, profile);
    sides.push_back({"btrfs", std::move(btrfs), {}});
    Samples warm_up;
    run_round(*sides[0].mount, length, warm_up);
  } catch (const std::exception& error) {
    sides.clear();
    result.left_out.push_back(fmt::format("btrfs, {}: {}", profile, error.what()));
  }
  std::vector<std::string> engines{"cpu"};
  if (gpu_problem().empty()) engines.push_back("cuda");
  for (const std::string& engine : engines) {
    sides.push_back({engine,
                     std::make_unique<PoolMount>(folder + "/pool-" + engine, folder + "/mount-" + engine,
                                                 device_count * device_bytes, "engine=" + engine, profile),
                     {}});
  }
  for (u32 round = 0; round <= rounds; ++round) {
    for (Side& side : sides) {
      Samples warm_up;
      run_round(*side.mount, length, round == 0 ? warm_up : side.samples);
    }
  }
  const Samples none;
  const bool has_peer = sides[0].name == "btrfs";
  for (const Side& side : sides) {
    if (side.name != "btrfs")
      add_rows(result, profile, side.name, length, side.samples, has_peer ? sides[0].samples : none);
  }
}

}  // namespace

int bench_btrfs(const BenchBtrfsOptions& options) {
  const u64 length = options.quick ? u64{64} << 20 : u64{1} << 30;
  const u32 rounds = options.quick ? 2 : 5;
  BenchResult result = new_result("btrfs", gpu_problem().empty() ? "cpu, cuda" : "cpu", options.quick);
  const auto is_wanted = [&](const char* part) {
    return options.only.empty() || std::find(options.only.begin(), options.only.end(), part) != options.only.end();
  };
  if (is_wanted("mount")) {
    for (const char* profile : profiles) {
      const TemporaryFolder folder(options.folder.empty() ? "/dev/shm" : options.folder);
      try {
        measure_profile(profile, folder.path(), length, rounds, result);
      } catch (const std::exception& error) {
        result.left_out.push_back(fmt::format("{}: {}", profile, error.what()));
      }
    }
  }
  if (is_wanted("ring")) {
    measure_rings_and_btrfs(options.folder.empty() ? "/dev/shm" : options.folder, options.quick, result);
  }
  print_rows(result);
  if (!options.output.empty()) write_result(result, options.output);
  return result.left_out.empty() ? 0 : 8;
}

}  // namespace gpu4fs::bench
