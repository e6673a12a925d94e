#include "route/route_counters.hpp"

#include <fmt/format.h>

#include <iterator>

namespace gpu4fs::route {

namespace {

void append_count(std::string& text, std::string_view indent, std::string_view name, const RouteCount& count) {
  if (count.transfers == 0) return;
  fmt::format_to(std::back_inserter(text), "{}{}: {} transfer{}, {} byte{}\n", indent, name, count.transfers,
                 count.transfers == 1 ? "" : "s", count.bytes, count.bytes == 1 ? "" : "s");
}

}  // namespace

RouteCount RouteCounts::total(Route route) const {
  RouteCount sum;
  for (const RouteCount& count : by_reason[static_cast<u32>(route)]) {
    sum.transfers += count.transfers;
    sum.bytes += count.bytes;
  }
  return sum;
}

void RouteCounters::Cell::add(u64 length) {
  transfers.fetch_add(1, std::memory_order_relaxed);
  bytes.fetch_add(length, std::memory_order_relaxed);
}

RouteCount RouteCounters::Cell::value() const {
  return {transfers.load(std::memory_order_relaxed), bytes.load(std::memory_order_relaxed)};
}

void RouteCounters::count(Route route, Reason reason, u64 bytes) {
  by_reason_[static_cast<u32>(route)][static_cast<u32>(reason)].add(bytes);
}

void RouteCounters::count_write_back(u64 bytes) {
  written_back_.add(bytes);
}

void RouteCounters::count_prefetch(u64 bytes) {
  prefetched_.add(bytes);
}

void RouteCounters::count(std::span<const TransferStep> steps) {
  for (const TransferStep& step : steps) {
    if (step.kind == StepKind::write_back) {
      count_write_back(step.bytes.length);
    } else {
      count(step.route, step.reason, step.bytes.length);
    }
  }
}

RouteCounts RouteCounters::counts() const {
  RouteCounts result;
  for (u32 route = 0; route < route_count; ++route) {
    for (u32 reason = 0; reason < reason_count; ++reason) {
      result.by_reason[route][reason] = by_reason_[route][reason].value();
    }
  }
  result.written_back = written_back_.value();
  result.prefetched = prefetched_.value();
  return result;
}

std::string to_text(const RouteCounts& counts) {
  std::string text;
  for (u32 i = 0; i < route_count; ++i) {
    const Route route = static_cast<Route>(i);
    append_count(text, "", to_text(route), counts.total(route));
    for (u32 j = 0; j < reason_count; ++j) {
      const Reason reason = static_cast<Reason>(j);
      append_count(text, "  ", to_text(reason), counts.of(route, reason));
    }
  }
  append_count(text, "", "written back first", counts.written_back);
  append_count(text, "", "read ahead", counts.prefetched);
  return text;
}

}  // namespace gpu4fs::route
