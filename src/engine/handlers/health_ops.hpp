// health and list_blocks: requests of the management process, which reports a pool's state to users.
#pragma once

#include "engine/handlers/file_common.hpp"
#include "fs/errors.hpp"
#include "fs/map/file_map.hpp"
#include "fs/names/attribute_walk.hpp"
#include "raid/damage.hpp"
#include "raid/device_loss.hpp"
#include "wire/health_format.hpp"

namespace gpu4fs::engine {
namespace detail {

GPU4FS_FN inline u32 health_flags(const fs::FileSystem& fs) {
  u32 flags = 0;
  if (fs.read_only != 0 && fs.checkpoint_failed == 0) flags |= wire::health_read_only;
  if (load<Order::relaxed, Scope::engine>(&fs.had_error) != 0) flags |= wire::health_metadata_damaged;
  if (load<Order::relaxed, Scope::engine>(&fs.checkpoint_failed) != 0) flags |= wire::health_checkpoint_failed;
  if (!fs::takes_changes(fs)) flags |= wire::health_changes_stopped;
  return flags;
}

GPU4FS_FN inline void write_device_health(const raid::LogicalSpace& space, wire::HealthRecord& record) {
  record.failed_devices = raid::failed_devices(space);
  record.rebuilding_devices = raid::rebuilding_devices(space);
  const raid::DeviceHealth* health = space.health;
  for (u32 i = 0; i < device_count_max; ++i) {
    record.read_errors[i] = health == nullptr ? 0 : load<Order::relaxed, Scope::engine>(&health->read_errors[i]);
    record.write_errors[i] = health == nullptr ? 0 : load<Order::relaxed, Scope::engine>(&health->write_errors[i]);
    record.flush_errors[i] = health == nullptr ? 0 : load<Order::relaxed, Scope::engine>(&health->flush_errors[i]);
  }
}

GPU4FS_FN GPU4FS_NOINLINE inline void write_classes(const fs::FileSystem& fs, wire::HealthRecord& record) {
  for (u32 i = 0; i < format::profile_max; ++i) {
    const space::ClassRoom room = space::room_of(fs, i);
    wire::ClassUsage& usage = record.classes[i];
    usage.page_total = room.total;
    usage.page_used = load<Order::relaxed, Scope::engine>(&fs.counters[i].used);
    usage.page_free = room.free;
    usage.page_available = space::room_for_content(fs, i);
    usage.flags = (fs.space.data_classes >> i & 1) != 0 ? u32{wire::class_takes_data} : 0u;
    if (i == fs.space.data_class) usage.flags |= wire::class_is_data;
    if (i == fs.space.metadata_class) usage.flags |= wire::class_is_metadata;
    usage.chunk_count = 0;
  }
  for (u32 i = 0; i < raid::chunk_count_of(fs.space); ++i) {
    const raid::ChunkState& chunk = fs.space.chunks[i];
    if (!raid::is_erased(chunk)) ++record.classes[chunk.page_class].chunk_count;
  }
}

// Leader: writes the record and as many entries of the table as fit. Returns the bytes written.
GPU4FS_FN GPU4FS_NOINLINE inline u64 write_health(const Engine& engine, u8* output, u64 length) {
  const fs::FileSystem& fs = engine.fs;
  auto* record = reinterpret_cast<wire::HealthRecord*>(output);
  auto* entries = reinterpret_cast<wire::DamageRecord*>(record + 1);
  GPU4FS_CHECK_GE(length, sizeof(*record));
  const u64 room = (length - sizeof(*record)) / sizeof(*entries);
  record->epoch_open = load<Order::relaxed, Scope::engine>(&fs.epoch_open);
  record->epoch_durable = load<Order::acquire, Scope::engine>(&fs.epoch_durable);
  record->page_total = space::pages_total(fs);
  record->page_used = space::pages_used(fs);
  record->inode_used = load<Order::relaxed, Scope::engine>(&fs.inode_used);
  record->inode_file_pages = load<Order::relaxed, Scope::engine>(&fs.inode_file.page_count);
  record->checkpoint_errors = load<Order::relaxed, Scope::engine>(&engine.epochs.write_errors);
  record->flags = health_flags(fs);
  record->device_count = raid::device_count_of(fs.space);
  record->damage_count = 0;
  record->damage_dropped = 0;
  for (u32 i = 0; i < device_count_max; ++i) record->mismatch_counts[i] = 0;
  write_device_health(fs.space, *record);
  write_classes(fs, *record);
  if (fs.space.damage == nullptr) return sizeof(*record);
  raid::DamageTable& table = *fs.space.damage;
  table.lock.lock();
  GPU4FS_CHECK_LE(table.entry_count, raid::damage_entry_max);
  const u32 count = static_cast<u32>(minimum<u64>(table.entry_count, room));
  for (u32 i = 0; i < count; ++i) entries[i] = table.entries[i];
  for (u32 i = 0; i < raid::device_count_of(fs.space); ++i) record->mismatch_counts[i] = table.mismatch_counts[i];
  record->damage_count = count;
  record->damage_dropped = table.dropped + (table.entry_count - count);
  table.lock.unlock();
  return sizeof(*record) + u64{count} * sizeof(*entries);
}

}  // namespace detail

// Internal. data, length: wire::HealthRecord and DamageRecords. Result: bytes.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_health(Group g, Engine& engine, CommandState& c) {
  u8* output = nullptr;
  if (c.command.length < sizeof(wire::HealthRecord)) return Step::end(Status::invalid_argument);
  GPU4FS_STEP_TRY(resolve(g, engine, c, c.command.data, c.command.length, &output));
  if (!is_aligned(output, alignof(wire::HealthRecord))) return Step::end(Status::unaligned);
  return Step::complete(on_leader(g, [&] { return detail::write_health(engine, output, c.command.length); }));
}

