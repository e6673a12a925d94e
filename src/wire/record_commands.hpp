// Which command replays a record of the operation log, and a check that the two tables agree.
#pragma once

#include "base/config.hpp"
#include "format/log_list.hpp"
#include "wire/command_list.hpp"

namespace gpu4fs::wire {

struct RecordCommand {
  format::LogOpcode record;
  format::LogContent content;
  Opcode command;
};

// For constants and for the host.
inline constexpr RecordCommand record_commands[] = {
#define GPU4FS_RECORD_COMMAND(number, name, command, content, replays) \
  {format::LogOpcode::name, format::LogContent::content, Opcode::command},
    GPU4FS_LOG_LIST(GPU4FS_RECORD_COMMAND)
#undef GPU4FS_RECORD_COMMAND
};

// noop: there is no such record, or nothing to do for it.
constexpr Opcode command_of(format::LogOpcode record) {
  for (const RecordCommand& row : record_commands) {
    if (row.record == record) return row.command;
  }
  return Opcode::noop;
}

namespace detail {

constexpr CommandSet commands_of_records() {
  CommandSet set = 0;
  for (const RecordCommand& row : record_commands) set |= set_of(row.command);
  return set;
}

// A record is replayed by the command that it records.
constexpr bool records_fit_commands() {
  for (const RecordCommand& record : record_commands) {
    const Records expected = record.content == format::LogContent::filler ? Records::none
                             : record.content == format::LogContent::row  ? Records::adopts
                                                                          : Records::own;
    const CommandSet fitting = commands_with([&](const CommandRow& row) { return row.records == expected; });
    if (!is_in(fitting, record.command)) return false;
  }
  return true;
}

// A command is logged if and only if users would miss its effect after a crash, and everything that is logged can be
// replayed.
constexpr bool commands_fit_records() {
  for (const CommandRow& row : command_rows) {
    const bool is_logged = row.records == Records::own || row.records == Records::others;
    if (is_logged == is_in(commands_without_changes, row.opcode)) return false;
    if (row.records == Records::own && !is_in(commands_of_records(), row.opcode)) return false;
  }
  return true;
}

}  // namespace detail
static_assert(detail::records_fit_commands(), "a record's command has no records of its own");
static_assert(detail::commands_fit_records(), "a command that changes the pool is not logged, or not replayed");

inline constexpr CommandSet commands_that_take_records = detail::commands_of_records();

// command_flag_replay is for these.
GPU4FS_FN constexpr bool takes_records(Opcode opcode) {
  return is_in(commands_that_take_records, opcode);
}

}  // namespace gpu4fs::wire
