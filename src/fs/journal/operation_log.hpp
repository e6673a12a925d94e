// The operation log: records of operations, which thereby survive a crash before the next checkpoint
// (docs/internals/architecture.md, section 5; format/log_format.hpp has the bytes).
//
// There is one sequence of records. A place in it is taken by one compare-exchange of `tail` inside the commit gate,
// under the operation's locks. So the order of records is a possible order of the operations, and the place is the
// sequence number. The committing worker writes the record into the ring in engine memory and then marks it `ready`.
// Nothing is written to a device until a command requests durability. Then all records up to the requested one are
// complete, or their commands are about to complete them, and they are written together for all waiting commands
// (engine/log_flush.hpp). A checkpoint makes all records before its snapshot superfluous, written or not.
//
// Room for a record is reserved in prepare, so appending cannot fail. A part of the ring is never reserved: the room
// that fillers may take.
//
// Pages that a record names (LogExtent) become stable when they are committed: they are neither overwritten nor reused
// before a checkpoint that covers the record is durable. The bytes in a record need no such protection: a replay writes
// them again.
#pragma once

#include "base/copy.hpp"
#include "base/mutant.hpp"
#include "base/xxh3.hpp"
#include "device/transfer.hpp"
#include "fs/fs_types.hpp"
#include "raid/device_loss.hpp"
#include "space/extents.hpp"

namespace gpu4fs::fs {

// Limit of pages that records name before a checkpoint is requested: 8 GiB that a recovery has to read.
inline constexpr u64 log_named_pages_max = u64{2} << 20;

// The payload of a record besides LogRecord's own fields. Lengths are in `record`. The memory is engine memory, or
// session memory for `data`. Session memory may change meanwhile, so the hash is that of the stored record.
struct LogPayload {
  const u8* names;  // first name, directly followed by the second one
  const u8* data;
  const RoundExtent* extents;
  u32 flags;  // format::LogExtentFlags of all extents
};

GPU4FS_FN inline bool log_is_on(const FileSystem& fs) {
  return fs.log.capacity != 0;
}

// The size of a record with such a payload in bytes.
GPU4FS_FN constexpr u32 log_bytes(u32 name_bytes, u32 data_length, u32 extent_count) {
  return format::log_record_layout(name_bytes, data_length, extent_count).length;
}

// Prepare: reserves room for a record of `bytes`; another call raises the reservation. Status: retry_after_checkpoint.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status reserve_log(Group g, FileSystem& fs, Operation& op, u32 bytes) {
  if (!log_is_on(fs)) return Status::ok;
  GPU4FS_CHECK_LE(bytes, format::log_record_bytes_max);
  return on_leader(g, [&] {
    if (op.log_reserved >= bytes) return Status::ok;
    const u64 more = bytes - op.log_reserved;
    const u64 before = fetch_sub<Order::acquire, Scope::engine>(&fs.log.room, more);
    if (static_cast<i64>(before) < static_cast<i64>(more)) {
      add<Scope::engine>(&fs.log.room, more);
      return Status::retry_after_checkpoint;
    }
    op.log_reserved = bytes;
    return Status::ok;
  });
}

// Located after its header; the record must be valid.
GPU4FS_FN inline const format::LogExtent* record_extents(const format::LogRecord& record) {
  const format::LogRecordLayout layout = format::log_record_layout(u32{record.name_length} + record.second_name_length,
                                                                   record.data_length, record.extent_count);
  return reinterpret_cast<const format::LogExtent*>(reinterpret_cast<const u8*>(&record) + layout.extents_offset);
}

// One rank.
GPU4FS_FN inline void release_log(FileSystem& fs, Operation& op) {
  if (op.log_reserved == 0) return;
  add<Scope::engine>(&fs.log.room, u64{op.log_reserved});
  op.log_reserved = 0;
}

