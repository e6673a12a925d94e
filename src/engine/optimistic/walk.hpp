// lookup and lookup_path without locks: from directory to directory, and the attributes of the inode that is found.
//
// The versions of all inodes on the way are checked together at the end, so the answer is correct for one point in
// time. Symbolic links, dots and refusals are left to the ordinary way.
#pragma once

#include "engine/optimistic/find_name.hpp"
#include "engine/optimistic/inode_answers.hpp"

namespace gpu4fs::engine {

// Directories on the way, and the inode that they lead to.
inline constexpr u32 walk_inodes_max = 8;

// The versions that must be unchanged at the end of a walk.
struct SeenVersions {
  const CommandLock* locks[walk_inodes_max];
  u64 versions[walk_inodes_max];
  u32 count;

  GPU4FS_FN void add(const InodeView& view) {
    locks[count] = view.lock;
    versions[count] = view.version;
    ++count;
  }
  GPU4FS_FN bool are_unchanged() const {
    bool same = true;
    for (u32 i = 0; i < count; ++i) same = is_unchanged(*locks[i], versions[i]) && same;
    return same;
  }
};

struct WalkResult {
  Status status;  // ok; not_found; busy: the ordinary way has to walk
  u32 reserved;
  u64 inode;
  format::Inode found;  // if ok: without its content
};

namespace detail {

// The names of a walk: the names between slashes, or all bytes for a lookup.
struct WalkNames {
  const u8* bytes;
  u32 length;
  u32 at;
  bool has_slashes;

  GPU4FS_FN void skip_slashes() {
    while (has_slashes && at < length && bytes[at] == '/') ++at;
  }
  GPU4FS_FN u32 next_length() const {
    u32 end = at;
    while (end < length && !(has_slashes && bytes[end] == '/')) ++end;
    return end - at;
  }
};

// Dots have a special meaning, and an invalid name is refused with a specific status.
GPU4FS_FN inline bool is_plain_name(const u8* bytes, u32 length) {
  if (length == 0 || length > name_length_max) return false;
  if (bytes[0] == '.' && (length == 1 || (length == 2 && bytes[1] == '.'))) return false;
  for (u32 i = 0; i < length; ++i) {
    if (bytes[i] == 0 || bytes[i] == '/') return false;
  }
  return true;
}

// Finds the name at names->at in directory `number`.
GPU4FS_FN inline NameSeen walk_name(const ReaderContext& reader, u64 number, WalkNames* names, SeenVersions* seen) {
  const NameSeen unknown{Status::busy, 0, 0};
  const u32 length = names->next_length();
  const u8* const bytes = names->bytes + names->at;
  if (!is_plain_name(bytes, length) || seen->count + 1 >= walk_inodes_max) return unknown;
  const InodeView view = view_inode(reader.views->root.pages, number);
  if (view.inode == nullptr) return unknown;
  const format::Inode directory = copy_without_content(view);
  if (!is_usable(directory) || !fs::is_directory(directory.mode)) return unknown;
  if (!surely_may(*reader.session, directory, fs::may_execute)) return unknown;
  seen->add(view);
  names->at += length;
  const fs::HashedName name = fs::make_name(reader.engine->fs, bytes, length);
  return find_name(reader.views->root.pages, number, directory.size_bytes / page_size, name);
}

}  // namespace detail

// Walks `names` from inode `start`. The result is valid if *seen are unchanged. For a single rank, inside the step
// gate.
GPU4FS_FN GPU4FS_NOINLINE inline void walk_without_locks(const ReaderContext& reader, u64 start,
                                                         detail::WalkNames names, bool follows, SeenVersions* seen,
                                                         WalkResult* result) {
  seen->count = 0;
  result->status = Status::busy;
  u64 current = start;
  for (;;) {
    const NameSeen next = detail::walk_name(reader, current, &names, seen);
    result->status = next.status;
    if (next.status != Status::ok) return;
    current = next.inode;
    const bool is_last = names.at == names.length;
    if (next.type == fs::entry_type(fs::mode_symlink) && (!is_last || follows)) result->status = Status::busy;
    names.skip_slashes();
    // A slash at the end requires a directory.
    if (!is_last && names.at == names.length) result->status = Status::busy;
    if (is_last || result->status != Status::ok) break;
  }
  const InodeView view = view_inode(reader.views->root.pages, current);
  if (result->status == Status::ok && view.inode != nullptr) {
    seen->add(view);
    result->inode = current;
    result->found = copy_without_content(view);
    if (is_usable(result->found)) return;
  }
  result->status = Status::busy;
}

// lookup and lookup_path. `name` is a copy that the client cannot change. The attributes are stored at `destination`
// unless it is nullptr. Status: ok; not_found; or busy: the ordinary way has to answer, and the client has seen
// nothing.
GPU4FS_FN GPU4FS_NOINLINE inline Status answer_lookup(const ReaderContext& reader, const wire::Command& command,
                                                      const u8* name, u8* destination, u64* inode) {
  detail::WalkNames names{name, command.name_length, 0, command.opcode == wire::Opcode::lookup_path};
  u64 start = command.inode;
  if (names.has_slashes && name[0] == '/') start = format::inode_number_root;
  names.skip_slashes();
  SeenVersions seen;
  WalkResult walked;
  const bool follows = (command.flags & wire::command_flag_follow) != 0;
  walk_without_locks(reader, start, names, follows, &seen, &walked);
  if (walked.status == Status::busy || !seen.are_unchanged()) return Status::busy;
  if (walked.status != Status::ok) return walked.status;
  *inode = walked.inode;
  if (destination == nullptr) return Status::ok;
  format::AttributeRecord record{};
  fs::describe_inode(walked.inode, walked.found, walked.found.access_time, &record);
  store_record(destination, record);
  return Status::ok;
}

}  // namespace gpu4fs::engine
