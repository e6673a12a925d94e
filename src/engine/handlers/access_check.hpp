// Access checks of an inode. Mode bits and access control lists are checked for callers whose front end has not checked
// them. The flags append-only and immutable are checked for all callers. The same rules hold for names and for content.
//
// The flags are as in Linux. Only the flags of an immutable inode can change, and none of the names in an immutable
// directory. The content of an append-only file grows at its end. An append-only directory gets names and loses none.
// Inodes with either flag are not removed, renamed or linked. Logged operations were allowed, so a replay ignores the
// flags.
#pragma once

#include "base/mutant.hpp"
#include "engine/engine.hpp"
#include "engine/log_records.hpp"
#include "fs/names/permissions.hpp"
#include "fs/names/stored_access_lists.hpp"

namespace gpu4fs::engine {

GPU4FS_FN inline bool session_is_trusted(const Engine& engine, const CommandState& c) {
  return session_is_trusted(engine, c.session);
}

GPU4FS_FN inline fs::Credentials credentials_of(const Engine& engine, const CommandState& c) {
  const Session& session = engine.sessions[c.session];
  return {session.groups, c.command.uid, session.trusted != 0 ? c.command.gid : session.gid, session.group_count, 0};
}

GPU4FS_FN inline bool has_flags(const CommandState& c, const fs::InodeRef& ref, u32 flags) {
  return (ref.inode->flags & flags) != 0 && !is_replay(c);
}

// Returns permission if the inode is immutable or append-only.
GPU4FS_FN inline Status check_changeable(const CommandState& c, const fs::InodeRef& ref) {
  return has_flags(c, ref, format::inode_flags_of_administrators) ? Status::permission : Status::ok;
}

// Returns permission if flags of directory `dir` or of `child` forbid the removal of a name in `dir`.
GPU4FS_FN inline Status check_removable(const CommandState& c, const fs::InodeRef& dir, const fs::InodeRef& child) {
  return has_flags(c, dir, format::inode_flag_append_only) ? Status::permission : check_changeable(c, child);
}

// Returns access if the command's owner lacks a right in `wanted` (fs::may_*), and permission for a write to an
// immutable inode. Trusted sessions have all rights.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status require_access(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                u32 wanted) {
  if ((wanted & fs::may_write) != 0 && has_flags(c, ref, format::inode_flag_immutable)) return Status::permission;
  if (wanted == 0 || session_is_trusted(engine, c)) return Status::ok;
  const fs::Credentials who = credentials_of(engine, c);
  const format::Inode& inode = *ref.inode;
  // Access control lists can only deny rights, or grant them within the mode's group bits.
  if (who.uid != 0 && who.uid != inode.uid && (inode.mode & 070) != 0) {
    const fs::AttributeName name = fs::acl_access_name();
    fs::FoundAttribute found{};
    const Status status = fs::attribute_find(g, engine.fs, c.operation, ref, name, &found);
    if (status == Status::ok) {
      const bool allowed = on_leader(g, [&] {
        const u8* value = fs::page_data(engine.fs, found.frame) + found.value_offset;
        return fs::acl_is_valid(value, found.value_length) &&
               fs::acl_allows(value, found.value_length, inode, who, wanted);
      });
      return GPU4FS_MUTANT(access_list_ignored, allowed, true) ? Status::ok : Status::access;
    }
    if (status != Status::no_attribute) return status;
  }
  return GPU4FS_MUTANT(access_granted, fs::may_access(inode, who, wanted), true) ? Status::ok : Status::access;
}

}  // namespace gpu4fs::engine
