// The behaviour of a file system according to POSIX and Linux, in memory: the oracle of the random tests.
//
// An operation uses three calls: expect() returns the right errors, commit() follows a success, and times() returns the
// time stamps that it had to change or may have changed. Inode numbers are the engine's.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "format/inode_format.hpp"
#include "support/sparse_bytes.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::test {

// One operation in the terms of a command, with names and data in place.
struct FileOperation {
  wire::Opcode opcode = wire::Opcode::noop;
  u64 inode = 0;
  u64 second_inode = 0;
  std::string name;
  std::string second_name;
  u64 offset = 0;
  u64 length = 0;
  u64 aux = 0;
  u32 mode = 0;
  u32 mask = 0;
  u32 uid = 0;
  u32 gid = 0;
  u32 umask_bits = 0;
  bool append = false;
  u64 data_seed = 0;  // content of writes
  std::string text;   // symlink target, attribute value
  u64 whiteout = 0;   // number of the inode that a rename has left; set from the engine's answer
  format::AttributeRecord attributes{};
};

inline FileOperation on_inode(wire::Opcode opcode, u64 inode, u64 offset = 0, u64 length = 0) {
  FileOperation op;
  op.opcode = opcode;
  op.inode = inode;
  op.offset = offset;
  op.length = length;
  return op;
}

struct ModelNode {
  u32 mode = 0;
  u32 uid = 0;
  u32 gid = 0;
  u32 link_count = 0;
  u64 device = 0;
  u64 parent = 0;                      // directories
  std::map<std::string, u64> entries;  // directories
  std::string target;                  // symbolic links
  SparseBytes content;                 // regular files
  std::map<std::string, std::string> attributes;
  u32 flags = 0;               // format::inode_flags_of_users
  bool was_allocated = false;  // may have blocks that contain no visible byte

  bool is_directory() const { return (mode & S_IFMT) == S_IFDIR; }
  bool is_regular() const { return (mode & S_IFMT) == S_IFREG; }
  bool is_symlink() const { return (mode & S_IFMT) == S_IFLNK; }
  bool is_immutable() const { return (flags & format::inode_flag_immutable) != 0; }
  bool is_append_only() const { return (flags & format::inode_flag_append_only) != 0; }
  bool is_flagged() const { return is_immutable() || is_append_only(); }
};

enum TimeBits : u32 { time_access = 1, time_modification = 2, time_change = 4 };
struct TimeRule {
  u32 must = 0;  // is now
  u32 may = 0;   // is now, or as before
};

// A deliberate mistake, to test the tests.
enum class ModelFlaw { none, rename_keeps_parent, truncate_keeps_tail, unlink_keeps_count };

class PosixModel {
 public:
  static constexpr u64 root = 1;
  static constexpr u32 rename_whiteout = 4;
  static constexpr u64 file_size_max = (u64{1} << 63) - 1;
  static constexpr const char* profile_attribute = "user.gpu4fs.raid";  // inherited; always set to a known profile

  PosixModel() {
    ModelNode node;
    node.mode = S_IFDIR | 0755;
    node.link_count = 2;
    node.parent = root;
    nodes[root] = node;
  }

  std::map<u64, ModelNode> nodes;
  ModelFlaw flaw = ModelFlaw::none;

  const ModelNode* find(u64 number) const {
    const auto at = nodes.find(number);
    return at == nodes.end() ? nullptr : &at->second;
  }

  // Orphans are freed, as by a mount.
  void drop_orphans() {
    for (auto at = nodes.begin(); at != nodes.end();) at = at->second.link_count == 0 ? nodes.erase(at) : std::next(at);
  }

  // The right errno values, including 0 if it may succeed.
  std::set<int> expect(const FileOperation& op) const;
  // Follows a success. `result` is the engine's answer, `content` the written bytes.
  void commit(const FileOperation& op, u64 result, const std::vector<u8>& content);
  // The same with the engine's output, which names the whiteout of a rename.
  void commit(FileOperation op, u64 result, const std::vector<u8>& content, const format::AttributeRecord& output) {
    if (op.opcode == wire::Opcode::rename) op.whiteout = output.inode;
    commit(op, result, content);
  }
  // The time stamps that a success changes. Before commit().
  std::map<u64, TimeRule> times(const FileOperation& op, u64 result) const;

