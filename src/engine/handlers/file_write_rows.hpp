// Rounds of a write with pages of one row that also contains pages of others. A class with parities is thereby used up
// when it has no whole stripe left. See docs/internals/raid.md, space/partial_stripes.hpp for the choice of rows and
// raid/row_replacement.hpp for the replacement.
//
// plan      pages are taken; they and the row's new parities are composed in engine memory, and become a record of the
//           log, inside the commit gate
// fill      the record is made durable, like in a sync; then the row is written from the record's bytes in the log's
//           ring
// commit    as that of any other round, with a record that names its pages
//
// From the record on, a running update of parities is counted for the command. A checkpoint that would make the record
// superfluous waits until the row is written or the command has given up. A command that gives up leaves its record in
// the log. A recovery that replays this record writes unused pages and parities that match them.
#pragma once

#include "engine/handlers/file_write_state.hpp"
#include "engine/handlers/sync.hpp"
#include "raid/row_replacement.hpp"

namespace gpu4fs::engine {
namespace detail {

// The state of a write is at the beginning of the command's scratch memory, that of the sync at its end.
static_assert(sizeof(WriteState) + sizeof(SyncScratch) <= command_scratch_size);

// Limit of the rows that are tried if some of their pages cannot be read.
inline constexpr u32 row_attempts_max = 4;

GPU4FS_FN inline raid::RowValues row_values_of(const space::PartialRow& partial, u8* bytes) {
  return {partial.chunk, 0, partial.row, partial.kept | partial.taken, partial.taken, bytes};
}

// Leader: makes the row's pages the pages of the round.
GPU4FS_FN GPU4FS_NOINLINE inline void take_row_pages(Engine& engine, CommandState& c,
                                                     const space::PartialRow& partial) {
  WriteState& state = scratch_of<WriteState>(c);
  GPU4FS_CHECK_EQ(c.extent_count, 0u);
  const raid::RowView view = raid::row_view(engine.fs.space, partial.chunk, partial.row);
  const u64 base = engine.fs.space.chunks[partial.chunk].base_address;
  for (u64 left = partial.taken; left != 0; left &= left - 1) {
    const u64 page = raid::row_page(view, static_cast<u32>(count_trailing_zeros(left)));
    c.extents[c.extent_count] = {base + page * page_size, 1, c.extent_count};
    ++c.extent_count;
  }
  const u64 first = state.position / page_size;
  state.round = {first, c.extent_count, 0, raid::no_address, raid::no_address};
  state.round_end = minimum(state.end, (first + state.round.page_count) * page_size);
}

// Composes the round's pages in `bytes`.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status compose_pages(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                               u8* bytes) {
  const WriteState& state = scratch_of<WriteState>(c);
  const u64 first = state.position / page_size;
  for (u32 i = 0; i < state.round.page_count; ++i) {
    const ByteRange range = range_in_page(first + i, state.position, state.round_end);
    u8* page = bytes + u64{i} * page_size;
    if (range.from != 0 || range.to != page_size) {
      u64 old = raid::no_address;
      GPU4FS_TRY(find_old_page(g, engine, c, ref, first + i, &old));
      if (old == raid::no_address) {
        zero_page(g, page);
      } else {
        const Status read = raid::read_page(g, engine.fs.space, old, page, raid::PageUse::data);
        GPU4FS_TRY(with_owner(g, engine, c.command.inode, read, old, 1));
      }
      g.sync();
    }
    const u8* source = state.data + ((first + i) * page_size + range.from - state.begin);
    copy_bytes(g, page + range.from, source, range.to - range.from);
  }
  g.sync();
  return Status::ok;
}

// Appends the record of the row to the log; the row's values are already composed. Status: waits_for_gate,
// retry_after_checkpoint.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status log_row(Group g, Engine& engine, CommandState& c, const space::PartialRow& partial,
                                         const u8* bytes) {
  fs::FileSystem& fs = engine.fs;
  GPU4FS_TRY(enter_gate(g, engine, c));
  if (!on_leader(g, [&] { return space::may_log_row(fs, partial); })) {
    leave_gate(g, engine, c);
    return Status::retry_after_checkpoint;
  }
  format::LogRecord record = on_leader(g, [&] {
    c.operation.row_update = begin_use(fs.space.parity->updates) + 1;
    space::mark_changed(fs.space.chunks[partial.chunk]);
    const raid::RowView view = raid::row_view(fs.space, partial.chunk, partial.row);
    format::LogRecord made = file_record_of(c, format::LogOpcode::row, c.command.inode);
    made.offset = fs.space.chunks[partial.chunk].base_address + view.first * page_size;
    made.number = partial.taken;
    made.second_inode = partial.kept | partial.taken;
    made.data_length =
        static_cast<u32>((popcount(partial.taken) + fs.space.chunks[partial.chunk].parity_count) * page_size);
    return made;
  });
  const u64 lsn = fs::append_log(g, fs, c.operation, record, fs::LogPayload{c.names, bytes, nullptr, 0});
  on_leader(g, [&] {
    WriteState& state = scratch_of<WriteState>(c);
    state.row = {1, partial.chunk, partial.row, partial.kept | partial.taken, partial.taken, lsn};
    sync_scratch(c) = {load<Order::acquire, Scope::engine>(&fs.log.tail), 0, 0, 0, {}};
    if (fs::log_wants_checkpoint(fs.log)) request_checkpoint(engine, 0);
  });
  leave_gate(g, engine, c);
  return Status::ok;
}

