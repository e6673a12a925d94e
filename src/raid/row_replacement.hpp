// Rows of chunks with parities that get new pages although other pages of them are in use. The new pages and all
// parities are whole values from a record of the operation log (format::LogOpcode::row).
//
// prepare_row() computes the parities from the remaining pages, each of which is verified, and the new ones; the old
// parities are not used. When the record is durable, replace_row() writes its values. A reader of the row's parities
// sees the old row or the new one, because everything changes under the row's lock. The remaining pages are not
// written. A crash in between leaves a row that only the record describes, so a recovery writes it from the record
// before it reads any row.
//
// No other command changes the row between prepare_row() and replace_row() (space/partial_stripes.hpp). Uniform.
#pragma once

#include "raid/page_io.hpp"
#include "raid/repair_pages.hpp"

namespace gpu4fs::raid {

struct RowValues {
  u32 chunk;
  u32 reserved;
  u64 row;
  u64 included;  // slots that the parities sum up, one bit each
  u64 written;   // those of them that get new pages
  u8* bytes;     // the new pages, lowest slot first, then all parities; 16-byte aligned
};

namespace detail {

// The bytes of a slot that is written.
GPU4FS_FN inline u8* new_page_of(const RowValues& values, u32 slot) {
  const u64 below = values.written & ((u64{1} << slot) - 1);
  return values.bytes + u64{popcount(below)} * page_size;
}

GPU4FS_FN inline u8* new_parity_of(const RowValues& values, u32 j) {
  return values.bytes + (u64{popcount(values.written)} + j) * page_size;
}

struct ReplacePlan {
  Status status;
  u32 parities;  // one bit for each that can be written
  u64 pages;     // slots that can be written
  RowView view;
};

GPU4FS_FN GPU4FS_NOINLINE inline void end_row_write(const LogicalSpace& space, const ReplacePlan& plan) {
  for (u64 left = plan.pages; left != 0; left &= left - 1) {
    end_copy_write(space, {plan.view.chunk, 0, row_page(plan.view, static_cast<u32>(count_trailing_zeros(left)))}, 1,
                   0);
  }
  for (u32 left = plan.parities; left != 0; left &= left - 1) {
    end_parity_write(space, plan.view, static_cast<u32>(count_trailing_zeros(u64{left})));
  }
}

GPU4FS_FN GPU4FS_NOINLINE inline void cancel_row_write(const LogicalSpace& space, const ReplacePlan& plan) {
  for (u64 left = plan.pages; left != 0; left &= left - 1) {
    const u32 slot = static_cast<u32>(count_trailing_zeros(left));
    cancel_copy_write(space, {plan.view.chunk, 0, row_page(plan.view, slot)}, 1, 0);
  }
  for (u32 left = plan.parities; left != 0; left &= left - 1) {
    cancel_parity_write(space, plan.view, static_cast<u32>(count_trailing_zeros(u64{left})));
  }
}

// Announces everything before anything is written: if a device that the pool needs cannot be written, the row stays
// unchanged. Lost devices are skipped.
GPU4FS_FN GPU4FS_NOINLINE inline ReplacePlan begin_row_write(const LogicalSpace& space, const RowValues& values) {
  ReplacePlan plan{};
  plan.view = row_view(space, values.chunk, values.row);
  for (u64 left = values.written; left != 0 && plan.status == Status::ok; left &= left - 1) {
    const u32 slot = static_cast<u32>(count_trailing_zeros(left));
    const PageLocation location{values.chunk, 0, row_page(plan.view, slot)};
    const Status status = begin_copy_write(space, location, 1, 0);
    if (status == Status::ok) {
      plan.pages |= u64{1} << slot;
    } else if (!tolerates_write_error(space, page_place(space, location, 0).device)) {
      plan.status = status;
    }
  }
  for (u32 j = 0; j < space.chunks[values.chunk].parity_count && plan.status == Status::ok; ++j) {
    const Status status = begin_parity_write(space, plan.view, j);
    if (status == Status::ok) {
      plan.parities |= 1u << j;
    } else if (!device_has_failed(space, parity_place(space, plan.view, j).device)) {
      plan.status = status;
    }
  }
  if (plan.status != Status::ok) cancel_row_write(space, plan);
  return plan;
}

// The parities then include exactly the slots of the record; this is also known of unverified ones. Leader.
GPU4FS_FN GPU4FS_NOINLINE inline void describe_row(const LogicalSpace& space, const RowValues& values,
                                                   const RowView& view) {
  const ChunkState& chunk = space.chunks[values.chunk];
  for (u32 slot = 0; slot < view.slot_count; ++slot) {
    const u64 page = row_page(view, slot);
    const u64 flag = (values.included >> slot & 1) != 0 ? u64{format::page_flag_in_parity} << 32 : 0;
    Vector16 descriptor = load_shared_16(&chunk.descriptors[page]);
    const u64 wanted = (descriptor.high & ~(u64{parity_flags} << 32)) | flag;
    if (descriptor.high == wanted) continue;
    descriptor.high = wanted;
    store_shared_16(&chunk.descriptors[page], descriptor);
    mark_descriptors_dirty(chunk, page, 1);
  }
}

}  // namespace detail

// Computes the row's parities after the new pages, which are at values.bytes. `work`: a page of engine memory. Status:
// why a remaining page cannot be read.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status prepare_row(Group g, const LogicalSpace& space, const RowValues& values, u8* work) {
  const RowView view = on_leader(g, [&] { return row_view(space, values.chunk, values.row); });
  const ChunkState& chunk = space.chunks[values.chunk];
  Status status = Status::ok;
  ParityPages<Group, parity_count_max> sums;
  const u64 missing = detail::sum_slots(g, view, values.included, sums, [&](const PageLocation& location) -> const u8* {
    const u32 slot = static_cast<u32>((location.page - view.first) / view.step);
    if ((values.written >> slot & 1) != 0) return detail::new_page_of(values, slot);
    g.sync();
    status = read_page(g, space, chunk.base_address + location.page * page_size, work);
    return status == Status::ok ? work : nullptr;
  });
  if (missing != 0) return status;
  for (u32 j = 0; j < chunk.parity_count; ++j) store_page(g, parity_page(g, sums, j), detail::new_parity_of(values, j));
  g.sync();
  return Status::ok;
}

