// rebuild: lost devices join again while the pool is in use (raid/rebuild/, wire/rebuild_format.hpp).
//
// The management process begins the rebuild after the device's file is mapped and contains everything that no command
// writes. It then sends commands that fill pieces of chunks, any number concurrently, with checkpoints in between,
// until none are left. At last it requests the checkpoint whose superblocks declare the device complete. Until then the
// medium declares the device stale. So a crash or an error before this checkpoint leaves the pool as it was, without
// the device.
#pragma once

#include "device/staged/write_back.hpp"
#include "engine/device_poll.hpp"
#include "engine/engine.hpp"
#include "engine/handlers/scrub_ops.hpp"
#include "fs/journal/checkpoint.hpp"
#include "raid/rebuild/rebuild_copies.hpp"
#include "raid/rebuild/rebuild_rows.hpp"
#include "wire/rebuild_format.hpp"

namespace gpu4fs::engine {
namespace detail {

// Limit of the pages that are filled at the end of a rebuild while no step runs. Without this, a workload that rewrites
// unwritten blocks could prevent the end of the rebuild.
inline constexpr u64 rebuild_rest_max = 1024;

GPU4FS_FN inline bool has_column_on(const raid::ChunkState& chunk, u32 device) {
  GPU4FS_CHECK_LT(device, u32{device_count_max});
  return raid::lost_column_count(chunk, u64{1} << device) != 0;
}

GPU4FS_FN inline bool has_column_on_any(const raid::ChunkState& chunk, u64 devices) {
  return raid::lost_column_count(chunk, devices) != 0;
}

// For a chunk with a column on the device, while no step runs: marks its pages to be filled and its header area to be
// written. Descriptors of a chunk that is empty, also in the durable epoch, have no meaning. While such a chunk is
// unreachable, they are marked as unwritten.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void mark_chunk_for_rebuild(Group g, raid::ChunkState& chunk) {
  u64 in_use = 0;
  for (u64 w = g.rank(); w < divide_up(chunk.page_count, u64{64}); w += Group::size()) {
    const u64 committed = load<Order::relaxed, Scope::engine>(&chunk.bitmaps.committed[w]);
    fetch_or<Order::relaxed, Scope::engine>(&chunk.rebuild_todo[w], committed);
    in_use |= committed | load<Order::relaxed, Scope::engine>(&chunk.bitmaps.stable[w]);
  }
  const bool has_descriptors = g.any(in_use != 0) || on_leader(g, [&] { return raid::is_accessible(chunk); });
  const u64 descriptor_pages = format::chunk_layout(chunk.page_count).descriptor_pages;
  for (u64 page = g.rank(); page < descriptor_pages; page += Group::size()) {
    if (has_descriptors) {
      fetch_or<Order::relaxed, Scope::engine>(&chunk.descriptor_dirty[page / 64], u64{1} << (page % 64));
    } else {
      chunk.descriptor_table[page] = format::descriptor_page_unwritten;
      chunk.descriptor_table_staged[page] = format::descriptor_page_unwritten;
    }
  }
  g.sync();
  on_leader(g, [&] { store<Order::relaxed, Scope::engine>(&chunk.changed, 1u); });
}

// Marks pages that commands have allocated, may have written and will commit.
GPU4FS_FN GPU4FS_NOINLINE inline void mark_owned_pages(Engine& engine) {
  for (u32 i = 0; i < engine.config.command_count; ++i) {
    const CommandState& c = engine.commands[i];
    if (load<Order::acquire, Scope::engine>(&c.phase) == static_cast<u32>(CommandPhase::free)) continue;
    GPU4FS_CHECK_LE(c.extent_count, command_extent_capacity);
    for (u32 e = 0; e < c.extent_count; ++e) {
      raid::PageLocation location{};
      if (raid::find_page(engine.fs.space, c.extents[e].address, &location) != Status::ok) continue;
      const raid::ChunkState& chunk = engine.fs.space.chunks[location.chunk];
      const u64 count = minimum(u64{c.extents[e].page_count}, chunk.page_count - location.page);
      for (u64 page = 0; page < count; ++page) raid::set_rebuild_todo(chunk, location.page + page);
    }
  }
}

// Leader, while no step runs: the results of pending or unread upcalls do not concern the new device.
GPU4FS_FN inline void note_replaced_device(Engine& engine, u32 device) {
  GPU4FS_CHECK_LT(device, u32{device_count_max});
  for (u32 i = 0; i < engine.config.command_count; ++i) engine.commands[i].mailbox.replaced_devices |= u64{1} << device;
}

// Leader, while no step runs.
GPU4FS_FN inline Status may_install_device(Engine& engine, u32 index, const wire::RebuildTarget& target) {
  const raid::LogicalSpace& space = engine.fs.space;
  GPU4FS_CHECK_LT(index, raid::device_count_of(space));
  const bool is_staged = target.device_kind == static_cast<u32>(device::DeviceKind::staged);
  if (!is_staged && (target.base == 0 || target.device_kind != static_cast<u32>(device::DeviceKind::memory))) {
    return Status::invalid_argument;
  }
  if (is_staged && space.staged == nullptr) return Status::invalid_argument;
  if (target.part.device_index != index || target.part.size_bytes > target.mapped_bytes) {
    return Status::invalid_argument;
  }
  const raid::DeviceHealth& health = *space.health;
  const u64 bit = u64{1} << index;
  if ((raid::failed_devices(space) & bit) == 0 || (raid::rebuilding_devices(space) & bit) != 0) return Status::busy;
  // Superblocks must first declare the device lost. Otherwise a crash would bring it back in its current state.
  if ((load<Order::acquire, Scope::engine>(&health.recorded) & bit) == 0) return Status::retry_after_checkpoint;
  return Status::ok;
}

// Frames have pages of the device that was lost, and its write errors. Collective, while no step runs, so nobody has
// pinned any. Waits for flushes of the device that are in flight: their errors do not concern its successor.
template <class Group>
GPU4FS_FN void forget_frames(Group g, Engine& engine, u32 index) {
  const raid::LogicalSpace& space = engine.fs.space;
  const device::Device& device = space.devices[index];
  if (device.kind != device::DeviceKind::staged) return;
  GPU4FS_CHECK(device::has_failed(device));
  while (on_leader(g, [&] { return device::is_flush_in_flight(*space.staged, index); })) {
    if (!step_from_devices(g, engine)) backoff(1000);
  }
  device::forget_pages(g, *space.staged, index, 0, device::device_page_max);
  on_leader(g, [&] { device::forget_write_error(*space.staged, index); });
}

// Leader, while no step runs, after may_install_device().
GPU4FS_FN GPU4FS_NOINLINE inline void install_device(Engine& engine, u32 index, const wire::RebuildTarget& target) {
  fs::FileSystem& fs = engine.fs;
  raid::LogicalSpace& space = fs.space;
  raid::DeviceHealth& health = *space.health;
  device::Device& device = space.devices[index];
  device.kind = static_cast<device::DeviceKind>(target.device_kind);
  device.staged = device.kind == device::DeviceKind::staged ? space.staged : nullptr;
  if (device.staged != nullptr) space.pages_apart = 1;
  device.tier = space.tier;
  device.base = reinterpret_cast<u8*>(static_cast<std::uintptr_t>(target.base));
  device.size_bytes = target.mapped_bytes;
  device.needs_flush = target.needs_flush;
  device.stack = reinterpret_cast<device::DeviceStack*>(static_cast<std::uintptr_t>(target.stack));
  if (device.stack != nullptr) space.stacked = 1;
  health.file_numbers[index] = target.file_number;
  store<Order::relaxed, Scope::engine>(&health.flush_errors[index], 0u);
  fs.superblocks[index].device = target.part;
  for (u32 d = 0; d < raid::device_count_of(space); ++d) {
    __builtin_memcpy(fs.superblocks[d].device_uuids[index], target.part.device_uuid, sizeof(target.part.device_uuid));
  }
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status begin_rebuild(Group g, Engine& engine, u32 index, const wire::RebuildTarget* target) {
  raid::LogicalSpace& space = engine.fs.space;
  GPU4FS_TRY(on_leader(g, [&] { return may_install_device(engine, index, *target); }));
  forget_frames(g, engine, index);
  on_leader(g, [&] { install_device(engine, index, *target); });
  for (u32 i = 0; i < raid::chunk_count_of(space); ++i) {
    if (on_leader(g, [&] { return has_column_on(space.chunks[i], index); })) mark_chunk_for_rebuild(g, space.chunks[i]);
  }
  on_leader(g, [&] {
    mark_owned_pages(engine);
    note_replaced_device(engine, index);
    // The rest of open stripes is not allocated, so rows that need no filling get no new pages.
    fs::close_stripes(engine.fs);
    raid::begin_rebuild(space, index);
    fence<Order::seq_cst, Scope::engine>();
  });
  return Status::ok;
}

template <class Group>
GPU4FS_FN raid::RebuildOutcome rebuild_task_range(Group g, const raid::LogicalSpace& space, u32 index, u64 page,
                                                  u32 count, bool is_fresh) {
  GPU4FS_CHECK_LT(index, raid::chunk_count_of(space));
  GPU4FS_CHECK_GT(count, 0u);
  if (space.chunks[index].parity_count != 0) return raid::rebuild_rows(g, space, index, page, count, is_fresh);
  if (space.chunks[index].copy_count == 1) return {};
  return raid::rebuild_copies(g, space, index, page, count, is_fresh);
}

// Counts the pages of all chunks that still have their bit. Collective.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 count_rebuild_todo(Group g, const raid::LogicalSpace& space) {
  const u64 devices = on_leader(g, [&] { return raid::rebuilding_devices(space); });
  u64 count = 0;
  for (u32 i = 0; i < raid::chunk_count_of(space); ++i) {
    const raid::ChunkState& chunk = space.chunks[i];
    if (!on_leader(g, [&] { return has_column_on_any(chunk, devices); })) continue;
    for (u64 w = g.rank(); w < divide_up(chunk.page_count, u64{64}); w += Group::size()) {
      count += popcount(load<Order::relaxed, Scope::engine>(&chunk.rebuild_todo[w]));
    }
  }
  return g.reduce(count, [](u64 a, u64 b) { return a + b; });
}

// While no step runs: fills the remaining pages.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void rebuild_rest(Group g, const raid::LogicalSpace& space) {
  for (u32 i = 0; i < raid::chunk_count_of(space); ++i) {
    const raid::ChunkState& chunk = space.chunks[i];
    if (on_leader(g, [&] { return raid::chunk_state(space, i); }) != Status::ok) continue;
    for (u64 page = 0; page < chunk.page_count; page += raid::rebuild_task_pages) {
      const u64 todo =
          on_leader(g, [&] { return load<Order::relaxed, Scope::engine>(&chunk.rebuild_todo[page / 64]); });
      if (todo == 0) continue;
      const u32 count = static_cast<u32>(minimum<u64>(raid::rebuild_task_pages, chunk.page_count - page));
      (void)rebuild_task_range(g, space, i, page, count, false);
    }
  }
}

