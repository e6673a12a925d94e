// check: the walk over inodes, their maps and attributes, and the search for the owners of damaged pages.
//
// A task is a page of the inode file. The medium is untrusted. A page is followed only from the first pointer that
// leads to it, so the work is bounded by the pool's size. The pool is not in use, so nothing changes meanwhile. Pages
// are read without the table of metadata pages.
#pragma once

#include "engine/check_tables.hpp"
#include "engine/engine.hpp"
#include "format/directory_format.hpp"
#include "fs/inode/inode_rules.hpp"
#include "fs/names/stored_access_lists.hpp"
#include "raid/page_io.hpp"

namespace gpu4fs::engine {
namespace detail {

using format::BlockPointer;
using wire::CheckKind;

inline constexpr u32 check_inode_buffer = 0;  // pages of a CheckBuffer: the inodes,
inline constexpr u32 check_block_buffer = 1;  // indirect blocks whose slots have level 0, 1 and so on,
inline constexpr u32 check_leaf_buffer = 7;   // a leaf or a page of attributes,
inline constexpr u32 check_node_buffer = 8;   // nodes of a directory from the root down
static_assert(check_node_buffer + format::directory_level_max <= check_buffer_pages);

// One task; equal on all ranks.
struct CheckTask {
  Engine& engine;
  CheckSink sink;
  CheckBuffer& buffer;
  bool finds_owners;
  bool marks_data;
  bool marks_links;    // targets of symbolic links, which have checksums in every pool
  bool reports_pages;  // off: the caller handles pages that cannot be used
};

// A rank's part of the sums of one inode.
struct CheckSums {
  u64 pages;  // claimed by this inode alone
  u64 reached;
  u64 content;  // pages of content
  u64 content_end;
};

GPU4FS_FN inline CheckSums add_sums(const CheckSums& a, const CheckSums& b) {
  return {a.pages + b.pages, a.reached + b.reached, a.content + b.content, maximum(a.content_end, b.content_end)};
}

struct CheckedInode {
  u64 number;
  const format::Inode* inode;  // in the task's buffer
  u32 type;
  bool is_metadata;

