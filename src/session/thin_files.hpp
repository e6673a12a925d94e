// Files on disk that get their blocks when they are needed: those of a mount with `discard`. Host only.
//
// A mount reserves what it needs to run: superblocks, log, and header areas of chunks in use. mkfs and whoever adds a
// chunk have reserved the same before, so a mount works also if the file system below is full. Regions without blocks
// are found, and no page of them is given out before their chunk has all its blocks.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"
#include "device/memory/mapped_file.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::session {

// Allocates all blocks of a file that is not to be thin. PoolError: no_space, with what to do. `may_be_thin`: the mount
// option `discard` would suffice.
void reserve_whole_file(const device::MappedFile& file, bool may_be_thin);

// By chunk, one bit for each region that lacks blocks on a thin file; all of them if the header area lacks some. Empty
// for chunks without columns on thin files, and for those with columns that the engine does not reach by itself:
// `maps_all` says whether it reaches all mapped memory that does not grow with use.
std::vector<std::vector<u64>> find_unbacked_regions(const pool::OpenedPool& pool,
                                                    const std::vector<device::MappedFile>& files, bool maps_all);

}  // namespace gpu4fs::session
