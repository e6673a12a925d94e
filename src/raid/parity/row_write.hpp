// Writes pages of chunks with parities.
//
// Rows that a run of pages covers completely are written in one pass: each page is read once, hashed, stored and added
// to the sums in registers, which are the row's parities. Their stripe was free and belongs to the command alone, so no
// other command uses the row.
//
// In other rows the pages are written first. Then, under the row's lock, the sums are added to the existing parities,
// or replace them if these include nothing yet, and the descriptors say that the pages are included. So parities match
// the included pages at any time, and a page is protected when its write has ended.
//
// Crashes. A parity on which a durable page depends must not be half written. So rows with durable pages get no new
// ones: pages are allocated in whole stripes, and if a command or a shard has pages of a stripe left at a checkpoint's
// snapshot, they are not allocated (space/stripes.hpp). A command that got its page before the snapshot and writes it
// after the snapshot is restarted: retry_after_checkpoint. The test for the snapshot and the update of the parities
// count as one running update. Before the checkpoint makes itself durable, it waits until it has seen no running
// update: earlier updates are complete, and later ones see the snapshot. Pages of the checkpoint itself
// (PageUse::metadata) are exempt.
//
// A lost device keeps its old content. Its pages are only in the parities, which are written before the command ends;
// its parities are not written.
//
// Uniform; synchronises the group.
#pragma once

#include "base/mutant.hpp"
#include "raid/parity/row_batch.hpp"
#include "raid/pin_scope.hpp"
#include "raid/rebuild/rebuild_todo.hpp"

