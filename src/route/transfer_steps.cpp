#include "route/transfer_steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/mutant.hpp"
#include "route/route_error.hpp"

namespace gpu4fs::route {

namespace {

void check_limits(const TransferLimits& limits) {
  if (!std::has_single_bit(limits.alignment_bytes) || limits.alignment_bytes > page_size) {
    throw RouteError(fmt::format("transfers: an alignment of {} bytes", limits.alignment_bytes));
  }
  if (limits.request_bytes_max == 0 || limits.request_bytes_max % page_size != 0) {
    throw RouteError(fmt::format("transfers: requests of at most {} bytes", limits.request_bytes_max));
  }
}

class StepWriter {
 public:
  StepWriter(const TransferLimits& limits, std::vector<TransferStep>& steps) : limits_(limits), steps_(steps) {}

  void read_cached(u32 request, ByteRange bytes, Reason reason) {
    if (bytes.length != 0) steps_.push_back({StepKind::read, request, bytes, Route::cached, reason});
  }

  // `runs` are those of the read.
  void read_medium(u32 request, ByteRange bytes, const SchedulePiece& piece, const ReadRuns& runs) {
    const u64 alignment = piece.route == Route::direct ? limits_.alignment_bytes : 1;
    const u64 begin = std::min(bytes.end(), (bytes.offset + alignment - 1) / alignment * alignment);
    const u64 end = std::max(begin, bytes.end() / alignment * alignment);
    read_cached(request, {bytes.offset, begin - bytes.offset}, Reason::misaligned);
    write_back(request, {begin, end - begin}, piece, runs);
    for (u64 offset = begin; offset < end;) {
      // Splits at multiples of the maximum would make a short first request, and the medium has no such boundaries.
      const u64 length = std::min(limits_.request_bytes_max, end - offset);
      steps_.push_back({StepKind::read, request, {offset, length}, piece.route, piece.reason});
      offset += length;
    }
    read_cached(request, {end, bytes.end() - end}, Reason::misaligned);
  }

 private:
  void write_back(u32 request, ByteRange bytes, const SchedulePiece& piece, const ReadRuns& runs) {
    const PageRange pages = pages_of(bytes);
    for (const PageRun& run : runs) {
      if (!GPU4FS_MUTANT(route_dirty_read, may_be_dirty(run.state), false)) continue;
      const u64 first = std::max(run.first_page, pages.first_page);
      const u64 end = std::min(run.end_page(), pages.end_page());
      if (first >= end) continue;
      const ByteRange range = {first * page_size, (end - first) * page_size};
      steps_.push_back({StepKind::write_back, request, range, piece.route, Reason::dirty});
    }
  }

  TransferLimits limits_;
  std::vector<TransferStep>& steps_;
};

// The part of the pages that the read asks for.
ByteRange requested_part(ByteRange bytes, PageRange pages) {
  const u64 begin = std::max(bytes.offset, pages.first_page * page_size);
  const u64 end = std::min(bytes.end(), pages.end_page() * page_size);
  return {begin, end > begin ? end - begin : 0};
}

bool continues(const SchedulePiece& before, const SchedulePiece& piece) {
  return before.request == piece.request && before.route == piece.route &&
         before.pages.end_page() == piece.pages.first_page;
}

}  // namespace

std::vector<TransferStep> transfer_steps(std::span<const ByteRange> bytes, std::span<const ReadRuns> reads,
                                         const Schedule& schedule, const TransferLimits& limits) {
  check_limits(limits);
  std::vector<TransferStep> steps;
  StepWriter writer(limits, steps);
  const std::vector<SchedulePiece>& pieces = schedule.pieces;
  for (std::size_t i = 0; i < pieces.size();) {
    SchedulePiece piece = pieces[i++];
    if (piece.route == Route::cached) {
      writer.read_cached(piece.request, requested_part(bytes[piece.request], piece.pages), piece.reason);
      continue;
    }
    for (; i < pieces.size() && continues(pieces[i - 1], pieces[i]); ++i) {
      piece.pages.page_count += pieces[i].pages.page_count;
      if (pieces[i].reason == Reason::absent) piece.reason = Reason::absent;
    }
    writer.read_medium(piece.request, requested_part(bytes[piece.request], piece.pages), piece, reads[piece.request]);
  }
  return steps;
}

}  // namespace gpu4fs::route
