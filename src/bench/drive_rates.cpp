// Bandwidth of a pool on one file or block device, sequential and random, and the CPU time of the process.
#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "bench/client.hpp"
#include "bench/drive_pool.hpp"
#include "bench/drives.hpp"
#include "bench/loop_device.hpp"
#include "bench/mounts.hpp"
#include "bench/result.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u64 step_bytes = 1 << 20;
constexpr u32 sequential_depth = 4;
constexpr u32 random_depth = 64;
constexpr double peer_ratio_min = 0.85;
constexpr double cpu_s_per_gb_max = 0.15;

// One kind of transfer, by the pool and by its peer.
struct Transfer {
  const char* name;
  const char* what;
  DriveLoad load;
  std::function<DriveTime()> run;  // by the pool
  std::vector<DriveRate> own = {};
  std::vector<double> media_cpu_s_per_gb = {};  // of our threads that serve the medium
  std::vector<DriveRate> peer = {};
};

// A pool and a peer that have a medium of the same kind each.
struct Media {
  std::string name;  // of rows: file, block
  std::string what;
  std::string pool;
  std::string peer;
};

// With room for the file twice: replaced pages are free only after the next checkpoint.
u64 pool_bytes(u64 file_bytes) {
  return align_up(5 * file_bytes / 2, u64{1} << 20) + (u64{128} << 20);
}

// In every second round the peer is first.
void run_round(Transfer& transfer, const DrivePeer& peer, const std::string& peer_path, bool peer_is_first) {
  if (peer_is_first) transfer.peer.push_back(peer.run(peer_path, transfer.load));
  const DriveTime time = transfer.run();
  const double gigabytes = static_cast<double>(transfer.load.total_bytes) / 1e9;
  transfer.own.push_back({gigabytes / time.seconds, time.cpu_seconds / gigabytes});
  transfer.media_cpu_s_per_gb.push_back(time.media_cpu_seconds / gigabytes);
  if (!peer_is_first) transfer.peer.push_back(peer.run(peer_path, transfer.load));
}

std::vector<double> values(const std::vector<DriveRate>& rates, double DriveRate::*member, double factor = 1) {
  std::vector<double> result;
  for (const DriveRate& rate : rates) result.push_back(rate.*member * factor);
  return result;
}

double middle(const std::vector<double>& samples) {
  BenchRow row;
  set_samples(row, samples);
  return row.value;
}

void add_rate_row(DrivesContext& context, const Media& media, const Transfer& transfer) {
  BenchRow row;
  row.name = fmt::format("drives-{}-{}", media.name, transfer.name);
  row.what = fmt::format("{}, {}", transfer.what, media.what);
  const double factor = transfer.load.is_random ? 1e9 / static_cast<double>(page_size) : 1;
  row.unit = transfer.load.is_random ? "1/s" : "GB/s";
  set_samples(row, values(transfer.own, &DriveRate::gb_per_s, factor));
  row.limit = middle(values(transfer.peer, &DriveRate::gb_per_s, factor));
  row.limit_what = context.peer.name();
  row.requirement = Requirement::at_least;
  row.required = peer_ratio_min;
  row.remark = fmt::format("CPU {:.3f} s/GB, {} {:.3f}", middle(values(transfer.own, &DriveRate::cpu_s_per_gb)),
                           context.peer.name(), middle(values(transfer.peer, &DriveRate::cpu_s_per_gb)));
  context.result.rows.push_back(std::move(row));
}

void add_cpu_row(DrivesContext& context, const Media& media, const Transfer& transfer) {
  BenchRow row;
  row.name = fmt::format("drives-{}-{}-cpu", media.name, transfer.name);
  row.what = fmt::format("CPU time of the device threads, {}, {}", transfer.what, media.what);
  row.unit = "s/GB";
  set_samples(row, transfer.media_cpu_s_per_gb);
  row.limit = middle(values(transfer.own, &DriveRate::cpu_s_per_gb));
  row.limit_what = "the whole process";
  row.requirement = Requirement::at_most;
  row.required = cpu_s_per_gb_max;
  context.result.rows.push_back(std::move(row));
}

void measure(DrivesContext& context, const Media& media) {
  const DrivesScale& scale = context.scale;
  DrivePool pool({.paths = {media.pool}, .engine = context.engine, .page_cache_bytes = scale.page_cache_bytes});
  {
    DriveFile file(pool.server(), scale.file_bytes);
    const auto load = [&](bool writes, bool is_random) {
      return DriveLoad{.writes = writes,
                       .is_random = is_random,
                       .file_bytes = scale.file_bytes,
                       .total_bytes = is_random ? scale.random_bytes : scale.file_bytes,
                       .block_bytes = is_random ? page_size : step_bytes,
                       .depth = is_random ? random_depth : sequential_depth};
    };
    u64 seed = 0;
    const auto some_pages = [&] {
      std::vector<u32> pages = shuffled(static_cast<u32>(scale.file_bytes / page_size), ++seed);
      pages.resize(scale.random_bytes / page_size);
      return pages;
    };
    Transfer transfers[] = {
        {"write", "sequential write of 1 MiB at depth 4, fsync", load(true, false),
         [&] { return file.write_whole(step_bytes, sequential_depth); }},
        {"read", "sequential read of 1 MiB at depth 4", load(false, false),
         [&] { return file.read_whole(step_bytes, sequential_depth); }},
        {"read-random", "random read of 4 KiB at depth 64", load(false, true),
         [&] { return file.read_pages(some_pages(), random_depth); }},
        {"write-random", "random write of 4 KiB at depth 64, fsync", load(true, true),
         [&] { return file.write_pages(some_pages(), random_depth); }},
    };
    Rounds rounds(scale.rounds, scale.medium_s_max);
    while (rounds.next()) {
      for (Transfer& transfer : transfers) run_round(transfer, context.peer, media.peer, rounds.number() % 2 == 0);
    }
    file.read_whole(step_bytes, sequential_depth);  // compares what random writes have left
    for (const Transfer& transfer : transfers) add_rate_row(context, media, transfer);
    for (const Transfer& transfer : transfers) {
      if (!transfer.load.is_random) add_cpu_row(context, media, transfer);
    }
  }
  pool.stop();
}

}  // namespace

void bench_drive_file(DrivesContext& context) {
  const TemporaryFolder folder(context.folder);
  const Media media{"file", "file on " + file_system_name(context.folder), folder.path() + "/pool",
                    folder.path() + "/peer"};
  write_all_blocks(media.pool, pool_bytes(context.scale.file_bytes));
  write_all_blocks(media.peer, context.scale.file_bytes);
  measure(context, media);
}

void bench_drive_block(DrivesContext& context) {
  const TemporaryFolder folder(context.folder);
  const std::string files[] = {folder.path() + "/pool", folder.path() + "/peer"};
  write_all_blocks(files[0], pool_bytes(context.scale.file_bytes));
  write_all_blocks(files[1], context.scale.file_bytes);
  const LoopDevice pool(files[0], true);
  const LoopDevice peer(files[1], true);
  measure(context, {"block", "loop device", pool.path(), peer.path()});
}

}  // namespace gpu4fs::bench
