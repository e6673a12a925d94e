// gpu4fs bench nvme: the NVMe driver on an emulated drive, both on the GPU, or both threads of this process. Limits are
// measured in the same run: bare copies of the same blocks, and queues that one group has alone.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <stdexcept>

#include "bench/limits.hpp"
#include "bench/nvme_parts.hpp"
#include "bench/verbs.hpp"

namespace gpu4fs::bench {

namespace {

NvmeMeasured run_for_latencies(NvmeContext& context, NvmePoint point) {
  point.latencies_max = context.scale.latency_calls;
  return context.machine.run(point);
}

std::vector<double> repeat_rates(NvmeContext& context, const NvmePoint& point) {
  std::vector<double> rates;
  context.machine.run(point);  // warms up
  for (u32 i = 0; i < context.scale.repeats; ++i) rates.push_back(context.machine.run(point).millions_per_s());
  return rates;
}

std::string rate_remark(double millions_per_s, const NvmePoint& point) {
  return fmt::format("{:.2f} GB/s, {} queues", millions_per_s * point.block_bytes / 1e3, point.queue_count);
}

std::string size_name(const NvmePoint& point) {
  return point.block_bytes == 512 ? "512" : "4k";
}

// The driver against bare copies of the same blocks.
void measure_rate(NvmeContext& context, NvmePoint point, const char* place) {
  const char* const verb = point.writes ? "write" : "read";
  BenchRow row;
  row.name = fmt::format("nvme-{}-{}-{}", verb, size_name(point), place);
  report_part(row.name);
  row.what = fmt::format("random {} of {} B, {}", verb, point.block_bytes, place);
  row.unit = "million/s";
  std::vector<double> limits;
  for (u32 i = 0; i < 3; ++i) limits.push_back(context.machine.bare(point).millions_per_s());
  set_samples(row, limits);
  row.limit = row.value;
  row.limit_what = "bare copies";
  set_samples(row, repeat_rates(context, point));
  row.remark = rate_remark(row.value, point);
  if (context.on_gpu && point.medium == NvmeMedium::host && point.block_bytes == 4096) {
    row.requirement = Requirement::at_least;
    row.required = 0.9;
  }
  context.result.rows.push_back(row);
  if (!context.on_gpu || point.medium == NvmeMedium::host || point.block_bytes != 512) return;
  // Here the requirement is a number and no share of a limit.
  row.name += "-count";
  row.limit = 0;
  row.requirement = Requirement::at_least;
  row.required = 40;
  context.result.rows.push_back(row);
}

void bench_rate(NvmeContext& context) {
  for (const NvmeMedium medium : {NvmeMedium::host, NvmeMedium::device}) {
    const bool is_host = medium == NvmeMedium::host;
    for (const u32 block_bytes : {4096u, 512u}) {
      for (const bool writes : {false, true}) {
        NvmePoint point;
        point.medium = medium;
        point.block_bytes = block_bytes;
        point.writes = writes;
        point.queue_count = context.scale.rate_queues;
        point.lane_count = context.scale.lane_count;
        point.run_ns = context.scale.run_ns;
        const char* const place = context.on_gpu ? is_host ? "host" : "vram" : is_host ? "controller" : "thread";
        measure_rate(context, point, place);
      }
    }
  }
}

// Virtual queues against queues that one warp has alone, in turn.
void measure_sharing(NvmeContext& context, NvmePoint point, NvmeUse use, const char* name, double required) {
  BenchRow row;
  row.name = fmt::format("nvme-{}-{}-{}", name, size_name(point), point.queue_count);
  report_part(row.name);
  row.what = fmt::format("random read of {} B, {} {} queues", point.block_bytes, point.queue_count, name);
  row.unit = "million/s";
  row.limit_what = use == NvmeUse::mapped ? "fixed queues" : "a warp a queue";
  std::vector<double> shared;
  std::vector<double> peers;
  for (u32 i = 0; i <= context.scale.repeats; ++i) {
    NvmePoint peer = point;
    peer.use = use == NvmeUse::mapped ? NvmeUse::shared : NvmeUse::raw;
    point.use = use;
    const double peer_rate = context.machine.run(peer).millions_per_s();
    const double rate = context.machine.run(point).millions_per_s();
    if (i == 0) continue;
    peers.push_back(peer_rate);
    shared.push_back(rate);
  }
  set_samples(row, peers);
  row.limit = row.value;
  set_samples(row, shared);
  row.remark = rate_remark(row.value, point);
  if (context.on_gpu && required > 0) {
    row.requirement = Requirement::at_least;
    row.required = required;
  }
  context.result.rows.push_back(row);
}

void bench_sharing(NvmeContext& context) {
  for (const u32 block_bytes : {4096u, 512u}) {
    for (const u32 queues : context.scale.sharing_queues) {
      NvmePoint point;
      point.medium = block_bytes == 4096 ? NvmeMedium::host : NvmeMedium::device;
      point.block_bytes = block_bytes;
      point.queue_count = queues;
      point.lane_count = context.scale.tail_lanes;
      point.run_ns = context.scale.run_ns;
      point.compare_every = 8;
      measure_sharing(context, point, NvmeUse::shared, "shared", block_bytes == 4096 ? 0.98 : 0);
    }
  }
}

BenchRow latency_row(const std::string& name, const std::string& what, double value, u64 count) {
  BenchRow row;
  row.name = name;
  row.what = what;
  row.unit = "us";
  row.value = row.least = row.greatest = value;
  row.sample_count = count;
  return row;
}

// One lane, one command at a time: the driver against a queue without it, on the same drive.
void bench_latency_added(NvmeContext& context) {
  for (const u64 latency_us : {10, 100}) {
    report_part(fmt::format("nvme-added-{}us", latency_us));
    NvmePoint point;
    point.queue_count = 1;
    point.latency_ns = latency_us * 1000;
    point.run_ns = context.scale.latency_calls * (point.latency_ns + 10000);
    point.use = NvmeUse::raw_lane;
    const NvmeMeasured raw = run_for_latencies(context, point);
    point.use = NvmeUse::shared_lane;
    const NvmeMeasured shared = run_for_latencies(context, point);
    for (const auto& [text, fraction] : {std::pair{"p50", 0.5}, {"p99", 0.99}}) {
      const double raw_us = percentile(raw.latencies_us, fraction);
      const double shared_us = percentile(shared.latencies_us, fraction);
      BenchRow row = latency_row(fmt::format("nvme-added-{}us-{}", latency_us, text),
                                 fmt::format("added by the driver to a drive of {} us, {}", latency_us, text),
                                 shared_us - raw_us, shared.latencies_us.size());
      row.remark = fmt::format("{:.1f} us with it, {:.1f} us without", shared_us, raw_us);
      if (context.on_gpu) {
        row.requirement = Requirement::at_most;
        row.required = 3;
      }
      context.result.rows.push_back(row);
    }
  }
}

// Many lanes at once.
void bench_tail(NvmeContext& context) {
  for (const u64 latency_us : {0, 100}) {
    NvmePoint point;
    point.queue_count = context.scale.tail_queues;
    point.lane_count = context.scale.tail_lanes;
    point.latency_ns = latency_us * 1000;
    point.run_ns = 2 * context.scale.run_ns;
    const std::string name = fmt::format("nvme-tail-{}us", latency_us);
    report_part(name);
    const NvmeMeasured measured = run_for_latencies(context, point);
    const double middle_us = percentile(measured.latencies_us, 0.5);
    for (const auto& [text, fraction] : {std::pair{"p50", 0.5}, {"p99", 0.99}, {"p99.9", 0.999}}) {
      BenchRow row = latency_row(fmt::format("{}-{}", name, text),
                                 fmt::format("{} lanes on {} queues, drive of {} us, {}", point.lane_count,
                                             point.queue_count, latency_us, text),
                                 percentile(measured.latencies_us, fraction), measured.latencies_us.size());
      if (fraction > 0.5) {
        row.limit = middle_us;
        row.limit_what = "p50";
      }
      if (context.on_gpu && fraction > 0.99) {
        row.requirement = Requirement::at_most;
        row.required = 3;
      }
      row.remark = rate_remark(measured.millions_per_s(), point);
      context.result.rows.push_back(row);
    }
  }
}

// The mapper of queues against fixed queues.
void bench_mapper(NvmeContext& context) {
  for (const u32 block_bytes : {4096u, 512u}) {
    NvmePoint point;
    point.medium = block_bytes == 4096 ? NvmeMedium::host : NvmeMedium::device;
    point.block_bytes = block_bytes;
    point.queue_count = context.scale.tail_queues;
    point.lane_count = context.scale.tail_lanes;
    point.run_ns = context.scale.run_ns;
    measure_sharing(context, point, NvmeUse::mapped, "mapped", 0);
  }
}

// The latency of the log alone, and with background on the same queues, without classes and with them.
void bench_classes(NvmeContext& context) {
  NvmePoint point;
  point.medium = context.on_gpu ? NvmeMedium::host : NvmeMedium::device;
  point.queue_count = context.scale.tail_queues;
  point.lane_count = context.scale.tail_lanes;
  point.run_ns = 2 * context.scale.run_ns;
  double shared_us = 0;
  for (const auto& [use, name] :
       {std::pair{NvmeUse::log_alone, "alone"}, {NvmeUse::log_shared, "shared"}, {NvmeUse::log_classes, "classes"}}) {
    point.use = use;
    report_part(fmt::format("nvme-log-{}", name));
    const NvmeMeasured measured = run_for_latencies(context, point);
    for (const auto& [text, fraction] : {std::pair{"p50", 0.5}, {"p99", 0.99}}) {
      BenchRow row = latency_row(fmt::format("nvme-log-{}-{}", name, text), fmt::format("log, {}, {}", name, text),
                                 percentile(measured.latencies_us, fraction), measured.latencies_us.size());
      row.remark = rate_remark(measured.millions_per_s(), point);
      if (use == NvmeUse::log_shared && fraction > 0.5) shared_us = row.value;
      if (use == NvmeUse::log_classes && fraction > 0.5) {
        row.limit = shared_us;
        row.limit_what = "without classes";
      }
      context.result.rows.push_back(row);
    }
  }
}

struct NvmePart {
  const char* name;
  void (*run)(NvmeContext&);
};
constexpr NvmePart nvme_parts[] = {
    {"rate", bench_rate},
    {"sharing", bench_sharing},
    {"latency", bench_latency_added},
    {"tail", bench_tail},
    {"mapper", bench_mapper},
    {"classes", bench_classes},
    {"sizes", bench_sizes},
    {"size-latency", bench_size_latency},
    {"cache", bench_cache},
};

}  // namespace

int bench_nvme(const BenchNvmeOptions& options) {
  const std::string problem = gpu_problem();
  if (options.engine == "cuda" && !problem.empty()) throw std::runtime_error("engine cuda: " + problem);
  const bool on_gpu = options.engine != "cpu" && problem.empty();
  BenchResult result = new_result("nvme", on_gpu ? "cuda" : "cpu", options.quick);
  const NvmeScale scale = on_gpu ? NvmeScale::gpu(options.quick) : NvmeScale::threads(options.quick);
  const std::unique_ptr<NvmeMachine> machine = on_gpu ? new_gpu_machine() : new_thread_machine();
  NvmeContext context{*machine, scale, on_gpu, result};
  for (const NvmePart& part : nvme_parts) {
    const auto& only = options.only;
    if (!only.empty() && std::find(only.begin(), only.end(), part.name) == only.end()) continue;
    try {
      part.run(context);
    } catch (const std::exception& error) {
      result.left_out.push_back(fmt::format("{}: {}", part.name, error.what()));
    }
  }
  if (on_gpu) fmt::print("the clock of the latencies has steps of {:.0f} ns\n", machine->clock_step_ns());
  print_rows(result);
  if (!options.output.empty()) write_result(result, options.output);
  return result.left_out.empty() ? 0 : 8;
}

}  // namespace gpu4fs::bench
