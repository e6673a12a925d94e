// The cost of checksums of data: the same files alternately on a pool with and on a pool without checksums.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.hpp"
#include "bench/parts.hpp"
#include "bench/pool.hpp"
#include "pool/pool_error.hpp"

namespace gpu4fs::bench {

namespace {

constexpr double ratio_min = 0.9;
constexpr u32 files_max = 4;

struct Rates {
  std::vector<double> write;
  std::vector<double> read;
};

// At its first use, memory of a mount has to be registered with the GPU, or faulted in by the CPU. Pools with checksums
// use more of it before they return to the same pages, so all of it is used beforehand.
void add_round(const BenchScale& scale, const Limits& limits, session::ServerOptions options, const MemoryPool& pool,
               BenchResult& result, Rates& rates) {
  options.device_paths = pool.paths();
  server::PoolServer server(options);
  server.start();
  {
    BenchResult unused;
    BenchContext warm_up{server, scale, limits, server.uses_gpu(), unused};
    bench_first_touch(warm_up);
    BenchContext context{server, scale, limits, server.uses_gpu(), result};
    const FileRates round = measure_files(context, std::min(files_max, scale.file_count));
    rates.write.insert(rates.write.end(), round.write_gb_per_s.begin(), round.write_gb_per_s.end());
    rates.read.insert(rates.read.end(), round.read_gb_per_s.begin(), round.read_gb_per_s.end());
  }
  if (!server.stop()) throw pool::PoolError(Status::io_error, "the last checkpoint failed");
}

void add_row(BenchResult& result, const char* name, const BenchScale& scale, const std::vector<double>& with,
             const std::vector<double>& without) {
  BenchRow row;
  row.name = fmt::format("checksums-{}", name);
  row.what = fmt::format("{} {} files of {} MiB with checksums of data", name, std::min(files_max, scale.file_count),
                         scale.file_bytes >> 20);
  row.unit = "GB/s";
  set_samples(row, with);
  BenchRow limit;
  set_samples(limit, without);
  row.limit = limit.value;
  row.limit_what = "without them";
  row.requirement = Requirement::at_least;
  row.required = ratio_min;
  result.rows.push_back(std::move(row));
}

}  // namespace

void bench_checksums(const BenchScale& scale, const Limits& limits, const session::ServerOptions& options,
                     BenchResult& result) {
  BenchScale each = scale;
  each.repeats = 2;
  const u32 rounds = scale.repeats;
  const MemoryPool checked({.device_bytes = scale.device_bytes / 2});
  const MemoryPool unchecked({.device_bytes = scale.device_bytes / 2, .data_checksums = false});
  Rates with;
  Rates without;
  for (u32 round = 0; round < rounds; ++round) {
    add_round(each, limits, options, checked, result, with);
    add_round(each, limits, options, unchecked, result, without);
  }
  add_row(result, "write", scale, with.write, without.write);
  add_row(result, "read", scale, with.read, without.read);
}

}  // namespace gpu4fs::bench
