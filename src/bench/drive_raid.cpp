// Files in pools with redundancy on loop devices that are accessed directly, fsync included, compared with btrfs and
// with ext4 on md of the same level on the same devices, one after the other. The pool is measured as programs see it,
// mounted through FUSE, and through its ring. With the CPU engine everybody has two CPUs, except threads of the kernel.
#include <unistd.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/array_mount.hpp"
#include "bench/btrfs_mount.hpp"
#include "bench/cpu_binding.hpp"
#include "bench/drive_pool.hpp"
#include "bench/drives.hpp"
#include "bench/held_signals.hpp"
#include "bench/loop_device.hpp"
#include "bench/mounts.hpp"
#include "bench/raid_files.hpp"
#include "bench/raid_sides.hpp"
#include "bench/result.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u32 cpu_count = 2;
constexpr u32 ring_depth = 4;
constexpr u32 file_counts[] = {1, 4};

// Who writes, with a new pool or file system each time.
struct Side {
  std::string name;
  std::string problem;  // "": it takes part
  std::function<RaidRates(const RaidLoad&, RaidFiles&)> run;
  std::vector<double> write = {};  // GB/s
  std::vector<double> read = {};
};

// Of `sides`, the first two are the pool.
constexpr u32 mount_side = 0;
constexpr u32 ring_side = 1;
constexpr u32 first_peer = 2;

const char* engine_name(const DrivesContext& context) {
  return context.engine == session::EngineChoice::cuda ? "cuda" : "cpu";
}

std::vector<Side> sides_of(const DrivesContext& context, const RaidLevel& level,
                           const std::vector<std::string>& devices, const std::string& mount) {
  const auto on_mount = [](auto&& made, RaidFiles& files) { return files.run(made); };
  const std::string profile = level.profile;
  return {
      {"pool", "",
       [=, &context](const RaidLoad&, RaidFiles& files) {
         return on_mount(PoolMount(devices, mount, fmt::format("engine={}", engine_name(context)), profile), files);
       }},
      {"ring", "",
       [=, &context](const RaidLoad& load, RaidFiles&) {
         return run_on_rings({.paths = devices,
                              .profile = profile,
                              .engine = context.engine,
                              .page_cache_bytes = context.scale.page_cache_bytes},
                             load, ring_depth);
       }},
      {"btrfs", BtrfsMount::problem(),
       [=](const RaidLoad&, RaidFiles& files) { return on_mount(BtrfsMount(devices, mount, profile), files); }},
      {"ext4 on md", ArrayMount::problem(),
       [=](const RaidLoad&, RaidFiles& files) { return on_mount(ArrayMount(devices, mount, profile), files); }},
  };
}

// A peer that fails takes no part from then on.
void run_side(DrivesContext& context, Side& side, bool is_peer, const std::string& where, const RaidLoad& load,
              RaidFiles& files) {
  if (!side.problem.empty()) return;
  try {
    const RaidRates rates = side.run(load, files);
    side.write.push_back(rates.write_gb_per_s);
    side.read.push_back(rates.read_gb_per_s);
  } catch (const std::exception& error) {
    HeldSignals::check();
    if (!is_peer) throw;
    side.problem = error.what();
    side.write.clear();
    side.read.clear();
    context.result.left_out.push_back(fmt::format("{}, {} not available: {}", where, side.name, side.problem));
  }
  HeldSignals::check();
}

