#include "maintenance/growth/reshaper.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <exception>

#include "base/host/log.hpp"
#include "base/limits.hpp"
#include "base/status.hpp"
#include "pool/pool_error.hpp"

namespace gpu4fs::maintenance {
namespace {

double reshape_clock_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr u64 balance_moves_max = 100'000;

}  // namespace

const char* reshape_kind_name(ReshapeKind kind) { return kind == ReshapeKind::removal ? "remove" : "balance"; }

const char* reshape_state_name(ReshapeState state) {
  constexpr const char* names[] = {"never", "running", "paused", "finished", "cancelled", "failed"};
  return names[static_cast<u32>(state)];
}

double ReshapeReport::rate() const {
  if (active_ms == 0) return 0;
  return static_cast<double>(page_count * page_size) * 1000 / static_cast<double>(active_ms);
}

std::optional<double> ReshapeReport::seconds_left() const {
  if (rate() <= 0 || (state != ReshapeState::running && state != ReshapeState::paused)) return std::nullopt;
  const u64 left = page_total > page_count ? page_total - page_count : 0;
  return static_cast<double>(left * page_size) / rate();
}

Reshaper::Reshaper(ReshaperSetup setup) : setup_(std::move(setup)), thread_([this] { run(); }) {}

Reshaper::~Reshaper() { stop(); }

void Reshaper::stop() {
  {
    const std::lock_guard guard(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

std::string Reshaper::start(ReshapeReport report) {
  const std::lock_guard guard(mutex_);
  if (is_busy()) return fmt::format("a {} is running", reshape_kind_name(report_.kind));
  report.state = ReshapeState::running;
  report.started_s = std::time(nullptr);
  report_ = std::move(report);
  begins_ = true;
  cancelled_ = false;
  next_move_s_ = 0;
  changed_.notify_all();
  return "";
}

std::string Reshaper::start_removal(u32 device, u64 rate_limit) {
  const std::string obstacle = setup_.grower.removal_obstacle(device);
  if (!obstacle.empty()) return obstacle;
  ReshapeReport report;
  report.kind = ReshapeKind::removal;
  report.device = device;
  report.path = setup_.path_of(device);
  report.rate_limit = rate_limit;
  try {
    const std::string problem = setup_.grower.room_problem(device);
    if (!problem.empty()) return problem;
    const std::vector<u32> chunks = setup_.grower.chunks_on(device);
    report.chunk_total = chunks.size();
    for (const ChunkUsage& usage : setup_.grower.usage()) {
      if (std::find(chunks.begin(), chunks.end(), usage.chunk) != chunks.end()) report.page_total += usage.pages_taken;
    }
  } catch (const pool::PoolError& error) {
    return error.what();
  }
  return start(std::move(report));
}

std::string Reshaper::start_balance(u64 rate_limit) {
  ReshapeReport report;
  report.kind = ReshapeKind::balance;
  report.rate_limit = rate_limit;
  return start(std::move(report));
}

std::string Reshaper::pause() {
  const std::lock_guard guard(mutex_);
  if (report_.state != ReshapeState::running) return "neither a removal nor a balance is running";
  report_.state = ReshapeState::paused;
  changed_.notify_all();
  return "";
}

std::string Reshaper::resume() {
  const std::lock_guard guard(mutex_);
  if (report_.state != ReshapeState::paused) return "neither a removal nor a balance is paused";
  report_.state = ReshapeState::running;
  changed_.notify_all();
  return "";
}

std::string Reshaper::cancel() {
  const std::lock_guard guard(mutex_);
  if (!is_busy()) return "neither a removal nor a balance is running";
  cancelled_ = true;
  changed_.notify_all();
  return "";
}

std::string Reshaper::set_rate(u64 rate_limit) {
  const std::lock_guard guard(mutex_);
  if (!is_busy()) return "neither a removal nor a balance is running";
  report_.rate_limit = rate_limit;
  next_move_s_ = 0;
  changed_.notify_all();
  return "";
}

ReshapeReport Reshaper::report() const {
  const std::lock_guard guard(mutex_);
  return report_;
}

void Reshaper::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || begins_; });
    if (ending_) return;
    begins_ = false;
    active_since_s_ = reshape_clock_s();
    const ReshapeKind kind = report_.kind;
    lock.unlock();
    log(LogLevel::info, fmt::format("{} begins", kind == ReshapeKind::removal ? "removal of a device" : "balance"));
    Outcome outcome;
    try {
      outcome = kind == ReshapeKind::removal ? remove() : balance();
    } catch (const std::exception& error) {
      outcome = {error.what(), false};
    }
    lock.lock();
    report_.problem = outcome.problem;
    report_.ended_s = std::time(nullptr);
    report_.state = !outcome.problem.empty() ? ReshapeState::failed
                    : outcome.is_done        ? ReshapeState::finished
                                             : ReshapeState::cancelled;
    if (!outcome.problem.empty()) log(LogLevel::error, fmt::format("{}: {}", reshape_kind_name(kind), outcome.problem));
  }
}

// Waits while it is paused. True: it is to end.
bool Reshaper::is_to_end() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ending_ || cancelled_ || report_.state != ReshapeState::paused; });
  return ending_ || cancelled_;
}

