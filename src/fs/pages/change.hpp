// Changes of metadata pages: reservations in prepare; marks, new pages and removed pages in the gate.
#pragma once

#include "base/mutant.hpp"
#include "fs/pages/pages.hpp"

namespace gpu4fs::fs {

// The metadata that a commit changes.
struct MetadataChange {
  u32 inode_count;  // created and freed ones included
  u32 page_count;   // existing pages
  u32 new_page_count;
};

namespace detail {

struct MetadataCost {
  u32 frames;
  u32 dirty;
};

// Upper bounds. An inode may dirty its page and three ancestors, a bitmap page and two ancestors, and the page of the
// bitmap's inode with three ancestors; all may be new. Pages dirty their map pages above: the pages of one command lie
// in at most eight runs, so there are at most 8 * 5 ancestors and one more for each 256 pages. A file that gets pages
// may grow from height 0 to 5, which puts five map pages above its old content.
GPU4FS_FN constexpr MetadataCost metadata_cost(MetadataChange change) {
  const u32 changed = change.page_count + change.new_page_count;
  const u32 runs = changed < 8 ? changed : 8;
  const u32 new_runs = change.new_page_count < 8 ? change.new_page_count : 8;
  const u32 growing = change.inode_count == 0 ? 1 : change.inode_count;
  const u32 growth = 5 * (new_runs < growing ? new_runs : growing);
  MetadataCost cost{};
  cost.frames = 12 * change.inode_count + change.new_page_count + 5 * new_runs + growth + change.new_page_count / 256;
  cost.dirty = 12 * change.inode_count + changed + 5 * runs + growth + changed / 256;
  return cost;
}

GPU4FS_FN GPU4FS_NOINLINE inline Status top_up_frames(FileSystem& fs, Operation& op, u32 wanted) {
  if (op.frames_reserved >= wanted) return Status::ok;
  PageTable& table = fs.pages;
  const u32 more = wanted - op.frames_reserved;
  // A checkpoint evicts if less than a quarter of the frames is free, so a command cannot wait for more than that.
  if (wanted > table.frame_count / 4) return Status::no_memory;
  table.free_lock.lock();
  const bool enough = table.free_count >= table.frames_reserved + more;
  if (enough) table.frames_reserved += more;
  table.free_lock.unlock();
  if (!enough) return Status::retry_after_checkpoint;
  op.frames_reserved += more;
  return Status::ok;
}

GPU4FS_FN GPU4FS_NOINLINE inline Status top_up_dirty(FileSystem& fs, Operation& op, u32 wanted) {
  if (op.dirty_reserved >= wanted) return Status::ok;
  PageTable& table = fs.pages;
  const u32 more = wanted - op.dirty_reserved;
  if (wanted > table.staging_count / 2) return Status::no_memory;
  table.free_lock.lock();
  const bool enough =
      load<Order::relaxed, Scope::engine>(&fs.dirty.count) + fs.dirty.reserved + more <= table.staging_count;
  if (enough) fs.dirty.reserved += more;
  table.free_lock.unlock();
  if (!enough) return Status::retry_after_checkpoint;
  const Status status = space::promise_pages(fs, op, fs.space.metadata_class, more);
  if (status != Status::ok) {
    table.free_lock.lock();
    fs.dirty.reserved -= more;
    table.free_lock.unlock();
    return status;
  }
  op.dirty_reserved += more;
  return Status::ok;
}

// Marks one frame; true if it was clean.
GPU4FS_FN GPU4FS_NOINLINE inline bool mark_frame(FileSystem& fs, Operation& op, u32 frame) {
  PageTable& table = fs.pages;
  Frame& f = table.frames[frame];
  GPU4FS_CHECK_EQ((load<Order::relaxed, Scope::engine>(&f.state)), u32{frame_valid});
  if (load<Order::relaxed, Scope::engine>(&f.dirty) != 0) return false;
  if (exchange<Order::relaxed, Scope::engine>(&f.dirty, 1u) != 0) return false;
  GPU4FS_CHECK_GT(op.dirty_reserved, 0u);
  // The page stays in SpaceCounters::reserved: it is reserved for this frame afterwards.
  --op.dirty_reserved;
  table.free_lock.lock();
  --fs.dirty.reserved;
  const u32 position = fetch_add<Order::relaxed, Scope::engine>(&fs.dirty.count, 1u);
  table.free_lock.unlock();
  GPU4FS_CHECK_LT(position, table.staging_count);
  table.dirty_list[position] = frame;
  if (f.address != 0) add<Scope::engine>(&fs.dirty.replacing, 1u);
  return true;
}

// Marks the map pages above page (level, index); false if it found a dirty one.
GPU4FS_FN inline bool mark_map_pages(FileSystem& fs, Operation& op, const InodeRef& file, PagePosition page) {
  const u32 top = tree_of(file, page.level).top_level();
  for (u32 l = page.level; l < top; ++l) {
    page.index >>= format::slot_shift;
    const u32 frame = find_frame(fs.pages, PageKey::make(file.number, l + 1, page.index));
    GPU4FS_CHECK_NE(frame, no_frame);
    if (!mark_frame(fs, op, frame)) return false;
  }
  return true;
}

// Marks all ancestors of page (level, index): map pages, the inode's page, and the map pages above that. Stops at the
// first dirty one: the worker that marked it marks the rest before the gate can close.
GPU4FS_FN GPU4FS_NOINLINE inline void mark_ancestors(FileSystem& fs, Operation& op, const InodeRef& file,
                                                     PagePosition page) {
  if (!mark_map_pages(fs, op, file, page)) return;
  if (file.number == format::inode_number_inode_file) return;
  if (!mark_frame(fs, op, file.frame)) return;
  mark_map_pages(fs, op, inode_file_ref(fs), {0, file.number / format::inodes_per_page});
}

GPU4FS_FN GPU4FS_NOINLINE inline void mark_page(FileSystem& fs, Operation& op, const InodeRef& file, u32 frame) {
  const PageKey key = fs.pages.frames[frame].key;
  GPU4FS_CHECK_EQ(key.inode, file.number);
  if (mark_frame(fs, op, frame)) mark_ancestors(fs, op, file, {key.level(), key.index()});
}

}  // namespace detail

// Prepare: reserves frames, dirty entries and space for a commit that changes `inode_count` inodes (created and freed
// ones included), `page_count` existing metadata pages and `new_page_count` new ones; inode pages and ancestors are
// added here. The pages of one call lie in at most eight runs. Another call raises the reservation to the greater
// amount. Status: no_space, no_memory, retry_after_checkpoint, chunk_not_mapped, needs_new_chunk.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status reserve_metadata(Group g, FileSystem& fs, Operation& op, MetadataChange change) {
  return on_leader(g, [&] {
    const detail::MetadataCost cost = detail::metadata_cost(change);
    GPU4FS_TRY(detail::top_up_frames(fs, op, cost.frames));
    return detail::top_up_dirty(fs, op, cost.dirty);
  });
}