namespace detail {

inline constexpr u32 block_list_rounds = 512;  // places of the map that one command visits

struct BlockList {
  wire::BlockListHeader* header;
  wire::BlockRecord* records;
  u64 room;
  u64 next;  // page where the walk continues
};

GPU4FS_FN inline void append_block(BlockList& list, const wire::BlockRecord& record) {
  GPU4FS_CHECK_LT(u64{list.header->record_count}, list.room);
  list.records[list.header->record_count++] = record;
}

// The walk skips a part of the map that damage makes unreadable.
GPU4FS_FN constexpr bool is_damage(Status status) {
  return status == Status::checksum_mismatch || status == Status::corrupt_structure || status == Status::device_failed;
}

// Lists the indirect blocks whose first page is `page`. The walk continues at `page`, or after a block that could not
// be read.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status list_map_pages(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                u64 page, BlockList& list) {
  list.next = page;
  for (u32 level = ref.inode->height; level >= 1; --level) {
    fs::detail::MapPlace place{};
    const Status status = fs::detail::map_descend(g, engine.fs, c.operation, ref, {page, level}, &place);
    if (is_damage(status)) {
      const u64 span = fs::map_span(level + 1);
      list.next = align_down(page, span) + span;
      on_leader(g, [&] { list.header->skipped = 1; });
      return Status::ok;
    }
    GPU4FS_TRY(status);
    if (place.level != level || !place.pointer.is_indirect()) return Status::ok;
    if (page % fs::map_span(level) != 0 || place.pointer.address() == 0) continue;
    on_leader(g, [&] { append_block(list, {place.pointer.address(), page, 1, wire::BlockKind::map_page}); });
  }
  return Status::ok;
}

// Lists the run of blocks at the beginning of the range. The walk continues after it.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status list_run(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                          fs::PageRange range, BlockList& list) {
  const u64 page = range.first;
  fs::detail::MapPlace place{};
  const Status status = fs::detail::map_descend(g, engine.fs, c.operation, ref, {page, 0}, &place);
  if (is_damage(status)) {
    list.next = align_down(page, fs::map_span(1)) + fs::map_span(1);
    on_leader(g, [&] { list.header->skipped = 1; });
    return Status::ok;
  }
  GPU4FS_TRY(status);
  const u64 block_bytes = fs::map_span(place.level) * page_size;
  const u64 inside = page & (fs::map_span(place.level) - 1);
  const format::BlockPointer first = place.pointer;
  const u64 count = fs::detail::pages_ahead(
      g, place, {page, minimum(range.end, page + (u64{1} << 30))}, [&](format::BlockPointer following, u32 distance) {
        return first.is_hole() ? following.raw == 0 : following.raw == first.raw + distance * block_bytes;
      });
  list.next = page + count;
  // A page that was added after the last checkpoint has no place on the medium.
  if (first.is_hole() || first.address() == 0) return Status::ok;
  const auto kind = first.is_unwritten() ? wire::BlockKind::unwritten : wire::BlockKind::content;
  on_leader(g, [&] {
    append_block(list, {first.address() + inside * page_size, page, static_cast<u32>(count), kind});
  });
  return Status::ok;
}

