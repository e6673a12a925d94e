// Inodes: numbers, creation, freeing, orphans, attributes.
//
// Numbers in use are the set bits of the inode bitmap (inode 2). Each allocation shard claims a batch of sixteen
// numbers, which is one page of the inode file. So workers that create files concurrently touch different pages. A
// claim is only in memory: the bit is set in the gate. It belongs to the command across restarts. If a command ends
// without committing its number, the next command that needs one gets it. Orphans (inodes without a name that are still
// open) are the set bits of the orphan bitmap (inode 3); mounting frees them.
//
// A number's generation advances with each use (format::generation_after()). It is kept in the free inode. If the page
// of the inode file is given back, the generations of all numbers without an inode continue after the latest one that
// was in it (inode 0 has it).
#pragma once

#include "base/mutant.hpp"
#include "format/attribute_record_format.hpp"
#include "fs/names/permissions.hpp"
#include "fs/pages/change.hpp"

namespace gpu4fs::fs {

// The inode file's height is fixed, and this is its end.
inline constexpr u64 inode_number_max =
    (u64{format::inode_slot_count} << (format::slot_shift * format::inode_file_height)) * format::inodes_per_page;
inline constexpr u64 bitmap_bits_per_page = format::bits_per_page;

struct NewInode {
  u16 mode;
  u16 profile;
  u32 uid;
  u32 gid;
  u32 link_count;
  u64 parent_or_device;
  u32 flags;
  u32 reserved;
};

namespace detail {

GPU4FS_FN inline u64* bitmap_word(FileSystem& fs, u32 frame, u64 number) {
  auto* words = reinterpret_cast<u64*>(page_data(fs, frame));
  return &words[(number % bitmap_bits_per_page) / 64];
}

GPU4FS_FN inline u32& claimed_count(FileSystem& fs, u64 number) {
  const u64 batch = number / format::inodes_per_page;
  return fs.claimed_batches[(batch * 0x9e3779b97f4a7c15ull >> 40) % claimed_batch_slots];
}

GPU4FS_FN inline bool batch_is_claimed(FileSystem& fs, u64 batch) {
  const u64 first = batch * format::inodes_per_page;
  if (load<Order::acquire, Scope::engine>(&claimed_count(fs, first)) != 0) return true;
  for (u32 i = 0; i < fs.shard_count; ++i) {
    if (load<Order::relaxed, Scope::engine>(&fs.shards[i].inode_batch) == first) return true;
  }
  return false;
}

// The inode of a bitmap file, whose map has its fixed shape.
template <class Group>
GPU4FS_FN Status get_bitmap_file(Group g, FileSystem& fs, Operation& op, u64 file_number, InodeRef* file) {
  GPU4FS_TRY(get_inode(g, fs, op, file_number, file));
  const bool fits = file->inode->height == format::inode_bitmap_height && !file->inode->is_inline();
  return fits ? Status::ok : Status::corrupt_structure;
}

// The page of bitmap file `file_number` that holds `number`'s bit: resident, or page_absent.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status get_bitmap_page(Group g, FileSystem& fs, Operation& op, u64 file_number, u64 number,
                                                 u32* frame) {
  InodeRef file{};
  GPU4FS_TRY(get_bitmap_file(g, fs, op, file_number, &file));
  return get_page(g, fs, op, file, {0, number / bitmap_bits_per_page}, frame);
}

// Gate: the same, created under the grow lock if it is absent.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 ensure_page(Group g, FileSystem& fs, Operation& op, const InodeRef& file, u64 index) {
  const PageKey key = PageKey::make(file.number, 0, index);
  u32 frame = on_leader(g, [&] { return find_frame(fs.pages, key); });
  if (frame != no_frame) return frame;
  frame = on_leader(g, [&] {
    fs.grow_lock.lock();
    return find_frame(fs.pages, key);
  });
  if (frame == no_frame) {
    frame = add_page(g, fs, op, file, {0, index});
    on_leader(g, [&] {
      const u64 size = (index + 1) * page_size;
      // Others read it without a lock, to learn how far the file reaches.
      if (file.inode->size_bytes < size) store<Order::relaxed, Scope::engine>(&file.inode->size_bytes, size);
    });
  }
  on_leader(g, [&] { fs.grow_lock.unlock(); });
  return frame;
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void change_bit(Group g, FileSystem& fs, Operation& op, u64 file_number, u64 number,
                                          bool set) {
  InodeRef file{};
  const Status status = get_inode(g, fs, op, file_number, &file);
  GPU4FS_CHECK_OK(status);
  const u32 frame = ensure_page(g, fs, op, file, number / bitmap_bits_per_page);
  on_leader(g, [&] {
    const u64 bit = u64{1} << (number % 64);
    u64* word = bitmap_word(fs, frame, number);
    if (set) {
      // On a damaged medium the bit may contradict the inode.
      const u64 old = fetch_or<Order::relaxed, Scope::engine>(word, bit);
      if ((old & bit) != 0) store<Order::relaxed, Scope::engine>(&fs.had_error, 1u);
    } else {
      const u64 old = fetch_and<Order::release, Scope::engine>(word, ~bit);
      if ((old & bit) == 0) store<Order::relaxed, Scope::engine>(&fs.had_error, 1u);
    }
    mark_page(fs, op, file, frame);
  });
}

// Assigns batch `first` to the shard if nobody has it and it has free numbers; under the grow lock, so two shards never
// get the same one. The bits are read after the claims, because a committed number leaves the claims only after its bit
// is set. `frame` is the bitmap page; no_frame: absent, all numbers are free.
GPU4FS_FN inline bool take_batch(FileSystem& fs, Operation& op, u64 first, u32 frame) {
  fs.grow_lock.lock();
  u32 mask = 0;
  if (!batch_is_claimed(fs, first / format::inodes_per_page)) {
    // A page that was absent may have been created since.
    if (frame == no_frame) {
      frame = find_frame(fs.pages, PageKey::make(format::inode_number_inode_bitmap, 0, first / bitmap_bits_per_page));
    }
    u32 used = 0;
    if (frame != no_frame) {
      const u64 word = load<Order::acquire, Scope::engine>(bitmap_word(fs, frame, first));
      used = static_cast<u32>(word >> (first % 64)) & 0xffffu;
    }
    mask = ~used & 0xffffu;
    if (mask != 0) {
      space::AllocationShard& shard = fs.shards[op.shard];
      store<Order::relaxed, Scope::engine>(&shard.inode_batch, first);
      shard.inode_mask = mask;
    }
  }
  fs.grow_lock.unlock();
  return mask != 0;
}

struct BatchChoice {
  u64 batch;  // 0: try again
  u32 wrapped;
  u32 reserved;
};

// The next batch to test. Past the end of the inode file the scan restarts, once in a search and only while at least a
// quarter of the numbers below the end is free; otherwise the file grows.
GPU4FS_FN inline BatchChoice next_batch(FileSystem& fs, u32 wrapped) {
  const u64 next = fetch_add<Order::relaxed, Scope::engine>(&fs.inode_scan, u64{1});
  const u64 pages = load<Order::relaxed, Scope::engine>(&fs.inode_file.size_bytes) / page_size;
  const u64 used = load<Order::relaxed, Scope::engine>(&fs.inode_used);
  if (next >= pages && wrapped == 0 && used + used / 3 < pages * format::inodes_per_page) {
    store<Order::relaxed, Scope::engine>(&fs.inode_scan, u64{1});
    return {0, 1, 0};
  }
  return {batch_is_claimed(fs, next) ? u64{0} : next, wrapped, 0};
}

// The batch of `first` is full: the scan continues at the next word of the bitmap page with a free bit. Concurrent
// scans may test a batch twice, which costs only time.
GPU4FS_FN inline void skip_used_batches(FileSystem& fs, u32 frame, u64 first) {
  if (load<Order::relaxed, Scope::engine>(bitmap_word(fs, frame, first)) != ~u64{0}) return;
  u64 number = first + 64 - first % 64;
  while (number % bitmap_bits_per_page != 0 &&
         load<Order::relaxed, Scope::engine>(bitmap_word(fs, frame, number)) == ~u64{0}) {
    number += 64;
  }
  const u64 batch = number / format::inodes_per_page;
  u64 scan = load<Order::relaxed, Scope::engine>(&fs.inode_scan);
  if (scan < batch && batch - scan <= bitmap_bits_per_page / format::inodes_per_page) {
    compare_exchange<Order::relaxed, Scope::engine>(&fs.inode_scan, scan, batch);
  }
}

// The batch was not tested: the scan will return to it.
GPU4FS_FN inline void put_back_batch(FileSystem& fs, u64 batch) {
  u64 scan = load<Order::relaxed, Scope::engine>(&fs.inode_scan);
  while (batch < scan && !compare_exchange<Order::relaxed, Scope::engine>(&fs.inode_scan, scan, batch)) {
  }
}

// A batch with free numbers for shard `op.shard`, which is locked by the caller.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status claim_batch(Group g, FileSystem& fs, Operation& op) {
  // Every batch up to the inode file's end is tested once before the file grows.
  const u64 batch_end = on_leader(g, [&] {
    const u64 pages = load<Order::relaxed, Scope::engine>(&fs.inode_file.size_bytes) / page_size;
    return maximum<u64>(pages, 1) + fs.shard_count + 1;
  });
  u32 wrapped = 0;
  for (u64 attempt = 0; attempt < 4 * batch_end + 64; ++attempt) {
    const BatchChoice choice = on_leader(g, [&] { return next_batch(fs, wrapped); });
    wrapped = choice.wrapped;
    if (choice.batch == 0) continue;
    const u64 first = choice.batch * format::inodes_per_page;
    if (first + format::inodes_per_page > inode_number_max) return Status::no_inodes;
    u32 frame = no_frame;
    const Status status = get_bitmap_page(g, fs, op, format::inode_number_inode_bitmap, first, &frame);
    if (status != Status::ok && status != Status::page_absent) {
      // A damaged batch is not put back; the next search continues after it.
      if (is_control(status)) on_leader(g, [&] { put_back_batch(fs, choice.batch); });
      return status;
    }
    const bool taken = on_leader(g, [&] {
      const bool is_ours = take_batch(fs, op, first, frame);
      if (!is_ours && frame != no_frame) skip_used_batches(fs, frame, first);
      return is_ours;
    });
    if (taken) return Status::ok;
  }
  return Status::no_inodes;
}

