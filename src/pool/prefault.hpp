// Allocates memory of a device's file before it is used. Host only.
//
// A tmpfs allocates, clears and maps blocks one page at a time when they are first touched, or when they are registered
// with a GPU: 0.4 s a GiB by one thread, and 35 ms once they are present. So several threads touch them in advance:
// when a device is filled, and when a chunk is used for the first time.
#pragma once

#include <vector>

#include "device/memory/mapped_file.hpp"

namespace gpu4fs::pool {

struct FileRange {
  u64 offset;
  u64 length;
};

// The ranges get their blocks and, with `populates`, their pages, which keep their content. DeviceError with ENOSPC if
// the medium has no room; blocks that were allocated before that stay.
void prefault_ranges(const device::MappedFile& file, const std::vector<FileRange>& ranges, bool populates,
                     u32 thread_count);

// The range gets its blocks, all or none. Several threads allocate them, with their pages, if the range has no data and
// the medium has room for all of it. DeviceError as above. Nobody may use the range meanwhile, unless `is_in_use`. Then
// the system allocates the blocks in one step and nothing is ever punched: a page that has blocks and was not touched
// yet looks like a hole, and may be written at any moment.
void take_range(const device::MappedFile& file, FileRange range, bool is_in_use, u32 thread_count);

}  // namespace gpu4fs::pool
