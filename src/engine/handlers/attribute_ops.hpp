// Handlers of extended attributes, including access control lists.
//
// Names are in the namespaces user., trusted., security. and system.posix_acl_{access,default}. For trusted sessions
// the kernel has applied the rules of xattr(7). For others the engine applies them here.
#pragma once

#include "base/mutant.hpp"
#include "engine/handlers/namespace_common.hpp"
#include "engine/handlers/profile_attribute.hpp"
#include "fs/names/set_attribute.hpp"

namespace gpu4fs::engine {

namespace detail {

enum class AttributeSpace : u32 { unknown, user, trusted, security, access_list, default_list };

GPU4FS_FN inline bool begins_with(NameBytes name, const char* prefix, u32 length) {
  return name.length > length && fs::detail::names_equal(name.bytes, reinterpret_cast<const u8*>(prefix), length);
}

// Leader.
GPU4FS_FN inline AttributeSpace attribute_space(NameBytes name) {
  if (begins_with(name, "user.", 5)) return AttributeSpace::user;
  if (begins_with(name, "trusted.", 8)) return AttributeSpace::trusted;
  if (begins_with(name, "security.", 9)) return AttributeSpace::security;
  const fs::AttributeName access = fs::acl_access_name();
  if (name.length == access.length && fs::detail::names_equal(name.bytes, access.bytes, access.length)) {
    return AttributeSpace::access_list;
  }
  const fs::AttributeName defaults = fs::acl_default_name();
  if (name.length == defaults.length && fs::detail::names_equal(name.bytes, defaults.bytes, defaults.length)) {
    return AttributeSpace::default_list;
  }
  return AttributeSpace::unknown;
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status check_attribute_name(Group g, NameBytes name, AttributeSpace* space) {
  if (name.length == 0 || name.length > name_length_max) return Status::attribute_range;
  *space = on_leader(g, [&] { return attribute_space(name); });
  return *space == AttributeSpace::unknown ? Status::not_supported : Status::ok;
}

// Leader. The server stores the state of its jobs in attributes of the root, whatever flags the root has. These names
// are its own, and only its internal sessions may use them.
GPU4FS_FN inline bool is_kept_by_server(const Engine& engine, const CommandState& c, NameBytes name) {
  return engine.sessions[c.session].internal != 0 && begins_with(name, "trusted.gpu4fs.", 15);
}

// The rules of xattr(7) for a session that is not trusted. For a hidden attribute a reader gets no_attribute and a
// writer permission.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status check_attribute_access(Group g, Engine& engine, CommandState& c,
                                                        const fs::InodeRef& file, AttributeSpace space,
                                                        bool is_change) {
  if (is_change && !on_leader(g, [&] { return is_kept_by_server(engine, c, first_name(c)); })) {
    GPU4FS_TRY(check_changeable(c, file));
  }
  if (session_is_trusted(engine, c)) return Status::ok;
  const format::Inode& inode = *file.inode;
  const u32 uid = c.command.uid;
  const bool is_owner = uid == 0 || uid == inode.uid;
  switch (space) {
    case AttributeSpace::trusted:
      if (GPU4FS_MUTANT(trusted_attributes_set, uid == 0, true)) return Status::ok;
      return is_change ? Status::permission : Status::no_attribute;
    case AttributeSpace::security:
      return is_change && uid != 0 ? Status::permission : Status::ok;
    case AttributeSpace::access_list:
    case AttributeSpace::default_list:
      return is_change && !is_owner ? Status::permission : Status::ok;
    default:
      break;
  }
  const bool holds_user = fs::is_regular(inode.mode) || fs::is_directory(inode.mode);
  if (!holds_user) return is_change ? Status::permission : Status::no_attribute;
  if (is_change && fs::is_directory(inode.mode) && (inode.mode & fs::mode_sticky) != 0 && !is_owner) {
    return Status::permission;
  }
  return require_access(g, engine, c, file, is_change ? fs::may_write : fs::may_read);
}

GPU4FS_FN inline fs::AttributeName as_attribute(NameBytes name) {
  GPU4FS_CHECK_GT(name.length, 0u);
  GPU4FS_CHECK_LE(name.length, u32{name_length_max});
  return {name.bytes, name.length, 0};
}

// The effect of setting an access control list on the inode.
struct ListChange {
  u32 removes;   // no list is stored
  u32 new_mode;  // of the inode; its current mode if it does not change
};

// `length` bytes of the value are in c.buffer. Status: invalid_argument, not_supported, access.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status plan_list_change(Group g, CommandState& c, const fs::InodeRef& file,
                                                  AttributeSpace space, u32 length, ListChange* change) {
  const u32 mode = file.inode->mode;
  *change = {0, mode};
  const bool is_access = space == AttributeSpace::access_list;
  if (!is_access && space != AttributeSpace::default_list) return Status::ok;
  if (fs::is_symlink(mode)) return Status::not_supported;
  change->removes = length == 0;
  if (!is_access && !fs::is_directory(mode)) return length == 0 ? Status::ok : Status::access;
  if (length == 0) return Status::ok;
  const bool valid = on_leader(g, [&] { return fs::acl_is_valid(c.buffer, length); });
  if (!valid) return Status::invalid_argument;
  if (!is_access) return Status::ok;
  u32 new_mode = on_leader(g, [&] { return (mode & ~0777u) | fs::acl_mode(c.buffer, length); });
  if ((c.command.mask & wire::attribute_kill_set_gid) != 0) new_mode &= ~fs::mode_set_gid;
  change->new_mode = new_mode;
  change->removes = fs::acl_is_minimal(length);
  return Status::ok;
}

// Gate: appends the command's record, with `value` as the new value. Returns the copy of the value that the client
// cannot change.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE const u8* record_attribute_change(Group g, Engine& engine, CommandState& c, const u8* value) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  GPU4FS_CHECK_LE(c.command.length, u64{format::attribute_value_max});
  const bool removes = c.command.opcode == wire::Opcode::remove_attribute;
  format::LogRecord record =
      record_of(c, removes ? format::LogOpcode::remove_attribute : format::LogOpcode::set_attribute);
  record.mask = removes ? 0 : c.command.mask & wire::attribute_kill_set_gid;
  record.data_length = removes ? 0 : static_cast<u32>(c.command.length);
  const u64 lsn = append_record(g, engine, c, record, value);
  return fs::recorded_data(engine.fs, lsn, record, value);
}