  // Content is read like metadata pages: one written page in each block.
  GPU4FS_FN bool has_single_pages() const { return is_metadata || type == fs::mode_symlink; }
};

GPU4FS_FN inline bool is_zero_bytes(const void* bytes, u32 length) {
  const u8* begin = static_cast<const u8*>(bytes);
  u32 found = 0;
  for (u32 i = 0; i < length; ++i) found |= begin[i];
  return found == 0;
}

GPU4FS_FN constexpr bool is_hidden_inode(u64 number) {
  return number < format::inode_number_first_free && number != format::inode_number_root;
}

struct PageLook {
  bool usable;
  bool odd;  // a usable page may be odd too: it is newer than the pool's state
};

// Reads a metadata page. An odd page is reported as `record`.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE PageLook look_at_page(Group g, const CheckTask& task, const wire::CheckRecord& record,
                                                u64 address, u8* to) {
  const raid::LogicalSpace& space = task.engine.fs.space;
  const Status status = raid::read_page(g, space, address, to);
  if (task.finds_owners) return {status == Status::ok, false};
  const bool odd = status != Status::ok || on_leader(g, [&] {
                     raid::PageLocation location{};
                     GPU4FS_CHECK_OK(raid::find_page(space, address, &location));
                     const format::PageDescriptor& descriptor = space.chunks[location.chunk].descriptors[location.page];
                     return descriptor.birth_epoch > static_cast<u32>(task.engine.fs.epoch_durable + 1) ||
                            (descriptor.flags & ~format::page_flag_known) != 0;
                   });
  if (g.leader()) {
    add<Scope::engine>(&task.sink.counts->verified, u64{1});
    if (odd && task.reports_pages) emit_record(task.sink, record);
  }
  return {status == Status::ok, odd};
}

template <class Group>
GPU4FS_FN bool read_checked(Group g, const CheckTask& task, const wire::CheckRecord& record, u64 address, u8* to) {
  return look_at_page(g, task, record, address, to).usable;
}

// Any rank. True: no inode has claimed the `count` pages from `address` before.
GPU4FS_FN GPU4FS_NOINLINE inline bool claim_checked(const CheckTask& task, u64 number, u64 address, u64 count,
                                                    CheckSums& sums) {
  raid::LogicalSpace& space = task.engine.fs.space;
  raid::PageLocation location{};
  const bool found = raid::find_page(space, address, &location) == Status::ok &&
                     count <= space.chunks[location.chunk].page_count - location.page;
  if (!found) {
    if (!task.finds_owners) emit_record(task.sink, make_record(CheckKind::outside, number, address));
    return false;
  }
  raid::ChunkState& chunk = space.chunks[location.chunk];
  u64* const bits = task.finds_owners ? chunk.bitmaps.busy : chunk.bitmaps.staged;
  const ClaimedPages claimed = claim_bits(chunk, bits, location.page, count);
  if (task.finds_owners) return claimed.before == 0;
  sums.reached += count - claimed.before;
  if (claimed.before != 0) {
    emit_record(task.sink, make_record(CheckKind::used_twice, number, address, claimed.before, count));
  }
  if (claimed.not_allocated != 0) {
    emit_record(task.sink, make_record(CheckKind::not_allocated, number, address, claimed.not_allocated, count));
  }
  return claimed.before == 0;
}

// Any rank: reports this inode as the owner of those pages that did not match.
GPU4FS_FN inline void emit_damaged(const CheckTask& task, u64 number, u64 address, u64 count, u64 file_page) {
  raid::PageLocation location{};
  GPU4FS_CHECK_OK(raid::find_page(task.engine.fs.space, address, &location));
  const u64* bits = task.engine.fs.space.chunks[location.chunk].bitmaps.freed_old;
  const u64 end = location.page + count;
  for (u64 at = location.page; at < end; at = align_down(at, u64{64}) + 64) {
    u64 damaged = load<Order::relaxed, Scope::engine>(&bits[at / 64]) & word_mask(at, end);
    for (; damaged != 0; damaged &= damaged - 1) {
      const u64 inside = align_down(at, u64{64}) + count_trailing_zeros(damaged) - location.page;
      emit_record(task.sink,
                  make_record(CheckKind::data_page, number, address + inside * page_size, file_page + inside));
    }
  }
}

GPU4FS_FN inline void visit_content(const CheckTask& task, const CheckedInode& file, BlockPointer pointer, u32 level,
                                    u64 index, CheckSums& sums) {
  const u64 span = u64{1} << (format::slot_shift * level);
  if (!claim_checked(task, file.number, pointer.address(), span, sums)) return;
  sums.pages += span;
  sums.content += file.is_metadata ? 1 : 0;
  sums.content_end = maximum(sums.content_end, (index + 1) * span);
  if (file.is_metadata || pointer.is_unwritten()) return;
  if (task.finds_owners) {
    emit_damaged(task, file.number, pointer.address(), span, index * span);
  } else if (task.marks_data || (task.marks_links && file.type == fs::mode_symlink)) {
    raid::PageLocation location{};
    GPU4FS_CHECK_OK(raid::find_page(task.engine.fs.space, pointer.address(), &location));
    const raid::ChunkState& chunk = task.engine.fs.space.chunks[location.chunk];
    claim_bits(chunk, chunk.bitmaps.freed_now, location.page, span);
  }
}

GPU4FS_FN inline bool leads_down(BlockPointer pointer, u32 level) {
  return pointer.is_valid() && pointer.is_well_formed() && pointer.is_indirect() && level >= 1;
}

GPU4FS_FN inline bool fits_content(const CheckedInode& file, BlockPointer pointer, u32 level) {
  if (!pointer.is_valid() || !pointer.is_well_formed() || pointer.is_indirect()) return false;
  if (file.has_single_pages() && (level != 0 || pointer.is_unwritten())) return false;
  return static_cast<u32>(pointer.size()) == level + 1;
}

// The slots of one block or of an inode.
struct SlotArray {
  const BlockPointer* slots;
  u32 count;
  u32 level;
  u64 first;  // index of slot 0 among those of the level
};

// Claims content. Returns true if the slots lead to indirect blocks.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool visit_slots(Group g, const CheckTask& task, const CheckedInode& file, SlotArray array,
                                           CheckSums& sums) {
  bool has_blocks = false;
  for (u32 i = g.rank(); i < array.count; i += Group::size()) {
    const BlockPointer pointer = array.slots[i];
    if (pointer.raw == 0) continue;
    if (leads_down(pointer, array.level)) {
      has_blocks = true;
    } else if (fits_content(file, pointer, array.level)) {
      visit_content(task, file, pointer, array.level, array.first + i, sums);
    } else if (!task.finds_owners) {
      emit_record(task.sink,
                  make_record(CheckKind::pointer, file.number, pointer.raw, array.first + i, 0, array.level));
    }
  }
  return g.any(has_blocks);
}

