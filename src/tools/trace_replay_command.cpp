#include "tools/trace_replay_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "base/host/size_text.hpp"
#include "base/limits.hpp"
#include "replay/trace_reader.hpp"
#include "tools/trace_report.hpp"

namespace gpu4fs::tools {

namespace {

constexpr int status_usage = 16;
constexpr u64 cache_bytes_max = u64{8} << 40;

replay::TraceFormat format_of(const std::string& name) {
  return name == "gpu4fs"     ? replay::TraceFormat::gpu4fs
         : name == "ftrace"   ? replay::TraceFormat::ftrace
         : name == "blkparse" ? replay::TraceFormat::blkparse
                              : replay::TraceFormat::automatic;
}

// Powers of two, from a 64th of the footprint to all of it.
std::vector<u32> usual_line_counts(u64 footprint_pages) {
  const u64 last = std::bit_ceil(footprint_pages);
  std::vector<u32> counts;
  for (u64 pages = std::max<u64>(last / 64, 1); pages <= last; pages *= 2) {
    counts.push_back(replay::line_count_of(pages * page_size));
  }
  return counts;
}

std::vector<u32> line_counts_of(const std::string& list) {
  std::vector<u32> counts;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string text = list.substr(begin, end - begin);
    const u64 bytes = parse_size(text);
    if (bytes < page_size || bytes > cache_bytes_max) {
      throw std::invalid_argument(fmt::format("'{}' is no size of a cache: from 4 KiB to 8 TiB", text));
    }
    counts.push_back(replay::line_count_of(bytes));
    begin = end + 1;
  }
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

void warn(const replay::BlockTrace& trace) {
  for (const replay::BadLine& line : trace.bad_lines) {
    fmt::print(stderr, "gpu4fs trace replay: {}:{}: {}\n", line.file, line.line, line.fault);
  }
  if (trace.bad_line_count > trace.bad_lines.size()) {
    fmt::print(stderr, "gpu4fs trace replay: {} further lines are not understood\n",
               trace.bad_line_count - trace.bad_lines.size());
  }
  if (trace.lost_note_count != 0) {
    fmt::print(stderr, "gpu4fs trace replay: the kernel has lost events at {} places: the trace is not complete\n",
               trace.lost_note_count);
  }
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  if (!file) throw std::runtime_error(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
}

}  // namespace

void add_trace_replay_options(cli::CommandLine line, TraceReplayCommand& command) {
  line.option("files", command.files, "The traces, which are replayed one after the other").required();
  line.option("--cache-bytes", command.cache_bytes, "Sizes of caches, as 64M,128M,1G").one_value_each();
  line.option("--format", command.format, "The format of the traces").one_of({"auto", "ftrace", "blkparse", "gpu4fs"});
  line.option("--json", command.json_file, "Write the result to this file; -: print it").one_value_each();
}

int run_trace_replay(const TraceReplayCommand& command) {
  std::vector<u32> line_counts;
  try {
    if (!command.cache_bytes.empty()) line_counts = line_counts_of(command.cache_bytes);
  } catch (const std::invalid_argument& error) {
    fmt::print(stderr, "gpu4fs trace replay: {}\n", error.what());
    return status_usage;
  }
  replay::BlockTrace trace;
  for (const std::string& file : command.files) replay::read_trace(file, format_of(command.format), trace);
  warn(trace);
  const replay::PageTrace pages = replay::pages_of(trace);
  const TraceSummary summary = summary_of(trace, pages);
  if (line_counts.empty()) line_counts = usual_line_counts(summary.footprint_pages);
  const replay::LruHits lru(pages);
  const replay::OptimalHits optimal(pages);
  std::vector<CacheResult> results;
  for (const u32 count : line_counts) {
    results.push_back({count, replay::replay_on_table(pages, count), lru.with(count), optimal.with(count)});
  }
  const bool prints_json = command.json_file == "-";
  if (!command.json_file.empty() && !prints_json) {
    write_file(command.json_file, trace_json(command.files, trace, summary, results));
  }
  fmt::print("{}",
             prints_json ? trace_json(command.files, trace, summary, results) : trace_text(trace, summary, results));
  if (std::fflush(stdout) != 0) throw std::runtime_error("standard output cannot be written");
  return 0;
}

}  // namespace gpu4fs::tools
