// An inode as seen by a reader without its lock.
#pragma once

#include "base/mutant.hpp"
#include "engine/engine_types.hpp"
#include "engine/handlers/namespace_common.hpp"
#include "engine/optimistic/version.hpp"
#include "fs/inode/inode_rules.hpp"
#include "fs/pages/peek_page.hpp"

namespace gpu4fs::engine {

struct InodeView {
  u64 number;
  const format::Inode* inode;  // in its page; nullptr: not found, or a command is changing it
  const CommandLock* lock;
  u64 version;  // of the lock, loaded before any part of the inode
};

// Views an inode that clients can name, if its page is resident. For a single rank, inside the step gate.
GPU4FS_FN inline InodeView view_inode(const fs::PageRoot& pages, u64 number) {
  InodeView view{number, nullptr, nullptr, 0};
  if (!is_file_number(number)) return view;
  const u64 page = number / format::inodes_per_page;
  const u32 frame = fs::peek_frame(pages, fs::PageKey::make(format::inode_number_inode_file, 0, page));
  if (frame == fs::no_frame) return view;
  fs::note_use(pages, frame);
  const u32 position = static_cast<u32>(number % format::inodes_per_page);
  view.lock = &pages.inode_locks[u64{frame} * format::inodes_per_page + position];
  const LockSeen seen = look_at(*view.lock);
  if (!seen.is_quiet) return view;
  view.version = seen.version;
  view.inode = reinterpret_cast<const format::Inode*>(pages.data + u64{frame} * page_size) + position;
  return view;
}

// Copies the fields that the rules of inodes need. The slots after the first one and the inline content stay zero.
GPU4FS_FN inline format::Inode copy_without_content(const InodeView& view) {
  static_assert(offsetof(format::Inode, slots) == 72 && offsetof(format::Inode, page_count) == 200);
  format::Inode copy{};
  copy_racy<0, 80>(copy, view.inode);
  copy_racy<192, 240>(copy, view.inode);
  return copy;
}

GPU4FS_FN inline format::Inode copy_with_content(const InodeView& view) {
  format::Inode copy{};
  copy_racy<0, sizeof(copy)>(copy, view.inode);
  return copy;
}

// Whether the inode is in use and valid. The ordinary way reports damage.
GPU4FS_FN inline bool is_usable(const format::Inode& copy) {
  return copy.mode != 0 && fs::inode_is_sound(copy);
}

// Whether the session's user surely has the rights. With an access control list the ordinary way decides.
GPU4FS_FN inline bool surely_may(const Session& session, const format::Inode& copy, u32 wanted) {
  if (wanted == 0 || session.trusted != 0) return true;
  const fs::Credentials who{session.groups, session.uid, session.gid, session.group_count, 0};
  const bool has_no_list = GPU4FS_MUTANT(access_list_overlooked, copy.attributes.is_hole(), true);
  return has_no_list && fs::may_access(copy, who, wanted);
}

}  // namespace gpu4fs::engine
