// An inode as seen by a reader without its lock.
#pragma once

#include "base/mutant.hpp"
#include "base/racy_access.hpp"
#include "engine/command_names.hpp"
#include "engine/engine_types.hpp"
#include "engine/optimistic/version.hpp"
#include "fs/inode/inode_rules.hpp"
#include "fs/names/permissions.hpp"
#include "fs/pages/peek_page.hpp"

namespace gpu4fs::engine {

// The context of a worker that has entered the step gate.
struct ReaderContext {
  Engine* engine;
  const Session* session;
  WorkerViews* views;
  u64 era;  // of the step gate
  bool is_trusted;
  u32 read_pages_max;            // of a read
  u64 read_ns = 0;               // of now_monotonic_ns(), shortly before; 0: the clock has not been read
  KnownPlaces* known = nullptr;  // of this era; nullptr: several ranks read

  GPU4FS_FN u64 now_ns() const { return read_ns != 0 ? read_ns : now_monotonic_ns(); }
};

// The frame of a resident metadata page, or no_frame. `version`: of the inode of the page's file, loaded before; 0 for
// the inode file. For a single rank, inside the step gate.
GPU4FS_FN inline u32 find_frame(const ReaderContext& reader, fs::PageKey key, u64 version) {
  const fs::PageRoot& pages = reader.views->root.pages;
  if (reader.known != nullptr) {
    const KnownPlaces::Page& known = reader.known->page(key);
    const bool is_same_file = GPU4FS_MUTANT(place_outlives_file, known.version == version, true);
    if (known.frame_and_one != 0 && known.key == key && is_same_file) return known.frame_and_one - 1;
  }
  const u32 frame = fs::peek_frame(pages, key);
  if (frame == fs::no_frame) return frame;
  // Once in an era is enough: pages are evicted between eras.
  fs::note_use(pages, frame);
  if (reader.known != nullptr) reader.known->page(key) = {key, version, frame + 1, 0};
  return frame;
}

// Looks at the lock of an inode whose page is in this frame.
GPU4FS_FN inline InodeView view_in_frame(const fs::PageRoot& pages, u32 frame, u64 number) {
  InodeView view{number, nullptr, nullptr, 0};
  const u32 position = static_cast<u32>(number % format::inodes_per_page);
  view.lock = &pages.inode_locks[u64{frame} * format::inodes_per_page + position];
  const LockSeen seen = look_at(*view.lock);
  if (!seen.is_quiet) return view;
  view.version = seen.version;
  view.inode = reinterpret_cast<const format::Inode*>(pages.data + u64{frame} * page_size) + position;
  return view;
}

// Looks at the lock of an inode that clients can name, if its page is resident. For a single rank, inside the step
// gate.
GPU4FS_FN inline InodeView look_at_inode(const ReaderContext& reader, u64 number) {
  const fs::PageRoot& pages = reader.views->root.pages;
  InodeView view{number, nullptr, nullptr, 0};
  if (!is_file_number(number)) return view;
  const u64 page = number / format::inodes_per_page;
  const u32 frame = find_frame(reader, fs::PageKey::make(format::inode_number_inode_file, 0, page), 0);
  if (frame == fs::no_frame) return view;
  view = view_in_frame(pages, frame, number);
  if (view.inode == nullptr) return view;
  if (reader.known != nullptr) {
    reader.known->inode(number) = view;
    reader.known->directory_pages[KnownPlaces::inode_place(number)] = 0;
  }
  return view;
}

// The same, or what an earlier look has found.
GPU4FS_FN inline InodeView view_inode(const ReaderContext& reader, u64 number) {
  if (reader.known != nullptr) {
    const InodeView& known = reader.known->inode(number);
    if (known.number == number && is_file_number(number)) return known;
  }
  return look_at_inode(reader, number);
}

// Whether the inode has still the version of the view, after all reads of this rank. If it has not, views are outdated.
GPU4FS_FN inline bool is_unchanged(const ReaderContext& reader, const InodeView& view) {
  const bool is_same = is_unchanged(*view.lock, view.version);
  if (!is_same && reader.known != nullptr) reader.known->has_changed = 1;
  return is_same;
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
