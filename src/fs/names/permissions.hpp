// Permissions: mode bits, the sticky bit and inheritance of groups, with the rules of ext4 and the Linux VFS.
//
// Plain functions on one rank, or uniform on all ranks; they read an inode under its lock. Access control lists are in
// fs/names/access_list.hpp.
#pragma once

#include "base/atomics.hpp"
#include "base/config.hpp"
#include "base/mutant.hpp"
#include "base/types.hpp"
#include "format/inode_format.hpp"

namespace gpu4fs::fs {

// Mode bits as on the medium; the values of POSIX <sys/stat.h>.
inline constexpr u32 mode_type_mask = 0170000;
inline constexpr u32 mode_fifo = 0010000;
inline constexpr u32 mode_character_device = 0020000;
inline constexpr u32 mode_directory = 0040000;
inline constexpr u32 mode_block_device = 0060000;
inline constexpr u32 mode_regular = 0100000;
inline constexpr u32 mode_symlink = 0120000;
inline constexpr u32 mode_socket = 0140000;
inline constexpr u32 mode_set_uid = 04000;
inline constexpr u32 mode_set_gid = 02000;
inline constexpr u32 mode_sticky = 01000;
inline constexpr u32 mode_permissions = 07777;
inline constexpr u32 mode_type_shift = 12;

inline constexpr u32 may_read = 4;     // R_OK
inline constexpr u32 may_write = 2;    // W_OK
inline constexpr u32 may_execute = 1;  // X_OK; to search a directory

GPU4FS_FN constexpr bool is_directory(u32 mode) {
  return (mode & mode_type_mask) == mode_directory;
}
GPU4FS_FN constexpr bool is_regular(u32 mode) {
  return (mode & mode_type_mask) == mode_regular;
}
GPU4FS_FN constexpr bool is_symlink(u32 mode) {
  return (mode & mode_type_mask) == mode_symlink;
}
GPU4FS_FN constexpr bool is_device(u32 mode) {
  return (mode & mode_type_mask) == mode_character_device || (mode & mode_type_mask) == mode_block_device;
}
GPU4FS_FN constexpr u32 entry_type(u32 mode) {
  return (mode & mode_type_mask) >> mode_type_shift;
}
GPU4FS_FN constexpr bool is_known_type(u32 mode) {
  const u32 type = mode & mode_type_mask;
  return type == mode_fifo || type == mode_character_device || type == mode_directory || type == mode_block_device ||
         type == mode_regular || type == mode_symlink || type == mode_socket;
}

// The mode of an inode whose lock is not held: a hint, read from the one word that contains it.
GPU4FS_FN inline u32 peek_mode(const format::Inode& inode) {
  static_assert(offsetof(format::Inode, mode) % 4 == 0);
  return load<Order::relaxed, Scope::engine>(reinterpret_cast<const u32*>(&inode.mode)) & 0xffff;
}

// Under the exclusive lock; readers without the lock see either mode.
GPU4FS_FN inline void set_mode(format::Inode& inode, u32 mode) {
  u32* const word = reinterpret_cast<u32*>(&inode.mode);
  const u32 others = load<Order::relaxed, Scope::engine>(word) & ~u32{0xffff};
  store<Order::relaxed, Scope::engine>(word, others | (mode & 0xffff));
}

struct Credentials {
  const u32* groups;  // supplementary, group_count of them, ascending
  u32 uid;
  u32 gid;
  u32 group_count;
  u32 reserved;
};

// Searches an ascending list: on Linux a caller may have up to 65536 groups.
GPU4FS_FN inline bool has_group(const u32* groups, u32 count, u32 gid) {
  u32 begin = 0;
  u32 end = count;
  while (begin < end) {
    const u32 middle = begin + (end - begin) / 2;
    if (GPU4FS_MUTANT(groups_ignored, groups[middle] == gid, false)) return true;
    if (groups[middle] < gid) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return false;
}

GPU4FS_FN inline bool is_in_group(const Credentials& who, u32 gid) {
  return who.gid == gid || has_group(who.groups, who.group_count, gid);
}

// The superuser may do everything regardless of the mode, except execute a file that nobody may execute.
GPU4FS_FN constexpr bool may_override(u32 mode, u32 wanted) {
  return is_directory(mode) || (wanted & may_execute) == 0 ||
         GPU4FS_MUTANT(superuser_executes_anything, (mode & 0111) != 0, true);
}

// Mode bits alone. `wanted` is a set of may_*; 0 is always granted.
GPU4FS_FN inline bool may_access(const format::Inode& inode, const Credentials& who, u32 wanted) {
  if (who.uid == 0) return may_override(inode.mode, wanted);
  u32 granted = inode.mode;
  if (GPU4FS_MUTANT(owner_class_ignored, who.uid == inode.uid, false)) {
    granted >>= 6;
  } else if (is_in_group(who, inode.gid)) {
    granted >>= 3;
  }
  return (wanted & ~granted & 7) == 0;
}

// In a sticky directory only the owner of a name's inode or of the directory removes or renames it.
GPU4FS_FN constexpr bool sticky_allows(const format::Inode& dir, const format::Inode& child, u32 uid) {
  const bool is_open = GPU4FS_MUTANT(sticky_ignored, (dir.mode & mode_sticky) == 0, true);
  return is_open || uid == 0 || uid == child.uid || uid == dir.uid;
}

struct NewOwner {
  u32 mode;
  u32 gid;
};

// A set-gid directory passes on its group, and to directories also the bit.
GPU4FS_FN constexpr NewOwner inherit_owner(const format::Inode& dir, u32 mode, u32 gid) {
  if (GPU4FS_MUTANT(group_not_handed_down, (dir.mode & mode_set_gid) == 0, true)) return {mode, gid};
  return {is_directory(mode) ? mode | mode_set_gid : mode, dir.gid};
}

}  // namespace gpu4fs::fs