// While no step runs.
GPU4FS_FN GPU4FS_NOINLINE inline bool is_owned_by_command(const Engine& engine, u64 address) {
  for (u32 i = 0; i < engine.config.command_count; ++i) {
    const CommandState& c = engine.commands[i];
    if (load<Order::acquire, Scope::engine>(&c.phase) == static_cast<u32>(CommandPhase::free)) continue;
    GPU4FS_CHECK_LE(c.extent_count, command_extent_capacity);
    for (u32 e = 0; e < c.extent_count; ++e) {
      const fs::RoundExtent& extent = c.extents[e];
      if (address >= extent.address && address - extent.address < u64{extent.page_count} * page_size) return true;
    }
  }
  return false;
}

// While no step runs: unmarks pages that belong neither to the file system nor to a command, because they need no
// filling. In chunks with parities freed pages count as busy until their stripe is free. A shard may keep the stripe
// open for as long as it allocates nothing.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void drop_unowned_pages(Group g, Engine& engine) {
  const raid::LogicalSpace& space = engine.fs.space;
  for (u32 i = 0; i < raid::chunk_count_of(space); ++i) {
    const raid::ChunkState& chunk = space.chunks[i];
    const Status state = on_leader(g, [&] { return raid::chunk_state(space, i); });
    if (state != Status::ok || chunk.rebuild_todo == nullptr) continue;
    const raid::ChunkBitmaps& maps = chunk.bitmaps;
    for (u64 w = g.rank(); w < divide_up(chunk.page_count, u64{64}); w += Group::size()) {
      const u64 todo = load<Order::relaxed, Scope::engine>(&chunk.rebuild_todo[w]);
      if (todo == 0) continue;
      u64 used = 0;
      for (const u64* map : {maps.committed, maps.stable, maps.staged, maps.freed_old, maps.freed_now}) {
        used |= load<Order::relaxed, Scope::engine>(&map[w]);
      }
      for (u64 left = todo & ~used; left != 0; left &= left - 1) {
        const u64 page = w * 64 + count_trailing_zeros(left);
        if (!is_owned_by_command(engine, chunk.base_address + page * page_size)) raid::clear_rebuild_todo(chunk, page);
      }
    }
  }
  g.sync();
}

