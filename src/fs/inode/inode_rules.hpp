// The conditions that an inode in use must meet before the engine works with it. Readers of inodes and the check of a
// pool use the same functions, so the engine refuses nothing that a check calls valid.
#pragma once

#include "base/limits.hpp"
#include "format/attribute_format.hpp"
#include "fs/map/map_types.hpp"
#include "fs/names/permissions.hpp"

namespace gpu4fs::fs {

GPU4FS_FN inline bool size_is_sound(const format::Inode& inode) {
  if (is_symlink(inode.mode) && (inode.size_bytes == 0 || inode.size_bytes >= path_length_max)) return false;
  if (inode.is_inline()) return inode.size_bytes <= format::inode_inline_capacity;
  return !is_regular(inode.mode) || inode.size_bytes <= file_size_max;
}

GPU4FS_FN inline bool inode_is_sound(const format::Inode& inode) {
  if (inode.version != 1 || !is_known_type(inode.mode)) return false;
  if ((inode.flags & ~u32{format::inode_flag_known}) != 0 || inode.height > map_height_max) return false;
  const bool has_tree = inode.attribute_height == 0 || inode.attributes.is_valid();
  if (inode.attribute_height > format::attribute_height_max || !has_tree) return false;
  if (inode.is_inline() && !is_regular(inode.mode) && !is_symlink(inode.mode)) return false;
  return size_is_sound(inode);
}

}  // namespace gpu4fs::fs