namespace gpu4fs::raid {

// The source of a write: `count` pages of one chunk.
struct RowSource {
  u32 chunk;
  u32 hashes;     // 1: pages have checksums
  u32 is_exempt;  // 1: pages of a checkpoint
  u32 reserved;
  u64 first;  // page
  u64 count;
  const u8* bytes;  // any alignment; may change meanwhile
};

namespace detail {

// Pages [low, high) of slots of a row.
struct RowPart {
  Status status;
  u32 low;
  u32 high;
  u32 is_whole;
  RowView view;
  u32 entry;  // of the row's first slot in its batch
  u32 reserved;
};

// As in raid/page_run_io.hpp: an unwritten block that is being filled counts as one epoch older.
GPU4FS_FN inline u32 birth_of(const LogicalSpace& space, const ChunkState& chunk, u64 page) {
  const u64 epoch = load<Order::relaxed, Scope::engine>(&space.epoch_open);
  GPU4FS_CHECK_GT(epoch, u64{1});
  return static_cast<u32>(epoch - (page_bit(chunk.bitmaps.stable, page) ? 1 : 0));
}

// One page of any alignment. The hash is that of the bytes written, even if the source changes meanwhile. On a Lane
// `page` is then the written page.
template <class Group>
GPU4FS_FN u64 store_row_page(Group g, PageRegisters<Group>& page, u8* memory, u64 address, bool hashes) {
  if constexpr (Group::size() == 1) {
    u64 checksum = 0;
    if (hashes) {
      checksum = xxh3_copy_page(g, memory, page.page, address);
    } else {
      copy_bytes(g, memory, page.page, page_size);
    }
    page.page = memory;
    return checksum;
  } else {
    store_page(g, page, memory);
    return hashes ? xxh3_registers(g, page, address) : 0;
  }
}

// The target of a page.
struct SlotTarget {
  Status status;
  u32 birth_epoch;
  u8* memory;
  u32 scratch;  // the page with `memory`, or no_scratch
  u32 reserved;
};

GPU4FS_FN GPU4FS_NOINLINE inline SlotTarget plan_slot(const LogicalSpace& space, const RowPart& part, u32 slot) {
  const ChunkState& chunk = space.chunks[part.view.chunk];
  const PageLocation location{part.view.chunk, 0, row_page(part.view, slot)};
  const Status status = begin_copy_write(space, location, 1, 0);
  const u32 birth = birth_of(space, chunk, location.page);
  if (status == Status::ok) return {Status::ok, birth, page_memory(space, location, 0), no_scratch, 0};
  const u32 device = page_place(space, location, 0).device;
  if (!tolerates_write_error(space, device)) return {status, 0, nullptr, no_scratch, 0};
  // Only the parities will have this page.
  const u32 scratch = take_scratch(space);
  return {Status::ok, birth, scratch_memory(space, scratch), scratch, 0};
}

// Rows that are written. The ranks of a warp determine the places of pages and parities before the first page is
// stored, in a plain pool, and if all rows are written as a whole and all entries can be announced. Otherwise, and on a
// Lane, the leader plans slot by slot.
struct WriteBatch {
  RowBatch rows;
  u64 wanted;        // slots that are written, one bit each
  u32 is_plain;      // 1: accesses needed no announcement when the rows were planned
  u32 is_planned;    // 1: `rows` has the memory of all entries
  u32 is_announced;  // 1: writes of all entries were announced
  // Of a rank of a warp:
  u32 birth_epochs[entries_of_rank];
};

// Calls visit(base, slot) for the entries of the rows, each on its rank: pages, and parities after them.
template <class Group, class Visit>
GPU4FS_FN void for_each_used_entry(Group g, const RowBatch& rows, Visit&& visit) {
  for_each_entry(g, rows, rows.rows, [&](u32 base, u32 slot, bool is_there) {
    if (is_there && (slot < rows.view.slot_count || slot >= rows.data_slots)) visit(base, slot);
  });
}

GPU4FS_FN GPU4FS_NOINLINE inline Status begin_entry_write(const LogicalSpace& space, const RowView& view, u32 slot) {
  const DevicePlace place = row_entry_place(space, view, slot);
  return device::begin_write(space.devices[place.device], place.offset, page_size);
}
GPU4FS_FN GPU4FS_NOINLINE inline void end_entry_write(const LogicalSpace& space, const RowView& view, u32 slot) {
  const DevicePlace place = row_entry_place(space, view, slot);
  device::end_write(space.devices[place.device], place.offset, page_size);
}
GPU4FS_FN GPU4FS_NOINLINE inline void cancel_entry_write(const LogicalSpace& space, const RowView& view, u32 slot) {
  const DevicePlace place = row_entry_place(space, view, slot);
  device::cancel_write(space.devices[place.device], place.offset, page_size);
}

// Announces writes of all entries at the same time, since one after the other they take longer than the rows. False:
// there are others, or one was refused, and nothing is announced. Collective.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool announce_rows(Group g, const LogicalSpace& space, const WriteBatch& batch) {
  u64 slots = 0;
  for_each_entry(g, batch.rows, batch.rows.rows, [&](u32 base, u32 slot, bool is_there) {
    slots |= u64{g.ballot(is_there && slot < batch.rows.view.slot_count)} << base;
  });
  if (GPU4FS_MUTANT(part_announced_as_row, slots != batch.wanted, false)) return false;
  u32 begun = 0;
  bool is_refused = false;
  for_each_used_entry(g, batch.rows, [&](u32 base, u32 slot) {
    const bool is_ok = begin_entry_write(space, batch.rows.view, slot) == Status::ok;
    if (is_ok) begun |= base == 0 ? 1 : 2;
    is_refused |= !is_ok;
  });
  const bool is_good = !g.any(is_refused);
  if (!is_good) {
    for_each_used_entry(g, batch.rows, [&](u32 base, u32 slot) {
      if ((begun & (base == 0 ? 1 : 2)) != 0) cancel_entry_write(space, batch.rows.view, slot);
    });
  }
  g.sync();
  return is_good;
}

// After the stores of all ranks. Collective.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void end_rows(Group g, const LogicalSpace& space, const WriteBatch& batch) {
  g.sync();
  for_each_used_entry(g, batch.rows, [&](u32, u32 slot) { end_entry_write(space, batch.rows.view, slot); });
  g.sync();
}

// Rows [row, row + count).
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE WriteBatch plan_rows_to_write(Group g, const LogicalSpace& space, const RowSource& source,
                                                        u64 row, u32 count) {
  WriteBatch batch{};
  batch.rows = make_batch(g, space, source.chunk, row, count);
  batch.wanted = find_slots_of_pages(g, batch.rows, source.first, source.count);
  batch.is_plain = on_leader(
      g, [&] { return GPU4FS_MUTANT(row_write_unannounced, is_plain(space), failed_devices(space) == 0) ? 1u : 0u; });
  if constexpr (Group::size() > 1) {
    if (batch.is_plain == 0) {
      const bool may_announce = on_leader(g, [&] { return stages_pages(space) && failed_devices(space) == 0; });
      if (!may_announce || !is_aligned(source.bytes, 16) || !announce_rows(g, space, batch)) return batch;
      batch.is_announced = 1;
    }
    batch.is_planned = 1;
    for_each_used_entry(g, batch.rows, [&](u32 base, u32 slot) {
      const RowView& view = batch.rows.view;
      const u8* memory = row_entry_memory(space, view, slot);
      const u32 birth =
          slot < batch.rows.data_slots ? birth_of(space, space.chunks[source.chunk], row_page(view, slot)) : 0;
      // Constant indexes, so the values stay in registers.
      batch.rows.memory[base == 0 ? 0 : 1] = reinterpret_cast<std::uintptr_t>(memory);
      batch.birth_epochs[base == 0 ? 0 : 1] = birth;
    });
  }
  return batch;
}