// Returns the number of pages that are still missing; 0: the next checkpoint ends the rebuild.
template <class Group>
GPU4FS_FN u64 finish_rebuild(Group g, Engine& engine) {
  const raid::LogicalSpace& space = engine.fs.space;
  u64 left = count_rebuild_todo(g, space);
  if (left != 0 && left <= rebuild_rest_max) {
    drop_unowned_pages(g, engine);
    rebuild_rest(g, space);
    left = count_rebuild_todo(g, space);
  }
  if (left == 0) on_leader(g, [&] { raid::complete_rebuild(space); });
  return left;
}

// Runs `begin` and `finish` while steps are stopped.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step rebuild_while_stopped(Group g, Engine& engine, CommandState& c) {
  const wire::Command& command = c.command;
  const bool begins = command.mode == static_cast<u32>(wire::RebuildStep::begin);
  u8* data = nullptr;
  if (begins) {
    GPU4FS_STEP_TRY(resolve(g, engine, c, command.data, sizeof(wire::RebuildTarget), &data));
    if (!is_aligned(data, alignof(wire::RebuildTarget))) return Step::end(Status::unaligned);
  }
  GPU4FS_STEP_TRY(stop_steps(g, engine, c));
  Status status = Status::ok;
  u64 result = 0;
  if (begins) {
    status =
        begin_rebuild(g, engine, static_cast<u32>(command.inode), reinterpret_cast<const wire::RebuildTarget*>(data));
    if (status == Status::ok) result = count_rebuild_todo(g, engine.fs.space);
  } else if (on_leader(g, [&] { return raid::rebuilding_devices(engine.fs.space); }) == 0) {
    status = Status::device_failed;
  } else {
    result = finish_rebuild(g, engine);
  }
  g.sync();
  resume_steps(g, engine, c);
  return status == Status::ok ? Step::complete(result) : Step::end(status);
}

