#include "maintenance/rebuilder.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

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
constexpr u64 limited_piece_min = 64;  // pages
constexpr u32 round_max = 1000;
constexpr auto round_wait = std::chrono::milliseconds(20);  // for commands that have allocated pages and not committed
                                                            // them

wire::Command rebuild_command(wire::RebuildStep step) {
  wire::Command command{};
  command.opcode = wire::Opcode::rebuild;
  command.mode = static_cast<u32>(step);
  command.deadline_ms = session::patient_deadline_ms;
  return command;
}

}  // namespace

Rebuilder::Rebuilder(MountedPool& mounted, PoolGrower& grower, PoolHost& host)
    : mounted_(mounted),
      grower_(grower),
      host_(host),
      session_(*mounted.setup.host, mounted.open_close, session::ServerSession::Kind::internal,
               rebuild_session_depth_log2, page_size),
      call_session_(*mounted.setup.host, mounted.open_close, session::ServerSession::Kind::internal, 2, page_size),
      job_(*this, report_, {.can_cancel = false}) {}

JobWords Rebuilder::words() const {
  return {.name = fmt::format("rebuild of device {}", report_.device),
          .running = "a rebuild is running",
          .paused = "a rebuild is running",
          .none_running = "no rebuild is running",
          .none_paused = "no rebuild is paused",
          .none_to_cancel = ""};
}

ring::Completion Rebuilder::call(wire::Command command, const void* data, u64 bytes) {
  const std::lock_guard guard(call_mutex_);
  GPU4FS_CHECK_LE(bytes, u64{page_size});
  if (bytes != 0) std::memcpy(call_session_.producer().data, data, bytes);
  command.data = wire::ring_address(0, 0);
  command.deadline_ms = session::patient_deadline_ms;
  return call_session_.call(command);
}

std::string Rebuilder::start(const RebuildJob& rebuild) {
  std::vector<session::ChunkRange> chunks = mounted_.chunk_ranges();
  return job_.start(rebuild.rate_limit, [&] {
    report_ = {};
    report_.device = rebuild.device;
    report_.path = rebuild.path;
    report_.page_total = rebuild.page_total;
    chunks_ = std::move(chunks);
    is_fresh_ = rebuild.is_fresh;
    log(LogLevel::info, fmt::format("rebuild of device {} begins: {}", rebuild.device, rebuild.path));
  });
}

RebuildReport Rebuilder::report() const {
  return job_.locked([this] { return report_; });
}

JobOutcome Rebuilder::run() {
  bool is_done = false;
  for (round_ = 0; !is_done && job_.goes_on(0); ++round_) {
    std::string problem = run_round();
    drain();
    if (problem.empty() && job_.goes_on(0)) problem = end_round(&is_done);
    if (!problem.empty()) return {false, problem};
  }
  return {is_done, ""};
}

// The next range of pages, or false after the last chunk.
bool Rebuilder::next_piece(Piece* piece) {
  while (chunk_ < chunks_.size() && page_ >= chunks_[chunk_].page_count) {
    ++chunk_;
    page_ = 0;
  }
  if (chunk_ == chunks_.size()) return false;
  u64 count = align_down(job_.command_pages(limited_piece_min, wire::rebuild_pages_max), limited_piece_min);
  count = std::min(count, chunks_[chunk_].page_count - page_);
  *piece = {chunk_, page_, count, 0};
  page_ += count;
  return true;
}

// Over all chunks, unless it has to end. Returns "" or the error.
std::string Rebuilder::run_round() {
  chunk_ = 0;
  page_ = 0;
  const Status status = host_.checkpoint();
  if (status != Status::ok) return fmt::format("a checkpoint was not written: {}", status_text(status));
  for (;;) {
    Piece piece{};
    const std::size_t most = job_.rate_limit() != 0 ? 1 : pieces_in_flight_max;
    while (in_flight_.size() < most && next_piece(&piece)) {
      if (!send_piece(piece)) return "the engine died";
    }
    if (in_flight_.empty()) return "";
    u64 page_count = 0;
    std::string problem = await_piece(&page_count);
    if (!problem.empty()) return problem;
    if (!job_.goes_on(page_count)) return "";
  }
}

