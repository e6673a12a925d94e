// A new value of an extended attribute: its place and its commit.
//
// The entry stays in its page if it fits, otherwise it goes into the first page with room. A large value takes the
// place of the old one, otherwise the first free slot.
#pragma once

#include "base/copy.hpp"
#include "fs/names/attributes.hpp"

namespace gpu4fs::fs {

// An attribute that will be set.
struct NewAttribute {
  AttributeName name;
  u32 value_length;
  u32 mask;         // 0, attribute_create or attribute_replace
  u8* work;         // prepare: a page of the command's memory, overwritten if the value gets pages of its own
  const u8* value;  // commit: engine memory, or that of the session if the value gets pages of its own
};

namespace detail {

inline constexpr u32 slot_map_bytes = format::attribute_slot_end / 8;
static_assert(slot_map_bytes <= page_size);

// The result of a walk over all pages of entries.
struct AttributeScan {
  FoundAttribute old;
  u32 old_room;   // free bytes of its page without it
  u32 room_page;  // the first other page with room for the new entry; entry_pages: none
  u32 room_frame;
  u32 absent_page;   // the first that does not exist
  u32 names_length;  // of all names, with terminators
  u32 reserved;
};

// The target of the walk.
struct AttributeSearch {
  const AttributeName& name;
  u32 entry_size;  // of the new entry
  u64* slots;      // one bit for each slot of large values, or nullptr
};

// Leader: takes one page into account.
GPU4FS_FN GPU4FS_NOINLINE inline void scan_attribute_page(FileSystem& fs, u32 frame, u32 index, AttributeSearch search,
                                                          AttributeScan* scan) {
  const u8* page = page_data(fs, frame);
  const u32 end = attribute_header(page).used_bytes;
  for (u32 offset = attributes_begin; offset < end; offset += attribute_size_at(page, offset)) {
    const format::AttributeEntry& entry = attribute_entry(page, offset);
    scan->names_length += u32{entry.name_length} + 1;
    if (search.slots != nullptr) search.slots[entry.value_slot / 64] |= u64{1} << (entry.value_slot % 64);
  }
  if (scan->absent_page == index) scan->absent_page = index + 1;
  const u32 room = static_cast<u32>(page_size) - end;
  const FoundAttribute found =
      scan->old.entry_offset != 0 ? FoundAttribute::none() : look_for_attribute(fs, frame, index, search.name);
  if (found.entry_offset != 0) {
    scan->old = found;
    scan->old_room = room + attribute_size_at(page, found.entry_offset);
  } else if (room >= search.entry_size && scan->room_page == format::attribute_entry_pages) {
    scan->room_page = index;
    scan->room_frame = frame;
  }
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status scan_attributes(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                                 AttributeSearch search, AttributeScan* scan) {
  *scan = {FoundAttribute::none(), 0, format::attribute_entry_pages, no_frame, 0, 0, 0};
  for (u32 page = 0;; ++page) {
    u32 frame = no_frame;
    GPU4FS_TRY(next_attribute_page(g, fs, op, file, &page, &frame));
    if (frame == no_frame) return Status::ok;
    const AttributeScan before = *scan;
    *scan = on_leader(g, [&] {
      AttributeScan after = before;
      scan_attribute_page(fs, frame, page, search, &after);
      return after;
    });
  }
}

// Leader: the first free slot, or 0.
GPU4FS_FN inline u32 free_value_slot(const u64* slots) {
  for (u32 slot = format::attribute_slot_first; slot < format::attribute_slot_end; ++slot) {
    if ((slots[slot / 64] >> (slot % 64) & 1) == 0) return slot;
  }
  return 0;
}

// Counts the pages of a large value in its slot. Existing pages are overwritten, also those that damage has left there.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status prepare_value_pages(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                                     u32 value_length, AttributePlan* plan) {
  const u64 first = first_value_page(plan->value_slot);
  u32 frame = no_frame;
  const Status above = get_page(g, fs, op, file, {attribute_level + 1, first >> format::slot_shift}, &frame);
  if (above != Status::page_absent) GPU4FS_TRY(above);
  for (u32 i = 0; i < value_pages(value_length); ++i) {
    const Status status = get_page(g, fs, op, file, {attribute_level, first + i}, &frame);
    if (status == Status::page_absent) {
      ++plan->new_pages;
    } else {
      GPU4FS_TRY(status);
      ++plan->touched_pages;
    }
  }
  return Status::ok;
}

}  // namespace detail

// Prepare. Status: exists, no_attribute, no_space.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status attribute_prepare_set(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                                       const NewAttribute& wanted, AttributePlan* plan) {
  const AttributeName& name = wanted.name;
  const u32 value_length = wanted.value_length;
  *plan = {FoundAttribute::none(), 0, no_frame, 0, 0, 0};
  GPU4FS_CHECK_LE(value_length, format::attribute_value_max);
  const bool is_great = detail::has_own_pages(name, value_length);
  const u32 size = detail::attribute_size(name.length, is_great ? 0 : value_length);
  u64* const slots = is_great ? reinterpret_cast<u64*>(wanted.work) : nullptr;
  if (is_great) {
    for (u32 i = g.rank(); i < detail::slot_map_bytes / 8; i += Group::size()) slots[i] = 0;
    g.sync();
  }
  detail::AttributeScan scan{};
  GPU4FS_TRY(detail::scan_attributes(g, fs, op, file, {name, size, slots}, &scan));
  const FoundAttribute old = plan->old = scan.old;
  const bool is_there = old.entry_offset != 0;
  if (is_there && (wanted.mask & attribute_create) != 0) return Status::exists;
  if (!is_there && (wanted.mask & attribute_replace) != 0) return Status::no_attribute;
  if (!is_there && scan.names_length + name.length + 1 > format::attribute_names_max) return Status::no_space;
  if (is_there && scan.old_room >= size) {
    plan->page = old.page;
    plan->frame = old.frame;
  } else if (scan.room_page < format::attribute_entry_pages) {
    plan->page = scan.room_page;
    plan->frame = scan.room_frame;
  } else if (scan.absent_page < format::attribute_entry_pages && detail::attributes_begin + size <= page_size) {
    plan->page = scan.absent_page;
    plan->new_pages = 1;
  } else {
    return Status::no_space;
  }
  // The page of the entry, and that of the old entry with the map pages over its value.
  plan->touched_pages = (plan->frame != no_frame ? 1 : 0) + (is_there ? attribute_removal_pages : 0);
  if (is_there) GPU4FS_TRY(attribute_prepare_remove(g, fs, op, file, old));
  if (!is_great) return Status::ok;
  plan->value_slot =
      old.value_slot != 0 ? old.value_slot : on_leader(g, [&] { return detail::free_value_slot(slots); });
  if (plan->value_slot == 0) return Status::no_space;
  return detail::prepare_value_pages(g, fs, op, file, value_length, plan);
}

