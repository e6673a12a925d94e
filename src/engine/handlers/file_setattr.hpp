// setattr: size, mode, owner and times in one commit with one record. To cut a huge file, further commits come before
// it. They make the file shorter and change nothing else (file_truncate.hpp).
#pragma once

#include "base/mutant.hpp"
#include "engine/handlers/file_truncate.hpp"
#include "fs/names/stored_access_lists.hpp"

namespace gpu4fs::engine {
namespace detail {

struct SetAttributeState {
  format::AttributeRecord record;  // copied from the session's memory once
  u32 started;
  u32 reserved[3];
};

// Checks the right to change the flags of an inode, for all sessions. A front end cannot vouch for the right to set the
// flags of administrators, because not every kernel checks it.
GPU4FS_FN inline Status check_flags(const CommandState& c, const format::Inode& inode,
                                    const format::AttributeRecord& record) {
  GPU4FS_CHECK_NE(u32{inode.mode}, 0u);
  if ((c.command.mask & format::set_flags) == 0 || is_replay(c)) return Status::ok;
  if ((record.flags & ~u32{format::inode_flags_of_users}) != 0) return Status::invalid_argument;
  const u32 changed = (record.flags ^ inode.flags) & format::inode_flags_of_administrators;
  return changed != 0 && c.command.uid != 0 ? Status::permission : Status::ok;
}

// Checks the restrictions by the inode's current flags. The times of an append-only inode may be set to the current
// time.
GPU4FS_FN inline Status check_by_flags(const CommandState& c, const fs::InodeRef& ref) {
  const u32 mask = c.command.mask & ~u32{format::set_flags};
  const u32 now = format::set_access_time_now | format::set_modification_time_now;
  if ((mask & ~now) != 0) return check_changeable(c, ref);
  return mask != 0 && has_flags(c, ref, format::inode_flag_immutable) ? Status::permission : Status::ok;
}

// Access checks for callers whose front end has not made them: chmod, chown and utimes of POSIX.
template <class Group>
GPU4FS_FN Status check_set_attribute(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                     const format::AttributeRecord& record) {
  if (session_is_trusted(engine, c.session) || c.command.uid == 0) return Status::ok;
  const format::Inode& inode = *ref.inode;
  const u32 mask = c.command.mask;
  const bool is_owner = c.command.uid == inode.uid;
  if ((mask & format::set_flags) != 0 && !is_owner) return Status::permission;
  if (GPU4FS_MUTANT(mode_changed_by_anybody, (mask & format::set_mode) != 0, false) && !is_owner) {
    return Status::permission;
  }
  const bool gives_away = GPU4FS_MUTANT(owner_given_away, record.uid != inode.uid, false);
  if ((mask & format::set_uid) != 0 && (!is_owner || gives_away)) {
    return Status::permission;
  }
  const bool may_have_group = record.gid == inode.gid || caller_in_group(engine, c, record.gid);
  if ((mask & format::set_gid) != 0 && (!is_owner || !may_have_group)) return Status::permission;
  const u32 given_times = format::set_access_time | format::set_modification_time | format::set_change_time;
  if ((mask & given_times) != 0 && !is_owner) return Status::permission;
  const u32 times_now = format::set_access_time_now | format::set_modification_time_now;
  if ((mask & times_now) != 0 && !is_owner) return require_access(g, engine, c, ref, fs::may_write);
  return Status::ok;
}

GPU4FS_FN inline u32 changed_mode(const Engine& engine, const CommandState& c, const format::Inode& inode,
                                  const format::AttributeRecord& record) {
  u32 mode = inode.mode;
  const u32 mask = c.command.mask;
  const bool is_regular = (mode & fs::mode_type_mask) == fs::mode_regular;
  if ((mask & (format::set_uid | format::set_gid)) != 0 && (mode & fs::mode_type_mask) != fs::mode_directory) {
    mode = without_set_gid(c, GPU4FS_MUTANT(set_id_kept_by_chown, mode & ~fs::mode_set_uid, mode), inode.gid);
  }
  if ((mask & format::set_mode) != 0) {
    mode = (mode & fs::mode_type_mask) | (record.mode & fs::mode_permissions);
    const u32 gid = (mask & format::set_gid) != 0 ? record.gid : inode.gid;
    const bool keeps_gid =
        session_is_trusted(engine, c.session) || c.command.uid == 0 || caller_in_group(engine, c, gid);
    if (is_regular && GPU4FS_MUTANT(set_gid_by_outsider, !keeps_gid, false)) mode &= ~fs::mode_set_gid;
  }
  return mode;
}

// Leader, gate.
GPU4FS_FN inline void apply_attributes(const Engine& engine, const CommandState& c, format::Inode& inode,
                                       const format::AttributeRecord& record) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  const u32 mask = c.command.mask;
  const u64 now = c.operation.now;
  fs::set_mode(inode, changed_mode(engine, c, inode, record));
  if ((mask & format::set_uid) != 0) inode.uid = record.uid;
  if ((mask & format::set_gid) != 0) inode.gid = record.gid;
  if ((mask & format::set_flags) != 0) {
    inode.flags = (inode.flags & ~u32{format::inode_flags_of_users}) | (record.flags & format::inode_flags_of_users);
  }
  u64 access = load<Order::relaxed, Scope::engine>(&inode.access_time);
  u64 modification = inode.modification_time;
  u64 change = now;
  if ((mask & format::set_access_time) != 0) {
    access = format::encode_time(record.access_seconds, record.access_nanoseconds);
  }
  if ((mask & format::set_modification_time) != 0) {
    modification = format::encode_time(record.modification_seconds, record.modification_nanoseconds);
  }
  if ((mask & format::set_access_time_now) != 0) access = now;
  if ((mask & format::set_modification_time_now) != 0) modification = now;
  if ((mask & format::set_change_time) != 0) {
    change = format::encode_time(record.change_seconds, record.change_nanoseconds);
  }
  store<Order::relaxed, Scope::engine>(&inode.access_time, access);
  store<Order::relaxed, Scope::engine>(&inode.modification_time, modification);
  store<Order::relaxed, Scope::engine>(&inode.change_time, change);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status start_set_attribute(Group g, Engine& engine, CommandState& c) {
  SetAttributeState& state = scratch_of<SetAttributeState>(c);
  if ((c.command.mask & ~format::set_attribute_known) != 0) return Status::invalid_argument;
  if (on_leader(g, [&] { return state.started != 0; })) return Status::ok;
  u8* source = nullptr;
  GPU4FS_TRY(resolve(g, engine, c, c.command.data, sizeof(format::AttributeRecord), &source));
  g.sync();
  copy_bytes(g, &state.record, source, sizeof(format::AttributeRecord));
  g.sync();
  on_leader(g, [&] { state.started = 1; });
  return Status::ok;
}

// Gate: the record contains the resulting mode, because it depends on the caller's rights. It also contains the
// requested size, and a replay gives the file this size.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void record_attributes(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  SetAttributeState& state = scratch_of<SetAttributeState>(c);
  on_leader(g, [&] { state.record.mode = ref.inode->mode; });
  format::LogRecord record = file_record_of(c, format::LogOpcode::set_inode, ref.number);
  record.mask = c.command.mask;
  // A new owner changes the mode too.
  if ((record.mask & (format::set_uid | format::set_gid)) != 0) record.mask |= format::set_mode;
  record.data_length = sizeof(format::AttributeRecord);
  append_record(g, engine, c, record, reinterpret_cast<const u8*>(&state.record));
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status check_size_change(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  const u32 type = ref.inode->mode & fs::mode_type_mask;
  if (type == fs::mode_directory) return Status::is_directory;
  if (type != fs::mode_regular) return Status::invalid_argument;
  return require_access(g, engine, c, ref, fs::may_write);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status set_attributes(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  GPU4FS_CHECK(holds_lock(c, ref.number, LockMode::exclusive));
  GPU4FS_CHECK_NE(c.command.mask, 0u);
  const SetAttributeState& state = scratch_of<SetAttributeState>(c);
  fs::FileSystem& fs = engine.fs;
  const u32 mask = c.command.mask;
  const bool resizes = (mask & format::set_size) != 0;
  const bool is_regular = (ref.inode->mode & fs::mode_type_mask) == fs::mode_regular;
  if (resizes) GPU4FS_TRY(check_size_change(g, engine, c, ref));
  SizeChange change{state.record.size_bytes, sizeof(format::AttributeRecord), 0, fs::FoundAttribute::none()};
  if ((mask & (format::set_uid | format::set_gid | format::set_size)) != 0 && is_regular) {
    GPU4FS_TRY(find_capability(g, engine, c, ref, &change.capability));
  }
  // An access control list changes with the mode.
  fs::FoundAttribute list{};
  if ((mask & format::set_mode) != 0) GPU4FS_TRY(fs::prepare_mode_change(g, fs, c.operation, ref, &list));
  change.attribute_pages = (list.entry_offset != 0 ? 1 : 0) + capability_pages(change.capability);
  if (resizes) {
    GPU4FS_TRY(truncate_to(g, engine, c, ref, change));
  } else {
    GPU4FS_TRY(reserve_size_change(g, engine, c, change, {0, 0}));
    GPU4FS_TRY(enter_gate(g, engine, c));
  }
  on_leader(g, [&] { apply_attributes(engine, c, *ref.inode, state.record); });
  fs::commit_mode_change(g, fs, c.operation, ref, list, ref.inode->mode);
  commit_capability_drop(g, engine, c, ref, change.capability);
  fs::mark_inode_dirty(g, fs, c.operation, ref);
  record_attributes(g, engine, c, ref);
  return Status::ok;
}

}  // namespace detail

// mask: SetAttributeMask, with the record at `data`. Writes the new attributes to `output`.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_setattr(Group g, Engine& engine, CommandState& c) {
  fs::InodeRef ref{};
  GPU4FS_STEP_TRY(detail::start_set_attribute(g, engine, c));
  const bool changes = c.command.mask != 0;
  if (changes && engine.fs.read_only != 0) return Step::end(Status::read_only);
  Status status =
      detail::lock_any(g, engine, c, c.command.inode, changes ? LockMode::exclusive : LockMode::shared, &ref);
  if (status == Status::ok) {
    const auto& record = detail::scratch_of<detail::SetAttributeState>(c).record;
    status = detail::check_flags(c, *ref.inode, record);
    if (status == Status::ok) status = detail::check_by_flags(c, ref);
    if (status == Status::ok) status = detail::check_set_attribute(g, engine, c, ref, record);
  }
  if (status == Status::ok && changes) {
    on_leader(g, [&] { detail::join_group_of(engine, c, *ref.inode); });
    status = detail::set_attributes(g, engine, c, ref);
  }
  if (status != Status::ok) return detail::leave_with(g, engine, c, status);
  put_attributes(g, engine, c, ref);
  return Step::complete();
}

}  // namespace gpu4fs::engine
