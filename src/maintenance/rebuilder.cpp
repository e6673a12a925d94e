#include "maintenance/rebuilder.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>

#include "base/check.hpp"
#include "base/host/log.hpp"
#include "base/limits.hpp"
#include "fmt/format.h"
#include "pool/pool_error.hpp"
#include "wire/rebuild_format.hpp"

namespace gpu4fs::maintenance {
namespace {

constexpr u32 rebuild_session_depth_log2 = 3;
constexpr std::size_t pieces_in_flight_max = 8;
constexpr u64 limited_piece_min = 64;     // pages
constexpr u64 limited_pieces_per_s = 20;  // with a rate limit
constexpr u32 round_max = 1000;
constexpr auto round_wait =
    std::chrono::milliseconds(20);  // for commands that have pages and have not committed them

double rebuild_clock_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

wire::Command rebuild_command(wire::RebuildStep step) {
  wire::Command command{};
  command.opcode = wire::Opcode::rebuild;
  command.mode = static_cast<u32>(step);
  command.deadline_ms = session::patient_deadline_ms;
  return command;
}

}  // namespace

const char* rebuild_state_name(RebuildState state) {
  constexpr const char* names[] = {"never", "running", "paused", "finished", "failed"};
  return names[static_cast<u32>(state)];
}

double RebuildReport::rate() const {
  if (active_ms == 0) return 0;
  return static_cast<double>(page_count * page_size) * 1000 / static_cast<double>(active_ms);
}

std::optional<double> RebuildReport::seconds_left() const {
  if (rate() <= 0 || (state != RebuildState::running && state != RebuildState::paused))
    return std::nullopt;
  const u64 left = page_total > page_count ? page_total - page_count : 0;
  return static_cast<double>(left * page_size) / rate();
}

Rebuilder::Rebuilder(RebuildSetup setup)
    : setup_(std::move(setup)),
      session_(setup_.host, setup_.open_close, session::ServerSession::Kind::internal,
               rebuild_session_depth_log2, page_size),
      call_session_(setup_.host, setup_.open_close, session::ServerSession::Kind::internal, 2, page_size),
      thread_([this] { run(); }) {}

Rebuilder::~Rebuilder() {
  stop();
}

void Rebuilder::stop() {
  {
    const std::lock_guard guard(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

ring::Completion Rebuilder::call(wire::Command command, const void* data, u64 bytes) {
  const std::lock_guard guard(call_mutex_);
  GPU4FS_CHECK_LE(bytes, u64{page_size});
  if (bytes != 0) std::memcpy(call_session_.producer().data, data, bytes);
  command.data = wire::ring_address(0, 0);
  command.deadline_ms = session::patient_deadline_ms;
  return call_session_.call(command);
}

std::string Rebuilder::start(const RebuildJob& job) {
  std::vector<session::ChunkRange> chunks = setup_.list_chunks();
  const std::lock_guard guard(mutex_);
  if (report_.state == RebuildState::running || report_.state == RebuildState::paused)
    return "a rebuild is running";
  chunks_ = std::move(chunks);
  report_ = {};
  report_.state = RebuildState::running;
  report_.device = job.device;
  report_.path = job.path;
  report_.page_total = job.page_total;
  report_.rate_limit = job.rate_limit;
  report_.started_s = std::time(nullptr);
  is_fresh_ = job.is_fresh;
  round_ = 0;
  chunk_ = 0;
  page_ = 0;
  next_piece_s_ = 0;
  changed_.notify_all();
  log(LogLevel::info, fmt::format("rebuild of device {} begins: {}", job.device, job.path));
  return {};
}

std::string Rebuilder::pause() {
  const std::lock_guard guard(mutex_);
  if (report_.state != RebuildState::running) return "no rebuild is running";
  report_.state = RebuildState::paused;
  changed_.notify_all();
  return {};
}

std::string Rebuilder::resume() {
  const std::lock_guard guard(mutex_);
  if (report_.state != RebuildState::paused) return "no rebuild is paused";
  report_.state = RebuildState::running;
  changed_.notify_all();
  return {};
}

std::string Rebuilder::set_rate(u64 rate_limit) {
  const std::lock_guard guard(mutex_);
  if (report_.state != RebuildState::running && report_.state != RebuildState::paused)
    return "no rebuild is running";
  report_.rate_limit = rate_limit;
  next_piece_s_ = 0;
  changed_.notify_all();
  return {};
}

bool Rebuilder::is_busy() const {
  const std::lock_guard guard(mutex_);
  return report_.state == RebuildState::running || report_.state == RebuildState::paused;
}

RebuildReport Rebuilder::report() const {
  const std::lock_guard guard(mutex_);
  return report_;
}

void Rebuilder::run() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (report_.state == RebuildState::running) {
      run_round(lock);
    } else {
      changed_.wait(lock);
    }
  }
  while (!in_flight_.empty()) await_piece(lock);
}

// The next range of pages, or false behind the last chunk.
bool Rebuilder::next_piece(Piece* piece) {
  while (chunk_ < chunks_.size() && page_ >= chunks_[chunk_].page_count) {
    ++chunk_;
    page_ = 0;
  }
  if (chunk_ == chunks_.size()) return false;
  u64 count = wire::rebuild_pages_max;
  if (report_.rate_limit != 0) {
    const u64 share =
        align_down(report_.rate_limit / page_size / limited_pieces_per_s, limited_piece_min);
    count = std::clamp(share, limited_piece_min, count);
  }
  count = std::min(count, chunks_[chunk_].page_count - page_);
  *piece = {chunk_, page_, count, 0};
  page_ += count;
  return true;
}

// From where it stands to the end, or until it is paused.
void Rebuilder::run_round(std::unique_lock<std::mutex>& lock) {
  const double began_s = rebuild_clock_s();
  const auto goes_on = [&] { return report_.state == RebuildState::running && !ending_; };
  if (chunk_ == 0 && page_ == 0) {
    lock.unlock();
    const Status status = setup_.checkpoint();
    lock.lock();
    if (status != Status::ok)
      return fail(fmt::format("a checkpoint was not written: {}", status_text(status)));
  }
  Piece piece{};
  while (goes_on() && next_piece(&piece)) {
    wire::Command command = rebuild_command(wire::RebuildStep::pages);
    command.inode = piece.chunk;
    command.offset = piece.first;
    command.length = piece.count;
    // In later rounds what is left may have been filled by readers and writers.
    command.mask = is_fresh_ && round_ == 0 ? u32{wire::rebuild_mask_fresh} : 0;
    if (session_.producer().publish(command, &piece.position) != Status::ok)
      return fail("the engine died");
    session_.port().doorbell();
    in_flight_.push_back(piece);
    const std::size_t most = report_.rate_limit != 0 ? 1 : pieces_in_flight_max;
    while (in_flight_.size() >= most && report_.state != RebuildState::failed) await_piece(lock);
  }
  while (!in_flight_.empty()) await_piece(lock);
  report_.active_ms += static_cast<u64>((rebuild_clock_s() - began_s) * 1000 + 0.5);
  if (goes_on() && chunk_ == chunks_.size()) end_round(lock);
}

// The oldest one.
void Rebuilder::await_piece(std::unique_lock<std::mutex>& lock) {
  const Piece piece = in_flight_.front();
  in_flight_.pop_front();
  lock.unlock();
  ring::Completion done{};
  const auto is_done = [&] { return session_.producer().poll(piece.position, &done); };
  if (!session_.port().wait(piece.position + 1, is_done)) done = {Status::engine_died, 0};
  lock.lock();
  if (done.status == Status::device_failed)
    return fail("the device failed, or has no room; it is not used any more");
  if (done.status != Status::ok)
    return fail(fmt::format("chunk {}: {}", piece.chunk, status_text(done.status)));
  const auto count = [&](wire::RebuildCount which) {
    return wire::rebuild_count(done.result, which);
  };
  report_.page_count += count(wire::RebuildCount::looked_at);
  report_.written_count += count(wire::RebuildCount::written);
  report_.unverified_count += count(wire::RebuildCount::unverified);
  report_.unreadable_count += count(wire::RebuildCount::unreadable);
  pace(lock, count(wire::RebuildCount::looked_at));
}

void Rebuilder::fail(const std::string& why) {
  if (report_.state == RebuildState::failed) return;
  report_.state = RebuildState::failed;
  report_.ended_s = std::time(nullptr);
  report_.problem = why;
  log(LogLevel::error, fmt::format("rebuild of device {}: {}", report_.device, why));
}

// Patiently: all sessions may be taken for a moment.
Status Rebuilder::look_at_health(session::PoolHealth* health) {
  constexpr u32 attempts_max = 1000;
  for (u32 attempt = 0;; ++attempt) {
    try {
      session::PoolInspector inspector(setup_.host, setup_.open_close);
      return inspector.health(health);
    } catch (const pool::PoolError& error) {
      if (attempt == attempts_max) return error.status();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

// All chunks were looked at: if nothing is left, the device becomes a member.
void Rebuilder::end_round(std::unique_lock<std::mutex>& lock) {
  if (report_.unreadable_count != 0) {
    wire::Command given_up = rebuild_command(wire::RebuildStep::give_up);
    given_up.inode = report_.device;
    lock.unlock();
    (void)session_.call(given_up);
    lock.lock();
    return fail(fmt::format(
        "{} pages cannot be read from the devices that are left; the pool stays as it was",
        report_.unreadable_count));
  }
  lock.unlock();
  const ring::Completion ended = session_.call(rebuild_command(wire::RebuildStep::finish));
  Status status = ended.status;
  if (status == Status::ok && ended.result == 0) status = setup_.checkpoint();
  session::PoolHealth health;
  if (status == Status::ok && ended.result == 0) status = look_at_health(&health);
  lock.lock();
  if (status != Status::ok)
    return fail(status == Status::device_failed ? "the device failed" : status_text(status));
  if (ended.result == 0) {
    if ((health.record.failed_devices >> report_.device & 1) != 0)
      return fail("the device failed in the end");
    report_.state = RebuildState::finished;
    report_.ended_s = std::time(nullptr);
    log(LogLevel::info,
        fmt::format("device {} is rebuilt: {} pages written, {} left as they are without a "
                    "checksum that fits",
                    report_.device, report_.written_count, report_.unverified_count));
    const u32 device = report_.device;
    lock.unlock();
    setup_.finished(device);
    lock.lock();
    return;
  }
  if (++round_ == round_max)
    return fail(fmt::format("{} pages stay in use by commands that do not end", ended.result));
  chunk_ = 0;
  page_ = 0;
  if (round_ > 2) changed_.wait_for(lock, round_wait, [this] { return ending_; });
}

// Waits as long as the rate limit wants it after `page_count` pages.
void Rebuilder::pace(std::unique_lock<std::mutex>& lock, u64 page_count) {
  if (report_.rate_limit == 0) return;
  const double seconds =
      static_cast<double>(page_count * page_size) / static_cast<double>(report_.rate_limit);
  next_piece_s_ = std::max(next_piece_s_, rebuild_clock_s() - 0.1) + seconds;
  const double wait = next_piece_s_ - rebuild_clock_s();
  if (wait <= 0) return;
  const u64 limit = report_.rate_limit;
  changed_.wait_for(lock, std::chrono::duration<double>(wait), [&] {
    return ending_ || report_.rate_limit != limit || report_.state != RebuildState::running;
  });
}

}  // namespace gpu4fs::maintenance
