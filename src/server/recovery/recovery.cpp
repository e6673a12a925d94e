#include "server/recovery/recovery.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>

#include "server/pool_error.hpp"
#include "server/pool_server.hpp"
#include "server/recovery/log_scan.hpp"
#include "server/recovery/replay_command.hpp"

namespace gpu4fs::server {
namespace {

using format::LogRecord;

enum StepIndex : std::size_t { step_scan, step_verify, step_replay, step_checkpoint, step_count };

constexpr std::array<RecoveryStep, step_count> steps{{
    {"log-scan", "the op-log areas of the log devices", "finds the records behind the newest checkpoint",
     "Looking for operations that the newest checkpoint does not include."},
    {"log-verify", "pages that the records name", "claims the pages and compares them with their checksums",
     "Checking that the data of these operations was written."},
    {"log-replay", "the records, in order", "carries the operations out again",
     "Carrying out the operations again."},
    {"checkpoint", "the recovered state", "writes it and empties the log", "Writing the recovered state."},
}};

u64 named_pages(const LogRecord& record) {
  u64 pages = 0;
  const u32 name_bytes = u32{record.name_length} + record.second_name_length;
  const u32 offset =
      format::log_record_layout(name_bytes, record.data_length, record.extent_count).extents_offset;
  for (u32 i = 0; i < record.extent_count; ++i) {
    format::LogExtent extent;
    std::memcpy(&extent, reinterpret_cast<const u8*>(&record) + offset + i * sizeof(extent), sizeof(extent));
    if ((extent.flags & format::log_extent_unwritten) == 0) pages += extent.page_count;
  }
  return pages;
}

// Runs the steps of one recovery.
class Recovery {
 public:
  explicit Recovery(const ServerOptions& options) : options_(options) {}

  RecoveryReport run() {
    scan();
    if (scan_.record_count() == 0) {
      require_nothing_lost(scan_.end);
      return std::move(report_);
    }
    if (options_.read_only) {
      if (options_.ignore_log) return std::move(report_);
      throw PoolError(Status::read_only,
                      fmt::format("the pool was not unmounted: {} operations wait in its log; mount it for writing "
                                  "once, or look at the newest checkpoint with 'norecovery'",
                                  scan_.record_count()));
    }
    start_engine();
    verify();
    replay();
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
    OpenPoolOptions open;
    open.device_paths = options_.device_paths;
    open.read_only = options_.read_only;
    open.lock = !options_.read_only;
    const OpenedPool pool = open_pool(open);
    scan_ = scan_log(pool);
    note(step_scan, scan_.record_count(),
         fmt::format("{} operations in {} KiB behind epoch {}", scan_.record_count(),
                     (scan_.end - scan_.start) >> 10, pool.superblock.epoch));
  }

  // Whatever was acknowledged lies in front of `end`.
  void require_nothing_lost(u64 end) {
    if (scan_.durable <= end || options_.drop_damaged_log) return;
    throw PoolError(Status::checksum_mismatch,
                    fmt::format("the operation log is damaged at {:#x}: {} KiB behind it had been made durable; mount "
                                "with 'damaged_log=drop' to go on without the operations there",
                                end, (scan_.durable - end + 1023) >> 10));
  }

  void start_engine() {
    ServerOptions options = options_;
    options.engine = EngineChoice::cpu;
    options.worker_count = 1;
    options.commit_interval_s = 0;
    options.purpose = ServerPurpose::recovery;
    server_ = std::make_unique<PoolServer>(options);
    server_->start();
    session_ = server_->open_internal_session(format::log_record_bytes_max);
  }

  Status call(const LogRecord& record, bool claims) {
    std::memcpy(session_->data(), &record, record.length);
    const u64 address = format::ring_address(0, 0);
    return session_->call(claims ? claim_command(address) : replay_command(record, address)).status;
  }

  // The log ends in front of the first record whose pages are not on the medium.
  void verify() {
    begin();
    u64 pages = 0;
    for (kept_ = 0; kept_ < scan_.record_count(); ++kept_) {
      const LogRecord& record = scan_.record(kept_);
      if (record.extent_count == 0) continue;
      const Status status = call(record, true);
      if (status == Status::checksum_mismatch) break;
      if (status != Status::ok) give_up("the pages of a logged operation cannot be read", record, status);
      pages += named_pages(record);
    }
    end_ = kept_ < scan_.record_count() ? scan_.record(kept_).lsn : scan_.end;
    try {
      require_nothing_lost(end_);
    } catch (const PoolError&) {
      drop_engine();
      throw;
    }
    report_.pages_verified = pages;
    note(step_verify, pages,
         kept_ == scan_.record_count()
             ? fmt::format("{} pages are whole", pages)
             : fmt::format("{} pages are whole; {} operations that were not acknowledged had not been written", pages,
                           scan_.record_count() - kept_));
  }

  void replay() {
    begin();
    for (u64 i = 0; i < kept_; ++i) {
      const LogRecord& record = scan_.record(i);
      const Status status = call(record, false);
      // It may have been carried out before a checkpoint of an earlier attempt.
      const bool was_done = status == Status::no_attribute && record.opcode == format::LogOpcode::remove_attribute;
      if (status != Status::ok && !was_done) give_up("a logged operation cannot be carried out", record, status);
    }
    report_.records_replayed = kept_;
    note(step_replay, kept_, fmt::format("{} operations carried out", kept_));
  }

  // The checkpoint says that the log begins behind everything that was replayed.
  void finish() {
    begin();
    LogRecord last{};
    last.opcode = format::LogOpcode::filler;
    last.lsn = end_;
    last.length = sizeof(last);
    const Status status = call(last, false);
    if (status != Status::ok) give_up("the end of the log cannot be set", last, status);
    session_.reset();
    if (!server_->stop()) throw PoolError(Status::io_error, "the recovered state cannot be written");
    server_.reset();
    note(step_checkpoint, 1, "the recovered state is durable");
  }

  void drop_engine() {
    session_.reset();
    server_->abandon();
    server_.reset();
  }

  [[noreturn]] void give_up(const char* what, const LogRecord& record, Status status) {
    drop_engine();
    throw PoolError(status, fmt::format("{}: record of kind {} for inode {} at {:#x}: {}", what,
                                        static_cast<unsigned>(record.opcode), record.inode, record.lsn,
                                        status_text(status)));
  }

  const ServerOptions& options_;
  RecoveryReport report_;
  LogScan scan_;
  u64 kept_ = 0;  // records that count
  u64 end_ = 0;   // LSN behind them
  std::unique_ptr<PoolServer> server_;
  std::unique_ptr<ServerSession> session_;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace

std::span<const RecoveryStep> recovery_steps() { return steps; }

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

RecoveryReport recover_pool(const ServerOptions& options) { return Recovery(options).run(); }

}  // namespace gpu4fs::server
