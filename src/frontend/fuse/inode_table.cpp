#include "frontend/fuse/inode_table.hpp"
#include "base/mutant.hpp"

namespace gpu4fs::frontend {

void InodeTable::add_lookup(u64 inode, u32 generation) {
  Shard& shard = shard_of(inode);
  const std::lock_guard guard(shard.mutex);
  Entry& entry = shard.entries[inode];
  ++entry.lookups;
  if (entry.lost && entry.generation != generation) {
    entry.lost = false;
    lost_count_.fetch_sub(1);
  }
  entry.generation = generation;
}

void InodeTable::hold(u64 inode) {
  Shard& shard = shard_of(inode);
  const std::lock_guard guard(shard.mutex);
  ++shard.entries[inode].lookups;
}

bool InodeTable::forget(u64 inode, u64 count) {
  Shard& shard = shard_of(inode);
  const std::lock_guard guard(shard.mutex);
  const auto found = shard.entries.find(inode);
  if (found == shard.entries.end()) return false;
  Entry& entry = found->second;
  if (GPU4FS_MUTANT(open_file_reclaimed, entry.lookups > count, false)) {
    entry.lookups -= count;
    return false;
  }
  const bool orphan = entry.orphan;
  if (entry.lost) lost_count_.fetch_sub(1);
  shard.entries.erase(found);
  return orphan;
}

bool InodeTable::mark_orphan(u64 inode) {
  Shard& shard = shard_of(inode);
  const std::lock_guard guard(shard.mutex);
  const auto found = shard.entries.find(inode);
  if (found == shard.entries.end() || !found->second.orphan) orphan_count_.fetch_add(1);
  if (found == shard.entries.end()) return true;
  found->second.orphan = true;
  return false;
}

void InodeTable::clear_orphan(u64 inode) {
  Shard& shard = shard_of(inode);
  const std::lock_guard guard(shard.mutex);
  const auto found = shard.entries.find(inode);
  if (found == shard.entries.end() || !found->second.orphan) return;
  orphan_count_.fetch_sub(1);
  found->second.orphan = false;
}

std::vector<u64> InodeTable::take_orphans() {
  std::vector<u64> orphans;
  for (Shard& shard : shards_) {
    const std::lock_guard guard(shard.mutex);
    for (const auto& [inode, entry] : shard.entries) {
      if (entry.orphan) orphans.push_back(inode);
    }
    shard.entries.clear();
  }
  orphan_count_ = 0;
  lost_count_ = 0;
  return orphans;
}

std::vector<SavedInode> InodeTable::save() const {
  std::vector<SavedInode> saved;
  for (const Shard& shard : shards_) {
    const std::lock_guard guard(shard.mutex);
    for (const auto& [inode, entry] : shard.entries) {
      saved.push_back({inode, entry.lookups, entry.generation, entry.orphan, entry.lost});
    }
  }
  return saved;
}

void InodeTable::restore(const SavedInode& saved) {
  Shard& shard = shard_of(saved.inode);
  const std::lock_guard guard(shard.mutex);
  shard.entries[saved.inode] = {saved.lookups, saved.generation, saved.orphan, saved.lost};
  if (saved.orphan) orphan_count_.fetch_add(1);
  if (saved.lost) lost_count_.fetch_add(1);
}

bool InodeTable::is_lost(u64 inode) const {
  if (lost_count_.load(std::memory_order_relaxed) == 0) return false;
  const Shard& shard = shard_of(inode);
  const std::lock_guard guard(shard.mutex);
  const auto found = shard.entries.find(inode);
  return found != shard.entries.end() && found->second.lost;
}

u64 InodeTable::size() const {
  u64 count = 0;
  for (const Shard& shard : shards_) {
    const std::lock_guard guard(shard.mutex);
    count += shard.entries.size();
  }
  return count;
}

}  // namespace gpu4fs::frontend