// The same for a change of only the attributes of one inode. Its pages of entries and one value may add or dirty only
// three map pages.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status reserve_attributes(Group g, FileSystem& fs, Operation& op, u32 page_count,
                                                    u32 new_page_count) {
  constexpr u32 map_pages = 3;
  return on_leader(g, [&] {
    const detail::MetadataCost inode = detail::metadata_cost({1, 0, 0});
    GPU4FS_TRY(detail::top_up_frames(fs, op, inode.frames + new_page_count + map_pages));
    return detail::top_up_dirty(fs, op, inode.dirty + page_count + new_page_count + map_pages);
  });
}

// Returns everything that the command still has reserved: at its end, and before it waits for a checkpoint.
GPU4FS_FN GPU4FS_NOINLINE inline void release_reservations(FileSystem& fs, Operation& op) {
  PageTable& table = fs.pages;
  table.free_lock.lock();
  GPU4FS_CHECK_GE(table.frames_reserved, op.frames_reserved);
  GPU4FS_CHECK_GE(fs.dirty.reserved, op.dirty_reserved);
  table.frames_reserved -= op.frames_reserved;
  fs.dirty.reserved -= op.dirty_reserved;
  table.free_lock.unlock();
  if (op.dirty_reserved != 0) space::return_promise(fs, fs.space.metadata_class, op.dirty_reserved);
  op.frames_reserved = 0;
  op.dirty_reserved = 0;
  if (op.pages_reserved != 0) unreserve_pages(fs, op, op.pages_reserved);
}

// Gate: the bytes of `frame`, a page of `file`, change (before or after this call, in this step).
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void mark_dirty(Group g, FileSystem& fs, Operation& op, const InodeRef& file, u32 frame) {
  on_leader(g, [&] { detail::mark_page(fs, op, file, frame); });
}

// Gate: the inode's own bytes change. For inode 0 nothing is marked, because every superblock contains it.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void mark_inode_dirty(Group g, FileSystem& fs, Operation& op, const InodeRef& file) {
  if (file.number == format::inode_number_inode_file) return;
  on_leader(g, [&] { detail::mark_page(fs, op, detail::inode_file_ref(fs), file.frame); });
}