void add_rows(DrivesContext& context, const RaidLevel& level, const RaidLoad& load, const std::vector<Side>& sides,
              u32 cpus) {
  const std::string files = load.file_count == 1 ? "1 file" : fmt::format("{} files at once", load.file_count);
  for (const bool writes : {true, false}) {
    std::vector<RaidPeer> peers;
    for (u32 i = first_peer; i < sides.size(); ++i) {
      peers.push_back({sides[i].name, sides[i].problem, writes ? sides[i].write : sides[i].read});
    }
    for (const u32 i : {mount_side, ring_side}) {
      const char* const way = i == mount_side ? "mount" : "ring";
      BenchRow row =
          raid_row(fmt::format("drives-{}-{}-{}-{}", level.profile, way, writes ? "write" : "read", load.file_count),
                   fmt::format("{} {} of {} MiB {}, {} on {} loop devices", writes ? "write and fsync" : "read", files,
                               load.file_bytes() >> 20, i == mount_side ? "on the mount" : "through the ring",
                               level.profile, level.device_count),
                   writes ? sides[i].write : sides[i].read, peers, writes);
      row.remark += fmt::format("{}{} CPUs", row.remark.empty() ? "" : ", ", cpus);
      context.result.rows.push_back(std::move(row));
    }
  }
}

// The size of the scale, or half of it as often as it takes to write it in the time. At least twice the page cache.
u64 choose_length(const DrivesScale& scale, double gb_per_s) {
  u64 length = scale.file_bytes;
  while (length / 2 >= 2 * scale.page_cache_bytes &&
         static_cast<double>(length) / 1e9 / gb_per_s > scale.raid_s_max / 2)
    length /= 2;
  return length;
}

void measure_level(DrivesContext& context, const RaidLevel& level, u32 cpus) {
  const DrivesScale& scale = context.scale;
  const TemporaryFolder folder(context.folder);
  LoopDevices loops;
  for (u32 i = 0; i < level.device_count; ++i) {
    const std::string file = fmt::format("{}/device{}", folder.path(), i);
    write_all_blocks(file, raid_device_bytes(level, scale.file_bytes));
    HeldSignals::check();
    loops.push_back(std::make_unique<LoopDevice>(file, true));
  }
  const std::vector<std::string> devices = paths_of(loops);
  std::vector<Side> sides = sides_of(context, level, devices, folder.path() + "/mount");
  const RaidLoad trial{2 * scale.page_cache_bytes, 1};
  RaidFiles trial_files(trial);
  const u64 length = choose_length(scale, sides[ring_side].run(trial, trial_files).write_gb_per_s);
  for (const u32 file_count : file_counts) {
    const RaidLoad load{length, file_count};
    RaidFiles files(load);
    const std::string where = fmt::format("raid, {}", level.profile);
    Rounds rounds(scale.rounds, scale.raid_s_max);
    while (rounds.next()) {
      for (u32 i = 0; i < sides.size(); ++i) run_side(context, sides[i], i >= first_peer, where, load, files);
    }
    add_rows(context, level, load, sides, cpus);
    for (Side& side : sides) side.write = side.read = {};
  }
}

// Before anything is made.
void check_needs(const DrivesContext& context) {
  check_loop_devices();
  if (::access("/dev/fuse", R_OK | W_OK) != 0) fail_by_errno("/dev/fuse");
  for (const RaidLevel& level : raid_levels) {
    check_raid_space(context.folder, level.device_count * raid_device_bytes(level, context.scale.file_bytes));
  }
}

}  // namespace

void bench_drive_raid(DrivesContext& context) {
  check_needs(context);
  for (const auto& [peer, problem] :
       {std::pair{"btrfs", BtrfsMount::problem()}, std::pair{"ext4 on md", ArrayMount::problem()}}) {
    if (problem.empty()) continue;
    report_part(fmt::format("raid: {} not available: {}", peer, problem));
    context.result.left_out.push_back(fmt::format("raid, {} not available: {}", peer, problem));
  }
  const HeldSignals held;
  const CpuBinding binding(context.engine == session::EngineChoice::cpu ? cpu_count : CPU_SETSIZE);
  for (const RaidLevel& level : raid_levels) {
    report_part(fmt::format("raid, {}", level.profile));
    try {
      measure_level(context, level, binding.count());
    } catch (const std::exception& error) {
      HeldSignals::check();
      context.result.left_out.push_back(fmt::format("raid, {}: {}", level.profile, error.what()));
    }
  }
}

}  // namespace gpu4fs::bench
