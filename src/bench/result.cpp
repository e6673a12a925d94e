#include "bench/result.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "base/check.hpp"
#include "base/host/cuda_driver.hpp"
#include "base/host/json.hpp"
#include "base/host/json_value.hpp"

namespace gpu4fs::bench {

namespace {

const char* requirement_text(Requirement requirement) {
  switch (requirement) {
    case Requirement::none:
      return "none";
    case Requirement::at_least:
      return "at_least";
    case Requirement::at_most:
      return "at_most";
  }
  return "none";
}

Requirement parse_requirement(const std::string& text) {
  if (text == "at_least") return Requirement::at_least;
  return text == "at_most" ? Requirement::at_most : Requirement::none;
}

std::string number_text(double value) {
  const double size = std::abs(value);
  return size >= 1e6 || (size > 0 && size < 1e-3) ? fmt::format("{:.3g}", value)
         : size >= 100                            ? fmt::format("{:.0f}", value)
                                                  : fmt::format("{:.3g}", value);
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const std::size_t colon = line.find(": ");
    return colon == std::string::npos ? "" : line.substr(colon + 2);
  }
  return "";
}

void add_row(JsonWriter& json, const BenchRow& row) {
  json.begin_object();
  json.add("name", row.name);
  json.add("what", row.what);
  json.add("unit", row.unit);
  json.add("median", row.value);
  json.add("least", row.least);
  json.add("greatest", row.greatest);
  json.add("samples", row.sample_count);
  if (row.limit > 0) {
    json.add("limit", row.limit);
    json.add("limit_what", row.limit_what);
    json.add("ratio", row.judged());
  }
  json.add("requirement", requirement_text(row.requirement));
  if (row.requirement != Requirement::none) {
    json.add("required", row.required);
    json.add("met", row.is_met());
  }
  if (!row.remark.empty()) json.add("remark", row.remark);
  json.end();
}

BenchRow parse_row(const JsonValue& value) {
  BenchRow row;
  row.name = value["name"].text;
  row.what = value["what"].text;
  row.unit = value["unit"].text;
  row.value = value["median"].number;
  row.least = value["least"].number;
  row.greatest = value["greatest"].number;
  row.sample_count = static_cast<u64>(value["samples"].number);
  row.limit = value["limit"].number;
  row.limit_what = value["limit_what"].text;
  row.requirement = parse_requirement(value["requirement"].text);
  row.required = value["required"].number;
  row.remark = value["remark"].text;
  return row;
}

}  // namespace

bool BenchRow::is_met() const {
  switch (requirement) {
    case Requirement::none:
      return true;
    case Requirement::at_least:
      return judged() >= required;
    case Requirement::at_most:
      return judged() <= required;
  }
  return false;
}

double percentile(std::vector<double> samples, double fraction) {
  GPU4FS_CHECK(!samples.empty());
  std::sort(samples.begin(), samples.end());
  const auto rank = static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(samples.size())));
  return samples[std::clamp<std::size_t>(rank, 1, samples.size()) - 1];
}

void set_samples(BenchRow& row, std::vector<double> samples) {
  GPU4FS_CHECK(!samples.empty());
  std::sort(samples.begin(), samples.end());
  const std::size_t middle = samples.size() / 2;
  row.value = samples.size() % 2 == 1 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
  row.least = samples.front();
  row.greatest = samples.back();
  row.sample_count = samples.size();
}

Machine describe_machine() {
  Machine machine;
  machine.host_cpu = cpu_model();
  machine.cpu_count = static_cast<u32>(::sysconf(_SC_NPROCESSORS_ONLN));
  struct sysinfo memory {};
  if (::sysinfo(&memory) == 0) machine.memory_bytes = u64{memory.totalram} * memory.mem_unit;
  utsname names{};
  if (::uname(&names) == 0) machine.kernel = fmt::format("{} {}", names.sysname, names.release);
  const CudaDriverReport cuda = ask_cuda_driver(false);
  if (cuda.device_count > 0) {
    machine.gpu = cuda.device_name;
    std::ifstream file("/proc/driver/nvidia/version");
    std::getline(file, machine.gpu_driver);
  }
  return machine;
}