// Gate: sets the inode's mode and change time after its attributes have changed.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void stamp_attribute_change(Group g, Engine& engine, CommandState& c,
                                                      const fs::InodeRef& file, u32 new_mode) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  GPU4FS_CHECK(holds_lock(c, file.number, LockMode::exclusive));
  GPU4FS_CHECK_EQ(new_mode & fs::mode_type_mask, file.inode->mode & u32{fs::mode_type_mask});
  on_leader(g, [&] {
    fs::set_mode(*file.inode, new_mode);
    set_change_time(file, c.operation.now);
  });
  fs::mark_inode_dirty(g, engine.fs, c.operation, file);
}

// Reserves room for the record of record_attribute_change().
template <class Group>
GPU4FS_FN Status reserve_attribute_record(Group g, Engine& engine, CommandState& c) {
  GPU4FS_CHECK_EQ(c.in_gate, 0u);
  const bool removes = c.command.opcode == wire::Opcode::remove_attribute;
  return reserve_record(g, engine, c, removes ? 0 : c.command.length);
}

// Sets the inode's profile to the one that the value in c.buffer names, or removes it.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step change_profile(Group g, Engine& engine, CommandState& c, const fs::InodeRef& file,
                                              ProfileAttribute kind) {
  GPU4FS_CHECK(kind != ProfileAttribute::none);
  u32 profile = 0;
  if (c.command.opcode == wire::Opcode::set_attribute) {
    if (kind == ProfileAttribute::own) {
      GPU4FS_STEP_TRY(plan_profile(g, engine, c, file, static_cast<u32>(c.command.length), &profile));
    }
  } else if (kind == ProfileAttribute::own && file.inode->profile == 0) {
    return Step::end(Status::no_attribute);
  }
  GPU4FS_STEP_TRY(reserve_profile_change(g, engine, c, file, kind));
  on_leader(g, [&] { file.inode->profile = static_cast<u16>(profile); });
  record_attribute_change(g, engine, c, c.buffer);
  stamp_attribute_change(g, engine, c, file, file.inode->mode);
  return Step::complete();
}