// Depth first. The indirect blocks on the path are in the task's buffer.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void walk_map(Group g, const CheckTask& task, const CheckedInode& file, CheckSums& sums) {
  const u32 height = file.inode->height;
  GPU4FS_CHECK_LE(height, fs::map_height_max);
  u32 position[fs::map_height_max + 1];  // next slot to visit, by level
  u64 first[fs::map_height_max + 1];     // index of slot 0
  u32 level = height;
  first[level] = 0;
  const bool has_blocks = visit_slots(g, task, file, {file.inode->slots, format::inode_slot_count, level, 0}, sums);
  position[level] = has_blocks ? 0 : format::slots_per_block;
  for (;;) {
    const bool is_top = level == height;
    const u32 count = is_top ? format::inode_slot_count : format::slots_per_block;
    const BlockPointer* slots =
        is_top ? file.inode->slots
               : reinterpret_cast<const BlockPointer*>(task.buffer.pages[check_block_buffer + level]);
    u32 i = position[level];
    while (i < count && !leads_down(slots[i], level)) ++i;
    if (i >= count) {
      if (is_top) return;
      ++level;
      continue;
    }
    position[level] = i + 1;
    const u64 address = slots[i].address();
    CheckSums claimed{};
    const bool follows = on_leader(g, [&] { return claim_checked(task, file.number, address, 1, claimed); });
    if (g.leader()) sums.reached += claimed.reached;
    if (!follows) continue;
    if (g.leader()) ++sums.pages;
    u8* const block = task.buffer.pages[check_block_buffer + level - 1];
    const u64 child_first = (first[level] + i) * format::slots_per_block;
    if (!read_checked(g, task, make_record(CheckKind::metadata, file.number, address), address, block)) continue;
    --level;
    first[level] = child_first;
    const auto* below = reinterpret_cast<const BlockPointer*>(block);
    const bool goes_on = visit_slots(g, task, file, {below, format::slots_per_block, level, child_first}, sums);
    position[level] = goes_on ? 0 : format::slots_per_block;
  }
}

GPU4FS_FN inline u8* attribute_buffer(const CheckTask& task, u32 level) {
  return task.buffer.pages[level == 0 ? check_leaf_buffer : check_block_buffer + level - 1];
}

