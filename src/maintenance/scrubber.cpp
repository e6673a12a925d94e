#include "maintenance/scrubber.hpp"

#include <algorithm>
#include <chrono>
#include <ctime>

#include "base/host/log.hpp"
#include "base/limits.hpp"
#include "fmt/format.h"
#include "format/inode_format.hpp"

namespace gpu4fs::maintenance {
namespace {

constexpr double keep_interval_s = 10;
constexpr u64 limited_range_min = 64;      // pages
constexpr u64 limited_ranges_per_s = 20;   // with a rate limit

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Scrubber::Scrubber(ScrubSetup setup) : setup_(std::move(setup)), inspector_(setup_.host, setup_.open_close) {
  const auto kept = inspector_.get_attribute(format::inode_number_root, scrub_attribute);
  if (kept) {
    const auto progress = from_attribute(*kept);
    if (progress) {
      progress_ = *progress;
    } else {
      log(LogLevel::warning, "the progress of a former scrub makes no sense and is passed over");
    }
  }
  if (progress_.state == ScrubState::running && !setup_.keeps_progress) progress_.state = ScrubState::paused;
  thread_ = std::thread([this] { run(); });
}

Scrubber::~Scrubber() { stop(); }

void Scrubber::stop() {
  {
    const std::lock_guard guard(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

std::string Scrubber::start(u64 rate_limit) {
  std::unique_lock lock(mutex_);
  if (progress_.state == ScrubState::running) return "a scrub is running";
  if (progress_.state == ScrubState::paused) return "a scrub is paused; resume or cancel it";
  progress_ = {};
  progress_.state = ScrubState::running;
  progress_.rate_limit = rate_limit;
  progress_.started_s = std::time(nullptr);
  suspects_.clear();
  files_.clear();
  problem_.clear();
  begins_ = true;
  return await_kept(lock);
}

std::string Scrubber::pause() {
  std::unique_lock lock(mutex_);
  if (progress_.state != ScrubState::running) return "no scrub is running";
  progress_.state = ScrubState::paused;
  return await_kept(lock);
}

std::string Scrubber::resume() {
  std::unique_lock lock(mutex_);
  if (progress_.state != ScrubState::paused) return "no scrub is paused";
  progress_.state = ScrubState::running;
  return await_kept(lock);
}

std::string Scrubber::cancel() {
  std::unique_lock lock(mutex_);
  if (progress_.state != ScrubState::running && progress_.state != ScrubState::paused) {
    return "no scrub is running or paused";
  }
  progress_.state = ScrubState::cancelled;
  progress_.ended_s = std::time(nullptr);
  suspects_.clear();
  return await_kept(lock);
}

// The thread keeps the new state; until then the caller waits.
std::string Scrubber::await_kept(std::unique_lock<std::mutex>& lock) {
  const u64 change = ++changes_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return changes_kept_ >= change || ending_; });
  return changes_kept_ >= change ? std::string() : "the pool is being unmounted";
}

ScrubReport Scrubber::report() const {
  const std::lock_guard guard(mutex_);
  return {progress_, looks_for_owners_, suspects_.page_count(), files_, problem_};
}

void Scrubber::run() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (begins_) {
      begins_ = false;
      session::PoolHealth health;
      lock.unlock();
      const Status status = inspector_.health(&health);
      lock.lock();
      if (status == Status::ok) progress_.page_total = health.record.page_used;
      next_range_s_ = 0;
    }
    if (changes_kept_ < changes_) keep(lock, true);
    if (progress_.state != ScrubState::running) {
      changed_.wait(lock, [&] { return ending_ || changes_kept_ < changes_; });
    } else {
      verify_next(lock);
    }
  }
  if (progress_.state == ScrubState::running) keep(lock, false);
  changed_.notify_all();
}

// Writes the progress as it is now. On a read-only pool nothing is kept.
void Scrubber::keep(std::unique_lock<std::mutex>& lock, bool durably) {
  ScrubProgress kept = progress_;
  const u64 changes = changes_;
  if (!suspects_.empty()) kept.position = std::min(kept.position, suspects_.first());
  lock.unlock();
  Status status = Status::ok;
  if (setup_.keeps_progress) {
    status = inspector_.set_attribute(format::inode_number_root, scrub_attribute, to_attribute(kept));
    if (status == Status::ok && durably) status = inspector_.sync();
  }
  lock.lock();
  if (status != Status::ok) problem_ = fmt::format("progress could not be kept: {}", status_text(status));
  kept_s_ = now_s();
  changes_kept_ = std::max(changes_kept_, changes);
  changed_.notify_all();
}

// One range, from `position` on.
void Scrubber::verify_next(std::unique_lock<std::mutex>& lock) {
  u32 chunk = 0;
  u64 first = 0;
  while (chunk < setup_.chunks.size()) {
    const session::ChunkRange& range = setup_.chunks[chunk];
    const u64 inside = progress_.position > range.base_address ? progress_.position - range.base_address : 0;
    first = inside / page_size;
    if (first < range.page_count) break;
    ++chunk;
  }
  if (chunk == setup_.chunks.size()) return finish(lock);
  u64 count = session::PoolInspector::verify_page_max;
  if (progress_.rate_limit != 0) {
    const u64 share = progress_.rate_limit / page_size / limited_ranges_per_s;
    count = std::clamp(share, limited_range_min, count);
  }
  count = std::min(count, setup_.chunks[chunk].page_count - first);
  const u64 change = changes_;
  const double began_s = now_s();
  lock.unlock();
  const session::PoolInspector::Verified verified = inspector_.verify(chunk, first, count);
  lock.lock();
  // A scrub that was cancelled or begun anew meanwhile is not this one.
  const bool is_same = progress_.state == ScrubState::paused || change == changes_;
  if (!is_same) return;
  const u64 end = setup_.chunks[chunk].base_address + (first + count) * page_size;
  progress_.position = end;
  if (verified.status == Status::ok) {
    progress_.page_count += verified.page_count;
    if (verified.damaged_count != 0) take_suspects(chunk, first, count);
  } else if (verified.status == Status::engine_died || verified.status == Status::engine_stopped) {
    // Nothing more will be verified; the position is where the next mount goes on.
    progress_.position = setup_.chunks[chunk].base_address + first * page_size;
    progress_.state = ScrubState::paused;
    problem_ = status_text(verified.status);
    return;
  } else {
    progress_.unreached_count += count;
    problem_ = fmt::format("chunk {}: {}", chunk, status_text(verified.status));
  }
  pace(lock, verified.page_count);
  progress_.active_ms += static_cast<u64>((now_s() - began_s) * 1000 + 0.5);
  if (now_s() - kept_s_ > keep_interval_s && is_at_work()) keep(lock, false);
}

void Scrubber::take_suspects(u32 chunk, u64 first, u64 count) {
  for (u64 i = 0; i < count; ++i) {
    if (inspector_.is_damaged(i)) suspects_.add(setup_.chunks[chunk].base_address + (first + i) * page_size, 1);
  }
}

// Waits as long as the rate limit wants it after `page_count` pages.
void Scrubber::pace(std::unique_lock<std::mutex>& lock, u64 page_count) {
  if (progress_.rate_limit == 0) return;
  const double seconds = static_cast<double>(page_count * page_size) / static_cast<double>(progress_.rate_limit);
  next_range_s_ = std::max(next_range_s_, now_s() - 0.1) + seconds;
  const double wait = next_range_s_ - now_s();
  if (wait <= 0) return;
  const u64 change = changes_;
  changed_.wait_for(lock, std::chrono::duration<double>(wait), [&] { return ending_ || change != changes_; });
}

// Everything is verified: suspects become damage, or nothing.
void Scrubber::finish(std::unique_lock<std::mutex>& lock) {
  const u64 change = changes_;
  const double began_s = now_s();
  OwnedDamage found;
  if (!suspects_.empty()) {
    looks_for_owners_ = true;
    pool::PageRuns suspects = suspects_;
    lock.unlock();
    const auto is_stopped = [&] {
      const std::lock_guard guard(mutex_);
      return ending_ || change != changes_;
    };
    found = find_damage_owners(
        {inspector_, setup_.chunks, setup_.data_has_checksums, setup_.keeps_progress, is_stopped},
        std::move(suspects));
    lock.lock();
    looks_for_owners_ = false;
  }
  progress_.active_ms += static_cast<u64>((now_s() - began_s) * 1000 + 0.5);
  if (found.was_stopped || change != changes_) return;
  progress_.damaged_count += found.page_count;
  progress_.ownerless_count += found.ownerless_page_count;
  for (DamagedFile& file : found.files) {
    log(LogLevel::error, fmt::format("scrub: {} pages of {} are damaged", file.page_count, file.path));
    if (files_.size() < file_max) files_.push_back(std::move(file));
  }
  for (const std::string& path : found.unreadable) {
    problem_ = fmt::format("directory {} cannot be read", path);
  }
  suspects_.clear();
  progress_.state = ScrubState::finished;
  progress_.ended_s = std::time(nullptr);
  ++changes_;
  log(progress_.damaged_count == 0 ? LogLevel::info : LogLevel::error,
      fmt::format("scrub: {} pages verified, {} damaged", progress_.page_count, progress_.damaged_count));
}

}  // namespace gpu4fs::maintenance
