// The parts of `gpu4fs bench run`. Each adds its rows to the context's result; it throws if an operation fails or wrong
// content is read.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"
#include "bench/result.hpp"
#include "server/pool_server.hpp"

namespace gpu4fs::bench {

struct BenchScale {
  u64 file_bytes;
  u64 device_bytes;  // of each of the four devices
  u32 file_count;    // written concurrently
  u32 repeats;
  u32 latency_calls;
  u32 create_calls;
  u32 ring_count;
  u32 checkpoint_count;
  u64 dirty_bytes;     // written before each checkpoint
  u64 step_bytes = 0;  // of one command for a part of a large file; 0: command_bytes() decides

  // A file is one command, as if a program wrote it with one call. Commands that write the same file run one after the
  // other, so smaller ones leave the engine idle in between (docs/internals/architecture.md).
  constexpr u64 command_bytes() const { return step_bytes != 0 ? step_bytes : 256ull << 20; }
  // Unless the user gave a size.
  constexpr BenchScale with_commands_of(u64 bytes) const {
    BenchScale scale = *this;
    if (scale.step_bytes == 0) scale.step_bytes = bytes;
    return scale;
  }
  // For files with redundancy. On an H200 with two parities, ten commands of 256 MiB at once reach 0.6 of the rate of
  // commands of 32 MiB, and a degraded read by one command 0.7 of one by two; the reason is unknown.
  constexpr BenchScale for_rows(u32 clients) const {
    return with_commands_of(clients == 1 ? 256ull << 20 : 32ull << 20);
  }

  static constexpr BenchScale full() { return {256ull << 20, 2ull << 30, 10, 5, 50000, 20000, 8, 12, 1ull << 30}; }
  static constexpr BenchScale quick() { return {64ull << 20, 512ull << 20, 4, 3, 5000, 2000, 4, 6, 128ull << 20}; }
};

struct Limits {
  double write_gb_per_s = 0;
  double read_gb_per_s = 0;
  double device_gb_per_s = 0;       // host memory to VRAM
  double device_copy_gb_per_s = 0;  // VRAM to VRAM
  std::string what;
};

struct BenchContext {
  server::PoolServer& server;
  const BenchScale& scale;
  const Limits& limits;
  bool on_gpu;
  BenchResult& result;
};

struct FileRates {
  std::vector<double> write_gb_per_s;
  std::vector<double> synced_gb_per_s;  // including the sync
  std::vector<double> read_gb_per_s;
  std::vector<double> write_cpu_s_per_gb;
  std::vector<double> synced_cpu_s_per_gb;
};
// Writes new files concurrently, syncs, reads them back and compares them, removes them; scale.repeats times after one
// round that is not counted.
FileRates measure_files(BenchContext& context, u32 file_count);

// Adds a row in GB/s against `limit`, with a requirement if a GPU is measured; `required` 0: none.
void add_rate(BenchContext& context, const char* name, std::string what, const std::vector<double>& samples,
              double limit, double required);

// Fills nearly the whole pool once and frees it again: memory is registered with the GPU at its first use, which must
// not be part of any other measurement.
void bench_first_touch(BenchContext& context);
void bench_files(BenchContext& context);
void bench_read_device(BenchContext& context);
// Reads of pages that have copies in GPU memory; with a pool of its own, like bench_raid().
void bench_page_tier(const BenchScale& scale, const Limits& limits, session::ServerOptions options, bool on_gpu,
                     BenchResult& result);
// Alternates between pools with and without checksums of data, each with an engine of its own; no other engine may run.
void bench_checksums(const BenchScale& scale, const Limits& limits, const session::ServerOptions& options,
                     BenchResult& result);
// Writes all free space of a pool once and frees it again: the first use of memory includes its registration.
void touch_memory(server::PoolServer& server, const BenchScale& scale);
// Pools of all levels, each with an engine of its own; no other engine may run. `levels`: names of those that are
// measured; empty: all.
void bench_raid(const BenchScale& scale, const session::ServerOptions& options, const std::vector<std::string>& levels,
                bool on_gpu, BenchResult& result);
// Rows "rebuild-...": with pools of its own, like bench_raid().
void bench_rebuild(const BenchScale& scale, const session::ServerOptions& options,
                   const std::vector<std::string>& levels, const Limits& limits, bool on_gpu, BenchResult& result);
// Levels, sizes and numbers of files, for bench/plots/sweep.py; rows "sweep-QUANTITY:LEVEL:KIB:COUNT".
void bench_raid_sweep(const BenchScale& scale, const session::ServerOptions& options,
                      const std::vector<std::string>& levels, bool on_gpu, BenchResult& result);
// Removes all files of a full pool; with pools of its own, like bench_raid().
void bench_emptying(const BenchScale& scale, session::ServerOptions options, BenchResult& result);
// Checks and mounts an empty pool that is much larger than the memory this may take; no other engine may run.
void bench_empty_pool(const BenchScale& scale, session::ServerOptions options, bool on_gpu, BenchResult& result);
void bench_scrub(BenchContext& context);
void bench_latency(BenchContext& context);
void bench_small_reads(BenchContext& context);
void bench_path_reads(BenchContext& context);
void bench_sync(BenchContext& context);
void bench_recovery(BenchContext& context);
// Clients in processes of their own; the server has a session socket.
void bench_processes(BenchContext& context);
void bench_idle(BenchContext& context);
void bench_checkpoint_pause(BenchContext& context);

}  // namespace gpu4fs::bench