// Writes the row. A repetition changes nothing. Status: the error of a device that the pool needs; then nothing has
// changed.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status replace_row(Group g, LogicalSpace& space, const RowValues& values) {
  const PinScope pins(g, space);
  const detail::ReplacePlan plan = on_leader(g, [&] {
    const RowView view = row_view(space, values.chunk, values.row);
    row_lock(space, view).lock();
    const detail::ReplacePlan begun = detail::begin_row_write(space, values);
    if (begun.status != Status::ok) row_lock(space, view).unlock();
    return begun;
  });
  GPU4FS_TRY(plan.status);
  ChunkState& chunk = space.chunks[values.chunk];
  for (u64 left = values.written; left != 0; left &= left - 1) {
    const u32 slot = static_cast<u32>(count_trailing_zeros(left));
    const PageLocation location{values.chunk, 0, row_page(plan.view, slot)};
    const u64 address = chunk.base_address + location.page * page_size;
    const u8* source = detail::new_page_of(values, slot);
    u64 checksum = 0;
    if ((plan.pages >> slot & 1) != 0) {
      u8* memory = on_leader(g, [&] { return page_memory(space, location, 0); });
      checksum = xxh3_copy_page(g, memory, source, address);
    } else {
      checksum = xxh3_page(g, source, address);
    }
    on_leader(g, [&] {
      const u32 birth_epoch = detail::birth_of(space, chunk, location.page);
      store_shared_16(&chunk.descriptors[location.page],
                      make_descriptor(checksum, birth_epoch, format::page_flag_in_parity));
      mark_descriptors_dirty(chunk, location.page, 1);
    });
  }
  for (u32 left = plan.parities; left != 0; left &= left - 1) {
    const u32 j = static_cast<u32>(count_trailing_zeros(u64{left}));
    u8* memory = on_leader(g, [&] { return parity_memory(space, plan.view, j); });
    copy_bytes(g, memory, detail::new_parity_of(values, j), page_size);
  }
  g.sync();
  on_leader(g, [&] {
    detail::describe_row(space, values, plan.view);
    detail::end_row_write(space, plan);
    row_lock(space, plan.view).unlock();
  });
  return Status::ok;
}

}  // namespace gpu4fs::raid