  static constexpr u64 attribute_value_max = 65536;
  static constexpr u64 attribute_names_max = 65536 - 24;  // of those that are stored

  // Of all names, each with a terminator.
  static u64 attribute_names_bytes(const std::map<std::string, std::string>& attributes) {
    u64 bytes = 0;
    for (const auto& [name, value] : attributes)
      bytes += name == profile_attribute ? 0 : name.size() + 1;  // it is in the inode
    return bytes;
  }

 private:
  const ModelNode* child(u64 directory, const std::string& name) const {
    const ModelNode& node = nodes.at(directory);
    const auto at = node.entries.find(name);
    return at == node.entries.end() ? nullptr : &nodes.at(at->second);
  }
  bool is_below(u64 number, u64 upper) const {
    while (number != upper && number != root) number = nodes.at(number).parent;
    return number == upper;
  }
  std::set<int> expect_without_flags(const FileOperation& op) const;
  bool is_refused_by_flags(const FileOperation& op) const;
  static bool opening_is_refused(const ModelNode& node, u32 open_flags);
  bool names_are_refused(const FileOperation& op) const;
  std::set<int> expect_in_directory(const FileOperation& op) const;
  std::set<int> expect_rename(const FileOperation& op) const;
  std::set<int> expect_on_file(const FileOperation& op) const;
  std::set<int> expect_attribute(const FileOperation& op) const;
  std::map<u64, TimeRule> name_times(const FileOperation& op, u64 result) const;
  void commit_new(const FileOperation& op, u64 number);
  void commit_rename(const FileOperation& op);
  void commit_setattr(const FileOperation& op);
  void commit_content(const FileOperation& op, u64 result, const std::vector<u8>& content);
  // If others may not execute a file as its group, it keeps the bit if a member of the group changes it.
  static void drop_set_id(ModelNode& node, const FileOperation& op) {
    node.mode &= ~u32{S_ISUID};
    const bool is_member = op.uid == 0 || op.gid == node.gid;
    if ((node.mode & 010) != 0 || !is_member) node.mode &= ~u32{S_ISGID};
  }
};

inline std::set<int> PosixModel::expect_in_directory(const FileOperation& op) const {
  using wire::Opcode;
  const ModelNode* directory = find(op.inode);
  if (directory == nullptr) return {ESTALE};
  if (!directory->is_directory()) return {ENOTDIR};
  if (op.name.size() > 255) return {ENAMETOOLONG};
  if (op.opcode == Opcode::tmpfile) return directory->link_count == 0 ? std::set{ENOENT} : std::set{0};
  const ModelNode* found = child(op.inode, op.name);
  switch (op.opcode) {
    case Opcode::lookup:
      return {found == nullptr ? ENOENT : 0};
    case Opcode::create:
      if (found == nullptr) return {directory->link_count == 0 ? ENOENT : 0};
      if ((op.mask & 0200) != 0) return {EEXIST};
      if (found->is_symlink()) return {ELOOP};  // a caller that follows links does so before
      return {found->is_directory() ? EISDIR : 0};
    case Opcode::unlink:
      if (directory->link_count == 0 || found == nullptr) return {ENOENT};
      return {found->is_directory() ? EISDIR : 0};
    case Opcode::rmdir:
      if (directory->link_count == 0 || found == nullptr) return {ENOENT};
      if (!found->is_directory()) return {ENOTDIR};
      return {found->entries.empty() ? 0 : ENOTEMPTY};
    default:  // mkdir, mknod, symlink, link
      break;
  }
  std::set<int> errors;
  if (op.opcode == Opcode::link) {
    const ModelNode* file = find(op.second_inode);
    if (file == nullptr) errors.insert(ESTALE);
    if (file != nullptr && file->is_directory()) errors.insert(EPERM);
  }
  if (directory->link_count == 0) errors.insert(ENOENT);
  if (found != nullptr) errors.insert(EEXIST);
  if (errors.empty()) errors.insert(0);
  return errors;
}