namespace detail {

GPU4FS_FN inline u64* ready_word(const OperationLog& log, u64 lsn) {
  GPU4FS_CHECK_EQ(lsn % format::log_record_granule, u64{0});
  return &log.ready[lsn % log.capacity / format::log_record_granule];
}

GPU4FS_FN inline format::LogRecord* record_at(const OperationLog& log, u64 lsn) {
  return reinterpret_cast<format::LogRecord*>(log.ring + lsn % log.capacity);
}

GPU4FS_FN inline u64 record_checksum(const OperationLog& log, format::LogRecord& record) {
  record.checksum = 0;
  return xxh3_64(&record, record.length, log.seed ^ record.lsn);
}

// Takes the place of a record of `length` bytes. A rest before the ring's end becomes a filler.
GPU4FS_FN inline u64 take_place(FileSystem& fs, u32 length) {
  OperationLog& log = fs.log;
  u64 lsn = load<Order::relaxed, Scope::engine>(&log.tail);
  u64 gap = 0;
  do {
    const u64 left = log.capacity - lsn % log.capacity;
    gap = left < length ? left : 0;
  } while (!compare_exchange<Order::relaxed, Scope::engine>(&log.tail, lsn, lsn + gap + length));
  if (gap == 0) return lsn;
  subtract<Scope::engine>(&log.room, gap);
  // Only the first 64 bytes of a filler have a meaning; its checksum covers these.
  format::LogRecord& filler = *record_at(log, lsn);
  __builtin_memset(&filler, 0, minimum<u64>(gap, sizeof(filler)));
  filler.lsn = lsn;
  filler.length = static_cast<u32>(gap);
  filler.opcode = format::LogOpcode::filler;
  filler.checksum = xxh3_64(&filler, format::log_record_granule, log.seed ^ lsn);
  store<Order::release, Scope::engine>(ready_word(log, lsn), lsn);
  return lsn + gap;
}

// Limit of the pages of one extent whose digests a commit computes itself; the flush of the log computes larger ones.
inline constexpr u32 digest_pages_at_once = 64;
inline constexpr u16 log_flag_unfinished = 1;  // in memory only: digests and checksum are still missing

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 extent_digest(Group g, const FileSystem& fs, u64 address, u32 page_count) {
  const raid::PageLocation location = on_leader(g, [&] {
    return space::location_of(fs, raid::Extent{address, page_count, 0});
  });
  const format::PageDescriptor* descriptors = &fs.space.chunks[location.chunk].descriptors[location.page];
  u64 sum = 0;
  for (u32 i = g.rank(); i < page_count; i += Group::size()) {
    sum += format::page_digest(load_shared_16(&descriptors[i]).low, i);
  }
  return g.reduce(sum, [](u64 a, u64 b) { return a + b; });
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void finish_record(Group g, const FileSystem& fs, format::LogRecord& record) {
  auto* extents = const_cast<format::LogExtent*>(record_extents(record));
  const u32 count = record.extent_count;
  for (u32 i = 0; i < count; ++i) {
    const format::LogExtent extent = extents[i];
    if ((extent.flags & format::log_extent_unwritten) != 0) continue;
    const u64 digest = extent_digest(g, fs, extent.address, extent.page_count);
    on_leader(g, [&] { extents[i].digest = digest; });
  }
  on_leader(g, [&] {
    record.flags = 0;
    record.checksum = record_checksum(fs.log, record);
  });
}

template <class Group>
GPU4FS_FN void zero_gap(Group g, u8* record, u32 from, u32 to) {
  for (u32 i = from + g.rank(); i < to; i += Group::size()) record[i] = 0;
}

// Everything after the header.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 store_payload(Group g, u8* record, const format::LogRecord& header,
                                            const LogPayload& payload) {
  const u32 name_bytes = u32{header.name_length} + header.second_name_length;
  const format::LogRecordLayout layout = format::log_record_layout(name_bytes, header.data_length, header.extent_count);
  copy_bytes(g, record + sizeof(format::LogRecord), payload.names, name_bytes);
  zero_gap(g, record, static_cast<u32>(sizeof(format::LogRecord)) + name_bytes, layout.data_offset);
  copy_bytes(g, record + layout.data_offset, payload.data, header.data_length);
  zero_gap(g, record, layout.data_offset + header.data_length, layout.extents_offset);
  auto* extents = reinterpret_cast<format::LogExtent*>(record + layout.extents_offset);
  u64 pages = 0;  // that hold data
  for (u32 i = g.rank(); i < header.extent_count; i += Group::size()) {
    const RoundExtent& extent = payload.extents[i];
    const u32 flags = payload.flags | (extent.is_in_place() ? u32{format::log_extent_in_place} : 0u);
    const bool unwritten = (flags & format::log_extent_unwritten) != 0;
    const u64 page = unwritten ? extent.first_page() : 0;
    extents[i] = format::LogExtent{extent.address, 0, extent.page_count, flags, page};
    if (!unwritten) pages += extent.page_count;
  }
  const u32 end = layout.extents_offset + header.extent_count * static_cast<u32>(sizeof(format::LogExtent));
  zero_gap(g, record, end, layout.length);
  return g.reduce(pages, [](u64 a, u64 b) { return a + b; });
}

}  // namespace detail

