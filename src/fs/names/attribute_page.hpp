// One page of entries of extended attributes (format/attribute_format.hpp). One rank, unless stated otherwise. The page
// is not trusted: every walk requires that attribute_page_is_sound() has accepted the page.
#pragma once

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/status.hpp"
#include "base/xxh3_serial.hpp"
#include "format/attribute_format.hpp"
#include "fs/names/access_list.hpp"

namespace gpu4fs::fs {

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
GPU4FS_FN inline const u8* attribute_name_at(const u8* page, u32 offset) {
  return page + offset + sizeof(format::AttributeEntry);
}
// `value_bytes`: the bytes of the value that are in the entry.
GPU4FS_FN constexpr u32 attribute_size(u32 name_length, u32 value_bytes) {
  return static_cast<u32>(align_up(sizeof(format::AttributeEntry) + name_length + value_bytes, 8));
}
GPU4FS_FN inline u32 value_bytes_inside(const format::AttributeEntry& entry) {
  return entry.value_slot == 0 ? entry.value_length : 0;
}
GPU4FS_FN inline u32 attribute_size_at(const u8* page, u32 offset) {
  const format::AttributeEntry& entry = attribute_entry(page, offset);
  return attribute_size(entry.name_length, value_bytes_inside(entry));
}

inline constexpr u32 attributes_begin = sizeof(format::AttributePageHeader);

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

// An access control list is read and changed in place, so it never has pages of its own.
GPU4FS_FN inline bool has_own_pages(const AttributeName& name, u32 value_length) {
  return value_length > format::attribute_inline_max && !is_access_list(name);
}

GPU4FS_FN inline bool attribute_entry_is_sound(const u8* page, u32 offset, u32 end) {
  if (end - offset < sizeof(format::AttributeEntry)) return false;
  const format::AttributeEntry& entry = attribute_entry(page, offset);
  if (entry.name_length == 0 || entry.reserved != 0 || entry.value_length > format::attribute_value_max) return false;
  if (attribute_size_at(page, offset) > end - offset) return false;
  const AttributeName name{attribute_name_at(page, offset), entry.name_length, 0};
  if (entry.value_slot == 0) return !has_own_pages(name, entry.value_length);
  const bool is_slot =
      entry.value_slot >= format::attribute_slot_first && entry.value_slot < format::attribute_slot_end;
  return is_slot && has_own_pages(name, entry.value_length);
}

// Header and all entries lie inside the page and add up.
GPU4FS_FN inline bool attribute_page_is_sound(const u8* page) {
  const format::AttributePageHeader& header = attribute_header(page);
  if (header.magic != format::attribute_page_magic || header.version != format::attribute_page_version) return false;
  if (header.used_bytes > page_size || header.used_bytes % 8 != 0) return false;
  u32 count = 0;
  u32 offset = attributes_begin;
  while (offset < header.used_bytes) {
    if (!attribute_entry_is_sound(page, offset, header.used_bytes)) return false;
    offset += attribute_size_at(page, offset);
    ++count;
  }
  return offset == header.used_bytes && count == header.entry_count;
}

// The entry's offset or 0.
GPU4FS_FN inline u32 find_attribute(const u8* page, const AttributeName& name) {
  const u32 end = attribute_header(page).used_bytes;
  for (u32 offset = attributes_begin; offset < end; offset += attribute_size_at(page, offset)) {
    if (attribute_entry(page, offset).name_length != name.length) continue;
    if (names_equal(attribute_name_at(page, offset), name.bytes, name.length)) return offset;
  }
  return 0;
}

// Removes an entry and closes the gap.
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

// Adds an entry, for which there is room, without its value's bytes and hash. Returns its offset.
GPU4FS_FN inline u32 append_attribute(u8* page, const AttributeName& name, u32 value_length, u32 value_slot) {
  format::AttributePageHeader& header = attribute_header(page);
  const u32 offset = header.used_bytes;
  const u32 size = attribute_size(name.length, value_slot == 0 ? value_length : 0);
  GPU4FS_CHECK_LE(offset + size, u32{page_size});
  auto& entry = *reinterpret_cast<format::AttributeEntry*>(page + offset);
  entry = {value_length, 0, static_cast<u8>(name.length), 0, static_cast<u16>(value_slot)};
  u8* bytes = page + offset + sizeof(format::AttributeEntry);
  for (u32 i = 0; i < name.length; ++i) bytes[i] = name.bytes[i];
  header.used_bytes = static_cast<u16>(offset + size);
  header.entry_count = static_cast<u16>(header.entry_count + 1);
  return offset;
}

}  // namespace detail

// Checks a single page (for fsck): layout, unique names, hashes of values in the page, access lists.
GPU4FS_FN GPU4FS_NOINLINE inline Status attribute_check_page(const u8* page) {
  if (!detail::attribute_page_is_sound(page)) return Status::corrupt_structure;
  for (const u16 reserved : detail::attribute_header(page).reserved) {
    if (reserved != 0) return Status::corrupt_structure;
  }
  const u32 end = detail::attribute_header(page).used_bytes;
  for (u32 offset = detail::attributes_begin; offset < end; offset += detail::attribute_size_at(page, offset)) {
    const format::AttributeEntry& entry = detail::attribute_entry(page, offset);
    const u8* name = detail::attribute_name_at(page, offset);
    const AttributeName whole{name, entry.name_length, 0};
    if (detail::find_attribute(page, whole) != offset) return Status::corrupt_structure;
    for (u32 i = 0; i < entry.name_length; ++i) {
      if (name[i] == 0) return Status::corrupt_structure;
    }
    if (entry.value_slot != 0) continue;
    const u8* value = name + entry.name_length;
    if (detail::is_access_list(whole) && !acl_is_valid(value, entry.value_length)) return Status::corrupt_structure;
    if (static_cast<u32>(xxh3_64(value, entry.value_length, 0)) != entry.value_hash) return Status::corrupt_structure;
  }
  return Status::ok;
}

}  // namespace gpu4fs::fs