// In the order of Linux' do_renameat2() and vfs_rename().
inline std::set<int> PosixModel::expect_rename(const FileOperation& op) const {
  constexpr u32 no_replace = 1;
  constexpr u32 exchange = 2;
  if ((op.mask & exchange) != 0 && op.mask != exchange) return {EINVAL};
  const ModelNode* from = find(op.inode);
  const ModelNode* to = find(op.second_inode);
  if (from == nullptr || to == nullptr) return {ESTALE};
  if (!from->is_directory() || !to->is_directory()) return {ENOTDIR};
  if (from->link_count == 0 || to->link_count == 0) return {ENOENT};
  const ModelNode* source = child(op.inode, op.name);
  const ModelNode* target = child(op.second_inode, op.second_name);
  if (source == nullptr) return {ENOENT};
  if (target != nullptr && (op.mask & no_replace) != 0) return {EEXIST};
  if (target == nullptr && (op.mask & exchange) != 0) return {ENOENT};
  const u64 source_number = from->entries.at(op.name);
  if (source->is_directory() && is_below(op.second_inode, source_number)) return {EINVAL};
  if (target == nullptr) return {0};
  const u64 target_number = to->entries.at(op.second_name);
  if (target->is_directory() && is_below(op.inode, target_number)) {
    return {(op.mask & exchange) != 0 ? EINVAL : ENOTEMPTY};
  }
  if ((op.mask & exchange) != 0 || source_number == target_number) return {0};
  if (source->is_directory() && !target->is_directory()) return {ENOTDIR};
  if (!source->is_directory() && target->is_directory()) return {EISDIR};
  return {target->entries.empty() ? 0 : ENOTEMPTY};
}

inline std::set<int> PosixModel::expect_on_file(const FileOperation& op) const {
  using wire::Opcode;
  const ModelNode* node = find(op.inode);
  if (node == nullptr) return {ESTALE};
  if (op.opcode == Opcode::fallocate && op.mode != 0 && op.mode != 1 && op.mode != 3 && op.mode != 0x10 &&
      op.mode != 0x11) {
    return op.length == 0 ? std::set{EOPNOTSUPP, EINVAL} : std::set{EOPNOTSUPP};
  }
  if (op.opcode == Opcode::fallocate && op.length == 0) return {EINVAL};
  if (op.opcode == Opcode::copy_range) {
    std::set<int> errors;
    for (const ModelNode* file : {node, find(op.second_inode)}) {
      if (file == nullptr) errors.insert(ESTALE);
      if (file != nullptr && file->is_directory()) errors.insert(EISDIR);
      if (file != nullptr && !file->is_directory() && !file->is_regular()) errors.insert(EINVAL);
    }
    if (!errors.empty()) return errors;
    if (op.inode != op.second_inode || op.offset >= node->content.size()) return {0};
    const u64 length = std::min(op.length, node->content.size() - op.offset);
    const u64 distance = op.offset < op.aux ? op.aux - op.offset : op.offset - op.aux;
    return {length != 0 && distance < length ? EINVAL : 0};
  }
  if (node->is_directory()) return {EISDIR};
  if (!node->is_regular()) return {EINVAL};
  if (op.opcode == Opcode::seek) {
    if (op.offset >= node->content.size()) return {ENXIO};
    const bool only_zeros = node->content.is_zero(op.offset, node->content.size());
    return op.mode == 3 && only_zeros ? std::set{0, ENXIO} : std::set{0};
  }
  if (op.opcode == Opcode::truncate && op.offset > file_size_max) return {EFBIG};
  return {0};
}

inline std::set<int> PosixModel::expect_attribute(const FileOperation& op) const {
  using wire::Opcode;
  const ModelNode* node = find(op.inode);
  if (node == nullptr) return {ESTALE};
  const auto at = node->attributes.find(op.name);
  const bool exists = at != node->attributes.end();
  switch (op.opcode) {
    case Opcode::set_attribute: {
      if (op.text.size() > attribute_value_max) return {E2BIG};
      if (op.mask == 1 && exists) return {EEXIST};
      if (op.mask == 2 && !exists) return {ENODATA};
      if (op.name == profile_attribute) {
        if (!node->is_regular() && !node->is_directory()) return {EPERM};
        return {0, EOPNOTSUPP};  // not every pool has chunks of it
      }
      auto attributes = node->attributes;
      attributes[op.name] = op.text;
      return {!exists && attribute_names_bytes(attributes) > attribute_names_max ? ENOSPC : 0};
    }
    case Opcode::get_attribute:
      if (!exists) return {ENODATA};
      return {op.length != 0 && op.length < at->second.size() ? ERANGE : 0};
    case Opcode::remove_attribute:
      return {exists ? 0 : ENODATA};
    default: {  // list
      u64 bytes = 0;
      for (const auto& [name, value] : node->attributes) bytes += name.size() + 1;
      return {op.length != 0 && op.length < bytes ? ERANGE : 0};
    }
  }
}

