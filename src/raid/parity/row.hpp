// Rows of chunks with parities: the places of their pages, what their parities include, and the lock that keeps both
// consistent. For the leader, except for functions that take a group.
//
// The flag page_flag_in_parity of a descriptor says that the row's parities include the bytes of that page, whether the
// page is in use or not. Flags and parities of a row change together, under the row's lock. Included bytes do not
// change until the whole stripe is free: pages of such chunks are written once (row_write.hpp).
#pragma once

#include "raid/page_access.hpp"
#include "raid/parity/parity_types.hpp"

namespace gpu4fs::raid {

// A row in its level: the page of slot s is first + s * step.
struct RowView {
  u32 chunk;
  u32 slot_count;  // slots that have pages
  u64 row;
  u64 first;
  u32 step;
  u32 data_slots;  // k: parity j is slot k + j for column_of()
};

GPU4FS_FN GPU4FS_NOINLINE inline RowView row_view(const LogicalSpace& space, u32 index, u64 row) {
  GPU4FS_CHECK_LT(index, known_chunk_count(space));
  const ChunkState& chunk = space.chunks[index];
  GPU4FS_CHECK_GT(chunk.parity_count, 0u);
  return with_parity_level(chunk.level, [&](auto level) {
    const auto at = level.row_at(geometry_of(chunk), row);
    return RowView{index, at.slot_count, row, at.first, at.step, chunk.column_count - chunk.parity_count};
  });
}

GPU4FS_FN GPU4FS_NOINLINE inline RowPlace row_place(const ChunkState& chunk, u64 page) {
  GPU4FS_CHECK_LT(page, chunk.page_count);
  return with_parity_level(chunk.level, [&](auto level) { return level.row_of(geometry_of(chunk), page); });
}

GPU4FS_FN GPU4FS_NOINLINE inline Stripe stripe_of(const ChunkState& chunk, u64 page) {
  GPU4FS_CHECK_LT(page, chunk.page_count);
  return with_parity_level(chunk.level, [&](auto level) { return level.stripe_of(geometry_of(chunk), page); });
}

GPU4FS_FN GPU4FS_NOINLINE inline Stripe stripe_at(const ChunkState& chunk, u64 index) {
  GPU4FS_CHECK_LT(index, u64{chunk.stripe_count});
  return with_parity_level(chunk.level, [&](auto level) { return level.stripe_at(geometry_of(chunk), index); });
}

// The place of the page of slot `slot` or, from the data slots on, of a parity.
GPU4FS_FN GPU4FS_NOINLINE inline DevicePlace row_entry_place(const LogicalSpace& space, const RowView& view, u32 slot) {
  const ChunkState& chunk = space.chunks[view.chunk];
  const u32 column =
      with_parity_level(chunk.level, [&](auto level) { return level.column_of(geometry_of(chunk), view.row, slot); });
  GPU4FS_CHECK_LT(column, chunk.column_count);
  const ColumnState& state = chunk.columns[column];
  GPU4FS_CHECK_LT(state.device, known_device_count(space));
  return {state.device, 0, state.data_offset + view.row * page_size};
}

GPU4FS_FN GPU4FS_NOINLINE inline u8* row_entry_memory(const LogicalSpace& space, const RowView& view, u32 slot) {
  const DevicePlace place = row_entry_place(space, view, slot);
  return device::memory_at(space.devices[place.device], place.offset, page_size);
}

GPU4FS_FN inline DevicePlace parity_place(const LogicalSpace& space, const RowView& view, u32 j) {
  GPU4FS_CHECK_LT(j, space.chunks[view.chunk].parity_count);
  return row_entry_place(space, view, view.data_slots + j);
}

GPU4FS_FN inline u8* parity_memory(const LogicalSpace& space, const RowView& view, u32 j) {
  GPU4FS_CHECK_LT(j, space.chunks[view.chunk].parity_count);
  return row_entry_memory(space, view, view.data_slots + j);
}

// Announces accesses to a parity, as raid/page_access.hpp does for pages. After an error of a write the device may have
// become a lost one.
GPU4FS_FN inline Status begin_parity_read(const LogicalSpace& space, const RowView& view, u32 j) {
  if (is_plain(space)) return Status::ok;
  const DevicePlace place = parity_place(space, view, j);
  return begin_noted_read(space, place.device, place.offset, page_size);
}
// The parity is known to be right, even on a device that is being rebuilt.
GPU4FS_FN inline Status begin_known_parity_read(const LogicalSpace& space, const RowView& view, u32 j) {
  if (is_plain(space)) return Status::ok;
  const DevicePlace place = parity_place(space, view, j);
  const Status status = device::begin_known_read(space.devices[place.device], place.offset, page_size);
  if (status != Status::ok) note_read_error(space, place.device, status);
  return status;
}
GPU4FS_FN inline Status begin_parity_write(const LogicalSpace& space, const RowView& view, u32 j) {
  if (is_plain(space)) return Status::ok;
  const DevicePlace place = parity_place(space, view, j);
  const Status status = device::begin_write(space.devices[place.device], place.offset, page_size);
  if (status != Status::ok) (void)tolerates_write_error(space, place.device);
  return status;
}
GPU4FS_FN inline void end_parity_write(const LogicalSpace& space, const RowView& view, u32 j) {
  if (is_plain(space)) return;
  const DevicePlace place = parity_place(space, view, j);
  device::end_write(space.devices[place.device], place.offset, page_size);
}

// Instead of end_parity_write(): nothing was stored.
GPU4FS_FN inline void cancel_parity_write(const LogicalSpace& space, const RowView& view, u32 j) {
  if (is_plain(space)) return;
  const DevicePlace place = parity_place(space, view, j);
  device::cancel_write(space.devices[place.device], place.offset, page_size);
}

GPU4FS_FN constexpr u64 row_page(const RowView& view, u32 slot) {
  return view.first + u64{slot} * view.step;
}

GPU4FS_FN inline TicketLock& row_lock(const LogicalSpace& space, const RowView& view) {
  GPU4FS_CHECK(space.parity != nullptr);
  return space.parity->row_locks[(view.row + view.chunk * u64{37}) % row_lock_count];
}

static_assert(offsetof(format::PageDescriptor, checksum) == 0);
static_assert(offsetof(format::PageDescriptor, birth_epoch) == 8 && offsetof(format::PageDescriptor, flags) == 12);
GPU4FS_FN constexpr Vector16 make_descriptor(u64 checksum, u32 birth_epoch, u32 flags) {
  return {checksum, u64{birth_epoch} | u64{flags} << 32};
}

// Flags that count as included. For unverified pages this is unknown, so nothing may be done that would be wrong if
// they were included.
inline constexpr u32 parity_flags = format::page_flag_in_parity | format::page_flag_unverified;

GPU4FS_FN inline bool is_in_parity(const ChunkState& chunk, u64 page) {
  GPU4FS_CHECK_LT(page, chunk.page_count);
  return (load_shared_16(&chunk.descriptors[page]).high >> 32 & parity_flags) != 0;
}

// The slots of a row whose descriptors have one of `flags`, one bit each.
GPU4FS_FN GPU4FS_NOINLINE inline u64 slots_with_flags(const LogicalSpace& space, const RowView& view, u32 flags) {
  const ChunkState& chunk = space.chunks[view.chunk];
  u64 found = 0;
  for (u32 slot = 0; slot < view.slot_count; ++slot) {
    const Vector16 descriptor = load_shared_16(&chunk.descriptors[row_page(view, slot)]);
    if ((descriptor.high >> 32 & flags) != 0) found |= u64{1} << slot;
  }
  return found;
}

// The slots whose descriptors are damaged (format::page_flag_unverified).
GPU4FS_FN inline u64 unverified_slots(const LogicalSpace& space, const RowView& view) {
  return slots_with_flags(space, view, format::page_flag_unverified);
}

// The slots that the row's parities include. When other pages are computed from the row, unverified slots also count as
// missing, which is right for zeros as well.
GPU4FS_FN inline u64 slots_in_parity(const LogicalSpace& space, const RowView& view) {
  return slots_with_flags(space, view, parity_flags);
}

// Slots [low, high) of a row: those of the pages [first, first + count).
struct SlotRange {
  u32 low;
  u32 high;
};
GPU4FS_FN inline SlotRange covered_slots(const RowView& view, u64 first, u64 count) {
  SlotRange range{};
  while (range.low < view.slot_count && row_page(view, range.low) < first) ++range.low;
  range.high = range.low;
  while (range.high < view.slot_count && row_page(view, range.high) < first + count) ++range.high;
  GPU4FS_CHECK_LT(range.low, range.high);
  return range;
}

// Rows [first, end) that contain some of the pages [page, page + count), and possibly other rows of one stripe.
struct RowRange {
  u64 first;
  u64 end;
};
GPU4FS_FN GPU4FS_NOINLINE inline RowRange rows_of_pages(const LogicalSpace& space, u32 index, u64 page, u64 count) {
  const ChunkState& chunk = space.chunks[index];
  const u64 last = page + count - 1;
  const Stripe stripe = stripe_of(chunk, page);
  const u64 row = row_place(chunk, page).row;
  const u64 unit = row_view(space, index, row).step;
  const u64 at = (page - stripe.first) % unit;
  const u64 here = minimum(count, stripe.first + stripe.page_count - page);
  // Between the rows of a slot's last pages and of the next slot's first pages there are rows without any of these
  // pages.
  const u64 begin = here < unit && at + here <= unit ? row : row - at;
  if (here == count) return {begin, here < unit && at + here <= unit ? row + here : row - at + unit};
  const Stripe last_stripe = stripe_of(chunk, last);
  const u64 last_row = row_place(chunk, last).row;
  const u64 last_unit = row_view(space, index, last_row).step;
  const u64 there = last - last_stripe.first;
  return {begin, last_row - there % last_unit + minimum(there + 1, last_unit)};
}

// Descriptor pages of [first, first + count) must be written by the next checkpoint.
GPU4FS_FN inline void mark_descriptors_dirty(const ChunkState& chunk, u64 first, u64 count) {
  GPU4FS_CHECK_GT(count, u64{0});
  GPU4FS_CHECK_LE(first + count, chunk.page_count);
  const u64 last = (first + count - 1) / format::descriptors_per_page;
  for (u64 at = first / format::descriptors_per_page; at <= last; ++at) {
    fetch_or<Order::release, Scope::engine>(&chunk.descriptor_dirty[at / 64], u64{1} << (at % 64));
  }
}

// Bytes of [first, first + count) are in no parity: their stripes are free or are about to be taken.
GPU4FS_FN GPU4FS_NOINLINE inline void clear_in_parity(const ChunkState& chunk, u64 first, u64 count) {
  for (u64 page = first; page < first + count; ++page) {
    Vector16 descriptor = load_shared_16(&chunk.descriptors[page]);
    if (descriptor.high >> 32 == 0) continue;
    descriptor.high &= 0xffffffffu;
    store_shared_16(&chunk.descriptors[page], descriptor);
  }
}

// A page of engine memory for a short time. Others return theirs without waiting for anything.
GPU4FS_FN GPU4FS_NOINLINE inline u32 take_scratch(const LogicalSpace& space) {
  GPU4FS_CHECK(space.parity != nullptr);
  constexpr u32 word_count = scratch_page_count / 64;
  for (u32 attempt = 0;; ++attempt) {
    for (u32 w = 0; w < word_count; ++w) {
      u64* word = &space.parity->scratch_free[w];
      const u64 free = load<Order::relaxed, Scope::engine>(word);
      if (free == 0) continue;
      const u64 bit = free & (~free + 1);
      const u64 old = fetch_and<Order::acquire, Scope::engine>(word, ~bit);
      if ((old & bit) != 0) return w * 64 + count_trailing_zeros(bit);
    }
    backoff(1000);
    GPU4FS_CHECK_LT(attempt, 1u << 24);
  }
}

GPU4FS_FN inline void return_scratch(const LogicalSpace& space, u32 index) {
  if (index == no_scratch) return;
  GPU4FS_CHECK_LT(index, scratch_page_count);
  const u64 old =
      fetch_or<Order::release, Scope::engine>(&space.parity->scratch_free[index / 64], u64{1} << (index % 64));
  GPU4FS_CHECK_EQ(old >> (index % 64) & 1, u64{0});
}

GPU4FS_FN inline u8* scratch_memory(const LogicalSpace& space, u32 index) {
  GPU4FS_CHECK_LT(index, scratch_page_count);
  return space.parity->scratch[index];
}

}  // namespace gpu4fs::raid