// Claims a page of attributes and reads it into the buffer of its level. True: its content can be used.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool enter_attribute_page(Group g, const CheckTask& task, const CheckedInode& file,
                                                    BlockPointer pointer, u32 level, CheckSums& sums) {
  const bool fits = pointer.is_well_formed() && pointer.is_valid() && pointer.is_indirect() == (level != 0) &&
                    !pointer.is_unwritten() && pointer.size() == format::BlockSize::page_4k;
  if (!fits) {
    if (g.leader()) emit_record(task.sink, make_record(CheckKind::attribute_pointer, file.number, pointer.raw));
    return false;
  }
  const u64 address = pointer.address();
  CheckSums claimed{};
  const bool follows = on_leader(g, [&] { return claim_checked(task, file.number, address, 1, claimed); });
  if (g.leader()) {
    sums.reached += claimed.reached;
    ++sums.pages;  // counted by this inode even if another one has claimed it
  }
  return follows && read_checked(g, task, make_record(CheckKind::metadata, file.number, address), address,
                                 attribute_buffer(task, level));
}

// Checks the pages below a map page of attributes that is in the buffer of its level.
template <u32 level, class Group>
GPU4FS_FN GPU4FS_NOINLINE void check_attribute_block(Group g, const CheckTask& task, const CheckedInode& file,
                                                     CheckSums& sums) {
  static_assert(level == 1 || level == 2);
  const auto* slots = reinterpret_cast<const BlockPointer*>(attribute_buffer(task, level));
  for (u32 i = 0; i < format::slots_per_block; ++i) {
    if (slots[i].raw == 0) continue;
    [[maybe_unused]] const bool usable = enter_attribute_page(g, task, file, slots[i], level - 1, sums);
    if constexpr (level == 2) {
      if (usable) check_attribute_block<1>(g, task, file, sums);
    }
  }
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void check_attributes(Group g, const CheckTask& task, const CheckedInode& file,
                                                CheckSums& sums) {
  const BlockPointer pointer = file.inode->attributes;
  const u32 height = file.inode->attribute_height;
  if (pointer.raw == 0 || task.finds_owners || height > format::attribute_height_max) return;
  const bool usable = enter_attribute_page(g, task, file, pointer, height, sums);
  if (height != 0) {
    if (usable && height == 1) check_attribute_block<1>(g, task, file, sums);
    if (usable && height == 2) check_attribute_block<2>(g, task, file, sums);
    if (g.leader()) emit_record(task.sink, make_record(CheckKind::attribute_tree, file.number));
  } else if (usable) {
    const bool sound = on_leader(g, [&] { return fs::attribute_check_page(attribute_buffer(task, 0)) == Status::ok; });
    if (!sound && g.leader()) {
      emit_record(task.sink, make_record(CheckKind::attribute_page, file.number, pointer.address()));
    }
  }
}

GPU4FS_FN inline bool fields_are_sound(const CheckedInode& file) {
  const format::Inode& inode = *file.inode;
  if (!fs::inode_is_sound(inode)) return false;
  if (inode.profile > format::profile_max) return false;
  if (!format::is_time(inode.access_time)) return false;
  if (!format::is_time(inode.modification_time)) return false;
  if (!format::is_time(inode.change_time)) return false;
  if (!format::is_time(inode.birth_time)) return false;
  if (file.type != fs::mode_directory && inode.entry_count != 0) return false;
  if (!is_zero_bytes(inode.reserved, sizeof(inode.reserved))) return false;
  return inode.is_inline() || is_zero_bytes(inode.inline_tail, sizeof(inode.inline_tail));
}

GPU4FS_FN inline bool size_fits_content(const CheckedInode& file, const CheckSums& sums) {
  const format::Inode& inode = *file.inode;
  const u64 size = inode.size_bytes;
  bool good = fs::size_is_sound(inode);
  if (file.is_metadata) {
    good =
        size % page_size == 0 && sums.content_end <= size / page_size && size > 0 && sums.content == size / page_size;
  } else if (file.type == fs::mode_symlink) {
    good = good && (inode.is_inline() || sums.content_end == 1);
  } else if (file.type != fs::mode_regular) {
    good = size == 0 && inode.height == 0 && sums.content_end == 0 && sums.content == 0;
  }
  return good;
}

// Leader: stores the fields of the inode that other phases and the caller need.
GPU4FS_FN inline void enter_inode(const CheckTask& task, const CheckedInode& file, const CheckSums& sums) {
  CheckTables& tables = task.engine.check;
  GPU4FS_CHECK_LT(file.number, tables.inode_count);
  const format::Inode& inode = *file.inode;
  wire::CheckInode& entry = tables.inodes[file.number];
  entry = wire::CheckInode{};
  entry.size_bytes = inode.size_bytes;
  entry.link_count = inode.link_count;
  entry.mode = inode.mode;
  if (file.type != fs::mode_directory) return;
  entry.parent = inode.parent_or_device;
  const u64 count = minimum(inode.size_bytes / page_size, sums.content_end);
  entry.directory_pages = static_cast<u32>(minimum(sums.content, u64{0xffffffff}));
  if (count != 0 && sums.content >= count / 2) entry.flags |= wire::check_inode_readable;
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void check_inode(Group g, const CheckTask& task, const CheckedInode& file) {
  CheckSums sums{};
  const format::Inode& inode = *file.inode;
  const bool is_file = !is_hidden_inode(file.number);  // the caller checks the pool's own files itself
  if (!is_file) {
    if (g.leader() && !task.finds_owners) enter_inode(task, file, sums);
    return;
  }
  if (!inode.is_inline() && inode.height <= fs::map_height_max) walk_map(g, task, file, sums);
  check_attributes(g, task, file, sums);
  if (task.finds_owners) return;
  const CheckSums all = g.reduce(sums, [](const CheckSums& a, const CheckSums& b) { return add_sums(a, b); });
  if (!g.leader()) return;
  add<Scope::engine>(&task.sink.counts->reached, all.reached);
  if (!fields_are_sound(file)) emit_record(task.sink, make_record(CheckKind::fields, file.number));
  if (all.pages != inode.page_count || !size_fits_content(file, all)) {
    emit_record(task.sink, make_record(CheckKind::summary, file.number, all.content, all.pages, all.content_end));
  }
  enter_inode(task, file, all);
}

// Leader: a free inode, or a number that no file may have.
GPU4FS_FN inline void check_unused_inode(const CheckTask& task, u64 number, const format::Inode& inode) {
  if (task.finds_owners) return;
  format::Inode rest = inode;
  const bool is_reserved = is_hidden_inode(number);
  if (!is_reserved) {
    rest.version = 0;
    rest.generation = 0;
  }
  const bool odd = !is_reserved && (inode.version > 1 || (inode.version == 0 && inode.generation != 0));
  if (odd || !is_zero_bytes(&rest, sizeof(rest))) emit_record(task.sink, make_record(CheckKind::fields, number));
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void check_inode_page(Group g, const CheckTask& task, const wire::CheckInodePage& page) {
  const u64 first = page.index * format::inodes_per_page;
  GPU4FS_CHECK_LE(first + format::inodes_per_page, task.engine.check.inode_count);
  u8* const bytes = task.buffer.pages[check_inode_buffer];
  const auto record = make_record(CheckKind::inode_page, format::inode_number_inode_file, page.address, page.index);
  if (!read_checked(g, task, record, page.address, bytes)) return;
  const auto* inodes = reinterpret_cast<const format::Inode*>(bytes);
  for (u32 i = 0; i < format::inodes_per_page; ++i) {
    const u64 number = first + i;
    const bool is_unused = number == format::inode_number_inode_file ||
                           (is_hidden_inode(number) && number > format::inode_number_orphan_bitmap) ||
                           inodes[i].mode == 0;
    if (is_unused) {
      if (g.leader()) check_unused_inode(task, number, inodes[i]);
      continue;
    }
    const u32 type = inodes[i].mode & fs::mode_type_mask;
    check_inode(g, task, CheckedInode{number, &inodes[i], type, type == fs::mode_directory});
  }
}

}  // namespace detail
}  // namespace gpu4fs::engine
