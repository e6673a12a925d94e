// Memory of a device's file that will be needed, got before it is. Host only.
//
// Blocks of a tmpfs are taken, cleared and mapped a page at a time by whoever touches them first, and by registering
// them with a GPU: 0.4 s a GiB by one thread, against 35 ms once they are there. So several threads touch them ahead,
// when a device is filled and when a chunk is used for the first time.
#pragma once

#include <vector>

#include "device/memory/mapped_file.hpp"

namespace gpu4fs::pool {

struct FileRange {
  u64 offset;
  u64 length;
};

// The ranges get their blocks, and with `populates` their pages, which keep what they hold. DeviceError with ENOSPC
// when the medium has no room: what it gave before that stays.
void prefault_ranges(const device::MappedFile& file, const std::vector<FileRange>& ranges, bool populates,
                     u32 thread_count);

// The range gets its blocks, all or none: by several threads, and with its pages, where it has no data and the medium
// has room for all of it. DeviceError as above. Nobody uses the range meanwhile, unless `is_in_use`: then the system
// takes the blocks in one step, and nothing is ever punched, because a page that has blocks and was not touched yet
// looks like a hole, and may be written at any moment.
void take_range(const device::MappedFile& file, FileRange range, bool is_in_use, u32 thread_count);

}  // namespace gpu4fs::pool
