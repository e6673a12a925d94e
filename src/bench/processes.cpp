// Sessions of other processes against sessions of the server's own process.
#include <fmt/format.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "bench/client.hpp"
#include "bench/parts.hpp"
#include "bench/process_client.hpp"
#include "bench/session_load.hpp"
#include "bench/side_by_side.hpp"
#include "bench/small_commands.hpp"
#include "format/inode_format.hpp"
#include "frontend/local_session.hpp"

namespace gpu4fs::bench {
namespace {

constexpr u64 small_file = 70;
constexpr u64 large_file = 71;
constexpr u32 own_rings = 8;
constexpr u32 client_processes = 12;
constexpr u64 rate_milliseconds = 1000;

BenchClient open_own(BenchContext& context) {
  return BenchClient(frontend::open_local_session(context.server, session_load_data_bytes));
}

SessionLoadOptions make_files(BenchContext& context) {
  BenchClient client(frontend::open_local_session(context.server, small_file_bytes + BenchClient::control_bytes));
  SessionLoadOptions load;
  load.small_file = small_file;
  load.large_file = large_file;
  load.small_inode = client.create(format::inode_number_root, "process-small");
  load.large_inode = client.create(format::inode_number_root, "process-large");
  load.large_bytes = context.scale.file_bytes;
  load.calls = context.scale.latency_calls / 5;
  load.repeats = context.scale.repeats;
  fill_pattern(client.buffer(), small_file, 0, small_file_bytes / page_size);
  client.stream(wire::Opcode::write, load.small_inode, small_file_bytes, small_file_bytes, 1, client.buffer_address(0));
  return load;
}

// What a session of another process takes longer.
void add_difference(BenchContext& context, const char* name, const char* what, const std::vector<double>& other_us,
                    const std::vector<double>& own_us) {
  const double own = percentile(own_us, 0.5);
  BenchRow row;
  row.name = fmt::format("process-{}", name);
  row.what = fmt::format("{} of another process, more than of the server's own, p50", what);
  row.unit = "us";
  std::vector<double> differences;
  for (const double sample : other_us) differences.push_back(sample - own);
  set_samples(row, differences);
  row.requirement = Requirement::at_most;
  row.required = 1;
  row.remark = fmt::format("{:.2f} us, own {:.2f} us", percentile(other_us, 0.5), own);
  context.result.rows.push_back(row);
}

struct Share {
  const char* name;
  std::string what;
  const char* unit;
  const char* limit_what;
  double required;
};

// `samples` against the median of `limits`.
void add_share(BenchContext& context, const Share& share, const std::vector<double>& samples,
               const std::vector<double>& limits) {
  BenchRow row;
  row.name = fmt::format("process-{}", share.name);
  row.what = share.what;
  row.unit = share.unit;
  set_samples(row, samples);
  row.limit = percentile(limits, 0.5);
  row.limit_what = share.limit_what;
  row.requirement = Requirement::at_least;
  row.required = share.required;
  context.result.rows.push_back(row);
}

double own_rate(BenchContext& context, const SessionLoadOptions& load) {
  std::vector<u64> counts(own_rings);
  run_side_by_side(own_rings, [&](u32 i) {
    BenchClient client = open_own(context);
    counts[i] = read_small(client, load, static_cast<double>(rate_milliseconds) / 1e3, i);
  });
  return static_cast<double>(std::accumulate(counts.begin(), counts.end(), u64{0})) /
         static_cast<double>(rate_milliseconds) / 1e3;
}

double process_rate(BenchContext& context, const SessionLoadOptions& load) {
  std::vector<std::unique_ptr<ProcessClient>> clients;
  for (u32 i = 0; i < client_processes; ++i) {
    clients.push_back(std::make_unique<ProcessClient>(context.server.session_path()));
  }
  for (u32 i = 0; i < client_processes; ++i) clients[i]->begin({load, rate_milliseconds, i});
  u64 count = 0;
  for (auto& client : clients) count += client->read_count();
  return static_cast<double>(count) / static_cast<double>(rate_milliseconds) / 1e3;
}

}  // namespace

void bench_processes(BenchContext& context) {
  const SessionLoadOptions load = make_files(context);
  SessionFigures own;
  {
    BenchClient client = open_own(context);
    own = measure_session(client, load);
  }
  ProcessClient process(context.server.session_path());
  process.begin({load, 0, 0});
  const SessionFigures other = process.figures();
  add_difference(context, "noop", "no-op", other.noop_us, own.noop_us);
  add_difference(context, "read-4k", "read of 4 KiB", other.read_us, own.read_us);
  const char* const same = "session of the server's process";
  add_share(context, {"read", "reads of 1 MiB by another process, 8 in flight", "GB/s", same, 0.85},
            other.read_gb_per_s, own.read_gb_per_s);
  add_share(context, {"write", "writes of 1 MiB by another process, 8 in flight", "GB/s", same, 0.85},
            other.write_gb_per_s, own.write_gb_per_s);
  std::vector<double> own_rates;
  std::vector<double> process_rates;
  for (u32 i = 0; i < context.scale.repeats; ++i) {
    own_rates.push_back(own_rate(context, load));
    process_rates.push_back(process_rate(context, load));
  }
  add_share(context,
            {"rate", fmt::format("reads of 4 KiB by {} processes", client_processes), "M/s",
             "8 rings of the server's process", 0.8},
            process_rates, own_rates);
  BenchClient cleaner = open_own(context);
  for (const char* const name : {"process-small", "process-large"}) {
    cleaner.unlink(format::inode_number_root, name);
  }
}

}  // namespace gpu4fs::bench