// The answer of open(2) with these flags for an existing inode, as in may_open() of Linux: an append-only inode is not
// opened for writing without O_APPEND, and not truncated.
inline bool PosixModel::opening_is_refused(const ModelNode& node, u32 open_flags) {
  const bool truncates = (open_flags & u32{O_TRUNC}) != 0;
  const bool writes = (open_flags & u32{O_ACCMODE}) != O_RDONLY || truncates;
  if (!writes) return false;
  const bool appends = (open_flags & u32{O_APPEND}) != 0 && !truncates;
  return node.is_immutable() || (node.is_append_only() && !appends);
}

// Operations on names that are forbidden by the flags of directories or of their entries.
inline bool PosixModel::names_are_refused(const FileOperation& op) const {
  using wire::Opcode;
  const ModelNode& directory = nodes.at(op.inode);
  if (!directory.is_directory()) return false;
  const ModelNode* named = child(op.inode, op.name);
  if (op.opcode == Opcode::create && named != nullptr) return opening_is_refused(*named, op.mask);
  if (directory.is_immutable()) return true;
  const ModelNode* second = find(op.second_inode);
  switch (op.opcode) {
    case Opcode::link:
      return second != nullptr && second->is_flagged();
    case Opcode::unlink:
    case Opcode::rmdir:
      return directory.is_append_only() || (named != nullptr && named->is_flagged());
    case Opcode::rename: {
      if (second == nullptr || !second->is_directory()) return false;
      if (second->is_immutable()) return true;
      const ModelNode* target = child(op.second_inode, op.second_name);
      if (named == nullptr || named == target) return false;
      const bool target_stays = target != nullptr && (second->is_append_only() || target->is_flagged());
      return directory.is_append_only() || named->is_flagged() || target_stays;
    }
    default:
      return false;
  }
}

// Append-only and immutable, as in Linux.
inline bool PosixModel::is_refused_by_flags(const FileOperation& op) const {
  using wire::Opcode;
  const ModelNode* node = find(op.opcode == Opcode::copy_range ? op.second_inode : op.inode);
  if (node == nullptr) return false;
  switch (op.opcode) {
    case Opcode::create:
    case Opcode::mkdir:
    case Opcode::mknod:
    case Opcode::symlink:
    case Opcode::tmpfile:
    case Opcode::link:
    case Opcode::unlink:
    case Opcode::rmdir:
    case Opcode::rename:
      return names_are_refused(op);
    case Opcode::write:
      return node->is_immutable() || (node->is_append_only() && !op.append && op.offset < node->content.size());
    case Opcode::fallocate:
      return node->is_immutable() || (node->is_append_only() && (op.mode & ~1u) != 0);
    case Opcode::truncate:
    case Opcode::copy_range:
    case Opcode::set_attribute:
    case Opcode::remove_attribute:
      return node->is_flagged();
    case Opcode::setattr: {
      const u32 administrators = (op.attributes.flags ^ node->flags) & format::inode_flags_of_administrators;
      if ((op.mask & format::set_flags) != 0 && administrators != 0 && op.uid != 0) return true;
      const u32 others = op.mask & ~u32{format::set_flags};
      const u32 now = format::set_access_time_now | format::set_modification_time_now;
      return (others & ~now) != 0 ? node->is_flagged() : others != 0 && node->is_immutable();
    }
    default:
      return false;
  }
}

// Other errors may be reported first.
inline std::set<int> PosixModel::expect(const FileOperation& op) const {
  std::set<int> expected = expect_without_flags(op);
  if (!is_refused_by_flags(op)) return expected;
  expected.erase(0);
  expected.insert(EPERM);
  return expected;
}

