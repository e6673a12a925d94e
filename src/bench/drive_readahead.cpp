// What a sequential reader gains when the pool loads pages ahead of it. One reader, one command at a time, on an
// emulated drive whose latency is known.
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/client.hpp"
#include "bench/drive_pool.hpp"
#include "bench/drives.hpp"
#include "bench/mounts.hpp"
#include "bench/result.hpp"

namespace gpu4fs::bench {

namespace {

constexpr const char* profile = "100us";
constexpr u64 write_bytes = 1 << 20;
constexpr u32 write_depth = 4;

struct ReadStep {
  const char* name;
  const char* text;
  u64 bytes;
  double ratio_min;
};
constexpr ReadStep read_steps[] = {{"4k", "4 KiB", u64{4} << 10, 5}, {"128k", "128 KiB", u64{128} << 10, 1.2}};
constexpr u32 read_step_count = sizeof(read_steps) / sizeof(read_steps[0]);

struct ReadRates {
  std::vector<double> bytes_per_s[read_step_count];
  std::string engine_text;
};

// The page cache of a GPU has 256 MiB at least, because each of its workers has room in it.
constexpr u64 file_bytes_on_gpu = u64{384} << 20;

// Every byte that is read is compared. The file is larger than the page cache, so each reading misses.
ReadRates measure(const DrivesContext& context, u64 page_readahead_bytes) {
  const TemporaryFolder folder(context.folder);
  const bool is_on_gpu = context.engine == session::EngineChoice::cuda;
  const u64 file_bytes = is_on_gpu ? file_bytes_on_gpu : 4 * context.scale.page_cache_bytes;
  DrivePoolOptions options;
  options.paths = {folder.path() + "/drive"};
  write_all_blocks(options.paths.front(), 5 * file_bytes / 2 + (u64{128} << 20));
  options.engine = context.engine;
  options.access = session::DeviceAccess::emulated;
  options.drives = drives_of(profile);
  options.page_cache_bytes = context.scale.page_cache_bytes;
  options.page_readahead_bytes = page_readahead_bytes;
  DrivePool pool(options);
  ReadRates rates;
  {
    DriveFile file(pool.server(), file_bytes);
    (void)file.write_whole(write_bytes, write_depth);
    for (u32 i = 0; i < read_step_count; ++i) {
      for (u32 round = 0; round < context.scale.rounds; ++round) {
        const double seconds = file.read_whole(read_steps[i].bytes, 1).seconds;
        rates.bytes_per_s[i].push_back(static_cast<double>(file_bytes) / seconds);
      }
    }
  }
  rates.engine_text = pool.server().engine_text();
  pool.stop();
  return rates;
}

}  // namespace

void bench_drive_readahead(DrivesContext& context) {
  const ReadRates without = measure(context, 0);
  const ReadRates with = measure(context, DrivePoolOptions{}.page_readahead_bytes);
  for (u32 i = 0; i < read_step_count; ++i) {
    BenchRow row;
    row.name = fmt::format("drives-readahead-{}", read_steps[i].name);
    row.what = fmt::format("sequential read of {} at depth 1, drive {}", read_steps[i].text, profile);
    row.unit = "GB/s";
    std::vector<double> samples;
    for (const double rate : with.bytes_per_s[i]) samples.push_back(rate / 1e9);
    set_samples(row, samples);
    row.limit = percentile(without.bytes_per_s[i], 0.5) / 1e9;
    row.limit_what = "without read-ahead";
    row.requirement = Requirement::at_least;
    row.required = read_steps[i].ratio_min;
    row.remark = with.engine_text;
    context.result.rows.push_back(std::move(row));
  }
}

}  // namespace gpu4fs::bench
