// Finds inodes and pages of files on the medium. Host only; for dump and info. Failures are
// PoolErrors that name the place.
#pragma once

#include "format/inode_format.hpp"
#include "fsck/check/medium_reader.hpp"

namespace gpu4fs::fsck {

// Reads a page; one that cannot be read or does not match its checksum is an error.
void read_verified(MediumReader& reader, u64 address, PageBuffer* page);

// Logical address of page `index` of a file, 0 for a hole. `pointer` receives the slot that covers it.
u64 find_page(MediumReader& reader, const format::Inode& inode, u64 index, format::BlockPointer* pointer);

// The inode with this number, even if it is free. Out of range: PoolError not_found.
format::Inode read_inode(MediumReader& reader, u64 number);

}  // namespace gpu4fs::fsck
