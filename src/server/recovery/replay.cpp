#include "server/recovery/replay.hpp"

#include <fmt/format.h>

#include <cstring>

#include "base/check.hpp"
#include "base/mutant.hpp"
#include "engine/allocation_mode.hpp"
#include "format/log_list.hpp"
#include "pool/pool_error.hpp"
#include "wire/record_commands.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::server {
namespace {

using format::LogContent;
using format::LogOpcode;
using format::LogRecord;
using wire::Opcode;

// A scan accepts no other records.
const format::LogRow& row_of(const LogRecord& record) {
  const format::LogRow* row = format::find_log_row(record.opcode);
  GPU4FS_CHECK(row != nullptr);
  return *row;
}

// Sets fields whose meaning differs between the record and the command.
void set_arguments(const LogRecord& record, LogContent content, wire::Command& command) {
  switch (content) {
    case LogContent::creation:
      // The requested mode, before umask and inheritance; the handler takes the final one from the record.
      command.mode = record.mask;
      command.mask = 0;
      command.aux = record.device;
      break;
    case LogContent::unwritten:
      command.mode = engine::fallocate_keep_size;
      command.length = record.size;
      break;
    case LogContent::allocation:
      command.mode = record.mode;
      command.length = record.size;
      break;
    case LogContent::range:
      command.mode = engine::fallocate_keep_size | engine::fallocate_punch_hole;
      command.length = record.size;
      break;
    case LogContent::size:
      command.offset = record.size;
      break;
    case LogContent::bytes:
    case LogContent::extents:
      command.length = record.size;
      break;
    case LogContent::filler:
    case LogContent::plain:
    case LogContent::renaming:
    case LogContent::attributes:
    case LogContent::row:
      break;
  }
}

// The command that replays the record in the session's memory at `address`.
wire::Command replay_command(const LogRecord& record, u64 address) {
  const u32 name_bytes = u32{record.name_length} + record.second_name_length;
  const format::LogRecordLayout layout = format::log_record_layout(name_bytes, record.data_length, record.extent_count);
  wire::Command command{};
  command.opcode = wire::command_of(record.opcode);
  command.flags = wire::command_flag_replay;
  command.uid = record.uid;
  command.gid = record.gid;
  command.deadline_ms = session::patient_deadline_ms;
  command.mask = record.mask;
  command.umask_bits = record.umask_bits;
  command.name_length = record.name_length;
  command.second_name_length = record.second_name_length;
  command.inode = record.inode;
  command.second_inode = record.second_inode;
  command.offset = record.offset;
  command.length = record.data_length;
  command.data = address + layout.data_offset;
  command.name = address + sizeof(LogRecord);
  command.output = address;
  set_arguments(record, row_of(record).content, command);
  return command;
}

wire::Command adopt_command(u64 address) {
  wire::Command command{};
  command.opcode = Opcode::adopt_logged;
  command.flags = wire::command_flag_replay;
  command.deadline_ms = session::patient_deadline_ms;
  command.output = address;
  return command;
}

Status call(session::ServerSession& session, const LogRecord& record, bool adopts) {
  std::memcpy(session.data(), &record, record.length);
  const u64 address = wire::ring_address(0, 0);
  return session.call(adopts ? adopt_command(address) : replay_command(record, address)).status;
}

[[noreturn]] void fail(const char* what, const LogRecord& record, Status status) {
  throw pool::PoolError(status, fmt::format("{}: record '{}' for inode {} at {:#x}: {}", what, row_of(record).name,
                                            record.inode, record.lsn, status_text(status)));
}

u64 named_pages(const LogRecord& record) {
  const u32 name_bytes = u32{record.name_length} + record.second_name_length;
  const u32 offset = format::log_record_layout(name_bytes, record.data_length, record.extent_count).extents_offset;
  u64 pages = 0;
  for (u32 i = 0; i < record.extent_count; ++i) {
    format::LogExtent extent;
    std::memcpy(&extent, reinterpret_cast<const u8*>(&record) + offset + i * sizeof(extent), sizeof(extent));
    if ((extent.flags & format::log_extent_unwritten) == 0) pages += extent.page_count;
  }
  return pages;
}

}  // namespace

VerifiedLog verify_records(session::ServerSession& session, const LogScan& scan) {
  VerifiedLog log;
  // Rows that may be half written are completed before any part of them is read. A row whose write had not begun may be
  // written as well, wherever the end of the log is found to be.
  for (u64 i = 0; i < scan.record_count(); ++i) {
    const LogRecord& record = scan.record(i);
    if (record.opcode != LogOpcode::row) continue;
    const Status status = call(session, record, true);
    if (status != Status::ok) fail("a logged row cannot be written", record, status);
  }
  for (; log.record_count < scan.record_count(); ++log.record_count) {
    const LogRecord& record = scan.record(log.record_count);
    if (record.extent_count == 0) continue;
    const Status status = call(session, record, true);
    if (status == Status::checksum_mismatch) break;
    if (status != Status::ok) fail("the pages of a logged operation cannot be read", record, status);
    log.page_count += named_pages(record);
  }
  const bool is_whole = log.record_count == scan.record_count();
  log.end = is_whole ? scan.end : scan.record(log.record_count).lsn;
  return log;
}

void require_nothing_lost(const LogScan& scan, u64 end) {
  if (GPU4FS_MUTANT(log_loss_not_told, scan.durable <= end, true)) return;
  throw pool::PoolError(
      Status::checksum_mismatch,
      fmt::format("the operation log is damaged at {:#x}: {} KiB behind it had been made durable; mount "
                  "with 'damaged_log=drop' to go on without the operations there",
                  end, (scan.durable - end + 1023) >> 10));
}

void replay_records(session::ServerSession& session, const LogScan& scan, u64 record_count) {
  for (u64 i = 0; i < record_count; ++i) {
    const LogRecord& record = scan.record(i);
    if (record.opcode == LogOpcode::row) continue;
    const Status status = call(session, record, false);
    // It may have been done before a checkpoint of an earlier attempt.
    const bool was_done = GPU4FS_MUTANT(
        replay_of_done_refused, status == Status::no_attribute && record.opcode == LogOpcode::remove_attribute, false);
    if (status != Status::ok && !was_done) fail("a logged operation cannot be carried out", record, status);
  }
}

void set_log_end(session::ServerSession& session, u64 lsn) {
  LogRecord last{};
  last.opcode = LogOpcode::filler;
  last.lsn = lsn;
  last.length = sizeof(last);
  const Status status = call(session, last, false);
  if (status != Status::ok) fail("the end of the log cannot be set", last, status);
}

}  // namespace gpu4fs::server
