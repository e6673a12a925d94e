#include "server/recovery/recovery.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <memory>

#include "pool/pool_error.hpp"
#include "server/pool_server.hpp"
#include "server/recovery/replay.hpp"

namespace gpu4fs::server {
namespace {

enum StepIndex : std::size_t { step_scan, step_verify, step_replay, step_checkpoint, step_count };

constexpr std::array<RecoveryStep, step_count> steps{{
    {"log-scan", "the op-log areas of the log devices", "finds the records behind the newest checkpoint",
     "Looking for operations that the newest checkpoint does not include."},
    {"log-verify", "pages that the records name", "claims the pages and compares them with their checksums",
     "Checking that the data of these operations was written."},
    {"log-replay", "the records, in order", "carries the operations out again", "Carrying out the operations again."},
    {"checkpoint", "the recovered state", "writes it and empties the log", "Writing the recovered state."},
}};

// Executes the steps of one recovery.
class Recovery {
 public:
  explicit Recovery(const session::ServerOptions& options) : options_(options) {}

  RecoveryReport run() {
    scan();
    if (scan_.record_count() == 0) {
      if (!options_.drop_damaged_log) require_nothing_lost(scan_, scan_.end);
      return std::move(report_);
    }
    if (options_.read_only) {
      if (options_.ignore_log) return std::move(report_);
      throw pool::PoolError(
          Status::read_only,
          fmt::format("the pool was not unmounted: {} operations wait in its log; mount it for writing "
                      "once, or look at the newest checkpoint with 'norecovery'",
                      scan_.record_count()));
    }
    start_engine();
    try {
      verify();
      replay();
    } catch (const pool::PoolError&) {
      drop_engine();
      throw;
    }
    finish();
    return std::move(report_);
  }

 private:
  void begin() { began_ = std::chrono::steady_clock::now(); }
  void note(StepIndex step, u64 count, std::string text) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began_;
    report_.entries.push_back({&steps[step], count, took.count(), std::move(text)});
  }

  void scan() {
    begin();
    pool::OpenPoolOptions open;
    open.device_paths = options_.device_paths;
    open.read_only = options_.read_only;
    open.lock = !options_.read_only;
    open.degraded = options_.degraded;
    open.patience = options_.lock_patience;
    const pool::OpenedPool pool = pool::open_pool(open);
    scan_ = scan_log(pool);
    superblock_ = pool.superblock;
    note(step_scan, scan_.record_count(),
         fmt::format("{} operations in {} KiB behind epoch {}", scan_.record_count(), (scan_.end - scan_.start) >> 10,
                     pool.superblock.epoch));
  }

  void start_engine() {
    session::ServerOptions options = options_;
    options.engine = session::EngineChoice::cpu;
    options.worker_count = 1;
    options.commit_interval_s = 0;
    options.control_folder.clear();
    options.purpose = session::ServerPurpose::recovery;
    options.write_errors_before = 0;
    server_ = std::make_unique<PoolServer>(options);
    // Another process may have mounted the pool in between.
    const format::Superblock& now = server_->superblock();
    if (now.epoch != superblock_.epoch || now.log_start != superblock_.log_start ||
        now.log_seed != superblock_.log_seed) {
      throw pool::PoolError(Status::already_mounted, "the pool was mounted by someone else while its log was read");
    }
    server_->start();
    session_ = server_->open_internal_session(format::log_record_bytes_max);
  }

  void verify() {
    begin();
    log_ = verify_records(*session_, scan_);
    if (!options_.drop_damaged_log) require_nothing_lost(scan_, log_.end);
    report_.pages_verified = log_.page_count;
    const u64 dropped = scan_.record_count() - log_.record_count;
    note(step_verify, log_.page_count,
         dropped == 0 ? fmt::format("{} pages are whole", log_.page_count)
                      : fmt::format("{} pages are whole; {} operations that were not acknowledged had not been written",
                                    log_.page_count, dropped));
  }

  void replay() {
    begin();
    replay_records(*session_, scan_, log_.record_count);
    set_log_end(*session_, log_.end);
    report_.records_replayed = log_.record_count;
    note(step_replay, log_.record_count, fmt::format("{} operations carried out", log_.record_count));
  }

  // According to the checkpoint, the log begins after everything that was replayed.
  void finish() {
    begin();
    session_.reset();
    if (!server_->stop()) throw pool::PoolError(Status::io_error, "the recovered state cannot be written");
    server_.reset();
    note(step_checkpoint, 1, "the recovered state is durable");
  }

  void drop_engine() {
    session_.reset();
    server_->abandon();
    server_.reset();
  }

  const session::ServerOptions& options_;
  RecoveryReport report_;
  format::Superblock superblock_{};  // to which the log belongs
  LogScan scan_;
  VerifiedLog log_;
  std::unique_ptr<PoolServer> server_;
  std::unique_ptr<session::ServerSession> session_;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace

std::span<const RecoveryStep> recovery_steps() {
  return steps;
}

std::string RecoveryReport::text() const {
  std::string lines;
  for (const RecoveryEntry& entry : entries) {
    lines += fmt::format("recovery: {}: {} ({:.3f} s)\n", entry.step->id, entry.text, entry.seconds);
  }
  return lines;
}

std::string RecoveryReport::json() const {
  std::string list;
  for (const RecoveryEntry& entry : entries) {
    list += fmt::format("{}{{\"id\": \"{}\", \"count\": {}, \"seconds\": {:.6f}, \"text\": \"{}\"}}",
                        list.empty() ? "" : ", ", entry.step->id, entry.count, entry.seconds, entry.text);
  }
  return fmt::format("{{\"records_replayed\": {}, \"pages_verified\": {}, \"steps\": [{}]}}", records_replayed,
                     pages_verified, list);
}

RecoveryReport recover_pool(const session::ServerOptions& options) {
  return Recovery(options).run();
}

}  // namespace gpu4fs::server
