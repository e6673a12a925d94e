// Extended attributes: one page an inode (format/directory_format.hpp), entries packed in no order.
//
// Names are stored whole ("user.x"). What does not fit into the page does not fit (no_space), as in
// ext4 without large attributes. Reading requires the inode's lock shared, changing exclusive and,
// for commit functions, the gate. The page is not trusted: every walk checks it; a damaged one is
// corrupt_structure.
#pragma once

#include "base/xxh3_serial.hpp"
#include "format/directory_format.hpp"
#include "fs/names/access_list.hpp"
#include "fs/pages/change.hpp"

namespace gpu4fs::fs {

inline constexpr u16 attribute_page_version = 1;
inline constexpr u32 attribute_value_max = static_cast<u32>(
    page_size - sizeof(format::AttributePageHeader) - sizeof(format::AttributeEntry) - 1);
inline constexpr u32 attribute_create = 1;   // XATTR_CREATE: the name must be new
inline constexpr u32 attribute_replace = 2;  // XATTR_REPLACE: the name must exist

struct AttributeName {
  const u8* bytes;
  u32 length;  // 1..255
  u32 reserved;
};

GPU4FS_FN inline AttributeName acl_access_name() {
  return {reinterpret_cast<const u8*>("system.posix_acl_access"), 23, 0};
}
GPU4FS_FN inline AttributeName acl_default_name() {
  return {reinterpret_cast<const u8*>("system.posix_acl_default"), 24, 0};
}

// Where a value lies in the attribute page; `entry_offset` 0: nowhere.
struct FoundAttribute {
  u32 frame;  // no_frame: the inode has no attribute page
  u32 entry_offset;
  u32 value_offset;
  u32 value_length;
};

struct AttributePlan {
  FoundAttribute old;
  u32 touched_pages;
  u32 new_pages;
};

namespace detail {

GPU4FS_FN inline const format::AttributePageHeader& attribute_header(const u8* page) {
  return *reinterpret_cast<const format::AttributePageHeader*>(page);
}
GPU4FS_FN inline format::AttributePageHeader& attribute_header(u8* page) {
  return *reinterpret_cast<format::AttributePageHeader*>(page);
}
GPU4FS_FN inline const format::AttributeEntry& attribute_entry(const u8* page, u32 offset) {
  return *reinterpret_cast<const format::AttributeEntry*>(page + offset);
}
GPU4FS_FN constexpr u32 attribute_size(u32 name_length, u32 value_length) {
  return static_cast<u32>(align_up(sizeof(format::AttributeEntry) + name_length + value_length, 8));
}
GPU4FS_FN inline u32 attribute_size_at(const u8* page, u32 offset) {
  const format::AttributeEntry& entry = attribute_entry(page, offset);
  return attribute_size(entry.name_length, entry.value_length);
}

inline constexpr u32 attributes_begin = sizeof(format::AttributePageHeader);

// One rank: header and all entries lie inside the page and add up.
GPU4FS_FN inline bool attribute_page_is_sound(const u8* page) {
  const format::AttributePageHeader& header = attribute_header(page);
  if (header.magic != format::attribute_page_magic || header.version != attribute_page_version)
    return false;
  if (header.used_bytes > page_size || header.used_bytes % 8 != 0) return false;
  u32 count = 0;
  u32 offset = attributes_begin;
  while (offset < header.used_bytes) {
    const format::AttributeEntry& entry = attribute_entry(page, offset);
    if (entry.name_length == 0 || entry.reserved != 0) return false;
    offset += attribute_size(entry.name_length, entry.value_length);
    ++count;
  }
  return offset == header.used_bytes && count == header.entry_count;
}

GPU4FS_FN inline bool names_equal(const u8* a, const u8* b, u32 length) {
  for (u32 i = 0; i < length; ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

GPU4FS_FN inline bool is_access_list(const AttributeName& name) {
  const AttributeName lists[] = {acl_access_name(), acl_default_name()};
  for (const AttributeName& list : lists) {
    if (name.length == list.length && names_equal(name.bytes, list.bytes, list.length)) return true;
  }
  return false;
}

// One rank, on a sound page: the entry's offset or 0.
GPU4FS_FN inline u32 find_attribute(const u8* page, const AttributeName& name) {
  const u32 end = attribute_header(page).used_bytes;
  for (u32 offset = attributes_begin; offset < end; offset += attribute_size_at(page, offset)) {
    if (attribute_entry(page, offset).name_length != name.length) continue;
    if (names_equal(page + offset + sizeof(format::AttributeEntry), name.bytes, name.length))
      return offset;
  }
  return 0;
}

// One rank: takes an entry out and closes the gap.
GPU4FS_FN inline void erase_attribute(u8* page, u32 offset) {
  format::AttributePageHeader& header = attribute_header(page);
  const u32 size = attribute_size_at(page, offset);
  GPU4FS_CHECK_LE(offset + size, u32{header.used_bytes});
  u64* words = reinterpret_cast<u64*>(page);
  const u32 end = header.used_bytes - size;
  for (u32 at = offset; at < end; at += 8) words[at / 8] = words[(at + size) / 8];
  for (u32 at = end; at < header.used_bytes; at += 8) words[at / 8] = 0;
  header.used_bytes = static_cast<u16>(end);
  header.entry_count = static_cast<u16>(header.entry_count - 1);
}

}  // namespace detail

// The attribute page's frame, checked; no_frame where there is none.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status attributes_get_page(Group g, FileSystem& fs, Operation& op,
                                                     const InodeRef& file, u32* frame) {
  *frame = no_frame;
  if (load_slot(&file.inode->attributes).is_hole()) return Status::ok;
  const Status status = get_page(g, fs, op, file, attribute_level, 0, frame);
  if (status == Status::page_absent) return Status::corrupt_structure;
  GPU4FS_TRY(status);
  const u32 found = *frame;
  const bool sound =
      serial(g, [&] { return detail::attribute_page_is_sound(page_data(fs, found)); });
  return sound ? Status::ok : Status::corrupt_structure;
}

// Status: no_attribute (found->frame is set all the same), or as attributes_get_page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status attribute_find(Group g, FileSystem& fs, Operation& op,
                                                const InodeRef& file, const AttributeName& name,
                                                FoundAttribute* found) {
  GPU4FS_CHECK(name.length >= 1 && name.length <= name_length_max);
  *found = {no_frame, 0, 0, 0};
  u32 frame = no_frame;
  GPU4FS_TRY(attributes_get_page(g, fs, op, file, &frame));
  if (frame == no_frame) return Status::no_attribute;
  *found = serial(g, [&] {
    const u8* page = page_data(fs, frame);
    const u32 offset = detail::find_attribute(page, name);
    if (offset == 0) return FoundAttribute{frame, 0, 0, 0};
    const u32 value_offset =
        offset + static_cast<u32>(sizeof(format::AttributeEntry)) + name.length;
    return FoundAttribute{frame, offset, value_offset,
                          detail::attribute_entry(page, offset).value_length};
  });
  return found->entry_offset == 0 ? Status::no_attribute : Status::ok;
}

// Bytes of all names, each with a terminator. `destination` may be nullptr (size only);
// `hide_trusted` leaves out the names that only the superuser sees. Status: attribute_range when
// they exceed `capacity`.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status attributes_list(Group g, FileSystem& fs, Operation& op,
                                                 const InodeRef& file, bool hide_trusted,
                                                 u8* destination, u64 capacity, u64* length) {
  *length = 0;
  u32 frame = no_frame;
  GPU4FS_TRY(attributes_get_page(g, fs, op, file, &frame));
  if (frame == no_frame) return Status::ok;
  *length = serial(g, [&] {
    constexpr u8 trusted[] = {'t', 'r', 'u', 's', 't', 'e', 'd', '.'};
    const u8* page = page_data(fs, frame);
    const u32 end = detail::attribute_header(page).used_bytes;
    u64 total = 0;
    for (u32 offset = detail::attributes_begin; offset < end;
         offset += detail::attribute_size_at(page, offset)) {
      const u32 name_length = detail::attribute_entry(page, offset).name_length;
      const u8* name = page + offset + sizeof(format::AttributeEntry);
      const bool is_trusted =
          name_length > sizeof(trusted) && detail::names_equal(name, trusted, sizeof(trusted));
      if (hide_trusted && is_trusted) continue;
      if (destination != nullptr && total + name_length + 1 <= capacity) {
        for (u32 i = 0; i < name_length; ++i) destination[total + i] = name[i];
        destination[total + name_length] = 0;
      }
      total += name_length + 1;
    }
    return total;
  });
  return destination != nullptr && *length > capacity ? Status::attribute_range : Status::ok;
}