GPU4FS_FN inline u64 take_returned_inode(FileSystem& fs) {
  if (load<Order::relaxed, Scope::engine>(&fs.returned_inode_count) == 0) return 0;
  fs.grow_lock.lock();
  const u32 count = load<Order::relaxed, Scope::engine>(&fs.returned_inode_count);
  const u64 number = count == 0 ? 0 : fs.returned_inodes[count - 1];
  if (count != 0) store<Order::relaxed, Scope::engine>(&fs.returned_inode_count, count - 1);
  fs.grow_lock.unlock();
  return number;
}

// Whether there was room for the number, which stays claimed.
GPU4FS_FN inline bool keep_returned_inode(FileSystem& fs, u64 number) {
  fs.grow_lock.lock();
  const u32 count = load<Order::relaxed, Scope::engine>(&fs.returned_inode_count);
  const bool has_room = count < returned_inode_max;
  if (has_room) {
    fs.returned_inodes[count] = number;
    store<Order::relaxed, Scope::engine>(&fs.returned_inode_count, count + 1);
  }
  fs.grow_lock.unlock();
  return has_room;
}

}  // namespace detail

// Prepare: claims a free inode number for this command, or returns the one that it has. Status: no_inodes, or as
// get_page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status claim_inode(Group g, FileSystem& fs, Operation& op, u64* number) {
  space::AllocationShard& shard = fs.shards[op.shard];
  *number = on_leader(g, [&] {
    if (op.claimed_inode == 0 && op.replay != nullptr) {
      op.claimed_inode = op.replay->number;
      add<Scope::engine>(&detail::claimed_count(fs, op.claimed_inode), 1u);
    }
    if (op.claimed_inode == 0) op.claimed_inode = detail::take_returned_inode(fs);
    if (op.claimed_inode == 0) shard.lock.lock();
    return op.claimed_inode;
  });
  if (*number != 0) return Status::ok;
  const bool has_batch = on_leader(g, [&] { return shard.inode_mask != 0; });
  const Status status = has_batch ? Status::ok : detail::claim_batch(g, fs, op);
  *number = on_leader(g, [&] {
    if (status == Status::ok) {
      const u32 position = count_trailing_zeros(shard.inode_mask);
      shard.inode_mask &= shard.inode_mask - 1;
      op.claimed_inode = shard.inode_batch + position;
      add<Scope::engine>(&detail::claimed_count(fs, op.claimed_inode), 1u);
    }
    shard.lock.unlock();
    return op.claimed_inode;
  });
  return status;
}