namespace detail {

// A checkpoint during a replay includes the records before `tail`.
GPU4FS_FN inline void note_replayed(FileSystem& fs, const Operation& op) {
  if (op.replay == nullptr || format::is_in(format::log_records_replayed_twice, op.replay->opcode)) return;
  store<Order::relaxed, Scope::engine>(&fs.log.tail, op.replay->lsn + op.replay->length);
}

}  // namespace detail

// Gate, under the operation's locks: appends the record of this commit. `header` has the operation's fields, equal on
// all ranks; lsn, length, time and epoch are filled in here. The room is reserved. During a replay nothing is recorded.
// Returns the record's LSN.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 append_log(Group g, FileSystem& fs, Operation& op, const format::LogRecord& header,
                                         const LogPayload& payload) {
  if (!log_is_on(fs)) {
    on_leader(g, [&] { detail::note_replayed(fs, op); });
    return 0;
  }
  OperationLog& log = fs.log;
  const u32 length =
      log_bytes(u32{header.name_length} + header.second_name_length, header.data_length, header.extent_count);
  const u64 lsn = on_leader(g, [&] {
    GPU4FS_CHECK_GE(op.log_reserved, length);
    op.log_reserved -= length;
    const u64 place = detail::take_place(fs, length);
    format::LogRecord& record = *detail::record_at(log, place);
    record = header;
    record.lsn = place;
    record.length = length;
    record.flags = 0;
    record.durable_lsn =
        GPU4FS_MUTANT(durable_lsn_missing, (load<Order::relaxed, Scope::engine>(&log.durable)), u64{0});
    record.time = op.now;
    record.epoch = fs.epoch_open;
    return place;
  });
  format::LogRecord& record = *detail::record_at(log, lsn);
  const u64 pages = detail::store_payload(g, reinterpret_cast<u8*>(&record), header, payload);
  g.sync();
  if (pages <= detail::digest_pages_at_once) {
    detail::finish_record(g, fs, record);
  } else {
    on_leader(g, [&] { record.flags = detail::log_flag_unfinished; });
  }
  on_leader(g, [&] { add<Scope::engine>(&log.named_pages, pages); });
  on_leader(g, [&] { store<Order::release, Scope::engine>(detail::ready_word(log, lsn), lsn); });
  return lsn;
}

