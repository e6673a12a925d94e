// Announcing accesses to pages of the space to their devices' stacks (device/device_access.hpp).
//
// Plain functions: one rank calls them, inside serial(). A space without stacks costs one test a
// call, which is one for a run of pages; in a kernel they are nothing.
#pragma once

#include "device/device_access.hpp"
#include "raid/translate.hpp"

namespace gpu4fs::raid {

GPU4FS_FN inline bool is_stacked(const LogicalSpace& space) {
#if GPU4FS_DEVICE_CODE
  (void)space;
  return false;
#else
  return space.stacked != 0;
#endif
}

// Of `page_count` pages that lie together (pages_together()), in one of their copies.
GPU4FS_FN inline Status begin_copy_read(const LogicalSpace& space, const PageLocation& location,
                                        u64 page_count, u32 copy) {
  if (!is_stacked(space)) return Status::ok;
  const DevicePlace place = page_place(space, location, copy);
  return device::begin_read(space.devices[place.device], place.offset, page_count * page_size);
}

GPU4FS_FN inline Status begin_copy_write(const LogicalSpace& space, const PageLocation& location,
                                         u64 page_count, u32 copy) {
  if (!is_stacked(space)) return Status::ok;
  const DevicePlace place = page_place(space, location, copy);
  return device::begin_write(space.devices[place.device], place.offset, page_count * page_size);
}

GPU4FS_FN inline void end_copy_write(const LogicalSpace& space, const PageLocation& location,
                                     u64 page_count, u32 copy) {
  if (!is_stacked(space)) return;
  const DevicePlace place = page_place(space, location, copy);
  device::end_write(space.devices[place.device], place.offset, page_count * page_size);
}

// Of any `page_count` pages of one chunk, in all copies.
GPU4FS_FN inline Status begin_copies_read(const LogicalSpace& space, const PageLocation& location,
                                          u64 page_count) {
  if (!is_stacked(space)) return Status::ok;
  const ChunkState& chunk = space.chunks[location.chunk];
  for (u64 done = 0; done < page_count;) {
    const PageLocation here{location.chunk, 0, location.page + done};
    const u64 count = minimum(page_count - done, pages_together(chunk, here.page));
    for (u32 copy = 0; copy < chunk.copy_count; ++copy) {
      GPU4FS_TRY(begin_copy_read(space, here, count, copy));
    }
    done += count;
  }
  return Status::ok;
}

// Of pages that lie together, in all copies.
GPU4FS_FN inline Status begin_page_write(const LogicalSpace& space, const PageLocation& location,
                                         u64 page_count) {
  if (!is_stacked(space)) return Status::ok;
  for (u32 copy = 0; copy < space.chunks[location.chunk].copy_count; ++copy) {
    const Status status = begin_copy_write(space, location, page_count, copy);
    if (status == Status::ok) continue;
    while (copy > 0) end_copy_write(space, location, page_count, --copy);
    return status;
  }
  return Status::ok;
}

GPU4FS_FN inline void end_page_write(const LogicalSpace& space, const PageLocation& location,
                                     u64 page_count) {
  if (!is_stacked(space)) return;
  for (u32 copy = 0; copy < space.chunks[location.chunk].copy_count; ++copy) {
    end_copy_write(space, location, page_count, copy);
  }
}

// Of pages [first, first + count) of a column's header area.
GPU4FS_FN inline Status begin_header_read(const LogicalSpace& space, const ChunkState& chunk,
                                          u32 column, u64 first, u64 count) {
  if (!is_stacked(space)) return Status::ok;
  const ColumnState& state = chunk.columns[column];
  return device::begin_read(space.devices[state.device], state.header_offset + first * page_size,
                            count * page_size);
}

GPU4FS_FN inline Status begin_header_write(const LogicalSpace& space, const ChunkState& chunk,
                                           u32 column, u64 first, u64 count) {
  if (!is_stacked(space)) return Status::ok;
  const ColumnState& state = chunk.columns[column];
  return device::begin_write(space.devices[state.device], state.header_offset + first * page_size,
                             count * page_size);
}

GPU4FS_FN inline void end_header_write(const LogicalSpace& space, const ChunkState& chunk,
                                       u32 column, u64 first, u64 count) {
  if (!is_stacked(space)) return;
  const ColumnState& state = chunk.columns[column];
  device::end_write(space.devices[state.device], state.header_offset + first * page_size,
                    count * page_size);
}

}  // namespace gpu4fs::raid