inline std::set<int> PosixModel::expect_without_flags(const FileOperation& op) const {
  using wire::Opcode;
  switch (op.opcode) {
    case Opcode::lookup:
    case Opcode::create:
    case Opcode::mkdir:
    case Opcode::mknod:
    case Opcode::symlink:
    case Opcode::link:
    case Opcode::unlink:
    case Opcode::rmdir:
    case Opcode::tmpfile:
      return expect_in_directory(op);
    case Opcode::rename:
      return expect_rename(op);
    case Opcode::read:
    case Opcode::write:
    case Opcode::truncate:
    case Opcode::fallocate:
    case Opcode::seek:
    case Opcode::copy_range:
      return expect_on_file(op);
    case Opcode::setattr: {
      const ModelNode* node = find(op.inode);
      if (node == nullptr) return {ESTALE};
      if ((op.mask & format::set_size) == 0 || node->is_regular()) return {0};
      return {node->is_directory() ? EISDIR : EINVAL};
    }
    case Opcode::set_attribute:
    case Opcode::get_attribute:
    case Opcode::list_attributes:
    case Opcode::remove_attribute:
      return expect_attribute(op);
    case Opcode::readlink: {
      const ModelNode* node = find(op.inode);
      if (node == nullptr) return {ESTALE};
      return {node->is_symlink() ? 0 : EINVAL};
    }
    case Opcode::readdir: {
      const ModelNode* node = find(op.inode);
      if (node == nullptr) return {ESTALE};
      return {node->is_directory() ? 0 : ENOTDIR};
    }
    case Opcode::getattr:
      return {find(op.inode) == nullptr ? ESTALE : 0};
    default:
      return {0};
  }
}

inline void PosixModel::commit_new(const FileOperation& op, u64 number) {
  using wire::Opcode;
  ModelNode& directory = nodes.at(op.inode);
  ModelNode node;
  node.uid = op.uid;
  node.gid = (directory.mode & S_ISGID) != 0 ? directory.gid : op.gid;
  node.link_count = 1;
  const u32 permissions = op.mode & 07777 & ~op.umask_bits;
  switch (op.opcode) {
    case Opcode::mkdir:
      node.mode = S_IFDIR | (permissions & (0777 | S_ISVTX)) | (directory.mode & S_ISGID);
      node.link_count = 2;
      node.parent = op.inode;
      break;
    case Opcode::symlink:
      node.mode = S_IFLNK | 0777;
      node.target = op.text;
      break;
    case Opcode::mknod:
      node.mode = (op.mode & S_IFMT) | permissions;
      if (S_ISCHR(op.mode) || S_ISBLK(op.mode)) node.device = op.aux;
      break;
    default:
      node.mode = S_IFREG | permissions;
      break;
  }
  const auto profile = directory.attributes.find(profile_attribute);
  if (profile != directory.attributes.end() && (node.is_regular() || node.is_directory()))
    node.attributes.insert(*profile);
  if (op.opcode == Opcode::tmpfile) {
    node.link_count = 0;
  } else {
    directory.entries[op.name] = number;
    if (node.is_directory()) ++directory.link_count;
  }
  nodes[number] = node;
}

inline void PosixModel::commit_rename(const FileOperation& op) {
  constexpr u32 exchange = 2;
  ModelNode& from = nodes.at(op.inode);
  ModelNode& to = nodes.at(op.second_inode);
  const u64 source_number = from.entries.at(op.name);
  const auto at = to.entries.find(op.second_name);
  const u64 target_number = at == to.entries.end() ? 0 : at->second;
  if (source_number == target_number) return;
  ModelNode& source = nodes.at(source_number);
  if (target_number != 0 && (op.mask & exchange) == 0) {
    ModelNode& target = nodes.at(target_number);
    if (target.is_directory()) {
      target.link_count = 0;
      --to.link_count;
    } else {
      --target.link_count;
    }
  }
  if (source.is_directory()) {
    --from.link_count;
    ++to.link_count;
    if (flaw != ModelFlaw::rename_keeps_parent) source.parent = op.second_inode;
  }
  if ((op.mask & exchange) != 0) {
    ModelNode& target = nodes.at(target_number);
    if (target.is_directory()) {
      --to.link_count;
      ++from.link_count;
      target.parent = op.inode;
    }
    from.entries[op.name] = target_number;
  } else {
    from.entries.erase(op.name);
  }
  to.entries[op.second_name] = source_number;
  if ((op.mask & rename_whiteout) == 0) return;
  ModelNode whiteout;
  whiteout.mode = S_IFCHR;
  whiteout.uid = op.uid;
  whiteout.gid = (from.mode & S_ISGID) != 0 ? from.gid : op.gid;
  whiteout.link_count = 1;
  from.entries[op.name] = op.whiteout;
  nodes[op.whiteout] = whiteout;
}