namespace {

std::string date_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

BenchResult new_result(const std::string& benchmark, const std::string& engine, bool quick) {
  BenchResult result;
  result.benchmark = benchmark;
  result.engine = engine;
  result.date = date_text();
  const char* commit = std::getenv("GPU4FS_COMMIT");
  result.commit = commit != nullptr ? commit : "";
  result.version = GPU4FS_VERSION;
  result.quick = quick;
  result.machine = describe_machine();
  return result;
}

std::string result_json(const BenchResult& result) {
  JsonWriter json;
  json.begin_object();
  json.add("benchmark", result.benchmark);
  json.add("engine", result.engine);
  json.add("date", result.date);
  json.add("commit", result.commit);
  json.add("version", result.version);
  json.add("quick", result.quick);
  json.begin_object("machine");
  json.add("cpu", result.machine.host_cpu);
  json.add("cpu_count", result.machine.cpu_count);
  json.add("memory_bytes", result.machine.memory_bytes);
  json.add("kernel", result.machine.kernel);
  json.add("gpu", result.machine.gpu);
  json.add("gpu_driver", result.machine.gpu_driver);
  json.end();
  json.begin_array("rows");
  for (const BenchRow& row : result.rows) add_row(json, row);
  json.end();
  json.begin_array("left_out");
  for (const std::string& text : result.left_out) json.add("", text);
  json.end();
  json.end();
  return json.text();
}

void write_result(const BenchResult& result, const std::string& path) {
  const std::string temporary = path + ".new";
  std::ofstream file(temporary, std::ios::trunc);
  file << result_json(result);
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    throw std::runtime_error(fmt::format("{}: cannot write", path));
  }
}

BenchResult read_result(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream content;
  content << file.rdbuf();
  if (!file) throw std::runtime_error(fmt::format("{}: cannot read", path));
  JsonValue value;
  try {
    value = parse_json(content.str());
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(fmt::format("{}: {}", path, error.what()));
  }
  BenchResult result;
  result.benchmark = value["benchmark"].text;
  result.engine = value["engine"].text;
  result.date = value["date"].text;
  result.commit = value["commit"].text;
  result.version = value["version"].text;
  result.quick = value["quick"].boolean;
  result.machine.host_cpu = value["machine"]["cpu"].text;
  result.machine.cpu_count = static_cast<u32>(value["machine"]["cpu_count"].number);
  result.machine.memory_bytes = static_cast<u64>(value["machine"]["memory_bytes"].number);
  result.machine.kernel = value["machine"]["kernel"].text;
  result.machine.gpu = value["machine"]["gpu"].text;
  result.machine.gpu_driver = value["machine"]["gpu_driver"].text;
  for (const JsonValue& row : value["rows"].elements) result.rows.push_back(parse_row(row));
  for (const JsonValue& text : value["left_out"].elements) result.left_out.push_back(text.text);
  if (result.benchmark.empty()) throw std::runtime_error(fmt::format("{}: no result of a benchmark", path));
  return result;
}

void report_part(const std::string& what) {
  static const double began = now_seconds();
  fmt::print(stderr, "{:6.1f} s  {}\n", now_seconds() - began, what);
}

void print_rows(const BenchResult& result) {
  fmt::print("{} engine={}{} {} {}, {} CPUs{}{}\n", result.benchmark, result.engine, result.quick ? " (quick)" : "",
             result.date, result.machine.host_cpu, result.machine.cpu_count, result.machine.gpu.empty() ? "" : ", ",
             result.machine.gpu);
  for (const BenchRow& row : result.rows) {
    std::string measured = fmt::format("{} {}", number_text(row.value), row.unit);
    if (row.limit > 0) {
      measured +=
          fmt::format(" = {:.3f} of {} {} ({})", row.judged(), number_text(row.limit), row.unit, row.limit_what);
    }
    std::string required = "-";
    if (row.requirement != Requirement::none) {
      required =
          fmt::format("{} {}", row.requirement == Requirement::at_least ? ">=" : "<=", number_text(row.required));
    }
    const char* verdict = row.requirement == Requirement::none ? "" : row.is_met() ? "met" : "short";
    fmt::print("  {:<44} {:<60} {:<10} {}{}{}\n", row.what, measured, required, verdict, row.remark.empty() ? "" : "  ",
               row.remark);
  }
  for (const std::string& text : result.left_out) fmt::print("  not measured: {}\n", text);
}

u64 count_short(const BenchResult& result) {
  return static_cast<u64>(
      std::count_if(result.rows.begin(), result.rows.end(), [](const BenchRow& row) { return !row.is_met(); }));
}

double machine_cpu_seconds() {
  std::ifstream file("/proc/stat");
  std::string name;
  file >> name;
  double total = 0;
  // user nice system idle iowait irq softirq steal
  for (int field = 0; field < 8; ++field) {
    double ticks = 0;
    file >> ticks;
    if (field != 3 && field != 4) total += ticks;
  }
  return total / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double process_cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace gpu4fs::bench
