// POSIX access control lists in their stored form: the value of the extended attributes system.posix_acl_access and
// system.posix_acl_default, version 2 of the Linux format:
//   u32 version; then {u16 tag, u16 permissions, u32 id}, little-endian,
// sorted by (tag, id). The rules are those of POSIX 1003.1e draft 17 as Linux applies them: the owner, mask (or group,
// without a mask) and other entries always equal the inode's mode bits.
//
// A value has any alignment, and acl_is_valid validates its bytes before they are used. Plain functions for one rank.
#pragma once

#include "fs/names/permissions.hpp"

namespace gpu4fs::fs {

inline constexpr u32 acl_version = 2;
inline constexpr u32 acl_header_size = 4;
inline constexpr u32 acl_entry_size = 8;

enum AclTag : u32 {
  acl_owner = 0x01,
  acl_user = 0x02,
  acl_owning_group = 0x04,
  acl_group = 0x08,
  acl_mask = 0x10,
  acl_other = 0x20,
};

struct AclEntry {
  u32 tag;
  u32 permissions;
  u32 id;
};

namespace detail {

GPU4FS_FN inline u32 read_little(const u8* at, u32 byte_count) {
  u32 value = 0;
  for (u32 i = 0; i < byte_count; ++i) value |= u32{at[i]} << (8 * i);
  return value;
}

}  // namespace detail

GPU4FS_FN inline u32 acl_entry_count(u32 length) {
  return (length - acl_header_size) / acl_entry_size;
}

GPU4FS_FN inline AclEntry acl_entry(const u8* value, u32 index) {
  const u8* at = value + acl_header_size + index * acl_entry_size;
  return {detail::read_little(at, 2), detail::read_little(at + 2, 2), detail::read_little(at + 4, 4)};
}
GPU4FS_FN inline void acl_set_permissions(u8* value, u32 index, u32 permissions) {
  u8* at = value + acl_header_size + index * acl_entry_size + 2;
  at[0] = static_cast<u8>(permissions);
  at[1] = 0;
}

// Whether the value is a complete list: one owner, owning group and other entry, named entries in the order of tags,
// and a mask if it is needed (it is allowed without named entries).
GPU4FS_FN inline bool acl_is_valid(const u8* value, u32 length) {
  if (length < acl_header_size + 3 * acl_entry_size || (length - acl_header_size) % acl_entry_size != 0) return false;
  if (detail::read_little(value, 4) != acl_version) return false;
  u32 previous_tag = 0;
  u32 seen = 0;
  for (u32 i = 0; i < acl_entry_count(length); ++i) {
    const AclEntry entry = acl_entry(value, i);
    const u32 tag = entry.tag;
    const bool is_known = tag != 0 && (tag & (tag - 1)) == 0 && tag <= acl_other;
    if (!is_known || (entry.permissions & ~7u) != 0 || tag < previous_tag) return false;
    const bool is_named = tag == acl_user || tag == acl_group;
    if (!is_named && (seen & tag) != 0) return false;
    seen |= tag;
    previous_tag = tag;
  }
  const u32 required = acl_owner | acl_owning_group | acl_other;
  if ((seen & required) != required) return false;
  return (seen & (acl_user | acl_group)) == 0 || (seen & acl_mask) != 0;
}

// A list of three entries contains no more than mode bits.
GPU4FS_FN inline bool acl_is_minimal(u32 length) {
  return acl_entry_count(length) == 3;
}

// The index of the entry that corresponds to the mode's group bits: the mask, or without one the owning group.
GPU4FS_FN inline u32 acl_group_class(const u8* value, u32 length) {
  u32 found = 0;
  for (u32 i = 0; i < acl_entry_count(length); ++i) {
    const u32 tag = acl_entry(value, i).tag;
    if (tag == acl_owning_group || tag == acl_mask) found = i;
  }
  return found;
}

// The mode bits 0777 that correspond to a valid list.
GPU4FS_FN inline u32 acl_mode(const u8* value, u32 length) {
  const u32 owner = acl_entry(value, 0).permissions;
  const u32 group = acl_entry(value, acl_group_class(value, length)).permissions;
  const u32 other = acl_entry(value, acl_entry_count(length) - 1).permissions;
  return (owner << 6) | (group << 3) | other;
}

// chmod: the three entries follow the mode.
GPU4FS_FN inline void acl_set_mode(u8* value, u32 length, u32 mode) {
  acl_set_permissions(value, 0, (mode >> 6) & 7);
  acl_set_permissions(value, acl_group_class(value, length), (mode >> 3) & 7);
  acl_set_permissions(value, acl_entry_count(length) - 1, mode & 7);
}

// A directory's default list for a new inode that is created with `mode`: both keep only the permissions that both
// grant. Returns the new mode; the caller sets it in the list with acl_set_mode.
GPU4FS_FN inline u32 acl_inherited_mode(const u8* value, u32 length, u32 mode) {
  return mode & (acl_mode(value, length) | ~0777u);
}

// The access decision for everybody except the superuser.
GPU4FS_FN inline bool acl_allows(const u8* value, u32 length, const format::Inode& inode, const Credentials& who,
                                 u32 wanted) {
  const u32 count = acl_entry_count(length);
  u32 mask = 7;
  for (u32 i = 0; i < count; ++i) {
    const AclEntry entry = acl_entry(value, i);
    if (entry.tag == acl_mask) mask = entry.permissions;
  }
  bool group_matched = false;
  for (u32 i = 0; i < count; ++i) {
    const AclEntry entry = acl_entry(value, i);
    if (entry.tag == acl_owner && who.uid == inode.uid) return (wanted & ~entry.permissions) == 0;
    if (entry.tag == acl_user && who.uid == entry.id) return (wanted & ~(entry.permissions & mask)) == 0;
    if ((entry.tag == acl_owning_group && is_in_group(who, inode.gid)) ||
        (entry.tag == acl_group && is_in_group(who, entry.id))) {
      group_matched = true;
      if ((wanted & ~(entry.permissions & mask)) == 0) return true;
    }
    if (entry.tag == acl_other) return !group_matched && (wanted & ~entry.permissions) == 0;
  }
  return false;
}

}  // namespace gpu4fs::fs
