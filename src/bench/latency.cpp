// Small commands one at a time, and the cost of an idle engine.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/limits.hpp"
#include "bench/client.hpp"
#include "bench/limits.hpp"
#include "bench/parts.hpp"
#include "bench/small_commands.hpp"
#include "frontend/local_session.hpp"

namespace gpu4fs::bench {

namespace {

constexpr double waking_us_max = 120;
constexpr double processors_max = 8;
constexpr u32 wake_calls = 20;

void add_latency(BenchContext& context, const char* name, const char* what, const std::vector<double>& samples_us,
                 std::optional<double> required_us, const std::string& remark = "") {
  for (const double fraction : {0.5, 0.99}) {
    BenchRow row;
    row.name = fmt::format("{}-p{:.0f}", name, fraction * 100);
    row.what = fmt::format("{}, p{:.0f}", what, fraction * 100);
    row.unit = "us";
    set_samples(row, samples_us);
    row.value = percentile(samples_us, fraction);
    row.remark = remark;
    if (context.on_gpu && fraction == 0.5 && required_us.has_value()) {
      row.requirement = Requirement::at_most;
      row.required = *required_us;
    }
    context.result.rows.push_back(std::move(row));
  }
}

// Calls the command `count` times, after a warm-up of a tenth of that.
std::vector<double> time_calls(u32 count, const SmallCommand& command) {
  std::vector<double> samples_us;
  samples_us.reserve(count);
  const u32 unmeasured = count / 10;
  for (u32 i = 0; i < unmeasured + count; ++i) {
    const double began = now_seconds();
    command.call(i);
    const double took_us = (now_seconds() - began) * 1e6;
    if (command.check) command.check();
    if (i >= unmeasured) samples_us.push_back(took_us);
  }
  return samples_us;
}

// Of a call that takes the time itself, after pauses in which the GPU falls asleep.
std::vector<double> sample_after_pauses(const std::function<double(u32)>& call_s) {
  std::vector<double> samples_us;
  for (u32 i = 0; i < wake_calls; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    samples_us.push_back(call_s(i) * 1e6);
  }
  return samples_us;
}

std::vector<double> time_waking(const SmallCommand& noop) {
  return sample_after_pauses([&](u32 i) {
    const double began = now_seconds();
    noop.call(i);
    return now_seconds() - began;
  });
}

std::string describe_bare_launch() {
  const std::vector<double> samples_us = sample_after_pauses([](u32) { return time_launch_s(); });
  return fmt::format("a bare kernel's launch: {:.0f} us", percentile(samples_us, 0.5));
}

struct LatencyGoal {
  const char* name;
  std::optional<double> required_us;
};
constexpr LatencyGoal latency_goals[] = {
    {"noop", 3},    {"read-4k", 7}, {"read-128k", {}}, {"read-132k", {}},
    {"getattr", 7}, {"lookup", 10}, {"stat-path", 14}, {"create", 30},
};

}  // namespace

void bench_latency(BenchContext& context) {
  SmallCommands commands(context.server);
  const std::string bare = context.on_gpu ? describe_bare_launch() : "";
  add_latency(context, "noop-asleep", "no-op that wakes the engine", time_waking(commands.noop()), waking_us_max, bare);
  for (const LatencyGoal& goal : latency_goals) {
    const auto& all = commands.all();
    const auto command = std::find_if(all.begin(), all.end(),
                                      [&](const SmallCommand& c) { return std::strcmp(c.name, goal.name) == 0; });
    const bool creates = std::strcmp(goal.name, "create") == 0;
    const u32 calls = creates ? context.scale.create_calls : context.scale.latency_calls;
    add_latency(context, command->name, command->what, time_calls(calls, *command), goal.required_us);
    commands.remove_created();
  }
}

void bench_idle(BenchContext& context) {
  BenchClient client(frontend::open_local_session(context.server, BenchClient::control_bytes + page_size));
  if (context.on_gpu) {
    // Busy: a thread keeps the engine working while the probe looks for free multiprocessors.
    std::atomic<bool> stop{false};
    std::thread worker([&] {
      wire::Command noop{};
      noop.opcode = wire::Opcode::noop;
      while (!stop) (void)client.session().call(noop);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const ProcessorCount busy = count_free_processors();
    stop = true;
    worker.join();
    BenchRow row;
    row.name = "processors-busy";
    row.what = "multiprocessors of the engine at work";
    row.unit = "SMs";
    set_samples(row, {static_cast<double>(busy.total - busy.free)});
    row.requirement = Requirement::at_most;
    row.required = processors_max;
    context.result.rows.push_back(row);
    std::this_thread::sleep_for(std::chrono::seconds(1));
    const ProcessorCount idle = count_free_processors();
    row.name = "processors-idle";
    row.what = "multiprocessors of the engine, idle for a second";
    set_samples(row, {static_cast<double>(idle.total - idle.free)});
    row.required = 0;
    context.result.rows.push_back(row);
  }
  timespec begin{};
  timespec end{};
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
  BenchRow row;
  row.name = "cpu-idle";
  row.what = "CPU time of the process, idle for two seconds";
  row.unit = "ms/s";
  const double seconds =
      static_cast<double>(end.tv_sec - begin.tv_sec) + static_cast<double>(end.tv_nsec - begin.tv_nsec) * 1e-9;
  set_samples(row, {seconds / 2 * 1e3});
  context.result.rows.push_back(std::move(row));
}

}  // namespace gpu4fs::bench