bool Reshaper::goes_on(const RelocationProgress& progress) {
  std::unique_lock lock(mutex_);
  const u64 moved = progress.moved_count - std::min(progress.moved_count, seen_.moved_count);
  report_.page_count += moved;
  report_.stayed_count += progress.stayed_count - std::min(progress.stayed_count, seen_.stayed_count);
  seen_ = progress;
  const double now_s = reshape_clock_s();
  report_.active_ms += static_cast<u64>((now_s - active_since_s_) * 1000 + 0.5);
  active_since_s_ = now_s;
  if (report_.rate_limit != 0) {
    const u64 limit = report_.rate_limit;
    next_move_s_ = std::max(next_move_s_, now_s - 0.1) + static_cast<double>(moved * page_size) / static_cast<double>(limit);
    const double wait_s = next_move_s_ - now_s;
    if (wait_s > 0) {
      changed_.wait_for(lock, std::chrono::duration<double>(wait_s), [&] {
        return ending_ || cancelled_ || report_.rate_limit != limit || report_.state == ReshapeState::paused;
      });
    }
  }
  changed_.wait(lock, [this] { return ending_ || cancelled_ || report_.state != ReshapeState::paused; });
  return !ending_ && !cancelled_;
}

void Reshaper::count_chunk() {
  const std::lock_guard guard(mutex_);
  ++report_.chunk_count;
  report_.chunk_total = std::max(report_.chunk_total, report_.chunk_count);
  report_.page_total = std::max(report_.page_total, report_.page_count);
}

// The chunk is gone afterwards, or used as before.
std::string Reshaper::move_chunk(const ChunkUsage& chunk) {
  if (chunk.pages_taken == 0) {
    try {
      setup_.grower.erase_chunks({chunk.chunk});
      count_chunk();
      return "";
    } catch (const pool::PoolError& error) {
      // Somebody was faster: it is emptied as the others are.
      if (error.status() != Status::busy) throw;
    }
  }
  {
    const std::lock_guard guard(mutex_);
    seen_ = {};
  }
  const auto goes_on_too = [this](const RelocationProgress& progress) { return goes_on(progress); };
  RelocationResult emptied;
  try {
    emptied = setup_.empty_chunks({chunk.chunk}, goes_on_too);
    if (emptied.status == Status::no_space && setup_.grower.replace_chunk(chunk.chunk) != 0) {
      emptied = setup_.empty_chunks({chunk.chunk}, goes_on_too);
    }
    if (emptied.status == Status::ok && emptied.not_empty.empty()) {
      setup_.grower.erase_chunks({chunk.chunk});
      count_chunk();
      return "";
    }
  } catch (const pool::PoolError&) {
    setup_.grower.thaw_chunks({chunk.chunk});
    throw;
  }
  setup_.grower.thaw_chunks({chunk.chunk});
  if (emptied.status == Status::cancelled) return "";
  if (emptied.status != Status::ok) return fmt::format("chunk {} cannot be emptied: {}", chunk.chunk, status_text(emptied.status));
  return fmt::format("{} pages of chunk {} cannot be read and stay where they are", emptied.progress.stayed_count, chunk.chunk);
}

Reshaper::Outcome Reshaper::remove() {
  const u32 device = report().device;
  PoolGrower& grower = setup_.grower;
  struct Avoiding {
    PoolGrower& grower;
    u32 device;
    Avoiding(PoolGrower& g, u32 d) : grower(g), device(d) { grower.avoid_device(device, true); }
    ~Avoiding() { grower.avoid_device(device, false); }
  } const avoiding(grower, device);
  for (;;) {
    if (is_to_end()) return {};
    const std::vector<u32> chunks = grower.chunks_on(device);
    if (chunks.empty()) break;
    const std::vector<ChunkUsage> usage = grower.usage();
    // Empty ones first: what they leave is room for others.
    auto next = usage.end();
    for (auto one = usage.begin(); one != usage.end(); ++one) {
      if (std::find(chunks.begin(), chunks.end(), one->chunk) == chunks.end()) continue;
      if (next == usage.end() || one->pages_taken < next->pages_taken) next = one;
    }
    if (next == usage.end()) return {fmt::format("there is no chunk {}", chunks.front())};
    const bool is_last = std::none_of(usage.begin(), usage.end(), [&](const ChunkUsage& one) {
      return one.chunk != next->chunk && one.page_class == next->page_class;
    });
    if (is_last && grower.replace_chunk(next->chunk) == 0) return {"the other devices have no room for a chunk more"};
    std::string problem = move_chunk(*next);
    if (!problem.empty()) return {problem};
  }
  grower.remove_device(device);
  return {"", true};
}

// Empty chunks beyond one of each class.
std::string Reshaper::drop_surplus() {
  std::vector<bool> has_spare(format::profile_max);
  for (const ChunkUsage& chunk : setup_.grower.usage()) {
    if (chunk.pages_taken != 0) continue;
    if (!has_spare[chunk.page_class]) {
      has_spare[chunk.page_class] = true;
      continue;
    }
    if (is_to_end()) return "";
    try {
      setup_.grower.erase_chunks({chunk.chunk});
      count_chunk();
    } catch (const pool::PoolError& error) {
      // It is in use by now, or its class needs it.
      const bool stays = error.status() == Status::busy || error.status() == Status::no_space || error.status() == Status::invalid_argument;
      if (!stays) return error.what();
    }
  }
  return "";
}

Reshaper::Outcome Reshaper::balance() {
  const std::string dropped = drop_surplus();
  if (!dropped.empty()) return {dropped};
  for (u64 moves = 0; moves < balance_moves_max; ++moves) {
    if (is_to_end()) return {};
    const std::optional<ChunkUsage> next = setup_.grower.find_unbalanced();
    if (!next) break;
    {
      const std::lock_guard guard(mutex_);
      report_.chunk_total = report_.chunk_count + 1;
      report_.page_total = report_.page_count + next->pages_taken;
    }
    if (setup_.grower.replace_chunk(next->chunk) == 0) break;
    const std::string problem = move_chunk(*next);
    if (!problem.empty()) return {problem};
  }
  const bool is_done = !is_to_end();
  return {drop_surplus(), is_done};
}

}  // namespace gpu4fs::maintenance