// Lists pages of attributes from place *place on. *place: block_list_end after the last one.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status list_attribute_pages(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                      BlockList& list, u64* place) {
  u64 at = *place - fs::attribute_places;
  while (on_leader(g, [&] { return list.header->record_count < list.room; })) {
    fs::AttributePage found{};
    const Status status = fs::next_attribute_page_at(g, engine.fs, c.operation, ref, &at, &found);
    if (is_damage(status)) {
      on_leader(g, [&] { list.header->skipped = 1; });
      continue;
    }
    GPU4FS_TRY(status);
    if (found.pointer.is_hole()) {
      *place = wire::block_list_end;
      return Status::ok;
    }
    if (found.pointer.address() == 0) continue;
    on_leader(g, [&] { append_block(list, {found.pointer.address(), found.index, 1, wire::BlockKind::attributes}); });
  }
  *place = fs::attribute_places + at;
  return Status::ok;
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status list_from(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                           BlockList& list) {
  u64 page = c.command.offset;
  const bool has_map = !ref.inode->is_inline() && ref.inode->height <= fs::map_height_max;
  const u64 capacity = has_map ? fs::map_capacity(ref.inode->height) : 0;
  bool full = false;
  for (u32 round = 0; page < capacity && round < block_list_rounds; ++round) {
    // One place lists at most its run and one indirect block for each level.
    full = on_leader(g, [&] { return list.room - list.header->record_count < fs::map_height_max + 1; });
    if (full) break;
    GPU4FS_TRY(list_map_pages(g, engine, c, ref, page, list));
    if (list.next == page) GPU4FS_TRY(list_run(g, engine, c, ref, {page, capacity}, list));
    GPU4FS_CHECK_GT(list.next, page);
    page = list.next;
  }
  if (page >= capacity && !full) {
    page = maximum(page, fs::attribute_places);
    GPU4FS_TRY(list_attribute_pages(g, engine, c, ref, list, &page));
  }
  on_leader(g, [&] { list.header->next_page = page; });
  return Status::ok;
}

}  // namespace detail

// Internal. inode; offset: first page; data, length: wire::BlockListHeader and BlockRecords, at least 16 of them.
// Result: number of records. The places are those of the last checkpoint. Later changes may be listed or not. Status:
// stale, and those of get_page for the inode's own page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_list_blocks(Group g, Engine& engine, CommandState& c) {
  u8* output = nullptr;
  const u64 least = sizeof(wire::BlockListHeader) + 16 * sizeof(wire::BlockRecord);
  if (c.command.length < least) return Step::end(Status::invalid_argument);
  GPU4FS_STEP_TRY(resolve(g, engine, c, c.command.data, c.command.length, &output));
  if (!is_aligned(output, alignof(wire::BlockListHeader))) return Step::end(Status::unaligned);
  fs::InodeRef ref{};
  const u64 number = c.command.inode;
  const bool is_root_of_all = number == format::inode_number_inode_file ||
                              number == format::inode_number_inode_bitmap ||
                              number == format::inode_number_orphan_bitmap;
  if (is_root_of_all) {
    GPU4FS_STEP_TRY(fs::get_inode(g, engine.fs, c.operation, number, &ref));
  } else {
    GPU4FS_STEP_TRY(detail::lock_any(g, engine, c, number, LockMode::shared, &ref));
  }
  auto* header = reinterpret_cast<wire::BlockListHeader*>(output);
  detail::BlockList list{header, reinterpret_cast<wire::BlockRecord*>(header + 1),
                         (c.command.length - sizeof(*header)) / sizeof(wire::BlockRecord), 0};
  on_leader(g, [&] { *header = {0, 0, 0}; });
  GPU4FS_STEP_TRY(detail::list_from(g, engine, c, ref, list));
  return Step::complete(on_leader(g, [&] { return u64{header->record_count}; }));
}

}  // namespace gpu4fs::engine
