// Extended attributes of an inode: a tree of pages (format/attribute_format.hpp).
//
// Names are stored completely ("user.x"). Most inodes have one page of entries. If more are needed, there is a map page
// above it, with up to 64 pages of entries, which a search reads one after the other, and after them the pages of large
// values, sixteen for each. Reads require the inode's lock shared, changes require it exclusively and, for commit
// functions, the gate. Pages are not trusted: every walk checks them; a damaged one is corrupt_structure.
#pragma once

#include "fs/map/map_walk.hpp"
#include "fs/names/attribute_page.hpp"
#include "fs/pages/change.hpp"

namespace gpu4fs::fs {

inline constexpr u32 attribute_create = 1;   // XATTR_CREATE: the name must be new
inline constexpr u32 attribute_replace = 2;  // XATTR_REPLACE: the name must exist

// An entry in a page that stays in place in this step; `entry_offset` 0: there is none.
struct FoundAttribute {
  u32 frame;
  u32 page;  // of the tree
  u32 entry_offset;
  u32 value_offset;  // in the page, if value_slot is 0
  u32 value_length;
  u32 value_slot;

  GPU4FS_FN static constexpr FoundAttribute none() { return {no_frame, 0, 0, 0, 0, 0}; }
};

// Metadata pages that change when an attribute is removed: the page of its entry and, with pages of its own, two map
// pages.
inline constexpr u32 attribute_removal_pages = 3;

// The changes for a new value.
struct AttributePlan {
  FoundAttribute old;
  u32 page;        // of the tree; it gets the entry
  u32 frame;       // that of the page; no_frame: it is a new page
  u32 value_slot;  // 0: the value is in the entry
  u32 touched_pages;
  u32 new_pages;
};

namespace detail {

// Leader: the entry of `name` in a valid page.
GPU4FS_FN inline FoundAttribute look_for_attribute(FileSystem& fs, u32 frame, u32 page_index,
                                                   const AttributeName& name) {
  const u8* page = page_data(fs, frame);
  const u32 offset = find_attribute(page, name);
  if (offset == 0) return FoundAttribute::none();
  const format::AttributeEntry& entry = attribute_entry(page, offset);
  const u32 value_offset = offset + static_cast<u32>(sizeof(format::AttributeEntry)) + name.length;
  return {frame, page_index, offset, value_offset, entry.value_length, entry.value_slot};
}

// Leader: the first slot from `first` on that is not a hole.
GPU4FS_FN inline u32 next_valid_slot(const format::BlockPointer* slots, u32 first, u32 end) {
  while (first < end && load_slot(&slots[first]).raw == 0) ++first;
  return first;
}

GPU4FS_FN constexpr u64 first_value_page(u32 slot) {
  return u64{slot} * format::attribute_slot_pages;
}
GPU4FS_FN constexpr u32 value_pages(u32 length) {
  return static_cast<u32>(divide_up(u64{length}, page_size));
}

}  // namespace detail

// The first page of entries from *page on, checked; *frame no_frame: there is none.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status next_attribute_page(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                                     u32* page, u32* frame) {
  *frame = no_frame;
  if (load_slot(&file.inode->attributes).is_hole() || *page >= format::attribute_entry_pages) return Status::ok;
  const u32 height = file.inode->attribute_height;
  if (height == 0 && *page != 0) return Status::ok;
  if (height != 0) {
    u32 block = no_frame;
    const Status status = get_page(g, fs, op, file, {attribute_level + 1, 0}, &block);
    // The inode is being freed and still has values.
    if (status == Status::page_absent) return Status::ok;
    GPU4FS_TRY(status);
    const u32 first = *page;
    *page = on_leader(
        g, [&] { return detail::next_valid_slot(map_slots(fs, block), first, format::attribute_entry_pages); });
    if (*page == format::attribute_entry_pages) return Status::ok;
  }
  const Status status = get_page(g, fs, op, file, {attribute_level, *page}, frame);
  if (status == Status::page_absent) return Status::corrupt_structure;
  GPU4FS_TRY(status);
  const u32 found = *frame;
  const bool sound = on_leader(g, [&] { return detail::attribute_page_is_sound(page_data(fs, found)); });
  return sound ? Status::ok : Status::corrupt_structure;
}

// Status: no_attribute, or as next_attribute_page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status attribute_find(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                                const AttributeName& name, FoundAttribute* found) {
  GPU4FS_CHECK(name.length >= 1 && name.length <= name_length_max);
  *found = FoundAttribute::none();
  for (u32 page = 0;; ++page) {
    u32 frame = no_frame;
    GPU4FS_TRY(next_attribute_page(g, fs, op, file, &page, &frame));
    if (frame == no_frame) return Status::no_attribute;
    *found = on_leader(g, [&] { return detail::look_for_attribute(fs, frame, page, name); });
    if (found->entry_offset != 0) return Status::ok;
  }
}

