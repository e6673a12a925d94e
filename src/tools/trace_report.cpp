#include "tools/trace_report.hpp"

#include <fmt/format.h>

#include "base/host/json.hpp"
#include "base/host/size_text.hpp"
#include "base/limits.hpp"

namespace gpu4fs::tools {

namespace {

using replay::AccessKind;
using replay::PageCounts;

// Of reads, of writes, or of both.
struct ReportRow {
  const char* name;
  PageCounts counts;
  u64 lru_hits;
  u64 optimal_hits;
};

PageCounts sum_of(const PageCounts& a, const PageCounts& b) {
  return {a.hits + b.hits, a.clean_misses + b.clean_misses, a.write_back_misses + b.write_back_misses,
          a.cold_misses + b.cold_misses, a.loads + b.loads};
}

std::vector<ReportRow> rows_of(const CacheResult& result) {
  return {{"reads", result.table.reads, result.lru.reads, result.optimal.reads},
          {"writes", result.table.writes, result.lru.writes, result.optimal.writes},
          {"all", sum_of(result.table.reads, result.table.writes), result.lru.reads + result.lru.writes,
           result.optimal.reads + result.optimal.writes}};
}

double ratio_of(u64 hits, const PageCounts& counts) {
  return counts.pages() == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(counts.pages());
}

u64 written_back(const CacheResult& result) {
  return result.table.written_for_misses + result.table.written_for_flushes;
}

}  // namespace

TraceSummary summary_of(const replay::BlockTrace& trace, const replay::PageTrace& pages) {
  TraceSummary summary;
  for (const replay::Request& request : trace.requests) {
    ++(request.kind == AccessKind::read    ? summary.reads
       : request.kind == AccessKind::write ? summary.writes
       : request.kind == AccessKind::flush ? summary.flushes
                                           : summary.discards);
  }
  for (u64 i = 0; i < pages.pages.size(); ++i) {
    if (i == 0 || pages.pages[i].device != pages.pages[i - 1].device) ++summary.device_count;
  }
  summary.footprint_pages = pages.pages.size();
  return summary;
}

std::string trace_text(const replay::BlockTrace& trace, const TraceSummary& summary,
                       const std::vector<CacheResult>& results) {
  std::string text = fmt::format("requests    {} reads, {} writes, {} flushes, {} discards on {} {}\n", summary.reads,
                                 summary.writes, summary.flushes, summary.discards, summary.device_count,
                                 summary.device_count == 1 ? "device" : "devices");
  text += fmt::format("footprint   {} pages, {}\n", summary.footprint_pages,
                      size_text(summary.footprint_pages * page_size));
  if (trace.bad_line_count + trace.ignored_line_count != 0) {
    text += fmt::format("lines       {} not understood, {} ignored\n", trace.bad_line_count, trace.ignored_line_count);
  }
  constexpr const char* layout = "{:>10}  {:<6} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11} {:>7} {:>6} {:>6}\n";
  text += '\n' + fmt::format(layout, "cache", "", "pages", "hits", "misses", "cold", "dirty", "loaded", "written",
                             "hits %", "LRU %", "OPT %");
  const auto percent = [](double ratio) { return fmt::format("{:.1f}", 100 * ratio); };
  for (const CacheResult& result : results) {
    std::string size = size_text(u64{result.line_count} * page_size);
    for (const ReportRow& row : rows_of(result)) {
      if (row.counts.pages() == 0) continue;
      const bool is_sum = std::string_view(row.name) == "all";
      text += fmt::format(layout, size, row.name, row.counts.pages(), row.counts.hits, row.counts.misses(),
                          row.counts.cold_misses, row.counts.write_back_misses, row.counts.loads,
                          is_sum ? std::to_string(written_back(result)) : "",
                          percent(ratio_of(row.counts.hits, row.counts)), percent(ratio_of(row.lru_hits, row.counts)),
                          percent(ratio_of(row.optimal_hits, row.counts)));
      size.clear();
    }
  }
  return text;
}

namespace {

void add_row(JsonWriter& json, const ReportRow& row) {
  json.begin_object(row.name);
  json.add("pages", row.counts.pages());
  json.add("hits", row.counts.hits);
  json.add("misses", row.counts.misses());
  json.add("cold_misses", row.counts.cold_misses);
  json.add("clean_misses", row.counts.clean_misses);
  json.add("write_back_misses", row.counts.write_back_misses);
  json.add("loads", row.counts.loads);
  json.add("lru_hits", row.lru_hits);
  json.add("optimal_hits", row.optimal_hits);
  json.add("hit_ratio", ratio_of(row.counts.hits, row.counts));
  json.add("lru_hit_ratio", ratio_of(row.lru_hits, row.counts));
  json.add("optimal_hit_ratio", ratio_of(row.optimal_hits, row.counts));
  json.end();
}

void add_trace(JsonWriter& json, const replay::BlockTrace& trace, const TraceSummary& summary) {
  json.begin_array("devices");
  for (const std::string& device : trace.devices) json.add("", device);
  json.end();
  json.begin_object("requests");
  json.add("reads", summary.reads);
  json.add("writes", summary.writes);
  json.add("flushes", summary.flushes);
  json.add("discards", summary.discards);
  json.end();
  json.add("page_bytes", page_size);
  json.add("footprint_pages", summary.footprint_pages);
  json.add("bad_line_count", trace.bad_line_count);
  json.add("ignored_line_count", trace.ignored_line_count);
  json.add("lost_note_count", trace.lost_note_count);
  json.begin_array("bad_lines");
  for (const replay::BadLine& line : trace.bad_lines) {
    json.begin_object();
    json.add("file", line.file);
    json.add("line", line.line);
    json.add("fault", line.fault);
    json.end();
  }
  json.end();
}

}  // namespace

std::string trace_json(const std::vector<std::string>& files, const replay::BlockTrace& trace,
                       const TraceSummary& summary, const std::vector<CacheResult>& results) {
  JsonWriter json;
  json.begin_object();
  json.begin_array("files");
  for (const std::string& file : files) json.add("", file);
  json.end();
  add_trace(json, trace, summary);
  json.begin_array("caches");
  for (const CacheResult& result : results) {
    json.begin_object();
    json.add("cache_bytes", u64{result.line_count} * page_size);
    json.add("written_back_for_misses", result.table.written_for_misses);
    json.add("written_back_for_flushes", result.table.written_for_flushes);
    for (const ReportRow& row : rows_of(result)) add_row(json, row);
    json.end();
  }
  json.end();
  json.end();
  return json.text();
}

}  // namespace gpu4fs::tools