// Leader: whether the part of a row that is not written as a whole may be added to its parities.
GPU4FS_FN GPU4FS_NOINLINE inline Status check_part(const LogicalSpace& space, const RowPart& part) {
  for (u32 slot = part.low; slot < part.high; ++slot) {
    // It has already been written; only a damaged map leads here.
    if (is_in_parity(space.chunks[part.view.chunk], row_page(part.view, slot))) return Status::corrupt_structure;
  }
  return Status::ok;
}

// The part of a row that is written, at least one page.
template <class Group>
GPU4FS_FN RowPart part_of_row(Group g, const LogicalSpace& space, const WriteBatch& batch, u32 index) {
  const BatchRow row = row_of_batch(g, batch.rows, index);
  const u64 wanted = bits_of_row(batch.rows, batch.wanted, index);
  RowPart part{Status::ok, count_trailing_zeros(wanted), log2_floor(wanted) + 1, 0, row.view, row.entry, 0};
  part.is_whole = part.low == 0 && part.high == row.view.slot_count ? 1 : 0;
  if (part.is_whole == 0) part.status = on_leader(g, [&] { return check_part(space, part); });
  return part;
}

template <bool is_planned, class Group>
GPU4FS_FN SlotTarget target_of_slot(Group g, const LogicalSpace& space, const RowPart& part, const WriteBatch& batch,
                                    u32 slot) {
  if constexpr (!is_planned) return on_leader(g, [&] { return plan_slot(space, part, slot); });
  const u32 entry = part.entry + slot;
  return {Status::ok, of_entry(g, batch.birth_epochs, entry), known_memory(g, batch.rows, entry), no_scratch, 0};
}

GPU4FS_FN inline void end_slot(const LogicalSpace& space, const RowPart& part, u32 slot, const SlotTarget& target) {
  if (target.scratch != no_scratch) {
    return_scratch(space, target.scratch);
  } else {
    end_copy_write(space, {part.view.chunk, 0, row_page(part.view, slot)}, 1, 0);
  }
}

// Writes the pages of the part, highest slot first, and computes their sums. `is_fast`: all slots are planned and the
// source is aligned. Then no function is called while the next page is loaded.
template <bool is_fast, class Group, u32 count>
GPU4FS_FN GPU4FS_NOINLINE Status write_slots(Group g, LogicalSpace& space, const RowSource& source, const RowPart& part,
                                             const WriteBatch& batch, ParityPages<Group, count>& sums) {
  ChunkState& chunk = space.chunks[source.chunk];
  const RowView& view = part.view;
  clear_parities(g, sums);
  const auto load_slot = [&](u32 slot) {
    const u8* from = source.bytes + (row_page(view, slot) - source.first) * page_size;
    if constexpr (is_fast) {
      return load_aligned_page(g, from);
    } else {
      return load_page(g, from);
    }
  };
  PageRegisters<Group> next = load_slot(part.high - 1);
  for (u32 slot = part.high; slot-- > part.low;) {
    const u64 at = row_page(view, slot);
    PageRegisters<Group> page = next;
    if (slot > part.low) next = load_slot(slot - 1);
    const SlotTarget target = target_of_slot<is_fast>(g, space, part, batch, slot);
    if (!is_fast && target.status != Status::ok) return target.status;
    const u64 address = chunk.base_address + at * page_size;
    const u64 checksum = store_row_page(g, page, target.memory, address, source.hashes != 0);
    add_lower_slot(g, sums, page);
    // Before the leader says that the page was written.
    if constexpr (!is_fast) g.sync();
    if (g.leader()) {
      if constexpr (!is_fast) end_slot(space, part, slot, target);
      const u32 flags = part.is_whole != 0 ? format::page_flag_in_parity : 0;
      store_shared_16(&chunk.descriptors[at], make_descriptor(checksum, target.birth_epoch, flags));
    }
  }
  raise_to_slot(g, sums, part.low);
  return Status::ok;
}

template <class Group, u32 count>
GPU4FS_FN Status write_row_pages(Group g, LogicalSpace& space, const RowSource& source, const RowPart& part,
                                 const WriteBatch& batch, ParityPages<Group, count>& sums) {
  if (Group::size() > 1 && batch.is_planned != 0 && is_aligned(source.bytes, 16)) {
    return write_slots<Group::size() != 1>(g, space, source, part, batch, sums);
  }
  return write_slots<false>(g, space, source, part, batch, sums);
}