namespace detail {

// A zeroed resident page under `key`, from the command's reservation, marked dirty without ancestors.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 create_page(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                          PagePosition page) {
  const u32 frame = on_leader(g, [&] {
    GPU4FS_CHECK_GT(op.frames_reserved, 0u);
    --op.frames_reserved;
    const u32 taken = take_frame(fs.pages, true);
    GPU4FS_CHECK_NE(taken, no_frame);
    return taken;
  });
  zero_page(g, page_data(fs, frame));
  on_leader(g, [&] {
    const u32 winner =
        insert_frame(fs.pages, frame, PageKey::make(file.number, page.level, page.index), 0, frame_valid);
    GPU4FS_CHECK_EQ(winner, frame);
    mark_frame(fs, op, frame);
    file.inode->page_count += 1;
  });
  return frame;
}

// Under the exclusive lock. Whoever looks at the mode without the lock loads this byte in the same word and ignores
// it.
GPU4FS_FN inline void raise_height(const PageTree& tree) {
#if GPU4FS_DEVICE_CODE
  ++*tree.height;
#else
  __atomic_store_n(tree.height, static_cast<u8>(*tree.height + 1), __ATOMIC_RELAXED);
#endif
}

// Adds one level to the tree of the pages of `level`: the inode's slots move into a new map page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void grow_height(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                           u32 level = 0) {
  const PageTree tree = tree_of(file, level);
  const u32 top = tree.top_level();
  const bool is_empty = on_leader(g, [&] {
    GPU4FS_CHECK_LT(u32{*tree.height}, tree.height_max);
    for (u32 i = 0; i < tree.slot_count; ++i) {
      if (load_slot(&tree.slots[i]).is_valid()) return false;
    }
    return true;
  });
  if (is_empty) {
    on_leader(g, [&] { raise_height(tree); });
    return;
  }
  const u32 frame = create_page(g, fs, op, file, {top + 1, 0});
  on_leader(g, [&] {
    format::BlockPointer* slots = map_slots(fs, frame);
    for (u32 i = GPU4FS_MUTANT(slots_not_moved_up, 0, 1); i < tree.slot_count; ++i) {
      slots[i] = load_slot(&tree.slots[i]);
      store_slot(&tree.slots[i], format::BlockPointer::hole());
    }
    store_slot(&tree.slots[0], format::BlockPointer::indirect(0));
    raise_height(tree);
    mark_ancestors(fs, op, file, {top + 1, 0});
  });
}

}  // namespace detail

// Gate: a new zeroed page (level, index) of `file`; creates missing ancestors and grows the height. The page must not
// exist, and no direct block of greater size may cover it (split it first). Until the next checkpoint its slot holds
// address 0, and nobody reads the page through the slot.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 add_page(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                       PagePosition page) {
  const detail::PageTree tree = detail::tree_of(file, page.level);
  GPU4FS_CHECK_NE(tree.slot_count, 0u);
  while (tree.top_level() < page.level ||
         page.index >> (format::slot_shift * (tree.top_level() - page.level)) >= tree.slot_count) {
    g.sync();
    detail::grow_height(g, fs, op, file, page.level);
    g.sync();
  }
  for (u32 l = tree.top_level(); l > page.level; --l) {
    const u64 index_here = page.index >> (format::slot_shift * (l - page.level));
    const u32 here =
        on_leader(g, [&] { return detail::find_frame(fs.pages, PageKey::make(file.number, l, index_here)); });
    if (here != no_frame) continue;
    detail::create_page(g, fs, op, file, {l, index_here});
    on_leader(g, [&] {
      format::BlockPointer* slot = detail::slot_of_page(fs, file, {l, index_here});
      GPU4FS_CHECK(slot != nullptr);
      GPU4FS_CHECK(load_slot(slot).is_hole());
      store_slot(slot, format::BlockPointer::indirect(0));
      detail::mark_ancestors(fs, op, file, {l, index_here});
    });
  }
  const u32 frame = detail::create_page(g, fs, op, file, page);
  on_leader(g, [&] {
    format::BlockPointer* slot = detail::slot_of_page(fs, file, page);
    GPU4FS_CHECK(slot != nullptr);
    store_slot(slot, detail::is_map_level(page.level) ? format::BlockPointer::indirect(0)
                                                      : format::BlockPointer::data(0, format::BlockSize::page_4k));
    detail::mark_ancestors(fs, op, file, page);
  });
  return frame;
}