// Prepare: `mask` is 0, attribute_create or attribute_replace. Status: exists, no_attribute,
// no_space.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status attribute_prepare_set(Group g, FileSystem& fs, Operation& op,
                                                       const InodeRef& file,
                                                       const AttributeName& name, u32 value_length,
                                                       u32 mask, AttributePlan* plan) {
  *plan = {};
  const Status status = attribute_find(g, fs, op, file, name, &plan->old);
  if (status != Status::ok && status != Status::no_attribute) return status;
  if (status == Status::ok && (mask & attribute_create) != 0) return Status::exists;
  if (status == Status::no_attribute && (mask & attribute_replace) != 0)
    return Status::no_attribute;
  if (value_length > attribute_value_max) return Status::no_space;
  u32 used = detail::attributes_begin;
  if (plan->old.frame == no_frame) {
    plan->new_pages = 1;
  } else {
    const u8* page = page_data(fs, plan->old.frame);
    plan->touched_pages = 1;
    used = detail::attribute_header(page).used_bytes;
    if (plan->old.entry_offset != 0)
      used -= detail::attribute_size_at(page, plan->old.entry_offset);
  }
  return used + detail::attribute_size(name.length, value_length) <= page_size ? Status::ok
                                                                               : Status::no_space;
}

// Gate: the value's hash after a change of its bytes.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void attribute_rehash(Group g, FileSystem& fs,
                                                const FoundAttribute& place) {
  serial(g, [&] {
    u8* page = page_data(fs, place.frame);
    auto& entry = *reinterpret_cast<format::AttributeEntry*>(page + place.entry_offset);
    entry.value_hash = static_cast<u32>(xxh3_64(page + place.value_offset, place.value_length, 0));
  });
}