// Uses memory that one command at a time may take. Status: no_space if there is no row, other errors as they occur.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status take_row(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                          u32 wanted) {
  fs::FileSystem& fs = engine.fs;
  u8* bytes = fs.space.parity->row_work[0];
  u8* work = fs.space.parity->row_work[raid::row_work_page_count - 1];
  for (u32 attempt = 0; attempt < row_attempts_max; ++attempt) {
    const space::PartialRow partial = space::take_partial_row(g, fs, c.operation, wanted);
    GPU4FS_TRY(partial.status);
    on_leader(g, [&] { take_row_pages(engine, c, partial); });
    GPU4FS_TRY(compose_pages(g, engine, c, ref, bytes));
    if (raid::prepare_row(g, fs.space, row_values_of(partial, bytes), work) == Status::ok) {
      return log_row(g, engine, c, partial, bytes);
    }
    on_leader(g, [&] {
      abandon_owned_extents(engine, c);
      space::skip_row(fs, partial);
    });
  }
  return Status::no_space;
}

// Like plan_round(), for a write without space for it. ok: the row's record is in the log.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status plan_row_round(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  static_assert(space::row_record_pages_max < raid::row_work_page_count);
  fs::FileSystem& fs = engine.fs;
  const WriteState& state = scratch_of<WriteState>(c);
  const bool is_possible = on_leader(g, [&] {
    c.operation.profile = space::effective_profile(fs, ref.inode->profile);
    return !is_replay(c) && space::takes_partial_rows(fs, c.operation.profile - 1);
  });
  if (!is_possible) return Status::no_space;
  // If metadata shares the stripes, maps and inode get pages from the emergency reserve.
  on_leader(g, [&] {
    const bool shares = c.operation.profile - 1 == fs.space.metadata_class;
    c.operation.emergency_use = shares ? space::EmergencyUse::half : space::EmergencyUse::none;
  });
  const u64 first = state.position / page_size;
  const u32 wanted =
      static_cast<u32>(minimum<u64>(divide_up(state.end, page_size) - first, space::row_record_pages_max));
  GPU4FS_TRY(reserve_map_change(g, engine, c, ref, {first, first + wanted}));
  GPU4FS_TRY(fs::reserve_log(g, fs, c.operation, fs::log_bytes(0, space::row_record_pages_max * page_size, 0)));
  u32* taken = &fs.space.parity->row_work_taken;
  if (on_leader(g, [&] { return exchange<Order::acquire, Scope::engine>(taken, 1u); }) != 0) return Status::again;
  const Status status = take_row(g, engine, c, ref, wanted);
  on_leader(g, [&] {
    store<Order::release, Scope::engine>(taken, 0u);
    if (status != Status::ok) abandon_owned_extents(engine, c);
  });
  return status;
}

// Makes the record durable and writes the row. Status: those of make_log_durable() and errors of a device.
// retry_after_checkpoint: a device was lost meanwhile, and nothing of the row was written.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status fill_row(Group g, Engine& engine, CommandState& c) {
  fs::FileSystem& fs = engine.fs;
  GPU4FS_TRY(make_log_durable(g, engine, c));
  if (on_leader(g, [&] { return raid::failed_devices(fs.space); }) != 0) return Status::retry_after_checkpoint;
  const RowRound row = on_leader(g, [&] { return scratch_of<WriteState>(c).row; });
  u8* record = fs.log.ring + row.lsn % fs.log.capacity;
  u8* bytes = record + format::log_record_layout(0, 0, 0).data_offset;
  GPU4FS_TRY(raid::replace_row(g, fs.space, {row.chunk, 0, row.row, row.included, row.written, bytes}));
  on_leader(g, [&] { end_row_update(engine, c); });
  return Status::ok;
}

// Replays a row's record after a crash, before anything of the row is read: writes the row according to the record.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status carry_out_row(Group g, Engine& engine, CommandState& c,
                                               const format::LogRecord& record) {
  fs::FileSystem& fs = engine.fs;
  GPU4FS_TRY(on_leader(g, [&] { return space::check_accessible(fs, c.operation, record.offset); }));
  struct Plan {
    Status status;
    u32 chunk;
    u64 row;
  };
  const Plan plan = on_leader(g, [&] {
    raid::PageLocation location{};
    GPU4FS_CHECK_OK(raid::find_page(fs.space, record.offset, &location));
    raid::ChunkState& chunk = fs.space.chunks[location.chunk];
    Plan made{Status::corrupt_structure, location.chunk, 0};
    if (chunk.parity_count == 0 || location.page >= chunk.page_count) return made;
    made.row = raid::row_place(chunk, location.page).row;
    const raid::RowView view = raid::row_view(fs.space, location.chunk, made.row);
    const u64 outside = view.slot_count >= 64 ? 0 : ~u64{0} << view.slot_count;
    const bool fits = view.first == location.page && record.number != 0 && (record.second_inode & outside) == 0 &&
                      (record.number & ~record.second_inode) == 0 &&
                      record.data_length == (popcount(record.number) + chunk.parity_count) * page_size;
    if (!fits) return made;
    made.status = Status::ok;
    for (u64 left = record.number; left != 0 && made.status == Status::ok; left &= left - 1) {
      made.status =
          space::adopt_stranded_page(chunk, raid::row_page(view, static_cast<u32>(count_trailing_zeros(left))));
    }
    space::mark_changed(chunk);
    return made;
  });
  GPU4FS_TRY(plan.status);
  const u32 offset = format::log_record_layout(0, record.data_length, 0).data_offset;
  u8* bytes = const_cast<u8*>(reinterpret_cast<const u8*>(&record)) + offset;
  return raid::replace_row(g, fs.space, {plan.chunk, 0, plan.row, record.second_inode, record.number, bytes});
}

}  // namespace detail
}  // namespace gpu4fs::engine
