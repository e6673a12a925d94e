// gpu4fs bench run: an engine in this process on a pool of memory devices. Its limits are measured in the same process
// before the engine starts; every byte that is read is compared.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <thread>

#include "base/host/size_text.hpp"
#include "base/limits.hpp"
#include "bench/client.hpp"
#include "bench/limits.hpp"
#include "bench/parts.hpp"
#include "bench/pool.hpp"
#include "bench/result.hpp"
#include "bench/verbs.hpp"
#include "frontend/local_session.hpp"
#include "server/pool_server.hpp"

namespace gpu4fs::bench {

namespace {

session::EngineChoice engine_choice(const std::string& name) {
  if (name == "cpu") return session::EngineChoice::cpu;
  return name == "cuda" ? session::EngineChoice::cuda : session::EngineChoice::automatic;
}

struct Part {
  const char* name;
  void (*run)(BenchContext&);
};
constexpr Part parts[] = {
    {"first", bench_first_touch},   {"files", bench_files},     {"vram", bench_read_device},
    {"scrub", bench_scrub},         {"latency", bench_latency}, {"rate", bench_small_reads},
    {"paths", bench_path_reads},    {"sync", bench_sync},       {"recovery", bench_recovery},
    {"processes", bench_processes}, {"idle", bench_idle},       {"checkpoint", bench_checkpoint_pause},
};

// The median of several passes, without the first, which warms up.
double measure_limit(GpuLimits& limits, CopyPath path, u64 length_bytes) {
  limits.copy_seconds(path);
  std::vector<double> rates;
  for (int i = 0; i < 5; ++i) rates.push_back(static_cast<double>(length_bytes) / 1e9 / limits.copy_seconds(path));
  BenchRow row;
  set_samples(row, rates);
  return row.value;
}

// Copies between two buffers with as many threads as the CPU engine has: the greatest possible rate.
double measure_memcpy(u64 length_bytes) {
  const unsigned thread_count = std::max(1u, std::thread::hardware_concurrency());
  std::vector<u8> from(length_bytes, 1);
  std::vector<u8> to(length_bytes, 2);
  std::vector<double> rates;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double began = now_seconds();
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < thread_count; ++i) {
      threads.emplace_back([&, i] {
        const u64 begin = length_bytes * i / thread_count;
        std::memcpy(&to[begin], &from[begin], length_bytes * (i + 1) / thread_count - begin);
      });
    }
    for (std::thread& thread : threads) thread.join();
    rates.push_back(static_cast<double>(length_bytes) / 1e9 / (now_seconds() - began));
  }
  if (std::memcmp(from.data(), to.data(), length_bytes) != 0) throw std::runtime_error("memcpy did not copy");
  BenchRow row;
  set_samples(row, rates);
  return row.value;
}

Limits measure_limits(bool on_gpu, u64 length_bytes) {
  Limits result;
  if (!on_gpu) {
    result.write_gb_per_s = result.read_gb_per_s = measure_memcpy(length_bytes);
    result.what = "memcpy, all CPUs";
    return result;
  }
  GpuLimits limits(length_bytes);
  result.write_gb_per_s = result.read_gb_per_s = measure_limit(limits, CopyPath::host_to_host, length_bytes);
  result.device_gb_per_s = measure_limit(limits, CopyPath::host_to_device, length_bytes);
  result.device_copy_gb_per_s = measure_limit(limits, CopyPath::device_to_device, length_bytes);
  result.what = "bare kernel";
  count_free_processors();  // loads the probe, which must not happen while the service kernel runs
  return result;
}

bool is_wanted(const BenchRunOptions& options, const char* part) {
  return options.only.empty() || std::find(options.only.begin(), options.only.end(), part) != options.only.end();
}

// A part with pools and engines of its own.
template <class Part>
void run_alone(const BenchRunOptions& options, const char* name, BenchResult& result, Part part) {
  if (!is_wanted(options, name)) return;
  report_part(name);
  try {
    part();
  } catch (const std::exception& error) {
    result.left_out.push_back(fmt::format("{}: {}", name, error.what()));
  }
}

}  // namespace

int bench_run(const BenchRunOptions& options) {
  const std::string problem = gpu_problem();
  if (options.engine == "cuda" && !problem.empty()) throw std::runtime_error("engine cuda: " + problem);
  const bool on_gpu = options.engine != "cpu" && problem.empty();
  BenchResult result = new_result("run", on_gpu ? "cuda" : "cpu", options.quick);
  BenchScale scale = options.quick || !on_gpu ? BenchScale::quick() : BenchScale::full();
  if (!options.step.empty()) scale.step_bytes = std::max(parse_size(options.step), page_size);
  const Limits limits = measure_limits(on_gpu, scale.file_bytes);
  MemoryPool pool({.device_bytes = scale.device_bytes});
  session::ServerOptions server_options;
  server_options.device_paths = pool.paths();
  server_options.engine = engine_choice(on_gpu ? "cuda" : "cpu");
  server_options.control_folder = pool.folder();
  server_options.has_process_sessions = true;
  server_options.commit_interval_s = 0;  // checkpoints happen only when a part requests them
  server::PoolServer server(server_options);
  server.start();
  fmt::print("{}\n", server.engine_text());
  {
    BenchContext context{server, scale, limits, on_gpu, result};
    for (const Part& part : parts) {
      const bool warms_up = on_gpu && std::strcmp(part.name, "first") == 0;
      if (!warms_up && !is_wanted(options, part.name)) continue;
      report_part(part.name);
      try {
        part.run(context);
      } catch (const std::exception& error) {
        result.left_out.push_back(fmt::format("{}: {}", part.name, error.what()));
      }
    }
  }
  const bool clean = server.stop();
  // A part of the GPU engine. Whoever names it for another one is told.
  if (on_gpu || !options.only.empty()) {
    run_alone(options, "tier", result, [&] { bench_page_tier(scale, limits, server_options, on_gpu, result); });
  }
  run_alone(options, "checksums", result, [&] { bench_checksums(scale, limits, server_options, result); });
  run_alone(options, "raid", result, [&] { bench_raid(scale, server_options, options.levels, on_gpu, result); });
  run_alone(options, "rebuild", result,
            [&] { bench_rebuild(scale, server_options, options.levels, limits, on_gpu, result); });
  run_alone(options, "emptying", result, [&] { bench_emptying(scale, server_options, result); });
  run_alone(options, "empty", result, [&] { bench_empty_pool(scale, server_options, on_gpu, result); });
  // Not part of a run that names no parts: it takes long and has no requirements.
  if (!options.only.empty() && is_wanted(options, "sweep")) {
    bench_raid_sweep(scale, server_options, options.levels, on_gpu, result);
  }
  if (!clean) result.left_out.push_back("the last checkpoint failed");
  print_rows(result);
  if (!options.output.empty()) write_result(result, options.output);
  return clean && result.left_out.empty() ? 0 : 8;
}

}  // namespace gpu4fs::bench
