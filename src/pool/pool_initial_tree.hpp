// The files of an empty pool: the inode file, the root directory and the two bitmap files, as pages
// at logical addresses.
#pragma once

#include <array>
#include <vector>

#include "base/limits.hpp"
#include "base/types.hpp"
#include "format/inode_format.hpp"

namespace gpu4fs::pool {

struct InitialPage {
  u64 address;  // logical
  alignas(16) std::array<u8, page_size> bytes;
};

struct InitialTree {
  format::Inode inode_file;        // inode 0, for the superblock
  std::vector<InitialPage> pages;  // at consecutive addresses from the one given
  u64 inode_used;
};

struct RootOwner {
  u32 uid;
  u32 gid;
  u16 permissions;  // of the root directory
};

// Pages of the tree of an empty root directory, from logical address `begin` on. `now` is a 34.30 time.
InitialTree build_initial_tree(u64 begin, u64 now, const RootOwner& owner);

}  // namespace gpu4fs::pool
