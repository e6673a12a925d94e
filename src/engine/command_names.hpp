// What commands name: names, components of paths, numbers of inodes. The same rules hold with locks (handlers/) and
// without (optimistic/).
#pragma once

#include "base/check.hpp"
#include "base/config.hpp"
#include "base/group.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"
#include "base/status.hpp"
#include "format/inode_format.hpp"
#include "fs/inode/inode.hpp"

namespace gpu4fs::engine {

// A name, in memory that clients cannot write.
struct NameBytes {
  const u8* bytes;
  u32 length;
  u32 reserved;
};
GPU4FS_FN inline bool is_dot(NameBytes name) {
  return name.length == 1 && name.bytes[0] == '.';
}
GPU4FS_FN inline bool is_dot_dot(NameBytes name) {
  return name.length == 2 && name.bytes[0] == '.' && name.bytes[1] == '.';
}
GPU4FS_FN inline bool is_dots(NameBytes name) {
  return is_dot(name) || is_dot_dot(name);
}

// Status: not_found for an empty name (as for an empty path), name_too_long, invalid_argument.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status check_name(Group g, NameBytes name) {
  if (name.length == 0) return Status::not_found;
  if (name.length > name_length_max) return Status::name_too_long;
  bool is_clean = true;
  for (u32 i = g.rank(); i < name.length; i += Group::size()) {
    is_clean = is_clean && name.bytes[i] != 0 && name.bytes[i] != '/';
  }
  return g.all(is_clean) ? Status::ok : Status::invalid_argument;
}

// One name of a path.
struct PathComponent {
  u32 begin;
  u32 end;        // begin == end: nothing remains
  u32 has_slash;  // a slash follows
  u32 is_last;    // only slashes follow
};

// The first component of path[begin, path_end). `begin` may be at slashes. For a single rank.
GPU4FS_FN inline PathComponent next_component(const u8* path, u32 begin, u32 path_end) {
  GPU4FS_CHECK_LE(begin, path_end);
  while (begin < path_end && path[begin] == '/') ++begin;
  u32 end = begin;
  while (end < path_end && path[end] != '/') ++end;
  u32 rest = end;
  while (rest < path_end && path[rest] == '/') ++rest;
  return {begin, end, end < path_end, rest == path_end};
}

// Inodes that clients can name. These exclude the inode file, the bitmaps and the reserved numbers.
GPU4FS_FN constexpr bool is_file_number(u64 number) {
  const bool is_file = number == format::inode_number_root || number >= format::inode_number_first_free;
  return GPU4FS_MUTANT(reserved_inodes_named, is_file, true) && number < fs::inode_number_max;
}

}  // namespace gpu4fs::engine
