// Results of benchmarks: rows, the machine on which they were measured, JSON input and output. Host only.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/types.hpp"

namespace gpu4fs::bench {

// How a row is compared with its requirement.
enum class Requirement { none, at_least, at_most };

// One measured quantity. `value` is in `unit`. The requirement applies to value / limit if a limit was measured in the
// same run, otherwise to the value itself.
struct BenchRow {
  std::string name;  // stable: "gpu-write-1"
  std::string what;  // for users
  std::string unit;
  double value = 0;  // median of the samples
  double least = 0;
  double greatest = 0;
  u64 sample_count = 0;
  double limit = 0;  // 0: none
  std::string limit_what;
  Requirement requirement = Requirement::none;
  double required = 0;
  std::string remark;

  double judged() const { return limit > 0 ? value / limit : value; }
  bool is_met() const;
};

// Sets value, least, greatest and sample_count. At least one sample.
void set_samples(BenchRow& row, std::vector<double> samples);
// Nearest-rank percentile of samples, 0 < fraction <= 1. At least one sample.
double percentile(std::vector<double> samples, double fraction);

struct Machine {
  std::string host_cpu;
  u32 cpu_count = 0;
  u64 memory_bytes = 0;
  std::string kernel;
  std::string gpu;  // "" without one
  std::string gpu_driver;
};
Machine describe_machine();

struct BenchResult {
  std::string benchmark;  // "run" or "fuse"
  std::string engine;
  std::string date;    // UTC
  std::string commit;  // of the sources, "" when unknown
  std::string version;
  bool quick = false;
  Machine machine;
  std::vector<BenchRow> rows;
  std::vector<std::string> left_out;  // rows that were not measured, with the reason
};

// Fills in machine, date, version and commit (GPU4FS_COMMIT).
BenchResult new_result(const std::string& benchmark, const std::string& engine, bool quick);

std::string result_json(const BenchResult& result);
// Written under a temporary name first. Throws std::runtime_error.
void write_result(const BenchResult& result, const std::string& path);
// Throws std::runtime_error that names the file and its fault.
BenchResult read_result(const std::string& path);

// Prints to standard error what is being measured, and how long the run has taken so far.
void report_part(const std::string& what);
// One line for each row: what, measured, required, met or short.
void print_rows(const BenchResult& result);
// The number of rows that miss their requirement.
u64 count_short(const BenchResult& result);

// CPU seconds of the whole machine since boot, without idle time and waits for I/O.
double machine_cpu_seconds();
double process_cpu_seconds();  // CPU seconds of this process, in user and system mode
double now_seconds();          // monotonic

}  // namespace gpu4fs::bench
