// lookup and lookup_path without locks: from directory to directory, and the attributes of the inode that is found.
//
// The versions of all inodes on the way are checked together at the end, so the answer is correct for one point in
// time. Symbolic links, dots and refusals are left to the ordinary way.
#pragma once

#include "base/mutant.hpp"
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
    end_reading();
    bool same = true;
    for (u32 i = GPU4FS_MUTANT(walk_checks_its_end_alone, 0u, count - 1); i < count; ++i)
      same = has_version(*locks[i], versions[i]) && same;
    return same;
  }
};

struct WalkResult {
  Status status;  // ok; not_found; busy: the ordinary way has to walk
  u32 reserved;
  u64 inode;
  format::Inode found;  // if ok: without its content
};

// The names of a walk.
struct WalkNames {
  const u8* bytes;  // that nobody changes
  u32 length;
  bool is_path;  // false: all bytes are one name
};

namespace detail {

// The number of pages of the directory. 0: it is none that the session's user surely may search.
GPU4FS_FN inline u64 searchable_pages(const ReaderContext& reader, const InodeView& view) {
  // What is known says nothing about rights.
  const bool may_know = reader.known != nullptr && GPU4FS_MUTANT(known_without_rights, reader.is_trusted, true);
  if (may_know) {
    const u64 known = reader.known->directory_pages[KnownPlaces::inode_place(view.number)];
    if (known != 0) return known;
  }
  const format::Inode directory = copy_without_content(view);
  if (!is_usable(directory) || !fs::is_directory(directory.mode)) return 0;
  const bool may_search = surely_may(*reader.session, directory, fs::may_execute);
  if (GPU4FS_MUTANT(walk_needs_no_rights, !may_search, false)) return 0;
  const u64 page_count = directory.size_bytes / page_size;
  if (may_know) reader.known->directory_pages[KnownPlaces::inode_place(view.number)] = page_count;
  return page_count;
}

// As find_name(), or what an earlier search has found.
GPU4FS_FN inline NameSeen find_known_name(const ReaderContext& reader, const InodeView& directory, u64 page_count,
                                          const fs::HashedName& name) {
  if (reader.known == nullptr) return find_name(reader, directory, page_count, name);
  KnownName* const set = reader.known->name_set(name.hash);
  for (u32 i = 0; i < KnownPlaces::names_per_set; ++i) {
    const bool is_current = GPU4FS_MUTANT(name_outlives_change, set[i].version == directory.version, true);
    if (set[i].directory == directory.number && is_current && set[i].is_same(name)) {
      return {Status::ok, set[i].type, set[i].inode};
    }
  }
  const NameSeen found = find_name(reader, directory, page_count, name);
  if (found.status != Status::ok || name.length > KnownName::length_max) return found;
  static_assert(KnownPlaces::names_per_set == 2);
  set[1] = set[0];
  set[0] = {directory.number, directory.version, name.hash, found.inode, found.type, name.length, {}};
  for (u32 i = 0; i < name.length; ++i) set[0].bytes[i] = name.bytes[i];
  return found;
}

// Finds `name` in directory `number`. Dots and invalid names are left to the ordinary way.
GPU4FS_FN inline NameSeen walk_name(const ReaderContext& reader, u64 number, NameBytes name, SeenVersions* seen) {
  const NameSeen unknown{Status::busy, 0, 0};
  if (check_name(Lane{}, name) != Status::ok || is_dots(name) || seen->count + 1 >= walk_inodes_max) return unknown;
  const InodeView view = view_inode(reader, number);
  if (view.inode == nullptr) return unknown;
  const u64 page_count = searchable_pages(reader, view);
  if (page_count == 0) return unknown;
  seen->add(view);
  GPU4FS_TRACE_POINT(inode);
  const fs::HashedName hashed = fs::make_name(reader.engine->fs, name.bytes, name.length);
  GPU4FS_TRACE_POINT(checks);
  const NameSeen found = find_known_name(reader, view, page_count, hashed);
  GPU4FS_TRACE_POINT(walk);
  return found;
}

}  // namespace detail

// Walks `names` from inode `start`. The result is valid if *seen are unchanged. For a single rank, inside the step
// gate.
GPU4FS_FN GPU4FS_NOINLINE inline void walk_without_locks(const ReaderContext& reader, u64 start, const WalkNames& names,
                                                         bool follows, SeenVersions* seen, WalkResult* result) {
  seen->count = 0;
  u64 current = start;
  for (u32 at = 0;;) {
    const PathComponent component =
        names.is_path ? next_component(names.bytes, at, names.length) : PathComponent{0, names.length, 0, 1};
    const NameBytes name{names.bytes + component.begin, component.end - component.begin, 0};
    const NameSeen next = detail::walk_name(reader, current, name, seen);
    result->status = next.status;
    if (next.status != Status::ok) return;
    current = next.inode;
    at = component.end;
    const bool is_end = component.is_last != 0;
    const bool is_symlink = next.type == fs::entry_type(fs::mode_symlink);
    // A slash at the end requires a directory.
    const bool is_unusual = (is_symlink && (!is_end || follows)) || (is_end && component.has_slash != 0);
    if (is_unusual) result->status = Status::busy;
    if (is_end || is_unusual) break;
  }
  const InodeView view = view_inode(reader, current);
  if (result->status == Status::ok && view.inode != nullptr) {
    seen->add(view);
    result->inode = current;
    result->found = copy_without_content(view);
    if (is_usable(result->found)) return;
  }
  result->status = Status::busy;
}

// lookup and lookup_path. `name` is a copy that the client cannot change. The attributes are written to *record unless
// it is nullptr. Status: ok; not_found; or busy: the ordinary way has to answer.
GPU4FS_FN GPU4FS_NOINLINE inline Status answer_lookup(const ReaderContext& reader, const wire::Command& command,
                                                      const u8* name, format::AttributeRecord* record, u64* inode) {
  const WalkNames names{name, command.name_length, command.opcode == wire::Opcode::lookup_path};
  const u64 start = names.is_path && name[0] == '/' ? format::inode_number_root : command.inode;
  SeenVersions seen;
  WalkResult walked;
  const bool follows = (command.flags & wire::command_flag_follow) != 0;
  walk_without_locks(reader, start, names, follows, &seen, &walked);
  // What led to `busy` may be remembered and outdated.
  const bool leads_on = walked.status != Status::busy;
  const bool checks = leads_on || GPU4FS_MUTANT(outdated_names_kept, reader.known != nullptr && seen.count != 0, false);
  if (checks && !seen.are_unchanged()) {
    if (reader.known != nullptr) reader.known->has_changed = 1;
    return Status::busy;
  }
  if (!leads_on) return Status::busy;
  if (walked.status != Status::ok) return walked.status;
  *inode = walked.inode;
  describe(walked.inode, walked.found, record);
  return Status::ok;
}

}  // namespace gpu4fs::engine
