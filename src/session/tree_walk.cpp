#include "session/tree_walk.hpp"

#include <dirent.h>

#include <unordered_set>
#include <utility>

#include "format/inode_format.hpp"

namespace gpu4fs::session {

WalkResult walk_tree(PoolInspector& inspector, bool with_attributes,
                     const std::function<bool(const WalkedFile&)>& visit) {
  WalkResult result;
  const auto end = [&] {
    result.is_whole = false;
    return result;
  };
  if (!visit({"/", format::inode_number_root, DT_DIR, 2})) return end();
  // A damaged tree may contain cycles.
  std::unordered_set<u64> seen{format::inode_number_root};
  std::vector<std::pair<u64, std::string>> waiting{{format::inode_number_root, "/"}};
  std::vector<DirectoryEntry> entries;
  while (!waiting.empty()) {
    const auto [inode, path] = std::move(waiting.back());
    waiting.pop_back();
    const Status listed = inspector.read_directory(inode, with_attributes, &entries);
    // stale: removed meanwhile.
    if (listed != Status::ok && listed != Status::stale) result.unreadable.push_back(path);
    for (DirectoryEntry& entry : entries) {
      WalkedFile file{path, entry.inode, entry.type, entry.link_count};
      if (file.path.size() > 1) file.path += '/';
      file.path += entry.name;
      if (!visit(file)) return end();
      if (entry.type == DT_DIR && seen.insert(entry.inode).second) {
        waiting.emplace_back(entry.inode, std::move(file.path));
      }
    }
  }
  return result;
}

std::string special_inode_name(u64 inode) {
  switch (inode) {
    case format::inode_number_inode_file:
      return "(inode file)";
    case format::inode_number_inode_bitmap:
      return "(inode bitmap)";
    case format::inode_number_orphan_bitmap:
      return "(orphan bitmap)";
    default:
      return {};
  }
}

std::map<u64, std::string> find_paths(PoolInspector& inspector, const std::set<u64>& inodes) {
  std::map<u64, std::string> paths;
  for (const u64 inode : inodes) {
    const std::string name = special_inode_name(inode);
    if (!name.empty()) paths[inode] = name;
  }
  u64 wanted = inodes.size() - paths.size();
  wanted -= inodes.count(wire::damage_inode_unknown);
  if (wanted == 0) return paths;
  walk_tree(inspector, false, [&](const WalkedFile& file) {
    if (inodes.count(file.inode) != 0 && paths.emplace(file.inode, file.path).second) --wanted;
    return wanted != 0;
  });
  return paths;
}

}  // namespace gpu4fs::session