// Removes an attribute. With `must_exist` the status is no_attribute if there is none.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step remove_attribute(Group g, Engine& engine, CommandState& c, const fs::InodeRef& file,
                                                u32 new_mode, bool must_exist) {
  fs::FileSystem& fs = engine.fs;
  fs::FoundAttribute found{};
  const Status status = fs::attribute_find(g, fs, c.operation, file, as_attribute(first_name(c)), &found);
  if (status == Status::no_attribute && !must_exist && new_mode == file.inode->mode) return Step::complete();
  if (status != Status::ok && (status != Status::no_attribute || must_exist)) return Step::end(status);
  if (status == Status::ok) GPU4FS_STEP_TRY(fs::attribute_prepare_remove(g, fs, c.operation, file, found));
  GPU4FS_STEP_TRY(fs::reserve_attributes(g, fs, c.operation, fs::attribute_removal_pages, 0));
  GPU4FS_STEP_TRY(reserve_attribute_record(g, engine, c));
  GPU4FS_STEP_TRY(enter_gate(g, engine, c));
  record_attribute_change(g, engine, c, c.buffer);
  if (status == Status::ok) fs::attribute_commit_remove(g, fs, c.operation, file, found);
  stamp_attribute_change(g, engine, c, file, new_mode);
  return Step::complete();
}