namespace detail {

// Decrements a count from the medium. On a damaged medium it may be too small; then it stays 0.
GPU4FS_FN inline void count_one_out(FileSystem& fs, u64* counter) {
  u64 count = load<Order::relaxed, Scope::engine>(counter);
  while (count != 0 && !compare_exchange<Order::relaxed, Scope::engine>(counter, count, count - 1)) {
  }
  if (count == 0) store<Order::relaxed, Scope::engine>(&fs.had_error, 1u);
}

// Leader. Removes page (level, index): its frame if it has one, its place on the medium, its slot, and its share of the
// inode's count.
GPU4FS_FN GPU4FS_NOINLINE inline void take_page_out(FileSystem& fs, Operation& op, const InodeRef& file,
                                                    PagePosition page, format::BlockPointer* slot, u32 frame) {
  mark_ancestors(fs, op, file, page);
  const u64 address = frame != no_frame ? fs.pages.frames[frame].address : load_slot(slot).address();
  store_slot(slot, format::BlockPointer::hole());
  if (address != 0) free_extent(Lane{}, fs, raid::Extent{address, 1, 0});
  if (frame != no_frame) {
    const bool is_new = address == 0 && load<Order::relaxed, Scope::engine>(&fs.pages.frames[frame].dirty) != 0;
    if (is_new) add<Scope::engine>(&fs.dirty.replacing, 1u);
    unlink_frame(fs.pages, frame);
    send_to_limbo(fs.pages, frame);
  }
  count_one_out(fs, &file.inode->page_count);
}

}  // namespace detail

// Gate: removes the resident page (level, index); a map page has no valid slots left. Its slot becomes a hole and its
// place on the medium is freed.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void remove_page(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                           PagePosition page) {
  on_leader(g, [&] {
    const u32 frame = detail::find_frame(fs.pages, PageKey::make(file.number, page.level, page.index));
    GPU4FS_CHECK_NE(frame, no_frame);
    format::BlockPointer* slot = detail::slot_of_page(fs, file, page);
    GPU4FS_CHECK(slot != nullptr);
    detail::take_page_out(fs, op, file, page, slot, frame);
  });
}

// The pointer of a page that is not a map page.
GPU4FS_FN inline bool is_page_pointer(format::BlockPointer pointer) {
  return pointer.is_well_formed() && pointer.is_valid() && !pointer.is_indirect() &&
         pointer.size() == format::BlockSize::page_4k;
}

// Gate: removes those of the `count` pages from `first` on that exist, resident or not; they are not map pages. The map
// page above each is resident, or there is no such page. On a damaged medium a slot may name something else, which
// stays.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void drop_pages(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                          PagePosition first, u64 count) {
  GPU4FS_CHECK(!detail::is_map_level(first.level));
  on_leader(g, [&] {
    for (u64 index = first.index; index < first.index + count; ++index) {
      format::BlockPointer* slot = detail::slot_of_page(fs, file, {first.level, index});
      if (slot == nullptr || load_slot(slot).is_hole()) continue;
      const format::BlockPointer pointer = load_slot(slot);
      const u32 frame = detail::find_frame(fs.pages, PageKey::make(file.number, first.level, index));
      if (is_page_pointer(pointer)) {
        detail::take_page_out(fs, op, file, {first.level, index}, slot, frame);
      } else {
        store<Order::relaxed, Scope::engine>(&fs.had_error, 1u);
      }
    }
  });
}

// Gate: removes the map page of `level` over `page` of the file if it is empty, then its parents while they are.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void remove_empty_map_pages(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                                      u32 level, u64 page) {
  for (; level <= file.inode->height; ++level) {
    const u64 index = page >> (format::slot_shift * level);
    const u32 frame =
        on_leader(g, [&] { return detail::find_frame(fs.pages, PageKey::make(file.number, level, index)); });
    if (frame == no_frame) return;
    const format::BlockPointer* slots = map_slots(fs, frame);
    bool holes = true;
    for (u32 i = g.rank(); i < format::slots_per_block; i += Group::size())
      holes = holes && load_slot(&slots[i]).is_hole();
    if (!g.all(holes)) return;
    remove_page(g, fs, op, file, {level, index});
  }
}

// Gate: removes levels of the map while the seven slots of the inode have room for the level below the top. All map
// pages on the way to page 0 are resident.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void lower_height(Group g, FileSystem& fs, Operation& op, const InodeRef& file) {
  for (u32 height = file.inode->height; height > 0; --height) {
    const u32 frame = on_leader(g, [&] { return detail::find_frame(fs.pages, PageKey::make(file.number, height, 0)); });
    if (frame == no_frame) return;
    const format::BlockPointer* slots = map_slots(fs, frame);
    bool fits = true;
    for (u32 i = format::inode_slot_count + g.rank(); i < format::slots_per_block; i += Group::size()) {
      fits = fits && load_slot(&slots[i]).is_hole();
    }
    for (u32 i = 1; i < format::inode_slot_count; ++i) fits = fits && load_slot(&file.inode->slots[i]).is_hole();
    if (!g.all(fits)) return;
    remove_page(g, fs, op, file, {height, 0});
    on_leader(g, [&] {
      // The bytes of a removed frame stay until no step runs.
      for (u32 i = 0; i < format::inode_slot_count; ++i) store_slot(&file.inode->slots[i], load_slot(&slots[i]));
      file.inode->height = static_cast<u8>(height - 1);
    });
  }
}

}  // namespace gpu4fs::fs
