// The commands. Everything that any layer knows of one is in one row.
//
// Code that needs a property of a command reads this table, so a new command cannot be forgotten anywhere: a row
// without one of the columns does not compile. A command without a row is refused. If a property is needed
// nevertheless, it has the least harmful value (not admitted, changes the pool, waits for a sync).
//
//   number    on the wire, ascending and never reused
//   name      wire::Opcode, and the handler: step_<name>, and with `tasks` task_<name>
//   sender    the least privileged session that may send it
//   effect    its effect on the pool
//   runs      how the engine runs it
//   restart   the state that a restart of it relies on
//   output    what it writes to `output`
//   records   how it gets into the operation log (format/log_list.hpp)
//
// The engine uses sets of commands that are constants of 64 bits: no table is read at run time.
#pragma once

#include <cstdint>

#include "base/config.hpp"

namespace gpu4fs::wire {

// Each kind of session may send everything that the previous ones may.
enum class Sender : std::uint8_t {
  client,     // any session
  front_end,  // trusted: it has checked permissions and knows which files are open
  server,     // internal: the management process
};

enum class Effect : std::uint8_t {
  session,  // accesses only its session's memory and runs outside the step gate
  reads,    // changes nothing except access times
  upkeep,   // the pool is unchanged for users; also executed in a pool that refuses changes (fs/errors.hpp)
  places,   // its arguments say whether it moves pages (engine/admission.hpp); the pool is unchanged for users
  content,  // data or attributes of inodes
  names,    // names in directories, and inodes that are created or removed with them
  orphans,  // frees inodes that have no name
};

enum class Runs : std::uint8_t {
  step,    // in steps of one worker
  tasks,   // its step may fan out
  polled,  // where the ring is read, never by a handler
};

enum class Restart : std::uint8_t {
  anew,     // nothing
  counted,  // the engine counts the completed part
  partial,  // the same; the count is also the result if the command has to end early
};

// If `output` is not 0.
enum class Output : std::uint8_t {
  nothing,
  attributes,  // AttributeRecord
  statistics,  // StatfsRecord
  own,         // its handler knows and checks the length
};

enum class Records : std::uint8_t {
  none,
  own,     // own, a replay of one runs this command again
  others,  // of other commands
  adopts,  // prepares records for their replay and replays none
};

// `-> attributes` etc. are written to `output`.
#define GPU4FS_COMMAND_LIST(X)                                                                                \
  /* completes with 0 */                                                                                      \
  X(1, noop, client, session, step, anew, nothing, none)                                                      \
  /* fill [data, data + length) with byte `mode` */                                                           \
  X(2, memset, client, session, tasks, anew, nothing, none)                                                   \
  /* copy `length` bytes from data to output */                                                               \
  X(3, memcopy, client, session, tasks, anew, own, none)                                                      \
  /* name in directory inode -> attributes; result: inode number */                                           \
  X(4, lookup, client, reads, step, anew, attributes, none)                                                   \
  /* path (relative to inode, or to the root if it begins with '/') -> attributes; flag follow */             \
  X(5, lookup_path, client, reads, step, anew, attributes, none)                                              \
  /* -> attributes */                                                                                         \
  X(6, getattr, client, reads, step, anew, attributes, none)                                                  \
  /* mask: SetAttributeMask; AttributeRecord at data -> attributes */                                         \
  X(7, setattr, client, content, step, anew, attributes, own)                                                 \
  /* name, mode (type and permissions), aux: device -> attributes; result: inode number */                    \
  X(8, mknod, client, names, step, anew, attributes, own)                                                     \
  /* name, mode -> attributes; result: inode number */                                                        \
  X(9, mkdir, client, names, step, anew, attributes, own)                                                     \
  /* name; result: inode number if its last link went, else 0 */                                              \
  X(10, unlink, client, names, step, anew, nothing, own)                                                      \
  /* name; result: inode number */                                                                            \
  X(11, rmdir, client, names, step, anew, nothing, own)                                                       \
  /* name; target at data, length -> attributes */                                                            \
  X(12, symlink, client, names, step, anew, attributes, own)                                                  \
  /* target to data, at most length; result: bytes */                                                         \
  X(13, readlink, client, reads, step, anew, nothing, none)                                                   \
  /* name in inode -> second name in second_inode; mask: RENAME_*; result: inode number that lost its last */ \
  /* link, else 0 */                                                                                          \
  X(14, rename, client, names, step, anew, attributes, own)                                                   \
  /* second_inode gets name in directory inode -> attributes */                                               \
  X(15, link, client, names, step, anew, attributes, own)                                                     \
  /* checks what open(2) with the flags in mask checks -> attributes */                                       \
  X(16, open, client, reads, step, anew, attributes, none)                                                    \
  /* name, mode, mask: open flags -> attributes; result: inode number */                                      \
  X(17, create, client, names, step, anew, attributes, others)                                                \
  /* in directory inode, mode -> attributes; result: inode number (an orphan) */                              \
  X(18, tmpfile, client, names, step, anew, attributes, own)                                                  \
  /* offset, length -> data; result: bytes */                                                                 \
  X(19, read, client, reads, tasks, anew, nothing, none)                                                      \
  /* offset, length <- data; mask: write flags; result: bytes */                                              \
  X(20, write, client, content, tasks, partial, nothing, own)                                                 \
  /* to offset */                                                                                             \
  X(21, truncate, client, content, step, anew, attributes, own)                                               \
  /* offset, length, mode: FALLOC_FL_* */                                                                     \
  X(22, fallocate, client, content, step, counted, attributes, own)                                           \
  /* offset, mode: SEEK_DATA or SEEK_HOLE; result: offset */                                                  \
  X(23, seek, client, reads, step, anew, nothing, none)                                                       \
  /* inode/offset -> second_inode/aux, length; result: bytes */                                               \
  X(24, copy_range, client, content, tasks, anew, nothing, others)                                            \
  /* mask bit 0: data only; what committed before is durable */                                               \
  X(25, fsync, client, upkeep, step, anew, nothing, none)                                                     \
  /* the same for the whole pool */                                                                           \
  X(26, sync, client, upkeep, step, anew, nothing, none)                                                      \
  /* directory inode, offset: cursor -> DirectoryRecord stream at data, at most length; mask bit 0: with */   \
  /* attributes; result: bytes */                                                                             \
  X(27, readdir, client, reads, step, anew, nothing, none)                                                    \
  /* -> StatfsRecord */                                                                                       \
  X(28, statfs, client, reads, step, anew, statistics, none)                                                  \
  /* mode: R_OK W_OK X_OK */                                                                                  \
  X(29, access, client, reads, step, anew, nothing, none)                                                     \
  /* name; value at data, length; mask: XATTR_CREATE / XATTR_REPLACE */                                       \
  X(30, set_attribute, client, content, step, anew, nothing, own)                                             \
  /* name; value to data, at most length (0: size only); result: size */                                      \
  X(31, get_attribute, client, reads, step, anew, nothing, none)                                              \
  /* names to data, at most length (0: size only); result: size */                                            \
  X(32, list_attributes, client, reads, step, anew, nothing, none)                                            \
  /* name */                                                                                                  \
  X(33, remove_attribute, client, content, step, anew, nothing, own)                                          \
  /* frees inode if it is an orphan: the sender vouches that nobody refers to it any more */                  \
  X(34, reclaim, front_end, orphans, step, anew, nothing, own)                                                \
  /* writes the open epoch; result: the durable one */                                                        \
  X(35, checkpoint, server, upkeep, tasks, anew, nothing, none)                                               \
  /* inode: id, offset: result, aux: devices */                                                               \
  X(36, upcall_done, server, upkeep, polled, anew, nothing, none)                                             \
  /* at mount */                                                                                              \
  X(37, reclaim_orphans, server, orphans, step, anew, nothing, others)                                        \
  /* at mount: reads every chunk's header area */                                                             \
  X(38, load_chunks, server, upkeep, tasks, anew, nothing, none)                                              \
  /* before a replay: the extents of the LogRecord at output are allocated */                                 \
  X(39, adopt_logged, server, upkeep, step, anew, nothing, adopts)                                            \
  /* verifies pages [offset, + length) of chunk inode; result: health_format.hpp */                           \
  X(40, scrub, server, upkeep, tasks, anew, nothing, none)                                                    \
  /* HealthRecord and DamageRecords to data, at most length; result: bytes */                                 \
  X(41, health, server, reads, step, anew, nothing, none)                                                     \
  /* where the inode's pages lie, to data, at most length; result: records */                                 \
  X(42, list_blocks, server, reads, step, anew, nothing, none)                                                \
  /* mask: GrowMask (space/growth.hpp) */                                                                     \
  X(43, grow, server, upkeep, tasks, anew, nothing, none)                                                     \
  /* of a pool opened for a check: a part of a phase (check_format.hpp) */                                    \
  X(44, check, server, reads, tasks, anew, own, none)                                                         \
  /* fills devices with what they lack (rebuild_format.hpp) */                                                \
  X(45, rebuild, server, upkeep, tasks, anew, nothing, none)                                                  \
  /* pages move to other places (relocate_format.hpp) */                                                      \
  X(46, relocate, server, places, tasks, anew, nothing, none)

enum class Opcode : std::uint16_t {
  none = 0,
#define GPU4FS_OPCODE(number, name, sender, effect, runs, restart, output, records) name = number,
  GPU4FS_COMMAND_LIST(GPU4FS_OPCODE)
#undef GPU4FS_OPCODE
      count,  // one more than the last
};

struct CommandRow {
  Opcode opcode;
  Sender sender;
  Effect effect;
  Runs runs;
  Restart restart;
  Output output;
  Records records;
};

// For constants and for the host.
inline constexpr CommandRow command_rows[] = {
#define GPU4FS_COMMAND_ROW(number, name, sender, effect, runs, restart, output, records) \
  {Opcode::name, Sender::sender, Effect::effect, Runs::runs, Restart::restart, Output::output, Records::records},
    GPU4FS_COMMAND_LIST(GPU4FS_COMMAND_ROW)
#undef GPU4FS_COMMAND_ROW
};

using CommandSet = std::uint64_t;  // bit n: the command of number n

inline constexpr unsigned command_number_max = 63;
static_assert(static_cast<unsigned>(Opcode::count) <= command_number_max + 1, "CommandSet has too few bits");

GPU4FS_FN constexpr CommandSet set_of(Opcode opcode) {
  return CommandSet{1} << static_cast<unsigned>(opcode);
}

GPU4FS_FN constexpr bool is_in(CommandSet set, Opcode opcode) {
  const unsigned number = static_cast<unsigned>(opcode);
  return number <= command_number_max && (set >> number & 1) != 0;
}

template <class Predicate>
constexpr CommandSet commands_with(Predicate has_property) {
  CommandSet set = 0;
  for (const CommandRow& row : command_rows) {
    if (has_property(row)) set |= set_of(row.opcode);
  }
  return set;
}

namespace detail {

constexpr bool numbers_ascend() {
  unsigned last = 0;
  for (const CommandRow& row : command_rows) {
    if (static_cast<unsigned>(row.opcode) <= last) return false;
    last = static_cast<unsigned>(row.opcode);
  }
  return true;
}

}  // namespace detail
static_assert(detail::numbers_ascend());

inline constexpr CommandSet commands_of_clients =
    commands_with([](const CommandRow& row) { return row.sender == Sender::client; });
inline constexpr CommandSet commands_of_front_ends = commands_with(
    [](const CommandRow& row) { return row.sender == Sender::client || row.sender == Sender::front_end; });
inline constexpr CommandSet commands_of_server = commands_with([](const CommandRow&) { return true; });
inline constexpr CommandSet commands_in_session_memory =
    commands_with([](const CommandRow& row) { return row.effect == Effect::session; });
inline constexpr CommandSet commands_without_changes = commands_with([](const CommandRow& row) {
  return row.effect == Effect::session || row.effect == Effect::reads || row.effect == Effect::upkeep ||
         row.effect == Effect::places;
});
inline constexpr CommandSet commands_that_move_pages =
    commands_with([](const CommandRow& row) { return row.effect == Effect::places; });
inline constexpr CommandSet commands_with_partial_results =
    commands_with([](const CommandRow& row) { return row.restart == Restart::partial; });
inline constexpr CommandSet commands_that_adopt_records =
    commands_with([](const CommandRow& row) { return row.records == Records::adopts; });
inline constexpr CommandSet commands_with_statistics =
    commands_with([](const CommandRow& row) { return row.output == Output::statistics; });
inline constexpr CommandSet commands_with_own_output =
    commands_with([](const CommandRow& row) { return row.output == Output::own; });

// That engine/optimistic/ answers where it can: any session may send them, and they change nothing.
inline constexpr CommandSet commands_without_locks =
    set_of(Opcode::read) | set_of(Opcode::readlink) | set_of(Opcode::getattr) | set_of(Opcode::access) |
    set_of(Opcode::open) | set_of(Opcode::lookup) | set_of(Opcode::lookup_path);
static_assert((commands_without_locks & ~(commands_of_clients & commands_without_changes)) == 0);

GPU4FS_FN constexpr bool is_command(Opcode opcode) {
  return is_in(commands_of_server, opcode);
}

GPU4FS_FN constexpr bool may_send(Sender sender, Opcode opcode) {
  if (sender == Sender::server) return is_in(commands_of_server, opcode);
  return is_in(sender == Sender::front_end ? commands_of_front_ends : commands_of_clients, opcode);
}

// All others run inside the step gate.
GPU4FS_FN constexpr bool needs_step_gate(Opcode opcode) {
  return !is_in(commands_in_session_memory, opcode);
}

GPU4FS_FN constexpr bool changes_the_pool(Opcode opcode) {
  return !is_in(commands_without_changes, opcode);
}

// For the front end. A command without a row has the greatest effect.
constexpr Effect effect_of(Opcode opcode) {
  for (const CommandRow& row : command_rows) {
    if (row.opcode == opcode) return row.effect;
  }
  return Effect::names;
}

constexpr const char* command_name(Opcode opcode) {
  switch (opcode) {
#define GPU4FS_COMMAND_NAME(number, name, sender, effect, runs, restart, output, records) \
  case Opcode::name:                                                                      \
    return #name;
    GPU4FS_COMMAND_LIST(GPU4FS_COMMAND_NAME)
#undef GPU4FS_COMMAND_NAME
    default:
      return "unknown";
  }
}

}  // namespace gpu4fs::wire