// The command ends without committing the number that it claimed. One rank.
GPU4FS_FN GPU4FS_NOINLINE inline void unclaim_inode(FileSystem& fs, Operation& op) {
  const u64 number = op.claimed_inode;
  if (number == 0) return;
  op.claimed_inode = 0;
  if (detail::keep_returned_inode(fs, number)) return;
  // It is found again when the scan restarts.
  const u32 old = fetch_sub<Order::release, Scope::engine>(&detail::claimed_count(fs, number), 1u);
  GPU4FS_CHECK_GT(old, 0u);
}

// Prepare: the pages that commit_new_inode changes are resident or will be created (count the inode in
// reserve_metadata).
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status prepare_new_inode(Group g, FileSystem& fs, Operation& op, u64 number) {
  u32 frame = no_frame;
  Status status = detail::get_bitmap_page(g, fs, op, format::inode_number_inode_bitmap, number, &frame);
  if (status == Status::checksum_mismatch || status == Status::corrupt_structure) {
    // As below: a number that cannot be committed is not given to others.
    on_leader(g, [&] { op.claimed_inode = 0; });
  }
  if (status != Status::ok && status != Status::page_absent) return status;
  status = get_page(g, fs, op, detail::inode_file_ref(fs), {0, number / format::inodes_per_page}, &frame);
  if (status == Status::page_absent) return Status::ok;
  GPU4FS_TRY(status);
  // On a damaged medium an inode may be in use although its bit says that it is free. Its number stays claimed until
  // the next mount, so no other command gets it.
  const bool is_free = on_leader(g, [&] {
    const auto* inodes = reinterpret_cast<const format::Inode*>(page_data(fs, frame));
    const bool has_no_mode = inodes[number % format::inodes_per_page].mode == 0;
    if (!has_no_mode) op.claimed_inode = 0;
    return has_no_mode;
  });
  return is_free ? Status::ok : Status::corrupt_structure;
}