bool Rebuilder::send_piece(Piece piece) {
  wire::Command command = rebuild_command(wire::RebuildStep::pages);
  command.inode = piece.chunk;
  command.offset = piece.first;
  command.length = piece.count;
  // In later rounds, readers and writers may have filled the remaining pages.
  command.mask = is_fresh_ && round_ == 0 ? u32{wire::rebuild_mask_fresh} : 0;
  if (session_.producer().publish(command, &piece.position) != Status::ok) return false;
  session_.port().doorbell();
  in_flight_.push_back(piece);
  return true;
}

// Waits for the oldest piece. Returns "" or the error.
std::string Rebuilder::await_piece(u64* page_count) {
  const Piece piece = in_flight_.front();
  in_flight_.pop_front();
  ring::Completion done{};
  const auto is_done = [&] { return session_.producer().poll(piece.position, &done); };
  if (!session_.port().wait(piece.position + 1, is_done)) done = {Status::engine_died, 0};
  if (done.status == Status::device_failed) return "the device failed, or has no room; it is not used any more";
  if (done.status != Status::ok) return fmt::format("chunk {}: {}", piece.chunk, status_text(done.status));
  const auto count = [&](wire::RebuildCount which) { return wire::rebuild_count(done.result, which); };
  job_.locked([&] {
    report_.written_count += count(wire::RebuildCount::written);
    report_.unverified_count += count(wire::RebuildCount::unverified);
    report_.unreadable_count += count(wire::RebuildCount::unreadable);
  });
  *page_count = count(wire::RebuildCount::looked_at);
  return "";
}

// Waits for all pieces that are being filled, whatever their results.
void Rebuilder::drain() {
  u64 page_count = 0;
  while (!in_flight_.empty()) (void)await_piece(&page_count);
}

// Waits patiently: all sessions may be in use for a moment.
Status Rebuilder::look_at_health(session::PoolHealth* health) {
  constexpr u32 attempts_max = 1000;
  for (u32 attempt = 0;; ++attempt) {
    try {
      session::PoolInspector inspector(*mounted_.setup.host, mounted_.open_close);
      return inspector.health(health);
    } catch (const pool::PoolError& error) {
      if (attempt == attempts_max) return error.status();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

// All chunks were processed: if nothing is left, the device becomes a member. Returns "" or the error.
std::string Rebuilder::end_round(bool* is_done) {
  const RebuildReport so_far = report();
  if (so_far.unreadable_count != 0) {
    wire::Command given_up = rebuild_command(wire::RebuildStep::give_up);
    given_up.inode = so_far.device;
    (void)session_.call(given_up);
    return fmt::format("{} pages cannot be read from the devices that are left; the pool stays as it was",
                       so_far.unreadable_count);
  }
  const ring::Completion ended = session_.call(rebuild_command(wire::RebuildStep::finish));
  Status status = ended.status;
  if (status == Status::ok && ended.result == 0) status = host_.checkpoint();
  session::PoolHealth health;
  if (status == Status::ok && ended.result == 0) status = look_at_health(&health);
  if (status != Status::ok) return status == Status::device_failed ? "the device failed" : status_text(status);
  if (ended.result != 0) {
    if (round_ + 1 == round_max) return fmt::format("{} pages stay in use by commands that do not end", ended.result);
    if (round_ + 1 > 2) job_.wait_for(round_wait);
    return "";
  }
  if ((health.record.failed_devices >> so_far.device & 1) != 0) return "the device failed in the end";
  log(LogLevel::info,
      fmt::format("device {} is rebuilt: {} pages written, {} left as they are without a checksum that fits",
                  so_far.device, so_far.written_count, so_far.unverified_count));
  make_member(so_far.device);
  *is_done = true;
  return "";
}

// Makes the device a full member again.
void Rebuilder::make_member(u32 device) {
  {
    const std::unique_lock lock(mounted_.tables);
    pool::OpenedDevice& opened = mounted_.pool.devices[device];
    opened.state = pool::MemberState::here;
    opened.stale_since = 0;
    opened.has_newest_superblock = true;
  }
  grower_.tell_engine();
}

}  // namespace gpu4fs::maintenance
