// Directory functions as whole operations on a small file system without an engine: prepare, reserve, commit, release.
// A test can choose a name's hash, to create collisions and deep splits.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "fs/names/directory_shrink.hpp"
#include "fs/names/directory_walk.hpp"
#include "support/small_file_system.hpp"

namespace gpu4fs::test {

inline SmallPoolOptions directory_pool_options() {
  SmallPoolOptions options;
  options.chunk_bytes = u64{32} << 20;
  options.frame_count = 8192;
  options.staging_count = 8192;
  return options;
}

class DirectoryDriver {
 public:
  explicit DirectoryDriver(const SmallPoolOptions& options = directory_pool_options()) : small_(options) {
    op_ = small_.operation();
    const Status status = fs::get_inode(Lane{}, fs(), op_, format::inode_number_root, &dir_);
    GPU4FS_CHECK_OK(status);
  }

  fs::FileSystem& fs() { return small_.fs(); }
  SmallFileSystem& small() { return small_; }
  fs::Operation& op() { return op_; }
  const fs::InodeRef& dir() const { return dir_; }
  u64 page_count() const { return dir_.inode->size_bytes / page_size; }
  u64 entry_count() const { return dir_.inode->entry_count; }

  fs::HashedName hashed(const std::string& name) {
    return fs::make_name(fs(), reinterpret_cast<const u8*>(name.data()), static_cast<u32>(name.size()));
  }
  static fs::HashedName with_hash(const std::string& name, u64 hash) {
    return {reinterpret_cast<const u8*>(name.data()), hash, static_cast<u32>(name.size()), 0};
  }

  template <class Group>
  Status insert(Group g, const fs::HashedName& name, u64 inode, u32 type) {
    fs::InsertPlan plan{};
    GPU4FS_TRY(fs::directory_prepare_insert(g, fs(), op_, dir_, name, &plan));
    GPU4FS_TRY(fs::reserve_metadata(g, fs(), op_, {1, plan.touched_pages, plan.new_pages}));
    const u64 before = page_count();
    fs::directory_commit_insert(g, fs(), op_, dir_, {plan, name, {inode, type}}, scratch_);
    const u64 after = page_count();
    release(g);
    // The plan must be exact in both directions.
    return after - before == plan.new_pages ? Status::ok : Status::corrupt_structure;
  }

  template <class Group>
  Status remove(Group g, const fs::HashedName& name) {
    fs::RemovePlan plan{};
    GPU4FS_TRY(fs::directory_prepare_remove(g, fs(), op_, dir_, name, &plan));
    GPU4FS_TRY(fs::reserve_metadata(g, fs(), op_, {1, fs::touched_pages(plan), 0}));
    const u64 before = page_count();
    fs::directory_commit_remove(g, fs(), op_, dir_, plan, scratch_);
    release(g);
    return before - page_count() == plan.merges ? Status::ok : Status::corrupt_structure;
  }

  // In one commit, like the engine's rename within a directory.
  template <class Group>
  Status rename(Group g, const fs::HashedName& from, const fs::HashedName& to) {
    fs::RemovePlan removal{};
    fs::InsertPlan insertion{};
    GPU4FS_TRY(fs::directory_prepare_remove(g, fs(), op_, dir_, from, &removal));
    GPU4FS_TRY(fs::directory_prepare_insert(g, fs(), op_, dir_, to, &insertion));
    const u32 touched = insertion.touched_pages + fs::touched_pages(removal);
    GPU4FS_TRY(fs::reserve_metadata(g, fs(), op_, {1, touched, insertion.new_pages}));
    fs::directory_commit_take(g, fs(), op_, dir_, removal);
    fs::directory_commit_insert(g, fs(), op_, dir_, {insertion, to, {removal.name.inode, removal.name.type}}, scratch_);
    fs::directory_commit_shrink(g, fs(), op_, dir_, removal, scratch_);
    release(g);
    return Status::ok;
  }

  template <class Group>
  Status replace(Group g, const fs::HashedName& name, u64 inode, u32 type) {
    fs::FoundName found{};
    GPU4FS_TRY(fs::directory_prepare_change(g, fs(), op_, dir_, name, &found));
    GPU4FS_TRY(fs::reserve_metadata(g, fs(), op_, {1, 1, 0}));
    fs::directory_commit_replace(g, fs(), op_, dir_, found, {inode, type});
    release(g);
    return Status::ok;
  }

  template <class Group>
  Status find(Group g, const fs::HashedName& name, fs::FoundName* found) {
    return fs::directory_find(g, fs(), op_, dir_, name, found);
  }

  // Up to `limit` names from `*cursor` on; the cursor advances.
  Status enumerate(u64* cursor, u64 limit, std::vector<std::string>* names) {
    fs::DirectoryWalk walk{};
    GPU4FS_TRY(fs::directory_begin(*cursor, &walk));
    for (u64 i = 0; i < limit; ++i) {
      fs::DirectoryItem item{};
      GPU4FS_TRY(fs::directory_next(Lane{}, fs(), op_, dir_, &walk, &item));
      names->emplace_back(reinterpret_cast<const char*>(item.name), item.name_length);
      *cursor = item.next_cursor;
    }
    return Status::ok;
  }

  // Writes everything and keeps no page in memory, as after a mount.
  Status forget_pages() {
    GPU4FS_TRY(small_.checkpoint(Lane{}));
    fs::evict_frames(Lane{}, fs(), fs().pages.frame_count);
    return fs::get_inode(Lane{}, fs(), op_, format::inode_number_root, &dir_);
  }

  // A resident page of the directory, as if it had just been loaded: a change of it represents damage on the medium.
  u8* page(u64 index) {
    u32 frame = fs::no_frame;
    const Status status = fs::get_page(Lane{}, fs(), op_, dir_, {0, index}, &frame);
    GPU4FS_CHECK_OK(status);
    fs().pages.frames[frame].referenced &= ~u32{fs::frame_checked};
    return fs::page_data(fs(), frame);
  }

 private:
  template <class Group>
  void release(Group g) {
    on_leader(g, [&] { fs::release_reservations(fs(), op_); });
  }

  SmallFileSystem small_;
  fs::Operation op_{};
  fs::InodeRef dir_{};
  alignas(16) u8 scratch_[page_size] = {};
};

}  // namespace gpu4fs::test