// Sets an attribute to `value`, which has the command's length. It is in c.buffer, or in session memory if it is large.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status store_attribute(Group g, Engine& engine, CommandState& c, const fs::InodeRef& file,
                                                 const u8* value, u32 new_mode) {
  GPU4FS_CHECK_LE(c.command.length, u64{format::attribute_value_max});
  fs::FileSystem& fs = engine.fs;
  const u32 length = static_cast<u32>(c.command.length);
  const u32 mode_flags = c.command.mask & (fs::attribute_create | fs::attribute_replace);
  fs::NewAttribute attribute{as_attribute(first_name(c)), length, mode_flags, c.buffer, nullptr};
  fs::AttributePlan plan{};
  GPU4FS_TRY(fs::attribute_prepare_set(g, fs, c.operation, file, attribute, &plan));
  GPU4FS_TRY(fs::reserve_attributes(g, fs, c.operation, plan.touched_pages, plan.new_pages));
  GPU4FS_TRY(reserve_attribute_record(g, engine, c));
  GPU4FS_TRY(enter_gate(g, engine, c));
  attribute.value = record_attribute_change(g, engine, c, value);
  fs::attribute_commit_set(g, fs, c.operation, file, plan, attribute);
  stamp_attribute_change(g, engine, c, file, new_mode);
  return Status::ok;
}

}  // namespace detail

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_set_attribute(Group g, Engine& engine, CommandState& c) {
  const NameBytes name = first_name(c);
  const u32 mask = c.command.mask;
  const u32 mode_flags = fs::attribute_create | fs::attribute_replace;
  if ((mask & ~(mode_flags | wire::attribute_kill_set_gid)) != 0 || (mask & mode_flags) == mode_flags) {
    return Step::end(Status::invalid_argument);
  }
  detail::AttributeSpace space{};
  GPU4FS_STEP_TRY(detail::check_attribute_name(g, name, &space));
  if (c.command.length > format::attribute_value_max) return Step::end(Status::attribute_too_big);
  const u32 length = static_cast<u32>(c.command.length);
  const detail::ProfileAttribute kind = on_leader(g, [&] { return detail::profile_attribute(name); });
  const bool is_great = on_leader(g, [&] { return fs::detail::has_own_pages(detail::as_attribute(name), length); });
  if (kind != detail::ProfileAttribute::none && is_great) return Step::end(Status::invalid_argument);
  if (!is_great && length > command_buffer_size) return Step::end(Status::no_space);
  u8* data = nullptr;
  GPU4FS_STEP_TRY(resolve(g, engine, c, c.command.data, length, &data));
  fs::InodeRef file{};
  GPU4FS_STEP_TRY(lock_live_inode(g, engine, c, c.command.inode, LockMode::exclusive, &file));
  GPU4FS_STEP_TRY(check_writable(engine));
  GPU4FS_STEP_TRY(detail::check_attribute_access(g, engine, c, file, space, true));
  // The following steps use a copy of the value that the client cannot change. The copy of a large value is its record.
  if (!is_great) {
    g.sync();
    copy_bytes(g, c.buffer, data, length);
    g.sync();
  }
  if (kind != detail::ProfileAttribute::none) return detail::change_profile(g, engine, c, file, kind);
  detail::ListChange change{};
  GPU4FS_STEP_TRY(detail::plan_list_change(g, c, file, space, length, &change));
  if (change.removes != 0) return detail::remove_attribute(g, engine, c, file, change.new_mode, false);
  GPU4FS_STEP_TRY(detail::store_attribute(g, engine, c, file, is_great ? data : c.buffer, change.new_mode));
  return Step::complete();
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_get_attribute(Group g, Engine& engine, CommandState& c) {
  detail::AttributeSpace space{};
  GPU4FS_STEP_TRY(detail::check_attribute_name(g, first_name(c), &space));
  u8* data = nullptr;
  if (c.command.length != 0) GPU4FS_STEP_TRY(resolve(g, engine, c, c.command.data, c.command.length, &data));
  fs::InodeRef file{};
  GPU4FS_STEP_TRY(lock_live_inode(g, engine, c, c.command.inode, LockMode::shared, &file));
  GPU4FS_STEP_TRY(detail::check_attribute_access(g, engine, c, file, space, false));
  const detail::ProfileAttribute kind = on_leader(g, [&] { return detail::profile_attribute(first_name(c)); });
  if (kind != detail::ProfileAttribute::none) return detail::read_profile(g, engine, c, file, kind, data);
  fs::FoundAttribute found{};
  GPU4FS_STEP_TRY(fs::attribute_find(g, engine.fs, c.operation, file, detail::as_attribute(first_name(c)), &found));
  if (c.command.length == 0) return Step::complete(found.value_length);
  if (found.value_length > c.command.length) return Step::end(Status::attribute_range);
  GPU4FS_STEP_TRY(fs::attribute_read(g, engine.fs, c.operation, file, found, data));
  return Step::complete(found.value_length);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_list_attributes(Group g, Engine& engine, CommandState& c) {
  u8* data = nullptr;
  if (c.command.length != 0) GPU4FS_STEP_TRY(resolve(g, engine, c, c.command.data, c.command.length, &data));
  fs::InodeRef file{};
  GPU4FS_STEP_TRY(lock_live_inode(g, engine, c, c.command.inode, LockMode::shared, &file));
  const bool hides_trusted = GPU4FS_MUTANT(trusted_attributes_listed, c.command.uid != 0, false);
  fs::NameList list{data, c.command.length, 0, hides_trusted};
  GPU4FS_STEP_TRY(fs::attributes_list(g, engine.fs, c.operation, file, &list));
  GPU4FS_STEP_TRY(detail::list_profile(g, c, file, data, &list.length));
  return Step::complete(list.length);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_remove_attribute(Group g, Engine& engine, CommandState& c) {
  detail::AttributeSpace space{};
  GPU4FS_STEP_TRY(detail::check_attribute_name(g, first_name(c), &space));
  fs::InodeRef file{};
  GPU4FS_STEP_TRY(lock_live_inode(g, engine, c, c.command.inode, LockMode::exclusive, &file));
  GPU4FS_STEP_TRY(check_writable(engine));
  GPU4FS_STEP_TRY(detail::check_attribute_access(g, engine, c, file, space, true));
  const detail::ProfileAttribute kind = on_leader(g, [&] { return detail::profile_attribute(first_name(c)); });
  if (kind != detail::ProfileAttribute::none) return detail::change_profile(g, engine, c, file, kind);
  return detail::remove_attribute(g, engine, c, file, file.inode->mode, true);
}

}  // namespace gpu4fs::engine