// Gate: the inode page of `number`. If it was absent, it contains free inodes (one inode in reserve_metadata).
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void commit_inode_page(Group g, FileSystem& fs, Operation& op, u64 number) {
  detail::ensure_page(g, fs, op, detail::inode_file_ref(fs), number / format::inodes_per_page);
}

namespace detail {

// Leader, gate. The operation's record contains the generation too, so after a replay the client's handle refers to its
// file again.
GPU4FS_FN inline u32 next_generation(const FileSystem& fs, const Operation& op, const format::Inode& inode) {
  if (op.replay != nullptr) return static_cast<u32>(op.replay->size);
  const u32 last = inode.version == 0 ? fs.inode_file.generation : inode.generation;
  return GPU4FS_MUTANT(generation_kept, format::generation_after(last, fs.generation_skip), last + fs.generation_skip);
}

// Leader, gate: an inode of the page has become free. If it was the last one, the next checkpoint tests the page.
GPU4FS_FN GPU4FS_NOINLINE inline void note_emptied_page(FileSystem& fs, u32 frame) {
  PageTable& table = fs.pages;
  u32* const bits = &table.frames[frame].referenced;
  // If two commands free the last two, the later one sees both here.
  fetch_or<Order::acq_rel, Scope::engine>(bits, 0u);
  const auto* inodes = reinterpret_cast<const format::Inode*>(page_data(fs, frame));
  for (u32 i = 0; i < format::inodes_per_page; ++i) {
    if (peek_mode(inodes[i]) != 0) return;
  }
  const u32 before = fetch_or<Order::relaxed, Scope::engine>(bits, u32{frame_emptied});
  if ((before & frame_emptied) != 0) return;
  table.free_lock.lock();
  // The list is full of removed frames: the page stays.
  if (table.emptied_count < table.frame_count) table.emptied_list[table.emptied_count++] = frame;
  table.free_lock.unlock();
}

}  // namespace detail