struct ParityAccess {
  Status status;
  u32 parities;    // one bit each: those on devices that are not lost
  u32 is_partial;  // 1: a parity on a device that is being rebuilt was left unchanged
};

// Leader: announces the change of the parities, or returns a status and announces none. `reads`: the existing parities
// are read too.
GPU4FS_FN GPU4FS_NOINLINE inline ParityAccess begin_parities(const LogicalSpace& space, const RowView& view, u32 count,
                                                             bool reads) {
  const u32 all = (1u << count) - 1;
  if (is_plain(space)) return {Status::ok, all, 0};
  ParityAccess access{Status::ok, 0, 0};
  for (u32 j = 0; j < count && access.status == Status::ok; ++j) {
    const u32 device = parity_place(space, view, j).device;
    if (reads && is_rebuilding(space, device) && !row_is_rebuilt(space, view)) {
      access.is_partial = 1;
      continue;
    }
    Status status = reads ? begin_known_parity_read(space, view, j) : Status::ok;
    if (status == Status::ok) {
      status = begin_parity_write(space, view, j);
    } else {
      // A parity that cannot be read cannot be updated: it is as good as lost, and so is its device.
      (void)tolerates_write_error(space, device);
    }
    if (status == Status::ok) {
      access.parities |= 1u << j;
    } else if (!device_has_failed(space, device)) {
      access.status = status;
    }
  }
  for (u32 j = 0; j < count && access.status != Status::ok; ++j) {
    if ((access.parities >> j & 1) != 0) cancel_parity_write(space, view, j);
  }
  return access;
}

// The writes are already announced.
template <class Group, u32 count>
GPU4FS_FN GPU4FS_NOINLINE void store_parities(Group g, LogicalSpace& space, const RowView& view, u32 parities,
                                              const ParityPages<Group, count>& sums) {
  for (u32 j = 0; j < count; ++j) {
    if ((parities >> j & 1) != 0) store_page(g, parity_page(g, sums, j), parity_memory(space, view, j));
  }
  g.sync();
  if (!g.leader()) return;
  for (u32 j = 0; j < count; ++j) {
    if ((parities >> j & 1) != 0) end_parity_write(space, view, j);
  }
}

// Leader, under the row's lock, while the update is counted: whether the row's parities may change.
GPU4FS_FN GPU4FS_NOINLINE inline Status may_change_parities(const LogicalSpace& space, const RowSource& source,
                                                            const RowPart& part) {
  if (GPU4FS_MUTANT(snapshot_rows_changed, source.is_exempt != 0, true)) return Status::ok;
  const ChunkState& chunk = space.chunks[source.chunk];
  for (u32 slot = 0; slot < part.view.slot_count; ++slot) {
    const u64 page = row_page(part.view, slot);
    // The page was freed meanwhile; the durable checkpoint still needs it.
    const bool is_durable = page_bit(chunk.bitmaps.staged, page) || page_bit(chunk.bitmaps.freed_old, page);
    if (is_durable && is_in_parity(chunk, page)) return Status::retry_after_checkpoint;
  }
  return Status::ok;
}

struct UpdatePlan {
  Status status;
  u32 counter;     // of begin_use()
  u32 adds;        // 1: to the existing parities
  u32 parities;    // one bit for each that is written
  u32 is_partial;  // 1: parities on devices that are being rebuilt are left to the rebuild
};

// Adds the sums of the part to the row's parities.
template <class Group, u32 count>
GPU4FS_FN GPU4FS_NOINLINE Status add_to_parities(Group g, LogicalSpace& space, const RowSource& source,
                                                 const RowPart& part, ParityPages<Group, count>& sums) {
  ChunkState& chunk = space.chunks[source.chunk];
  const RowView& view = part.view;
  const UpdatePlan plan = on_leader(g, [&] {
    row_lock(space, view).lock();
    const u32 counter = begin_use(space.parity->updates);
    UpdatePlan found{may_change_parities(space, source, part), counter, 0, 0, 0};
    found.adds = GPU4FS_MUTANT(parity_replaced, slots_in_parity(space, view) != 0, false) ? 1 : 0;
    if (found.status != Status::ok) return found;
    const ParityAccess access = begin_parities(space, view, count, found.adds != 0);
    found.status = access.status;
    found.parities = access.parities;
    found.is_partial = access.is_partial;
    return found;
  });
  if (plan.status == Status::ok) {
    for (u32 j = 0; j < count && plan.adds != 0; ++j) {
      if ((plan.parities >> j & 1) == 0) continue;
      add_page(g, sums.pages[j], load_aligned_page(g, parity_memory(space, view, j)));
    }
    store_parities(g, space, view, plan.parities, sums);
  }
  return on_leader(g, [&] {
    for (u32 slot = part.low; slot < part.high && plan.status == Status::ok; ++slot) {
      format::PageDescriptor* descriptor = &chunk.descriptors[row_page(view, slot)];
      Vector16 value = load_shared_16(descriptor);
      value.high |= GPU4FS_MUTANT(parity_flag_missing, u64{format::page_flag_in_parity} << 32, u64{0});
      store_shared_16(descriptor, value);
      if (plan.is_partial != 0) set_rebuild_todo(chunk, row_page(view, slot));
    }
    // This happens before the update ends: a checkpoint that waits for it writes the flags.
    for (u32 slot = part.low; slot < part.high; ++slot) mark_descriptors_dirty(chunk, row_page(view, slot), 1);
    end_use(space.parity->updates, plan.counter);
    row_lock(space, view).unlock();
    return plan.status;
  });
}