// The data in the record, while its command is in the gate; `data` if nothing is recorded.
GPU4FS_FN inline const u8* recorded_data(const FileSystem& fs, u64 lsn, const format::LogRecord& header,
                                         const u8* data) {
  if (!log_is_on(fs)) return data;
  const format::LogRecordLayout layout = format::log_record_layout(u32{header.name_length} + header.second_name_length,
                                                                   header.data_length, header.extent_count);
  return reinterpret_cast<const u8*>(detail::record_at(fs.log, lsn)) + layout.data_offset;
}

// True once each time half of the log is in use, or so many pages are named that a recovery would take long to read
// them: the caller requests a checkpoint. One rank.
GPU4FS_FN inline bool log_wants_checkpoint(OperationLog& log) {
  if (log.capacity == 0) return false;
  const u64 used = load<Order::relaxed, Scope::engine>(&log.tail) - load<Order::relaxed, Scope::engine>(&log.start);
  const u64 pages = load<Order::relaxed, Scope::engine>(&log.named_pages);
  if (used < log.capacity / 2 && pages < log_named_pages_max) return false;
  if (load<Order::relaxed, Scope::engine>(&log.checkpoint_asked) != 0) return false;
  return exchange<Order::relaxed, Scope::engine>(&log.checkpoint_asked, 1u) == 0;
}

// The LSN after the complete records from `from` on, up to `to`. Completes unfinished ones. Only for the worker that
// flushes the log.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 collect_log(Group g, const FileSystem& fs, u64 from, u64 to) {
  const OperationLog& log = fs.log;
  u64 at = from;
  while (at < to) {
    struct Found {
      u32 length;
      u32 unfinished;
    };
    const Found found = on_leader(g, [&] {
      if (load<Order::acquire, Scope::engine>(detail::ready_word(log, at)) != at) return Found{0, 0};
      const format::LogRecord& record = *detail::record_at(log, at);
      GPU4FS_CHECK_EQ(record.lsn, at);
      return Found{record.length, record.flags};
    });
    if (found.length == 0) break;
    if (found.unfinished != 0) detail::finish_record(g, fs, *detail::record_at(log, at));
    at += found.length;
  }
  return at;
}

namespace detail {

// A part that does not reach beyond the end of the ring. A staged device gets whole pages: the ring still has the bytes
// before the part, which are the same again, and records behind it are valid only when they are complete.
template <class Group>
GPU4FS_FN Status write_log_part(Group g, FileSystem& fs, u32 device, u64 from, u64 length) {
  const OperationLog& log = fs.log;
  const bool is_staged = fs.space.devices[device].kind == device::DeviceKind::staged;
  const u64 unit = is_staged ? page_size : u64{1};
  const u64 place = align_down(from % log.capacity, unit);
  const u64 end = align_up(from % log.capacity + length, unit);
  const u64 offset = on_leader(g, [&] { return fs.superblocks[device].device.log_offset + place; });
  const device::Device& target = fs.space.devices[device];
  // Commands add records behind the part.
  const bool is_growing = is_staged && from % log.capacity + length != end;
  if (is_growing) return device::write_growing_range(g, target, offset, log.ring + place, end - place);
  return device::write_range(g, target, offset, log.ring + place, end - place);
}

}  // namespace detail

// Writes the log's bytes [from, to), at most its capacity, to every remaining log device. The caller flushes them.
// Status: device_failed.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_log(Group g, FileSystem& fs, u64 from, u64 to) {
  const OperationLog& log = fs.log;
  GPU4FS_CHECK_LE(from, to);
  GPU4FS_CHECK_LE(to - from, log.capacity);
  for (u32 d = 0; d < log.device_count; ++d) {
    for (u64 at = from; at < to;) {
      const u64 length = minimum(to - at, log.capacity - at % log.capacity);
      const Status status = detail::write_log_part(g, fs, d, at, length);
      if (status != Status::ok && on_leader(g, [&] { return raid::tolerates_write_error(fs.space, d); })) break;
      GPU4FS_TRY(status);
      at += length;
    }
  }
  return Status::ok;
}

}  // namespace gpu4fs::fs
