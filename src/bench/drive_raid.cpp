// One large file, fsync included, in pools with redundancy on loop devices that are accessed directly, compared with
// btrfs and with ext4 on md of the same level on the same devices, one after the other. The pool is measured through
// its ring, and as programs see it, mounted through FUSE. With the CPU engine everybody has two CPUs, except threads of
// the kernel.
#include <fmt/format.h>
#include <sched.h>

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/array_mount.hpp"
#include "bench/btrfs_mount.hpp"
#include "bench/cpu_binding.hpp"
#include "bench/drive_pool.hpp"
#include "bench/drives.hpp"
#include "bench/loop_device.hpp"
#include "bench/mounts.hpp"
#include "bench/raid_sides.hpp"
#include "bench/result.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u32 cpu_count = 2;
constexpr u64 call_bytes = 1 << 20;
constexpr u32 ring_depth = 4;

// A side with what it does in a round: a new pool or file system, and a file of so many bytes. GB/s.
struct Contender {
  RaidSide side;
  std::function<double(u64 length_bytes, u32 round)> write;
};

// The order in contenders_of().
constexpr u32 ring_place = 0;
constexpr u32 mount_place = 1;
constexpr u32 first_peer_place = 2;

double write_through_ring(const DrivePoolOptions& options, u64 length_bytes) {
  DrivePool pool(options);
  double seconds = 0;
  {
    DriveFile file(pool.server(), length_bytes);
    seconds = file.write_whole(call_bytes, ring_depth).seconds;
    file.read_whole(call_bytes, ring_depth);
  }
  pool.stop();
  return static_cast<double>(length_bytes) / 1e9 / seconds;
}

std::vector<Contender> contenders_of(const DrivesContext& context, const RaidLevel& level,
                                     const std::vector<std::string>& devices, const std::string& mount) {
  const DrivePoolOptions pool{.paths = devices,
                              .profile = level.profile,
                              .engine = context.engine,
                              .page_cache_bytes = context.scale.page_cache_bytes};
  const std::string profile = level.profile;
  const bool is_on_gpu = context.engine == session::EngineChoice::cuda;
  return {
      {{"the ring", ""}, [=](u64 length, u32) { return write_through_ring(pool, length); }},
      {{"the mount", ""},
       [=](u64 length, u32 round) {
         PoolMount own(devices, mount, is_on_gpu ? "engine=cuda" : "engine=cpu", profile);
         return write_and_compare(own, length, round);
       }},
      {{"btrfs", BtrfsMount::problem()},
       [=](u64 length, u32 round) {
         BtrfsMount peer(devices, mount, profile);
         return write_and_compare(peer, length, round);
       }},
      {{"ext4 on md", ArrayMount::problem()},
       [=](u64 length, u32 round) {
         ArrayMount peer(devices, mount, profile);
         return write_and_compare(peer, length, round);
       }},
  };
}

// One that fails takes no part from then on.
void run_round(std::vector<Contender>& contenders, u64 length_bytes, u32 round) {
  for (auto& [side, write] : contenders) {
    if (!side.problem.empty()) continue;
    try {
      side.gb_per_s.push_back(write(length_bytes, round));
    } catch (const std::exception& error) {
      side.problem = error.what();
      side.gb_per_s.clear();
    }
  }
}

// The size of the scale, or half of it as often as it takes for all rounds to fit into the time. At least twice the
// page cache. A turn of a contender takes about as long as three writes, because it also makes file systems and
// compares.
u64 choose_length(const DrivesScale& scale, std::size_t contender_count, double gb_per_s) {
  const double write_s_max = scale.raid_s_max / 3 / scale.rounds / static_cast<double>(contender_count);
  u64 length = scale.file_bytes;
  while (length / 2 >= 2 * scale.page_cache_bytes && static_cast<double>(length) / 1e9 / gb_per_s > write_s_max) {
    length /= 2;
  }
  return length;
}

void add_rows(DrivesContext& context, const RaidLevel& level, u64 length_bytes,
              const std::vector<Contender>& contenders) {
  std::vector<RaidSide> peers;
  for (u32 i = first_peer_place; i < contenders.size(); ++i) peers.push_back(contenders[i].side);
  for (const auto& [place, name] : {std::pair{ring_place, "write"}, std::pair{mount_place, "mount-write"}}) {
    const RaidSide& own = contenders[place].side;
    if (!own.problem.empty()) continue;
    context.result.rows.push_back(
        raid_row(fmt::format("drives-{}-{}", level.profile, name),
                 fmt::format("{} MiB in writes of 1 MiB through {}, fsync, {} on {} loop devices", length_bytes >> 20,
                             own.name, level.profile, level.device_count),
                 own, peers));
  }
  for (const auto& [side, write] : contenders) {
    if (side.problem.empty()) continue;
    context.result.left_out.push_back(fmt::format("raid, {}, {}: {}", level.profile, side.name, side.problem));
  }
}

void measure_level(DrivesContext& context, const RaidLevel& level) {
  const DrivesScale& scale = context.scale;
  const u64 device_bytes = raid_device_bytes(level, scale.file_bytes);
  check_free_space(context.folder, level.device_count * device_bytes);
  const TemporaryFolder folder(context.folder);
  LoopDevices loops;
  for (u32 i = 0; i < level.device_count; ++i) {
    const std::string file = fmt::format("{}/device{}", folder.path(), i);
    write_all_blocks(file, device_bytes);
    loops.push_back(std::make_unique<LoopDevice>(file, true));
  }
  std::vector<Contender> contenders = contenders_of(context, level, paths_of(loops), folder.path() + "/mount");
  const double trial_gb_per_s = contenders[ring_place].write(2 * scale.page_cache_bytes, 0);
  const u64 length = choose_length(scale, contenders.size(), trial_gb_per_s);
  Rounds rounds(scale.rounds, scale.raid_s_max);
  while (rounds.next()) run_round(contenders, length, rounds.number());
  add_rows(context, level, length, contenders);
}

}  // namespace

void bench_drive_raid(DrivesContext& context) {
  const CpuBinding binding(context.engine == session::EngineChoice::cpu ? cpu_count : CPU_SETSIZE);
  for (const RaidLevel& level : raid_levels) {
    report_part(fmt::format("raid, {}", level.profile));
    try {
      measure_level(context, level);
    } catch (const std::exception& error) {
      context.result.left_out.push_back(fmt::format("raid, {}: {}", level.profile, error.what()));
    }
  }
}

}  // namespace gpu4fs::bench