// The parities of a row that is written as a whole.
template <class Group, u32 parities>
GPU4FS_FN Status write_parities(Group g, LogicalSpace& space, const WriteBatch& batch, const RowPart& part,
                                const ParityPages<Group, parities>& sums) {
  if (batch.is_planned != 0) {
    for (u32 j = 0; j < parities; ++j) {
      store_page(g, parity_page(g, sums, j), known_memory(g, batch.rows, part.entry + batch.rows.data_slots + j));
    }
    return Status::ok;
  }
  ParityAccess access{Status::ok, (1u << parities) - 1, 0};
  if (batch.is_plain == 0) access = on_leader(g, [&] { return begin_parities(space, part.view, parities, false); });
  GPU4FS_TRY(access.status);
  store_parities(g, space, part.view, access.parities, sums);
  return Status::ok;
}

template <u32 parities, class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_row(Group g, LogicalSpace& space, const RowSource& source,
                                           const WriteBatch& batch, u32 index) {
  const RowPart part = part_of_row(g, space, batch, index);
  GPU4FS_TRY(part.status);
  ParityPages<Group, parities> sums;
  GPU4FS_TRY(write_row_pages(g, space, source, part, batch, sums));
  if (part.is_whole == 0) return add_to_parities(g, space, source, part, sums);
  return write_parities(g, space, batch, part, sums);
}

template <u32 parities, class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_counted_rows(Group g, LogicalSpace& space, const RowSource& source) {
  const RowRange range = on_leader(g, [&] { return rows_of_pages(space, source.chunk, source.first, source.count); });
  const u64 most = batch_rows_max<Group>(space.chunks[source.chunk]);
  for (u64 row = range.first; row < range.end; row += most) {
    const PinScope pins(g, space);
    const WriteBatch batch =
        plan_rows_to_write(g, space, source, row, static_cast<u32>(minimum(most, range.end - row)));
    for (u32 left = rows_of_entries(batch.rows, batch.wanted); left != 0; left &= left - 1) {
      // Rows that were announced are written as a whole, so nothing is refused any more.
      const Status status = write_row<parities>(g, space, source, batch, count_trailing_zeros(left));
      GPU4FS_CHECK(status == Status::ok || batch.is_announced == 0);
      GPU4FS_TRY(status);
    }
    if (batch.is_announced != 0) end_rows(g, space, batch);
  }
  return Status::ok;
}

}  // namespace detail

// Writes the pages, which the caller has allocated, with their descriptors and parities. Status: retry_after_checkpoint
// (above); corrupt_structure for pages that were already written; errors of the devices.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_rows(Group g, LogicalSpace& space, const RowSource& source) {
  GPU4FS_CHECK_GT(source.count, u64{0});
  GPU4FS_CHECK(source.bytes != nullptr);
  GPU4FS_CHECK_LT(source.chunk, known_chunk_count(space));
  GPU4FS_CHECK_LE(source.first + source.count, space.chunks[source.chunk].page_count);
  Status status = Status::ok;
  switch (space.chunks[source.chunk].parity_count) {
    case 1:
      status = detail::write_counted_rows<1>(g, space, source);
      break;
    case 2:
      status = detail::write_counted_rows<2>(g, space, source);
      break;
    default:
      status = detail::write_counted_rows<3>(g, space, source);
      break;
  }
  g.sync();
  on_leader(g, [&] { mark_descriptors_dirty(space.chunks[source.chunk], source.first, source.count); });
  return status;
}

}  // namespace gpu4fs::raid