// Gate: `value` is engine memory. Gives the value's place in the page, where the caller may still
// change it if it then calls attribute_rehash.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE FoundAttribute attribute_commit_set(Group g, FileSystem& fs,
                                                              Operation& op, const InodeRef& file,
                                                              const AttributePlan& plan,
                                                              const AttributeName& name,
                                                              const u8* value, u32 value_length) {
  u32 frame = plan.old.frame;
  if (frame == no_frame) {
    frame = add_page(g, fs, op, file, attribute_level, 0);
    serial(g, [&] {
      detail::attribute_header(page_data(fs, frame)) = {format::attribute_page_magic,
                                                        attribute_page_version,
                                                        0,
                                                        static_cast<u16>(detail::attributes_begin),
                                                        {}};
    });
  }
  u8* page = page_data(fs, frame);
  const FoundAttribute place = serial(g, [&] {
    if (plan.old.entry_offset != 0) detail::erase_attribute(page, plan.old.entry_offset);
    format::AttributePageHeader& header = detail::attribute_header(page);
    const u32 offset = header.used_bytes;
    const u32 size = detail::attribute_size(name.length, value_length);
    GPU4FS_CHECK_LE(offset + size, u32{page_size});
    auto& entry = *reinterpret_cast<format::AttributeEntry*>(page + offset);
    entry = {static_cast<u16>(value_length), static_cast<u8>(name.length), 0, 0};
    u8* bytes = page + offset + sizeof(format::AttributeEntry);
    for (u32 i = 0; i < name.length; ++i) bytes[i] = name.bytes[i];
    header.used_bytes = static_cast<u16>(offset + size);
    header.entry_count = static_cast<u16>(header.entry_count + 1);
    return FoundAttribute{frame, offset,
                          offset + static_cast<u32>(sizeof(format::AttributeEntry)) + name.length,
                          value_length};
  });
  copy_bytes(g, page + place.value_offset, value, value_length);
  g.sync();
  attribute_rehash(g, fs, place);
  mark_dirty(g, fs, op, file, frame);
  mark_inode_dirty(g, fs, op, file);
  return place;
}

// Gate: takes out what attribute_find found in this step; the page goes with its last attribute.
// One page changes.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void attribute_commit_remove(Group g, FileSystem& fs, Operation& op,
                                                       const InodeRef& file,
                                                       const FoundAttribute& found) {
  GPU4FS_CHECK_NE(found.entry_offset, 0u);
  const u32 left = serial(g, [&] {
    u8* page = page_data(fs, found.frame);
    detail::erase_attribute(page, found.entry_offset);
    return u32{detail::attribute_header(page).entry_count};
  });
  if (left == 0) {
    remove_page(g, fs, op, file, attribute_level, 0);
  } else {
    mark_dirty(g, fs, op, file, found.frame);
  }
  mark_inode_dirty(g, fs, op, file);
}

// One attribute page, looked at alone (by fsck): layout, unique names, hashes of values, access lists.
GPU4FS_FN GPU4FS_NOINLINE inline Status attribute_check_page(const u8* page) {
  if (!detail::attribute_page_is_sound(page)) return Status::corrupt_structure;
  for (const u16 reserved : detail::attribute_header(page).reserved) {
    if (reserved != 0) return Status::corrupt_structure;
  }
  const u32 end = detail::attribute_header(page).used_bytes;
  for (u32 offset = detail::attributes_begin; offset < end;
       offset += detail::attribute_size_at(page, offset)) {
    const format::AttributeEntry& entry = detail::attribute_entry(page, offset);
    const u8* name = page + offset + sizeof(format::AttributeEntry);
    const AttributeName whole{name, entry.name_length, 0};
    if (detail::find_attribute(page, whole) != offset) return Status::corrupt_structure;
    for (u32 i = 0; i < entry.name_length; ++i) {
      if (name[i] == 0) return Status::corrupt_structure;
    }
    if (detail::is_access_list(whole) && !acl_is_valid(name + entry.name_length, entry.value_length)) {
      return Status::corrupt_structure;
    }
    if (static_cast<u32>(xxh3_64(name + entry.name_length, entry.value_length, 0)) !=
        entry.value_hash) {
      return Status::corrupt_structure;
    }
  }
  return Status::ok;
}

}  // namespace gpu4fs::fs
