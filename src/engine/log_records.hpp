// Operation log records of commands: the contents that handlers write. Collective.
//
// A handler reserves room along with its other reservations (reserve_record). It appends the record inside the commit
// gate, one record for each commit that changes what users can see. The record has the command's own arguments as they
// took effect. A replay runs the command again (server/recovery).
#pragma once

#include "engine/engine.hpp"
#include "engine/owned_extents.hpp"
#include "fs/journal/operation_log.hpp"

namespace gpu4fs::engine {

// Greatest write whose bytes are stored in its record. Longer ones are recorded by their pages. In chunks with parities
// these pages need stripes of their own (space/stripes.hpp), and single pages are too small for that.
GPU4FS_FN inline u64 log_inline_bytes_max(const fs::FileSystem& fs) {
  return fs.space.parity != nullptr ? 2 * page_size : page_size - 1;
}
// Greatest write that is made in place while there is a log. Its bytes are stored in the record as well.
inline constexpr u64 log_in_place_bytes_max = 2 * page_size;

GPU4FS_FN inline bool is_replay(const CommandState& c) {
  return c.operation.replay != nullptr;
}

// The command as a record: operation, caller, inode and both names.
GPU4FS_FN inline format::LogRecord record_of(const CommandState& c, format::LogOpcode opcode) {
  format::LogRecord record{};
  record.opcode = opcode;
  record.inode = c.command.inode;
  record.uid = c.command.uid;
  record.gid = c.command.gid;
  record.name_length = c.command.name_length;
  record.second_name_length = c.command.second_name_length;
  return record;
}

// The same without names, for inode `inode`.
GPU4FS_FN inline format::LogRecord file_record_of(const CommandState& c, format::LogOpcode opcode, u64 inode) {
  format::LogRecord record = record_of(c, opcode);
  record.inode = inode;
  record.name_length = 0;
  record.second_name_length = 0;
  return record;
}

// Prepare: room for the command's record with `data_length` bytes and `extent_count` extents.
template <class Group>
GPU4FS_FN Status reserve_record(Group g, Engine& engine, CommandState& c, u64 data_length = 0, u32 extent_count = 0) {
  const u32 names = u32{c.command.name_length} + c.command.second_name_length;
  return fs::reserve_log(g, engine.fs, c.operation, fs::log_bytes(names, static_cast<u32>(data_length), extent_count));
}

// Gate. `data` has record.data_length bytes. Returns the record's LSN.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 append_record(Group g, Engine& engine, CommandState& c, const format::LogRecord& record,
                                            const u8* data = nullptr) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  const u64 lsn = fs::append_log(g, engine.fs, c.operation, record, fs::LogPayload{c.names, data, nullptr, 0});
  on_leader(g, [&] {
    if (fs::log_wants_checkpoint(engine.fs.log)) request_checkpoint(engine, 0);
  });
  GPU4FS_TRACE_POINT(log);
  return lsn;
}

// Gate. The record names the command's extents, whose pages hold data.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void append_extent_record(Group g, Engine& engine, CommandState& c,
                                                    format::LogRecord record) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  record.extent_count = static_cast<u16>(c.extent_count);
  fs::append_log(g, engine.fs, c.operation, record, fs::LogPayload{c.names, nullptr, c.extents, 0});
  on_leader(g, [&] {
    if (fs::log_wants_checkpoint(engine.fs.log)) request_checkpoint(engine, 0);
  });
  GPU4FS_TRACE_POINT(log);
}

// Gate. The record names c.extents[first, first + count): unwritten blocks at the pages of their rounds.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void append_unwritten_record(Group g, Engine& engine, CommandState& c,
                                                       format::LogRecord record, u32 first, u32 count) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  GPU4FS_CHECK_LE(first + count, c.extent_count);
  record.extent_count = static_cast<u16>(count);
  fs::append_log(g, engine.fs, c.operation, record,
                 fs::LogPayload{c.names, nullptr, c.extents + first, format::log_extent_unwritten});
  on_leader(g, [&] {
    if (fs::log_wants_checkpoint(engine.fs.log)) request_checkpoint(engine, 0);
  });
  GPU4FS_TRACE_POINT(log);
}

// Replay: the record's extents become the command's, as if the command had allocated and filled them. Returns the
// number of their pages.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 adopt_extents(Group g, CommandState& c) {
  return on_leader(g, [&] {
    const format::LogRecord& record = *c.operation.replay;
    GPU4FS_CHECK_LE(u32{record.extent_count}, command_extent_capacity);
    const format::LogExtent* extents = fs::record_extents(record);
    u32 pages = 0;
    for (u32 i = 0; i < record.extent_count; ++i) {
      const u32 in_place = (extents[i].flags & format::log_extent_in_place) != 0 ? fs::RoundExtent::in_place_bit : 0u;
      c.extents[i] = {extents[i].address, extents[i].page_count, pages | in_place};
      pages += extents[i].page_count;
    }
    c.extent_count = record.extent_count;
    return pages;
  });
}

}  // namespace gpu4fs::engine
