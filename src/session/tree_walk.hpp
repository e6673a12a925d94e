// Walks the directory tree of a mounted pool to find the paths of inodes. Host only.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "session/pool_inspector.hpp"

namespace gpu4fs::session {

struct WalkedFile {
  std::string path;  // from the root of the pool, "/" first
  u64 inode;
  u32 type;        // DT_*
  u32 link_count;  // with attributes only
};

struct WalkResult {
  bool is_whole = true;                 // false: `visit` ended it
  std::vector<std::string> unreadable;  // directories that could not be listed
};

// Visits the root and everything below it, a directory before its content; other processes may change files meanwhile.
// `visit` ends the walk by returning false.
WalkResult walk_tree(PoolInspector& inspector, bool with_attributes,
                     const std::function<bool(const WalkedFile&)>& visit);

// One path of each of the inodes, if it has one; the files that hold the tree itself have names in parentheses.
std::map<u64, std::string> find_paths(PoolInspector& inspector, const std::set<u64>& inodes);

// "(inode file)" and the like, "" for other inodes.
std::string special_inode_name(u64 inode);

}  // namespace gpu4fs::session
