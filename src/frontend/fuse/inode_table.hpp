// Which inodes the kernel still refers to, and which of them have lost their last name.
//
// The kernel counts a lookup with every entry that it gets, and returns counts with FORGET. An orphan (link count 0)
// must keep its content until that count is 0: only then no file descriptor, mapping or working directory can reach it.
// Entries are in shards, each under its own mutex; an inode that the kernel does not know has no entry.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/types.hpp"
#include "frontend/fuse/saved_mount.hpp"

namespace gpu4fs::frontend {

class InodeTable {
 public:
  // The kernel got an entry of this inode.
  void add_lookup(u64 inode, u32 generation = 0);

  // Until a forget(inode, 1): the inode is not reclaimed if it becomes an orphan meanwhile.
  void hold(u64 inode);

  // The kernel returned `count` lookups. True: nobody refers to the inode, which is an orphan; the caller reclaims it
  // and then calls reclaimed(). A count that is too large is clamped, because it is a mistake of the kernel.
  [[nodiscard]] bool forget(u64 inode, u64 count);

  // The inode lost its last name. True: the kernel does not refer to it; the caller reclaims it and then calls
  // reclaimed().
  [[nodiscard]] bool mark_orphan(u64 inode);
  void reclaimed() { orphan_count_.fetch_sub(1); }

  // An orphan got a name again (linkat of a temporary file).
  void clear_orphan(u64 inode);

  // Orphans whose space is not free yet.
  [[nodiscard]] u64 orphan_count() const { return orphan_count_.load(); }

  // Removes and returns every orphan. Called when the kernel has ended the mount.
  [[nodiscard]] std::vector<u64> take_orphans();

  [[nodiscard]] u64 size() const;

  // For a mount that continues after its engine's death. An inode is lost if the pool does not have it but the kernel
  // still refers to it. It stays lost until the kernel forgets it or gets a new inode with this number.
  [[nodiscard]] std::vector<SavedInode> save() const;
  void restore(const SavedInode& saved);
  [[nodiscard]] bool is_lost(u64 inode) const;

 private:
  static constexpr unsigned shard_count = 64;
  struct Entry {
    u64 lookups = 0;
    u32 generation = 0;
    bool orphan = false;
    bool lost = false;
  };
  struct alignas(128) Shard {
    mutable std::mutex mutex;
    std::unordered_map<u64, Entry> entries;
  };

  Shard& shard_of(u64 inode) { return shards_[inode % shard_count]; }
  const Shard& shard_of(u64 inode) const { return shards_[inode % shard_count]; }

  std::array<Shard, shard_count> shards_;
  std::atomic<u64> orphan_count_{0};
  std::atomic<u64> lost_count_{0};
};

}  // namespace gpu4fs::frontend