GPU4FS_FN inline Status check_rebuild(const Engine& engine, const wire::Command& command) {
  const raid::LogicalSpace& space = engine.fs.space;
  if (engine.fs.read_only != 0) return Status::read_only;
  if (space.health == nullptr || space.damage == nullptr) return Status::not_supported;
  if ((command.mask & ~u32{wire::rebuild_mask_fresh}) != 0) return Status::invalid_argument;
  if (command.mode > static_cast<u32>(wire::RebuildStep::give_up)) return Status::invalid_argument;
  const auto step = static_cast<wire::RebuildStep>(command.mode);
  if (step == wire::RebuildStep::finish) return Status::ok;
  if (step != wire::RebuildStep::pages)
    return command.inode < raid::device_count_of(space) ? Status::ok : Status::out_of_range;
  if (command.inode >= raid::chunk_count_of(space)) return Status::out_of_range;
  const u64 page_count = space.chunks[command.inode].page_count;
  if (command.offset >= page_count || command.length > page_count - command.offset) return Status::out_of_range;
  if (!is_aligned(command.offset, raid::rebuild_task_pages)) return Status::unaligned;
  return command.length == 0 || command.length > wire::rebuild_pages_max ? Status::invalid_argument : Status::ok;
}

template <class Group>
GPU4FS_FN bool has_rebuild_todo(Group g, const raid::ChunkState& chunk, u64 first, u64 count) {
  GPU4FS_CHECK_LE(first + count, chunk.page_count);
  u64 found = 0;
  for (u64 at = u64{g.rank()} * 64; at < count; at += u64{Group::size()} * 64) {
    found |= raid::bitmap_bits_64(chunk, chunk.rebuild_todo, first + at);
  }
  return g.any(found != 0);
}

}  // namespace detail

