// Pages that were stored into frames begin their way to the medium before somebody flushes them or needs their frames.
#pragma once

#include "base/config.hpp"
#include "base/group.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"
#include "raid/page_run_io.hpp"
#include "raid/parity/row.hpp"
#include "raid/stage_pages.hpp"

namespace gpu4fs::raid {
namespace detail {

// A copy of the page; no page if there is no such copy.
GPU4FS_FN GPU4FS_NOINLINE inline device::StagedPage copy_to_write_behind(const LogicalSpace& space, u64 address,
                                                                         u32 copy) {
  PageLocation location{};
  if (find_page(space, address, &location) != Status::ok) return {nullptr, 0};
  if (copy >= space.chunks[location.chunk].copy_count) return {nullptr, 0};
  return staged_page(space, page_place(space, location, copy));
}

// A parity of a row whose pages are all among those of the run; no page for other rows, which will be stored again.
GPU4FS_FN GPU4FS_NOINLINE inline device::StagedPage parity_to_write_behind(const LogicalSpace& space,
                                                                           const PageLocation& first, u32 page_count,
                                                                           u64 row, u32 parity) {
  const RowView view = row_view(space, first.chunk, row);
  const u64 end = first.page + page_count;
  if (view.slot_count == 0 || row_page(view, 0) < first.page || row_page(view, view.slot_count - 1) >= end) {
    return {nullptr, 0};
  }
  return staged_page(space, parity_place(space, view, parity));
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void begin_parity_write_behind(Group g, const LogicalSpace& space, u64 address,
                                                         u32 page_count) {
  struct Rows {
    PageLocation first;
    RowRange range;
    u32 parity_count;  // 0: there are no rows
  };
  const Rows rows = on_leader(g, [&] {
    Rows found{};
    if (find_run(space, address, page_count, &found.first) != Status::ok) return found;
    found.parity_count = space.chunks[found.first.chunk].parity_count;
    if (found.parity_count != 0) found.range = rows_of_pages(space, found.first.chunk, found.first.page, page_count);
    return found;
  });
  for (u32 parity = 0; parity < rows.parity_count; ++parity) {
    for (u64 base = rows.range.first; base < rows.range.end; base += Group::size()) {
      const u64 row = base + g.rank();
      const device::StagedPage page = row < rows.range.end
                                          ? parity_to_write_behind(space, rows.first, page_count, row, parity)
                                          : device::StagedPage{nullptr, 0};
      (void)device::begin_detached_writes(g, *space.staged, page);
    }
  }
}

}  // namespace detail

// Begins to write pages that were stored, with their copies and parities: those of long writes are rarely written
// again soon. Collective, after all ranks have stored. A hint: what was not begun is written by a flush, or when its
// frame is needed.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void begin_write_behind(Group g, const LogicalSpace& space, u64 address, u32 page_count) {
  g.sync();
  for (u32 base = 0; base < page_count; base += Group::size()) {
    const u32 index = base + g.rank();
    for (u32 copy = 0; copy < copy_count_max; ++copy) {
      const device::StagedPage page = index < page_count
                                          ? detail::copy_to_write_behind(space, address + u64{index} * page_size, copy)
                                          : device::StagedPage{nullptr, 0};
      if (!g.any(page.device != nullptr)) break;
      (void)device::begin_detached_writes(g, *space.staged, page);
    }
  }
  if (space.parity != nullptr) detail::begin_parity_write_behind(g, space, address, page_count);
  g.sync();
  on_leader(g, [&] { ring_staged(space); });
}

}  // namespace gpu4fs::raid
