// The cost of redundancy: large files on pools of all levels, compared with a loop that only copies pages and computes
// the same parities; reads without some of the devices; and small overwrites, compared with raid0.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bits.hpp"
#include "bench/client.hpp"
#include "bench/limits.hpp"
#include "bench/parts.hpp"
#include "bench/raid_pool.hpp"
#include "format/inode_format.hpp"
#include "frontend/local_session.hpp"

namespace gpu4fs::bench {

namespace {
constexpr u32 in_flight = 2;
}

void touch_memory(server::PoolServer& server, const BenchScale& scale) {
  const u64 length = scale.file_bytes;
  BenchClient client(frontend::open_local_session(server, length + BenchClient::control_bytes));
  fill_pattern(client.buffer(), 0, 0, length / page_size);
  u32 count = 0;
  // In files of decreasing size: a GPU needs 0.4 s a GiB to register the memory that they leave.
  for (u64 part = length; part >= length / 16; part /= 2) {
    for (; client.available_bytes() >= 2 * part; ++count) {
      const u64 inode = client.create(format::inode_number_root, fmt::format("touch-{}", count));
      client.stream(wire::Opcode::write, inode, part, scale.command_bytes(), in_flight, client.buffer_address(0));
    }
  }
  for (u32 i = 0; i < count; ++i) client.unlink(format::inode_number_root, fmt::format("touch-{}", i));
  client.sync();
  client.sync();
}

namespace {

constexpr double write_ratio_min = 0.85;
constexpr double degraded_ratio_min = 0.5;
constexpr double overwrite_ratio_min = 0.3;
constexpr u32 overwrites_in_flight = 16;
constexpr u64 overwrites_per_sync = 1024;  // overwritten pages are free again after a checkpoint

u64 extra_bytes(const RowShape& shape, u64 length) {
  if (shape.copy_count > 1) return length;
  const u64 rows = (length / page_size + shape.data_slots - 1) / shape.data_slots;
  return rows * shape.parity_count * page_size;
}

// On all CPUs, like the CPU engine. Returns seconds.
double copy_rows_by_threads(const u8* from, u8* to, u8* extra, u64 length, const RowShape& shape) {
  const unsigned thread_count = std::max(1u, std::thread::hardware_concurrency());
  const double began = now_seconds();
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < thread_count; ++i) {
    threads.emplace_back([&, i] { copy_rows(Lane{}, from, to, extra, i, thread_count, length / page_size, shape); });
  }
  for (std::thread& thread : threads) thread.join();
  return now_seconds() - began;
}

// The greatest rate in GB/s of writing rows of the level, on the engine's processor; no engine runs.
double measure_row_limit(const BenchLevel& level, u64 length, bool on_gpu) {
  std::unique_ptr<GpuLimits> gpu = on_gpu ? std::make_unique<GpuLimits>(length) : nullptr;
  std::vector<u64> source(length / 8);
  fill_pattern(source.data(), 1, 0, length / page_size);
  const u8* from = on_gpu ? gpu->source() : reinterpret_cast<const u8*>(source.data());
  std::vector<u64> to(length / 8);
  std::vector<u64> extra(length / 8);
  std::vector<double> rates;
  for (u32 repeat = 0; repeat < 4; ++repeat) {
    double seconds = copy_rows_by_threads(from, reinterpret_cast<u8*>(to.data()), reinterpret_cast<u8*>(extra.data()),
                                          length, level.rows);
    if (std::memcmp(to.data(), from, length) != 0) throw std::runtime_error("the bare loop of rows did not copy");
    if (on_gpu) {
      const u64 bytes = extra_bytes(level.rows, length);
      seconds = gpu->row_seconds(level.rows, reinterpret_cast<const u8*>(extra.data()), bytes);
    }
    if (repeat > 0) rates.push_back(static_cast<double>(length) / 1e9 / seconds);
  }
  BenchRow row;
  set_samples(row, rates);
  return row.value;
}

void measure_writes(RaidPool& pool, const BenchScale& scale, const Limits& limits, bool on_gpu, BenchResult& result) {
  server::PoolServer& server = pool.start();
  touch_memory(server, scale);
  {
    for (const u32 count : {1u, scale.file_count}) {
      const BenchScale own = scale.for_rows(count);
      BenchContext context{server, own, limits, on_gpu, result};
      const FileRates rates = measure_files(context, count);
      const std::string files = fmt::format("{} file{} of {} MiB, {}", count, count == 1 ? "" : "s",
                                            scale.file_bytes >> 20, pool.level().name);
      const std::string suffix = fmt::format("{}-{}", pool.level().name, count == 1 ? "one" : "many");
      add_rate(context, ("raid-write-" + suffix).c_str(), "write " + files, rates.write_gb_per_s, limits.write_gb_per_s,
               write_ratio_min);
      add_rate(context, ("raid-read-" + suffix).c_str(), "read " + files, rates.read_gb_per_s, 0, 0);
    }
  }
  pool.stop();
}

// Reads of files, each verified, in GB/s. The first round is not counted, because memory is registered then.
std::vector<double> read_files(BenchClient& client, const std::vector<u64>& inodes, const BenchScale& scale) {
  std::vector<double> rates;
  for (u32 round = 0; round < 2; ++round) {
    rates.clear();
    for (u32 i = 0; i < inodes.size(); ++i) {
      std::fill_n(client.buffer(), scale.file_bytes, u8{0});
      const double began = now_seconds();
      client.stream(wire::Opcode::read, inodes[i], scale.file_bytes, scale.command_bytes(), in_flight,
                    client.buffer_address(0));
      rates.push_back(static_cast<double>(scale.file_bytes) / 1e9 / (now_seconds() - began));
      check_pattern(client.buffer(), i, 0, scale.file_bytes / page_size);
    }
  }
  return rates;
}

// Reads files with all devices and then without `lost` of them.
void measure_degraded(const BenchLevel& level, const BenchScale& scale, const session::ServerOptions& options, u32 lost,
                      BenchResult& result) {
  RaidPool pool(level, 2 * scale.repeats * scale.file_bytes, options);
  std::vector<double> rates;
  std::vector<double> healthy;
  std::vector<u64> inodes;
  for (const bool is_degraded : {false, true}) {
    if (is_degraded) pool.take_away(lost);
    server::PoolServer& server = pool.start();
    {
      BenchClient client(frontend::open_local_session(server, scale.file_bytes + BenchClient::control_bytes));
      for (u32 i = 0; i < scale.repeats && !is_degraded; ++i) {
        inodes.push_back(client.create(format::inode_number_root, fmt::format("file-{}", i)));
        fill_pattern(client.buffer(), i, 0, scale.file_bytes / page_size);
        client.stream(wire::Opcode::write, inodes[i], scale.file_bytes, scale.command_bytes(), in_flight,
                      client.buffer_address(0));
      }
      client.sync();
      (is_degraded ? rates : healthy) = read_files(client, inodes, scale);
    }
    pool.stop();
  }
  BenchRow row;
  row.name = fmt::format("raid-degraded-{}-{}", level.name, lost);
  row.what = fmt::format("read a file of {} MiB, {} device{} of {} lost", scale.file_bytes >> 20, lost,
                         lost == 1 ? "" : "s", level.name);
  row.unit = "GB/s";
  set_samples(row, rates);
  BenchRow limit;
  set_samples(limit, healthy);
  row.limit = limit.value;
  row.limit_what = "nothing lost";
  row.requirement = Requirement::at_least;
  row.required = degraded_ratio_min;
  result.rows.push_back(std::move(row));
}

// Replaces pages of a file at random, with many commands at a time. Operations a second.
std::vector<double> measure_overwrites(RaidPool& pool, const BenchScale& scale) {
  server::PoolServer& server = pool.start();
  std::vector<double> rates;
  {
    const u64 pages = scale.file_bytes / 4 / page_size;
    BenchClient client(frontend::open_local_session(server, pages * page_size + BenchClient::control_bytes));
    const u64 inode = client.create(format::inode_number_root, "overwritten");
    fill_pattern(client.buffer(), 0, 0, pages);
    client.stream(wire::Opcode::write, inode, pages * page_size, scale.command_bytes(), in_flight,
                  client.buffer_address(0));
    client.sync();
    u64 random = 88172645463325252ull;
    for (u32 repeat = 0; repeat < scale.repeats; ++repeat) {
      const u64 count = scale.create_calls / 4;
      std::deque<u64> pending;
      const double began = now_seconds();
      const auto finish = [&] {
        const client::Reply reply = client.session().finish(pending.front());
        if (reply.status != Status::ok)
          throw std::runtime_error(fmt::format("overwrite: {}", status_text(reply.status)));
        pending.pop_front();
      };
      for (u64 i = 0; i < count; ++i) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        const u64 page = random % pages;
        // The pattern of the page stays the same, but its bytes are written anew.
        u64 position = 0;
        const wire::Command write = BenchClient::transfer(wire::Opcode::write, inode, page * page_size, page_size,
                                                          client.buffer_address(page * page_size));
        if (client.session().submit(write, &position) != Status::ok) throw std::runtime_error("a full ring");
        pending.push_back(position);
        if (pending.size() >= overwrites_in_flight) finish();
        if (i % overwrites_per_sync == overwrites_per_sync - 1) {
          while (!pending.empty()) finish();
          client.sync();
        }
      }
      while (!pending.empty()) finish();
      rates.push_back(static_cast<double>(count) / (now_seconds() - began));
    }
    std::fill_n(client.buffer(), pages * page_size, u8{0});
    client.stream(wire::Opcode::read, inode, pages * page_size, scale.command_bytes(), in_flight,
                  client.buffer_address(0));
    check_pattern(client.buffer(), 0, 0, pages);
    client.unlink(format::inode_number_root, "overwritten");
    client.sync();
  }
  pool.stop();
  return rates;
}