inline void PosixModel::commit_setattr(const FileOperation& op) {
  ModelNode& node = nodes.at(op.inode);
  if ((op.mask & format::set_size) != 0) {
    node.content.resize(op.attributes.size_bytes);
    if (op.uid != 0) drop_set_id(node, op);
  }
  const bool drops_capability = (op.mask & (format::set_uid | format::set_gid | format::set_size)) != 0;
  if (drops_capability && node.is_regular()) node.attributes.erase("security.capability");
  if ((op.mask & (format::set_uid | format::set_gid)) != 0 && !node.is_directory()) drop_set_id(node, op);
  if ((op.mask & format::set_mode) != 0) node.mode = (node.mode & S_IFMT) | (op.attributes.mode & 07777);
  if ((op.mask & format::set_uid) != 0) node.uid = op.attributes.uid;
  if ((op.mask & format::set_gid) != 0) node.gid = op.attributes.gid;
  if ((op.mask & format::set_flags) != 0) node.flags = op.attributes.flags;
}

inline void PosixModel::commit_content(const FileOperation& op, u64 result, const std::vector<u8>& content) {
  using wire::Opcode;
  ModelNode& node = nodes.at(op.opcode == Opcode::copy_range ? op.second_inode : op.inode);
  const u64 end = op.offset + op.length;
  switch (op.opcode) {
    case Opcode::write:
      node.content.write(op.append ? node.content.size() : op.offset, content.data(), result);
      if (op.length == 0) return;
      break;
    case Opcode::truncate: {
      const u64 old_size = node.content.size();
      node.content.resize(op.offset);
      if (flaw == ModelFlaw::truncate_keeps_tail && op.offset < old_size && op.offset % page_size != 0) {
        const u8 tail = 0xee;
        node.content.write(op.offset, &tail, 1);
        node.content.resize(op.offset + 1);
        node.content.resize(op.offset);
        node.content.write(op.offset - 1, &tail, 1);
      }
      break;
    }
    case Opcode::fallocate:
      node.was_allocated = true;
      if ((op.mode & 0x12) != 0) node.content.zero(op.offset, op.length);
      if ((op.mode & 1) == 0 && node.content.size() < end) node.content.resize(end);
      break;
    default: {  // copy_range
      const std::vector<u8> bytes = nodes.at(op.inode).content.read(op.offset, result);
      node.content.write(op.aux, bytes.data(), bytes.size());
      if (bytes.empty()) return;
    }
  }
  node.attributes.erase("security.capability");
  if (op.uid != 0) drop_set_id(node, op);
}

