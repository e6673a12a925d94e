// Handler of readdir: a part of a directory as a stream of wire::DirectoryRecord.
//
// "." and ".." come first, then the names in hash order. Each record carries the cursor after it. With attributes,
// every named inode is locked for a moment. If one is busy, the command parks and later continues at the position
// stored in scratch memory.
#pragma once

#include "engine/handlers/namespace_common.hpp"
#include "fs/names/directory_walk.hpp"

namespace gpu4fs::engine {

inline constexpr u32 readdir_with_attributes = 1;  // bit of the command's mask

namespace detail {

struct ReaddirState {
  u64 cursor;   // of the next entry
  u64 bytes;    // written
  u64 is_done;  // only the access time remains to be updated
};
static_assert(sizeof(ReaddirState) <= command_scratch_size);

// An entry to write. The name is in engine memory.
struct ReaddirEntry {
  u64 inode;
  u64 next_cursor;
  const u8* name;
  u32 name_length;
  u32 type;
};

GPU4FS_FN constexpr u32 directory_record_length(u32 name_length, bool with_attributes) {
  const u32 attributes = with_attributes ? static_cast<u32>(sizeof(format::AttributeRecord)) : 0;
  return static_cast<u32>(align_up(sizeof(wire::DirectoryRecord) + attributes + name_length, 8));
}

// The attributes are already in c.attributes.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void write_directory_record(Group g, CommandState& c, u8* destination,
                                                      const ReaddirEntry& entry, bool with_attributes) {
  GPU4FS_CHECK_LE(entry.name_length, u32{name_length_max});
  GPU4FS_CHECK(is_aligned(destination, 8));
  const u32 length = directory_record_length(entry.name_length, with_attributes);
  u8* at = destination + sizeof(wire::DirectoryRecord);
  on_leader(g, [&] {
    // The last eight bytes contain the padding after the name.
    *reinterpret_cast<u64*>(destination + length - 8) = 0;
    *reinterpret_cast<wire::DirectoryRecord*>(destination) = {entry.inode,
                                                              entry.next_cursor,
                                                              static_cast<u16>(length),
                                                              static_cast<u8>(entry.name_length),
                                                              static_cast<u8>(entry.type),
                                                              with_attributes ? 1u : 0u};
  });
  if (with_attributes) {
    copy_bytes(g, at, &c.attributes, sizeof(format::AttributeRecord));
    at += sizeof(format::AttributeRecord);
  }
  copy_bytes(g, at, entry.name, entry.name_length);
  g.sync();
}

// Copies the attributes of a named inode to c.attributes. corrupt_structure: the inode does not exist.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status stage_attributes(Group g, Engine& engine, CommandState& c, u64 number) {
  // The directory itself is already locked and has no name in itself.
  if (!is_file_number(number) || number == c.command.inode) return Status::corrupt_structure;
  fs::InodeRef child{};
  const Status status = fs::get_inode(g, engine.fs, c.operation, number, &child);
  if (status == Status::not_found) return Status::corrupt_structure;
  GPU4FS_TRY(status);
  GPU4FS_TRY(lock_inode(g, engine, c, child, LockMode::shared));
  const bool sound = on_leader(g, [&] {
    fs::attributes_of(child, &c.attributes);
    return fs::inode_is_sound(*child.inode);
  });
  unlock_inode(g, engine, c, number);
  return sound ? Status::ok : Status::corrupt_structure;
}

// The entries without a name in the directory. False: the cursor is after them.
GPU4FS_FN inline bool is_dot_entry(const fs::InodeRef& dir, u64 cursor, ReaddirEntry* entry) {
  const u32 directory_type = fs::entry_type(fs::mode_directory);
  const u8* dots = reinterpret_cast<const u8*>("..");
  if (cursor == fs::cursor_start) {
    *entry = {dir.number, fs::cursor_after_dot, dots, 1, directory_type};
    return true;
  }
  if (cursor != fs::cursor_after_dot) return false;
  const bool is_root = dir.number == format::inode_number_root;
  const u64 parent = is_root ? dir.number : dir.inode->parent_or_device;
  *entry = {parent, fs::cursor_after_dot_dot, dots, 2, directory_type};
  return true;
}