// Copies the value of a found attribute to `destination`, which has room for it. Status: as get_page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status attribute_read(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                                const FoundAttribute& found, u8* destination) {
  if (found.value_slot == 0) {
    copy_bytes(g, destination, page_data(fs, found.frame) + found.value_offset, found.value_length);
    g.sync();
    return Status::ok;
  }
  for (u32 done = 0; done < found.value_length; done += page_size) {
    u32 frame = no_frame;
    const u64 page = detail::first_value_page(found.value_slot) + done / page_size;
    const Status status = get_page(g, fs, op, file, {attribute_level, page}, &frame);
    if (status == Status::page_absent) return Status::corrupt_structure;
    GPU4FS_TRY(status);
    copy_bytes(g, destination + done, page_data(fs, frame), minimum<u64>(found.value_length - done, page_size));
  }
  g.sync();
  return Status::ok;
}

// The names of a file's attributes, each with a terminator.
struct NameList {
  u8* bytes;  // nullptr: only the length is requested
  u64 capacity;
  u64 length;
  bool hides_trusted;  // leaves out the names that only the superuser sees
};

namespace detail {

// Leader: appends the page's names to the list as far as they fit. Returns the new length.
GPU4FS_FN GPU4FS_NOINLINE inline u64 list_page(const u8* page, const NameList& list) {
  u8* const destination = list.bytes;
  u64 total = list.length;
  constexpr u8 trusted[] = {'t', 'r', 'u', 's', 't', 'e', 'd', '.'};
  const u32 end = attribute_header(page).used_bytes;
  for (u32 offset = attributes_begin; offset < end; offset += attribute_size_at(page, offset)) {
    const u32 name_length = attribute_entry(page, offset).name_length;
    const u8* name = attribute_name_at(page, offset);
    const bool is_trusted = name_length > sizeof(trusted) && names_equal(name, trusted, sizeof(trusted));
    if (list.hides_trusted && is_trusted) continue;
    if (destination != nullptr && total + name_length + 1 <= list.capacity) {
      for (u32 i = 0; i < name_length; ++i) destination[total + i] = name[i];
      destination[total + name_length] = 0;
    }
    total += name_length + 1;
  }
  return total;
}

}  // namespace detail

// Status: attribute_range if the names exceed the list's capacity.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status attributes_list(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                                 NameList* list) {
  list->length = 0;
  for (u32 page = 0;; ++page) {
    u32 frame = no_frame;
    GPU4FS_TRY(next_attribute_page(g, fs, op, file, &page, &frame));
    if (frame == no_frame) break;
    const NameList before = *list;
    list->length = on_leader(g, [&] { return detail::list_page(page_data(fs, frame), before); });
  }
  return list->bytes != nullptr && list->length > list->capacity ? Status::attribute_range : Status::ok;
}

// Prepare, for an attribute that will be removed: loads the pages that attribute_commit_remove needs. Up to
// attribute_removal_pages change.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status attribute_prepare_remove(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                                          const FoundAttribute& found) {
  if (found.value_slot == 0) return Status::ok;
  u32 frame = no_frame;
  const u64 block = detail::first_value_page(found.value_slot) >> format::slot_shift;
  const Status status = get_page(g, fs, op, file, {attribute_level + 1, block}, &frame);
  return status == Status::page_absent ? Status::ok : status;
}

namespace detail {

// Gate: removes map pages over page `page` of the tree that have become empty.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void prune_attributes(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                                u64 page) {
  const u32 height = file.inode->attribute_height;
  for (u32 level = attribute_level + 1; level <= attribute_level + height; ++level) {
    page >>= format::slot_shift;
    const u32 frame = on_leader(g, [&] { return resident_frame(fs, file.number, level, page); });
    if (frame == no_frame || !all_holes(g, map_slots(fs, frame), format::slots_per_block)) return;
    remove_page(g, fs, op, file, {level, page});
  }
  g.sync();
  if (load_slot(&file.inode->attributes).is_hole()) on_leader(g, [&] { file.inode->attribute_height = 0; });
}

// Gate: removes an entry and the pages of its value from `first_page` on. The page of entries stays.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void take_attribute_out(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                                  const FoundAttribute& found, u32 first_page) {
  if (found.value_slot != 0) {
    const u32 count = value_pages(found.value_length);
    const u64 begin = first_value_page(found.value_slot);
    if (first_page < count) drop_pages(g, fs, op, file, {attribute_level, begin + first_page}, count - first_page);
  }
  on_leader(g, [&] { erase_attribute(page_data(fs, found.frame), found.entry_offset); });
}

// Gate: removes a page of entries that has become empty; otherwise marks it as changed.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void settle_attribute_page(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                                     u32 frame, u32 page) {
  const u32 left = on_leader(g, [&] { return u32{attribute_header(page_data(fs, frame)).entry_count}; });
  if (left != 0) return mark_dirty(g, fs, op, file, frame);
  remove_page(g, fs, op, file, {attribute_level, page});
  prune_attributes(g, fs, op, file, page);
}

}  // namespace detail

// Gate: removes the attribute that attribute_find found in this step and attribute_prepare_remove has prepared. Pages
// are removed with their last attribute.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void attribute_commit_remove(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                                       const FoundAttribute& found) {
  GPU4FS_CHECK_NE(found.entry_offset, 0u);
  detail::take_attribute_out(g, fs, op, file, found, 0);
  if (found.value_slot != 0) detail::prune_attributes(g, fs, op, file, detail::first_value_page(found.value_slot));
  detail::settle_attribute_page(g, fs, op, file, found.frame, found.page);
  mark_inode_dirty(g, fs, op, file);
}

}  // namespace gpu4fs::fs
