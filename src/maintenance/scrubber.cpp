#include "maintenance/scrubber.hpp"

#include <algorithm>
#include <utility>

#include "base/host/log.hpp"
#include "base/limits.hpp"
#include "fmt/format.h"
#include "format/inode_format.hpp"

namespace gpu4fs::maintenance {
namespace {

constexpr auto keep_interval = std::chrono::seconds(10);
constexpr u64 limited_range_min = 64;  // pages
constexpr std::size_t damaged_files_max = 1000;

}  // namespace

Scrubber::Scrubber(ScrubSetup setup)
    : setup_(std::move(setup)),
      inspector_(setup_.host, setup_.open_close),
      report_(read_kept()),
      job_(*this, report_,
           {.can_cancel = true, .can_change_rate = false, .is_cancelled_at_once = true, .keeps_state = true}) {}

ScrubReport Scrubber::read_kept() {
  const auto kept = inspector_.get_attribute(format::inode_number_root, scrub_attribute);
  if (!kept) return {};
  auto report = from_attribute(*kept);
  if (!report) {
    log(LogLevel::warning, "the progress of a former scrub makes no sense and is passed over");
    return {};
  }
  if (report->state == JobState::running && !setup_.keeps_progress) report->state = JobState::paused;
  return *std::move(report);
}

JobWords Scrubber::words() const {
  return {.name = "scrub",
          .running = "a scrub is running",
          .paused = "a scrub is paused; resume or cancel it",
          .none_running = "no scrub is running",
          .none_paused = "no scrub is paused",
          .none_to_cancel = "no scrub is running or paused"};
}

std::string Scrubber::start(u64 rate_limit) {
  return job_.start(rate_limit, [this] {
    report_ = {};
    suspects_.clear();
    begins_ = true;
  });
}

ScrubReport Scrubber::report() const {
  return job_.locked([this] { return report_; });
}

JobOutcome Scrubber::run() {
  begin();
  bool goes_on = job_.goes_on(0);
  while (goes_on) {
    if (const std::optional<Range> range = next_range()) {
      goes_on = job_.goes_on(verify(*range));
      if (std::chrono::steady_clock::now() - kept_at_ > keep_interval) keep(false);
    } else {
      if (judge_suspects()) return {true, ""};
      goes_on = job_.goes_on(0);
    }
  }
  job_.locked([this] {
    if (report_.state == JobState::cancelled) drop_suspects();
  });
  return {};
}

void Scrubber::begin() {
  kept_at_ = std::chrono::steady_clock::now();
  if (!job_.locked([this] { return std::exchange(begins_, false); })) return;
  session::PoolHealth health;
  if (inspector_.health(&health) != Status::ok) return;
  job_.locked([&] { report_.page_total = health.record.page_used; });
}

// Writes the current progress. On a read-only pool nothing is kept.
void Scrubber::keep(bool durably) {
  ScrubReport kept = job_.locked([this] {
    ScrubReport report = report_;
    if (!suspects_.empty()) report.position = std::min(report.position, suspects_.first());
    return report;
  });
  Status status = Status::ok;
  if (setup_.keeps_progress) {
    status = inspector_.set_attribute(format::inode_number_root, scrub_attribute, to_attribute(kept));
    if (status == Status::ok && durably) status = inspector_.sync();
  }
  kept_at_ = std::chrono::steady_clock::now();
  if (status == Status::ok) return;
  job_.locked([&] { report_.problem = fmt::format("progress could not be kept: {}", status_text(status)); });
}

// From `position` on; nothing after the last chunk.
std::optional<Scrubber::Range> Scrubber::next_range() const {
  const u64 count = job_.command_pages(limited_range_min, session::PoolInspector::verify_page_max);
  for (u32 chunk = 0; chunk < setup_.chunks.size(); ++chunk) {
    const session::ChunkRange& range = setup_.chunks[chunk];
    const u64 inside = report_.position > range.base_address ? report_.position - range.base_address : 0;
    const u64 first = inside / page_size;
    if (first < range.page_count) return Range{chunk, first, std::min(count, range.page_count - first)};
  }
  return std::nullopt;
}

// Returns how many of its pages were verified.
u64 Scrubber::verify(const Range& range) {
  const session::ChunkRange& chunk = setup_.chunks[range.chunk];
  const session::PoolInspector::Verified verified = inspector_.verify(range.chunk, range.first, range.count);
  if (verified.status == Status::engine_died || verified.status == Status::engine_stopped) {
    // No more pages will be verified; the next mount continues at this position.
    job_.locked([&] { report_.position = chunk.base_address + range.first * page_size; });
    job_.rest(status_text(verified.status));
    return 0;
  }
  return job_.locked([&]() -> u64 {
    report_.position = chunk.base_address + (range.first + range.count) * page_size;
    if (verified.status != Status::ok) {
      report_.unreached_count += range.count;
      report_.problem = fmt::format("chunk {}: {}", range.chunk, status_text(verified.status));
    } else if (verified.damaged_count != 0) {
      take_suspects(range);
    }
    return verified.page_count;
  });
}

void Scrubber::take_suspects(const Range& range) {
  for (u64 i = 0; i < range.count; ++i) {
    if (inspector_.is_damaged(i))
      suspects_.add(setup_.chunks[range.chunk].base_address + (range.first + i) * page_size, 1);
  }
  report_.suspect_count = suspects_.page_count();
}

void Scrubber::drop_suspects() {
  suspects_.clear();
  report_.suspect_count = 0;
}

// Everything is verified: each suspect turns out to be damage or not. False: the job was paused or has to end, and they
// stay suspects.
bool Scrubber::judge_suspects() {
  OwnedDamage found;
  pool::PageRuns suspects = job_.locked([this] {
    report_.looks_for_owners = !suspects_.empty();
    return suspects_;
  });
  const auto is_stopped = [this] {
    return job_.is_to_end() || job_.locked([this] { return report_.state != JobState::running; });
  };
  if (!suspects.empty()) {
    found = find_damage_owners(
        {inspector_, setup_.chunks, setup_.data_has_checksums, setup_.keeps_progress, is_stopped}, std::move(suspects));
    job_.locked([this] { report_.looks_for_owners = false; });
  }
  if (found.was_stopped || !job_.goes_on(0)) return false;
  job_.locked([&] {
    report_.damaged_count += found.page_count;
    report_.ownerless_count += found.ownerless_page_count;
    for (DamagedFile& file : found.files) {
      log(LogLevel::error, fmt::format("scrub: {} pages of {} are damaged", file.page_count, file.path));
      if (report_.files.size() < damaged_files_max) report_.files.push_back(std::move(file));
    }
    for (const std::string& path : found.unreadable) report_.problem = fmt::format("directory {} cannot be read", path);
    drop_suspects();
    log(report_.damaged_count == 0 ? LogLevel::info : LogLevel::error,
        fmt::format("scrub: {} pages verified, {} damaged", report_.page_count, report_.damaged_count));
  });
  return true;
}

}  // namespace gpu4fs::maintenance