// The next name. not_found: there is none.
template <class Group>
GPU4FS_FN Status next_name(Group g, Engine& engine, CommandState& c, const fs::InodeRef& dir, fs::DirectoryWalk* walk,
                           ReaddirEntry* entry) {
  fs::DirectoryItem item{};
  GPU4FS_TRY(fs::directory_next(g, engine.fs, c.operation, dir, walk, &item));
  *entry = {item.inode, item.next_cursor, item.name, item.name_length, item.type};
  return Status::ok;
}

// Writes entries until the buffer is full or the directory ends; `state` holds the position reached. If the status is
// not ok, nothing of the entry at state->cursor was written.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status fill_entries(Group g, Engine& engine, CommandState& c, const fs::InodeRef& dir,
                                              u8* data, ReaddirState* state) {
  GPU4FS_CHECK_LE(state->bytes, c.command.length);
  GPU4FS_CHECK(fs::is_directory(dir.inode->mode));
  fs::DirectoryWalk walk{};
  const u64 first_name = maximum(state->cursor, fs::cursor_after_dot_dot);
  GPU4FS_TRY(fs::directory_begin(first_name == fs::cursor_after_dot_dot ? fs::cursor_first_name : first_name, &walk));
  for (;;) {
    ReaddirEntry entry{};
    const bool is_dot = is_dot_entry(dir, state->cursor, &entry);
    const Status status = is_dot ? Status::ok : next_name(g, engine, c, dir, &walk, &entry);
    if (status == Status::not_found) return Status::ok;
    GPU4FS_TRY(status);
    bool with_attributes = (c.command.mask & readdir_with_attributes) != 0 && state->cursor >= fs::cursor_after_dot_dot;
    const u32 length = directory_record_length(entry.name_length, with_attributes);
    if (state->bytes + length > c.command.length) {
      return state->bytes == 0 ? Status::invalid_argument : Status::ok;
    }
    if (with_attributes) {
      const Status staged = stage_attributes(g, engine, c, entry.inode);
      if (is_control(staged)) return staged;
      // The name of a damaged inode is listed all the same, because a user has to be able to handle it.
      with_attributes = staged == Status::ok;
    }
    write_directory_record(g, c, data + state->bytes, entry, with_attributes);
    state->bytes += directory_record_length(entry.name_length, with_attributes);
    state->cursor = entry.next_cursor;
  }
}

}  // namespace detail

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_readdir(Group g, Engine& engine, CommandState& c) {
  fs::InodeRef dir{};
  GPU4FS_STEP_TRY(lock_live_inode(g, engine, c, c.command.inode, LockMode::shared, &dir));
  if (!fs::is_directory(dir.inode->mode)) return Step::end(Status::not_directory);
  GPU4FS_STEP_TRY(require_access(g, engine, c, dir, fs::may_read));
  u8* data = nullptr;
  GPU4FS_STEP_TRY(resolve(g, engine, c, c.command.data, c.command.length, &data));
  if (!is_aligned(data, 8)) return Step::end(Status::unaligned);
  detail::ReaddirState state = on_leader(g, [&] {
    auto* saved = reinterpret_cast<detail::ReaddirState*>(c.scratch);
    if (c.stage == 0) *saved = {c.command.offset, 0, 0};
    c.stage = 1;
    return *saved;
  });
  // A removed directory has no entries, not even "." and "..".
  if (state.is_done == 0 && dir.inode->link_count != 0) {
    const Status status = detail::fill_entries(g, engine, c, dir, data, &state);
    const bool waits = is_wait(status);
    // The entries read before an error are returned. The next call meets the error again.
    if (!waits && status != Status::ok && state.bytes == 0) return Step::end(status);
    on_leader(g, [&] {
      state.is_done = waits ? 0 : 1;
      *reinterpret_cast<detail::ReaddirState*>(c.scratch) = state;
    });
    if (waits) return Step::end(status);
  }
  GPU4FS_STEP_TRY(update_access_time(g, engine, c, dir));
  return Step::complete(state.bytes);
}

}  // namespace gpu4fs::engine