// Writes the whole inode by 8-byte stores: readers without its lock may read its mode (peek_mode).
GPU4FS_FN inline void put_inode(format::Inode* to, const format::Inode& from) {
  static_assert(sizeof(format::Inode) % 8 == 0);
  u64 words[sizeof(format::Inode) / 8];
  __builtin_memcpy(words, &from, sizeof(words));
  u64* const place = reinterpret_cast<u64*>(to);
  for (u32 i = 0; i < sizeof(words) / 8; ++i) store<Order::relaxed, Scope::engine>(&place[i], words[i]);
}

// Gate: initialises the claimed inode with empty content. In an engine the command holds its lock.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE InodeRef commit_new_inode(Group g, FileSystem& fs, Operation& op, u64 number,
                                                    const NewInode& values) {
  const InodeRef inode_file = detail::inode_file_ref(fs);
  const u32 frame = detail::ensure_page(g, fs, op, inode_file, number / format::inodes_per_page);
  detail::change_bit(g, fs, op, format::inode_number_inode_bitmap, number, true);
  const u32 position = static_cast<u32>(number % format::inodes_per_page);
  const InodeRef ref{number, reinterpret_cast<format::Inode*>(page_data(fs, frame)) + position, frame, 0,
                     &fs.pages.inode_locks[u64{frame} * format::inodes_per_page + position]};
  on_leader(g, [&] {
    GPU4FS_CHECK_EQ(ref.inode->mode, 0);
    GPU4FS_CHECK_EQ(op.claimed_inode, number);
    op.claimed_inode = 0;
    const u32 generation = detail::next_generation(fs, op, *ref.inode);
    format::Inode inode{};
    inode.access_time = inode.modification_time = inode.change_time = inode.birth_time = op.now;
    inode.uid = values.uid;
    inode.gid = values.gid;
    inode.link_count = values.link_count;
    inode.mode = values.mode;
    inode.version = 1;
    inode.flags = values.flags;
    inode.generation = generation;
    inode.parent_or_device = values.parent_or_device;
    inode.profile = values.profile;
    put_inode(ref.inode, inode);
    detail::mark_page(fs, op, inode_file, frame);
    add<Scope::engine>(&fs.inode_used, u64{1});
    const u32 old = fetch_sub<Order::release, Scope::engine>(&detail::claimed_count(fs, number), 1u);
    GPU4FS_CHECK_GT(old, 0u);
  });
  return ref;
}

// Prepare: the bitmap page of `number` is resident.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status prepare_free_inode(Group g, FileSystem& fs, Operation& op, u64 number) {
  u32 frame = no_frame;
  const Status status = detail::get_bitmap_page(g, fs, op, format::inode_number_inode_bitmap, number, &frame);
  return status == Status::page_absent ? Status::corrupt_structure : status;
}

// Gate: the inode, exclusively locked and without content, links or attributes, becomes free. Its
// generation survives, so that a handle of the old file never matches a new one.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void commit_free_inode(Group g, FileSystem& fs, Operation& op, const InodeRef& ref) {
  on_leader(g, [&] {
    GPU4FS_CHECK_NE(ref.inode->mode, 0);
    GPU4FS_CHECK_EQ(ref.inode->page_count, u64{0});
    format::Inode inode{};
    inode.version = 1;
    inode.generation = ref.inode->generation;
    put_inode(ref.inode, inode);
    detail::mark_page(fs, op, detail::inode_file_ref(fs), ref.frame);
    detail::note_emptied_page(fs, ref.frame);
    detail::count_one_out(fs, &fs.inode_used);
  });
  // Last: afterwards another command may claim the number.
  detail::change_bit(g, fs, op, format::inode_number_inode_bitmap, ref.number, false);
}

// Prepare: the orphan bitmap's page for `number` is resident or will be created (count the inode in reserve_metadata
// once more).
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status prepare_orphan(Group g, FileSystem& fs, Operation& op, u64 number) {
  u32 frame = no_frame;
  const Status status = detail::get_bitmap_page(g, fs, op, format::inode_number_orphan_bitmap, number, &frame);
  return status == Status::page_absent ? Status::ok : status;
}