// Internal. mode: wire::RebuildStep, which describes the other fields. Status: device_failed if no device is being
// rebuilt; retry_after_checkpoint for a device that superblocks do not name as lost yet; busy.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_rebuild(Group g, Engine& engine, CommandState& c) {
  const wire::Command& command = c.command;
  if (on_leader(g, [&] { return c.stage == 1; })) {
    GPU4FS_STEP_TRY(task_result(g, c));
    return Step::complete(on_leader(g, [&] { return load<Order::acquire, Scope::engine>(&c.result); }));
  }
  GPU4FS_STEP_TRY(detail::check_rebuild(engine, command));
  raid::LogicalSpace& space = engine.fs.space;
  const auto step = static_cast<wire::RebuildStep>(command.mode);
  if (step == wire::RebuildStep::give_up) {
    const bool lost = on_leader(g, [&] { return raid::lose_device(space, static_cast<u32>(command.inode)); });
    return lost ? Step::complete() : Step::end(Status::busy);
  }
  if (step != wire::RebuildStep::pages) return detail::rebuild_while_stopped(g, engine, c);
  const u64 devices = on_leader(g, [&] { return raid::rebuilding_devices(space); });
  if (devices == 0) return Step::end(Status::device_failed);
  const u32 index = static_cast<u32>(command.inode);
  const raid::ChunkState& chunk = space.chunks[index];
  const bool concerned = on_leader(g, [&] { return detail::has_column_on_any(chunk, devices); });
  if (!concerned || !detail::has_rebuild_todo(g, chunk, command.offset, command.length)) return Step::complete(0);
  const Status reached = on_leader(g, [&] { return raid::chunk_state(space, index); });
  if (reached != Status::ok) {
    return Step::end(on_leader(g, [&] { return space::want_chunk(c.operation, index, reached); }));
  }
  on_leader(g, [&] { c.stage = 1; });
  return Step::fan_out(static_cast<u32>(divide_up(command.length, u64{raid::rebuild_task_pages})));
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void task_rebuild(Group g, Engine& engine, CommandState& c, u32 task) {
  const wire::Command& command = c.command;
  const u64 begin = u64{task} * raid::rebuild_task_pages;
  GPU4FS_CHECK_LT(begin, command.length);
  const u32 count = static_cast<u32>(minimum<u64>(raid::rebuild_task_pages, command.length - begin));
  const bool is_fresh = (command.mask & wire::rebuild_mask_fresh) != 0;
  const raid::RebuildOutcome outcome = detail::rebuild_task_range(g, engine.fs.space, static_cast<u32>(command.inode),
                                                                  command.offset + begin, count, is_fresh);
  if (outcome.counts == 0) return;
  on_leader(g, [&] { add<Scope::engine>(&c.result, outcome.counts); });
}

}  // namespace gpu4fs::engine