inline void PosixModel::commit(const FileOperation& op, u64 result, const std::vector<u8>& content) {
  using wire::Opcode;
  switch (op.opcode) {
    case Opcode::create:
      if (child(op.inode, op.name) != nullptr) return;
      commit_new(op, result);
      return;
    case Opcode::mkdir:
    case Opcode::mknod:
    case Opcode::symlink:
    case Opcode::tmpfile:
      commit_new(op, result);
      return;
    case Opcode::link:
      nodes.at(op.inode).entries[op.name] = op.second_inode;
      ++nodes.at(op.second_inode).link_count;
      return;
    case Opcode::unlink: {
      ModelNode& node = nodes.at(nodes.at(op.inode).entries.at(op.name));
      nodes.at(op.inode).entries.erase(op.name);
      if (flaw != ModelFlaw::unlink_keeps_count || node.link_count < 2) --node.link_count;
      return;
    }
    case Opcode::rmdir: {
      ModelNode& directory = nodes.at(op.inode);
      nodes.at(directory.entries.at(op.name)).link_count = 0;
      directory.entries.erase(op.name);
      --directory.link_count;
      return;
    }
    case Opcode::rename:
      commit_rename(op);
      return;
    case Opcode::setattr:
      commit_setattr(op);
      return;
    case Opcode::write:
    case Opcode::truncate:
    case Opcode::fallocate:
    case Opcode::copy_range:
      commit_content(op, result, content);
      return;
    case Opcode::set_attribute:
      nodes.at(op.inode).attributes[op.name] = op.text;
      return;
    case Opcode::remove_attribute:
      nodes.at(op.inode).attributes.erase(op.name);
      return;
    case Opcode::reclaim: {
      const ModelNode* node = find(op.inode);
      if (node != nullptr && node->link_count == 0) nodes.erase(op.inode);
      return;
    }
    default:
      return;
  }
}

// Operations that change names.
inline std::map<u64, TimeRule> PosixModel::name_times(const FileOperation& op, u64 result) const {
  using wire::Opcode;
  constexpr u32 content = time_modification | time_change;
  constexpr u32 all = content | time_access;
  std::map<u64, TimeRule> rules;
  const auto number_of = [&](u64 directory, const std::string& name) -> u64 {
    const auto at = nodes.at(directory).entries.find(name);
    return at == nodes.at(directory).entries.end() ? 0 : at->second;
  };
  switch (op.opcode) {
    case Opcode::create:
      if (number_of(op.inode, op.name) != 0) break;
      [[fallthrough]];
    case Opcode::mkdir:
    case Opcode::mknod:
    case Opcode::symlink:
      rules[op.inode].must = content;
      rules[result].must = all;
      break;
    case Opcode::tmpfile:
      rules[result].must = all;
      break;
    case Opcode::link:
      rules[op.inode].must = content;
      rules[op.second_inode].must = time_change;
      break;
    case Opcode::unlink:
    case Opcode::rmdir:
      rules[op.inode].must = content;
      rules[number_of(op.inode, op.name)].must = time_change;
      break;
    case Opcode::rename: {
      const u64 source = number_of(op.inode, op.name);
      const u64 target = number_of(op.second_inode, op.second_name);
      if (source == target) break;
      rules[op.inode].must |= content;
      rules[op.second_inode].must |= content;
      rules[source].must |= time_change;
      if (target != 0) rules[target].must |= time_change;
      break;
    }
    default:
      break;
  }
  return rules;
}

inline std::map<u64, TimeRule> PosixModel::times(const FileOperation& op, u64 result) const {
  using wire::Opcode;
  constexpr u32 content = time_modification | time_change;
  std::map<u64, TimeRule> rules = name_times(op, result);
  switch (op.opcode) {
    case Opcode::write:
      if (op.length != 0) rules[op.inode].must = content;
      break;
    case Opcode::truncate:
      rules[op.inode].must = content;
      break;
    case Opcode::fallocate:
      rules[op.inode] = {time_change, time_modification};
      break;
    case Opcode::copy_range:
      if (result != 0) rules[op.second_inode].must = content;
      if (result != 0) rules[op.inode].may |= time_access;
      break;
    case Opcode::read:
    case Opcode::readlink:
    case Opcode::readdir:
      rules[op.inode].may = time_access;
      break;
    case Opcode::set_attribute:
    case Opcode::remove_attribute:
      rules[op.inode].must = time_change;
      break;
    case Opcode::setattr: {
      TimeRule& rule = rules[op.inode];
      if ((op.mask & format::set_size) != 0) rule.must |= time_modification;
      if ((op.mask & format::set_access_time_now) != 0) rule.must |= time_access;
      if ((op.mask & format::set_modification_time_now) != 0) rule.must |= time_modification;
      if ((op.mask & (format::set_access_time | format::set_modification_time)) != 0) {
        rule.may |= time_access | time_modification;  // compared with the values given
      }
      if (op.mask != 0) rule.must |= time_change;
      break;
    }
    default:
      break;
  }
  return rules;
}

}  // namespace gpu4fs::test