// Gate.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void set_orphan(Group g, FileSystem& fs, Operation& op, u64 number) {
  detail::change_bit(g, fs, op, format::inode_number_orphan_bitmap, number, true);
}
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void clear_orphan(Group g, FileSystem& fs, Operation& op, u64 number) {
  detail::change_bit(g, fs, op, format::inode_number_orphan_bitmap, number, false);
}

// Whether `number` is an orphan. Status: as get_page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status is_orphan(Group g, FileSystem& fs, Operation& op, u64 number, bool* orphan) {
  u32 frame = no_frame;
  *orphan = false;
  const Status status = detail::get_bitmap_page(g, fs, op, format::inode_number_orphan_bitmap, number, &frame);
  if (status == Status::page_absent) return Status::ok;
  GPU4FS_TRY(status);
  *orphan = on_leader(g, [&] {
    const u64 word = load<Order::relaxed, Scope::engine>(detail::bitmap_word(fs, frame, number));
    return ((word >> (number % 64)) & 1) != 0;
  });
  return Status::ok;
}

// The first orphan with a number >= from, or 0 when there is none. Status: as get_page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status next_orphan(Group g, FileSystem& fs, Operation& op, u64 from, u64* number) {
  *number = 0;
  InodeRef file{};
  GPU4FS_TRY(detail::get_bitmap_file(g, fs, op, format::inode_number_orphan_bitmap, &file));
  const u64 page_end = on_leader(g, [&] {
    const u64 pages = load<Order::relaxed, Scope::engine>(&file.inode->size_bytes) / page_size;
    return minimum(pages, u64{format::inode_slot_count} << (format::slot_shift * format::inode_bitmap_height));
  });
  for (u64 page = from / bitmap_bits_per_page; page < page_end; ++page) {
    u32 frame = no_frame;
    const Status status = get_page(g, fs, op, file, {0, page}, &frame);
    if (status == Status::page_absent) continue;
    GPU4FS_TRY(status);
    const u64 found = on_leader(g, [&] {
      const auto* words = reinterpret_cast<const u64*>(page_data(fs, frame));
      for (u32 i = 0; i < page_size / 8; ++i) {
        u64 word = load<Order::relaxed, Scope::engine>(&words[i]);
        const u64 base = page * bitmap_bits_per_page + u64{i} * 64;
        if (base + 64 <= from) continue;
        if (base < from) word &= ~u64{0} << (from - base);
        if (word != 0) return base + count_trailing_zeros(word);
      }
      return u64{0};
    });
    if (found != 0) {
      *number = found;
      return Status::ok;
    }
  }
  return Status::ok;
}

// The record of inode `number`, of which nobody changes anything, or anything but the access time, which is `access`.
GPU4FS_FN inline void describe_inode(u64 number, const format::Inode& inode, u64 access,
                                     format::AttributeRecord* record) {
  *record = format::AttributeRecord{};
  record->inode = number;
  record->size_bytes = inode.size_bytes;
  record->blocks_512 = inode.page_count * (page_size / 512);
  record->access_seconds = format::time_seconds(access);
  record->modification_seconds = format::time_seconds(inode.modification_time);
  record->change_seconds = format::time_seconds(inode.change_time);
  record->birth_seconds = format::time_seconds(inode.birth_time);
  record->access_nanoseconds = format::time_nanoseconds(access);
  record->modification_nanoseconds = format::time_nanoseconds(inode.modification_time);
  record->change_nanoseconds = format::time_nanoseconds(inode.change_time);
  record->birth_nanoseconds = format::time_nanoseconds(inode.birth_time);
  record->mode = inode.mode;
  record->link_count = inode.link_count;
  record->uid = inode.uid;
  record->gid = inode.gid;
  const u32 type = inode.mode & 0xf000u;
  if (type == 0x2000u || type == 0x6000u) record->device = inode.parent_or_device;
  if (type == 0x4000u) record->parent = inode.parent_or_device;
  record->generation = inode.generation;
  record->flags = inode.flags & format::inode_flags_of_users;
}

// Leader or Lane, under the inode's lock.
GPU4FS_FN GPU4FS_NOINLINE inline void attributes_of(const InodeRef& ref, format::AttributeRecord* record) {
  describe_inode(ref.number, *ref.inode, load<Order::relaxed, Scope::engine>(&ref.inode->access_time), record);
}

}  // namespace gpu4fs::fs