namespace detail {

// Gate: writes the pages of a large value. Returns its hash.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 write_value_pages(Group g, FileSystem& fs, Operation& op, const InodeRef& file, u32 slot,
                                                const NewAttribute& attribute) {
  u64 hash = 0;
  for (u32 i = 0; i < value_pages(attribute.value_length); ++i) {
    const u64 page = first_value_page(slot) + i;
    u32 frame = on_leader(g, [&] { return resident_frame(fs, file.number, attribute_level, page); });
    if (frame == no_frame) frame = add_page(g, fs, op, file, {attribute_level, page});
    u8* const to = page_data(fs, frame);
    const u64 length = minimum<u64>(page_size, attribute.value_length - u64{i} * page_size);
    g.sync();
    copy_bytes(g, to, attribute.value + u64{i} * page_size, length);
    for (u64 at = length + g.rank(); at < page_size; at += Group::size()) to[at] = 0;
    g.sync();
    hash = xxh3_page(g, to, hash);
    mark_dirty(g, fs, op, file, frame);
  }
  return hash;
}

}  // namespace detail

// Gate: sets the value's hash after a change of its bytes in the page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void attribute_rehash(Group g, FileSystem& fs, const FoundAttribute& place) {
  GPU4FS_CHECK_EQ(place.value_slot, 0u);
  on_leader(g, [&] {
    u8* page = page_data(fs, place.frame);
    auto& entry = *reinterpret_cast<format::AttributeEntry*>(page + place.entry_offset);
    entry.value_hash = static_cast<u32>(xxh3_64(page + place.value_offset, place.value_length, 0));
  });
}

// Gate. Returns the place of the entry; the caller may still change a value there if it then calls attribute_rehash.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE FoundAttribute attribute_commit_set(Group g, FileSystem& fs, Operation& op,
                                                              const InodeRef& file, const AttributePlan& plan,
                                                              const NewAttribute& attribute) {
  const AttributeName& name = attribute.name;
  const u32 value_length = attribute.value_length;
  const FoundAttribute& old = plan.old;
  const bool moves = old.entry_offset != 0 && old.frame != plan.frame;
  if (old.entry_offset != 0) {
    // A large value that replaces another one overwrites its first pages.
    const u32 kept = plan.value_slot != 0 && plan.value_slot == old.value_slot ? detail::value_pages(value_length) : 0;
    detail::take_attribute_out(g, fs, op, file, old, kept);
  }
  u32 frame = plan.frame;
  if (frame == no_frame) {
    frame = add_page(g, fs, op, file, {attribute_level, plan.page});
    on_leader(g, [&] {
      detail::attribute_header(page_data(fs, frame)) = {format::attribute_page_magic,
                                                        format::attribute_page_version,
                                                        0,
                                                        static_cast<u16>(detail::attributes_begin),
                                                        {}};
    });
  }
  u8* const page = page_data(fs, frame);
  const u32 offset = on_leader(g, [&] { return detail::append_attribute(page, name, value_length, plan.value_slot); });
  const u32 value_offset = offset + static_cast<u32>(sizeof(format::AttributeEntry)) + name.length;
  const FoundAttribute place{frame, plan.page, offset, value_offset, value_length, plan.value_slot};
  if (plan.value_slot == 0) {
    copy_bytes(g, page + value_offset, attribute.value, value_length);
    g.sync();
    attribute_rehash(g, fs, place);
  } else {
    const u64 hash = detail::write_value_pages(g, fs, op, file, plan.value_slot, attribute);
    on_leader(g,
              [&] { reinterpret_cast<format::AttributeEntry*>(page + offset)->value_hash = static_cast<u32>(hash); });
  }
  mark_dirty(g, fs, op, file, frame);
  // After the new value is in place, so the tree does not become lower in between.
  if (old.value_slot != 0) detail::prune_attributes(g, fs, op, file, detail::first_value_page(old.value_slot));
  if (moves) detail::settle_attribute_page(g, fs, op, file, old.frame, old.page);
  mark_inode_dirty(g, fs, op, file);
  return place;
}

}  // namespace gpu4fs::fs