void measure_level(const BenchLevel& level, const BenchScale& scale, const session::ServerOptions& options, bool on_gpu,
                   std::optional<double>* raid0_overwrites, BenchResult& result) {
  // The files of this round and of the last one, and those that the next checkpoint frees.
  const auto report = [&](const std::string& what) { report_part(fmt::format("raid, {}: {}", level.name, what)); };
  report("bare loop");
  RaidPool pool(level, 4 * scale.file_count * scale.file_bytes, options);
  Limits limits;
  limits.write_gb_per_s = measure_row_limit(level, scale.file_bytes, on_gpu);
  limits.what = on_gpu ? "bare kernel" : "bare loop, all CPUs";
  report("files");
  measure_writes(pool, scale, limits, on_gpu, result);
  for (u32 lost = 1; lost <= std::min(level.redundancy, 2u); ++lost) {
    report(fmt::format("{} lost", lost));
    measure_degraded(level, scale.with_commands_of(u64{128} << 20), options, lost, result);
  }
  const bool is_first = level.redundancy == 0;
  if (!is_first && level.rows.parity_count == 0) return;
  report("overwrites");
  BenchRow row;
  row.name = fmt::format("raid-overwrite-{}", level.name);
  row.what = fmt::format("4 KiB overwrites at random, {} at a time, {}", overwrites_in_flight, level.name);
  row.unit = "1/s";
  set_samples(row, measure_overwrites(pool, scale));
  if (is_first) *raid0_overwrites = row.value;
  if (!is_first && raid0_overwrites->has_value()) {
    row.limit = **raid0_overwrites;
    row.limit_what = "raid0";
    row.requirement = Requirement::at_least;
    row.required = overwrite_ratio_min;
  }
  result.rows.push_back(std::move(row));
}

