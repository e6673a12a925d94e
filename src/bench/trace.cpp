// gpu4fs bench trace: the time of small commands by phase.
#include "base/trace.hpp"

#include <fmt/format.h>

#include <iterator>
#include <stdexcept>
#include <vector>

#include "bench/limits.hpp"
#include "bench/parts.hpp"
#include "bench/pool.hpp"
#include "bench/small_commands.hpp"
#include "bench/verbs.hpp"

namespace gpu4fs::bench {

namespace {

constexpr const char* phase_names[] = {
    "fetch",     "slot",     "gate",   "prepare", "inode", "lock",       "checks",  "map",
    "translate", "transfer", "finish", "name",    "walk",  "claim",      "reserve", "commit",
    "log",       "sync",     "leave",  "claims",  "fence", "completion", "unlock",
};
static_assert(std::size(phase_names) == trace_phase_count);

BenchRow row_of(std::string name, std::string what, const char* unit, const std::vector<double>& samples) {
  BenchRow row;
  row.name = std::move(name);
  row.what = std::move(what);
  row.unit = unit;
  set_samples(row, samples);
  return row;
}

// Adds one row for the time that a client waits, and one for each phase: cycles for each call, over all times that the
// phase occurred.
void trace_command(server::PoolServer& server, const SmallCommand& command, u32 calls, BenchResult& result) {
  for (u32 i = 0; i < calls / 10; ++i) command.call(i);
  const TraceTotals before = server.engine_trace();
  std::vector<double> samples_us;
  for (u32 i = 0; i < calls; ++i) {
    const double began = now_seconds();
    command.call(i);
    samples_us.push_back((now_seconds() - began) * 1e6);
  }
  const TraceTotals after = server.engine_trace();
  result.rows.push_back(row_of(fmt::format("trace-{}", command.name), command.what, "us", samples_us));
  for (u32 i = 0; i < trace_phase_count; ++i) {
    if (after.points[i] == before.points[i]) continue;
    const double cycles = static_cast<double>(after.cycles[i] - before.cycles[i]) / calls;
    BenchRow row = row_of(fmt::format("trace-{}-{}", command.name, phase_names[i]),
                          fmt::format("{}: {}", command.what, phase_names[i]), "cycles", {cycles});
    row.remark = fmt::format("{:.1f} times a call", static_cast<double>(after.points[i] - before.points[i]) / calls);
    result.rows.push_back(std::move(row));
  }
}

}  // namespace

int bench_trace(const BenchTraceOptions& options) {
  if (!trace_is_compiled_in) {
    throw std::runtime_error("this build counts no cycles: configure it with -DGPU4FS_TRACE=ON");
  }
  const std::string problem = gpu_problem();
  if (options.engine == "cuda" && !problem.empty()) throw std::runtime_error("engine cuda: " + problem);
  const bool on_gpu = options.engine != "cpu" && problem.empty();
  const BenchScale scale = options.quick ? BenchScale::quick() : BenchScale::full();
  BenchResult result = new_result("trace", on_gpu ? "cuda" : "cpu", options.quick);
  const MemoryPool pool({.device_bytes = scale.device_bytes});
  session::ServerOptions server_options;
  server_options.device_paths = pool.paths();
  server_options.engine = on_gpu ? session::EngineChoice::cuda : session::EngineChoice::cpu;
  server_options.commit_interval_s = 0;
  server::PoolServer server(server_options);
  server.start();
  fmt::print("{}\n", server.engine_text());
  {
    touch_memory(server, scale);
    SmallCommands commands(server);
    for (const SmallCommand& command : commands.all()) {
      report_part(command.name);
      trace_command(server, command, scale.create_calls, result);
      commands.remove_created();
    }
  }
  if (!server.stop()) throw std::runtime_error("the last checkpoint failed");
  print_rows(result);
  if (!options.output.empty()) write_result(result, options.output);
  return 0;
}

}  // namespace gpu4fs::bench