// One level with files of many sizes, one and several at a time.
void sweep_level(const BenchLevel& level, const BenchScale& scale, const session::ServerOptions& options, bool on_gpu,
                 BenchResult& result) {
  RaidPool pool(level, 4 * scale.file_count * scale.file_bytes, options);
  const Limits none;
  server::PoolServer& server = pool.start();
  touch_memory(server, scale);
  for (u64 file_bytes = u64{64} << 10; file_bytes <= scale.file_bytes; file_bytes *= 4) {
    for (const u32 count : {1u, 2u, scale.file_count}) {
      report_part(fmt::format("sweep, {}: {} KiB, {} at a time", level.name, file_bytes >> 10, count));
      BenchScale here = scale.for_rows(count);
      here.file_bytes = file_bytes;
      here.repeats = 3;
      BenchContext context{server, here, none, on_gpu, result};
      const FileRates rates = measure_files(context, count);
      const std::string files =
          fmt::format("{} file{} of {} KiB, {}", count, count == 1 ? "" : "s", file_bytes >> 10, level.name);
      const std::string suffix = fmt::format("{}:{}:{}", level.name, file_bytes >> 10, count);
      add_rate(context, ("sweep-write:" + suffix).c_str(), "write " + files, rates.write_gb_per_s, 0, 0);
      add_rate(context, ("sweep-sync:" + suffix).c_str(), "write and sync " + files, rates.synced_gb_per_s, 0, 0);
      add_rate(context, ("sweep-read:" + suffix).c_str(), "read " + files, rates.read_gb_per_s, 0, 0);
    }
  }
  pool.stop();
}

}  // namespace

void bench_raid_sweep(const BenchScale& scale, const session::ServerOptions& options,
                      const std::vector<std::string>& levels, bool on_gpu, BenchResult& result) {
  for (const BenchLevel& level : bench_levels) {
    if (!is_wanted_level(levels, level)) continue;
    try {
      sweep_level(level, scale, options, on_gpu, result);
    } catch (const std::exception& error) {
      result.left_out.push_back(fmt::format("sweep, {}: {}", level.name, error.what()));
    }
  }
}

void bench_raid(const BenchScale& scale, const session::ServerOptions& options, const std::vector<std::string>& levels,
                bool on_gpu, BenchResult& result) {
  std::optional<double> raid0_overwrites;
  for (const BenchLevel& level : bench_levels) {
    if (!is_wanted_level(levels, level)) continue;
    try {
      measure_level(level, scale, options, on_gpu, &raid0_overwrites, result);
    } catch (const std::exception& error) {
      result.left_out.push_back(fmt::format("raid, {}: {}", level.name, error.what()));
    }
  }
}

}  // namespace gpu4fs::bench
