// Handlers that create inodes: mknod, mkdir, symlink, create, tmpfile.
#pragma once

#include "engine/handlers/namespace_lookup.hpp"

namespace gpu4fs::engine {

namespace detail {

// The properties of a new inode.
struct CreateRequest {
  u32 mode;          // type and permissions as requested, before umask and default lists
  u32 link_count;    // 2 for directories, 0 for a file without a name
  u64 device;        // of device nodes
  const u8* target;  // symbolic links: in session memory
  u32 target_length;
  u32 reserved;
};

struct Creation {
  u64 number;
  fs::InsertPlan plan;
  fs::InheritedAccess inherited;
  fs::NewOwner owner;
};

// Callers outside a program's group cannot set its set-gid bit.
GPU4FS_FN inline u32 strip_set_gid(const Engine& engine, const CommandState& c, u32 mode, u32 gid) {
  if (session_is_trusted(engine, c) || c.command.uid == 0 || fs::is_directory(mode)) return mode;
  const bool is_program = (mode & (fs::mode_set_gid | 010)) == (fs::mode_set_gid | 010);
  return is_program && !caller_in_group(engine, c, gid) ? mode & ~fs::mode_set_gid : mode;
}

// Locks the inode of a claimed number before it has content. Clients may guess numbers, and the command that freed the
// inode last may still hold the lock. A page that nobody can have locked yet is created in a separate commit.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status lock_claimed_inode(Group g, Engine& engine, CommandState& c, u64 number) {
  GPU4FS_CHECK_EQ(c.operation.claimed_inode, number);
  fs::FileSystem& fs = engine.fs;
  fs::InodeRef ref{};
  Status status = fs::get_inode(g, fs, c.operation, number, &ref);
  if (status == Status::not_found) {
    GPU4FS_TRY(fs::reserve_metadata(g, fs, c.operation, {1, 0, 0}));
    GPU4FS_TRY(enter_gate(g, engine, c));
    fs::commit_inode_page(g, fs, c.operation, number);
    leave_gate(g, engine, c);
    status = fs::get_inode(g, fs, c.operation, number, &ref);
  }
  if (status == Status::checksum_mismatch || status == Status::corrupt_structure) {
    // The number stays claimed until the next mount, so later commands get other numbers.
    on_leader(g, [&] { c.operation.claimed_inode = 0; });
  }
  GPU4FS_TRY(status);
  return lock_inode(g, engine, c, ref, LockMode::exclusive);
}

// Claims the inode's number, locks and prepares the inode and enters the gate. The command keeps the number over
// restarts. It returns the number if it ends without the inode.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status prepare_creation(Group g, Engine& engine, CommandState& c, const fs::InodeRef& dir,
                                                  const CreateRequest& request, Creation* creation) {
  GPU4FS_CHECK_EQ(c.in_gate, 0u);
  GPU4FS_CHECK(fs::is_directory(dir.inode->mode));
  GPU4FS_CHECK(request.target != nullptr || request.target_length == 0);
  fs::FileSystem& fs = engine.fs;
  fs::Operation& op = c.operation;
  GPU4FS_TRACE_POINT(walk);
  GPU4FS_TRY(fs::prepare_inherited_access(g, fs, op, dir, {request.mode, c.command.umask_bits}, &creation->inherited));
  creation->owner = fs::inherit_owner(*dir.inode, creation->inherited.mode, c.command.gid);
  creation->owner.mode = strip_set_gid(engine, c, creation->owner.mode, creation->owner.gid);
  if (is_replay(c)) creation->owner.mode = on_leader(g, [&] { return op.replay->mode; });
  const bool has_content_page = fs::is_directory(request.mode) || request.target_length > format::inode_inline_capacity;
  const u32 new_pages = creation->plan.new_pages + creation->inherited.new_pages + (has_content_page ? 1 : 0);
  const bool is_nameless = request.link_count == 0;
  GPU4FS_TRY(fs::claim_inode(g, fs, op, &creation->number));
  GPU4FS_TRY(lock_claimed_inode(g, engine, c, creation->number));
  GPU4FS_TRY(fs::prepare_new_inode(g, fs, op, creation->number));
  if (is_nameless) GPU4FS_TRY(fs::prepare_orphan(g, fs, op, creation->number));
  GPU4FS_TRACE_POINT(claim);
  GPU4FS_TRY(fs::reserve_metadata(g, fs, op, {3, creation->plan.touched_pages, new_pages}));
  GPU4FS_TRY(reserve_record(g, engine, c, request.target_length));
  GPU4FS_TRACE_POINT(reserve);
  return enter_gate(g, engine, c);
}

GPU4FS_FN inline format::LogRecord creation_record(const CommandState& c, const CreateRequest& request,
                                                   const Creation& creation, const fs::InodeRef& child) {
  GPU4FS_CHECK_EQ(child.number, creation.number);
  GPU4FS_CHECK_EQ(u32{child.inode->link_count}, request.link_count);
  using format::LogOpcode;
  const bool nameless = request.link_count == 0;
  format::LogRecord record = record_of(c, nameless                         ? LogOpcode::tmpfile
                                          : fs::is_directory(request.mode) ? LogOpcode::mkdir
                                          : request.target != nullptr      ? LogOpcode::symlink
                                                                           : LogOpcode::mknod);
  record.number = creation.number;
  record.size = child.inode->generation;
  record.mode = creation.owner.mode;
  record.mask = request.mode;
  record.umask_bits = c.command.umask_bits;
  record.device = request.device;
  record.data_length = request.target_length;
  return record;
}

// Gate: creates the inode with its content and lists, but without a name.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE fs::InodeRef commit_inode(Group g, Engine& engine, CommandState& c, const fs::InodeRef& dir,
                                                    const CreateRequest& request, const Creation& creation) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  GPU4FS_CHECK_EQ(c.operation.claimed_inode, creation.number);
  GPU4FS_CHECK_LT(request.target_length, path_length_max);
  fs::FileSystem& fs = engine.fs;
  fs::Operation& op = c.operation;
  const bool is_inline = request.target != nullptr && request.target_length <= format::inode_inline_capacity;
  fs::NewInode values{};
  values.mode = static_cast<u16>(creation.owner.mode);
  // Other types have no blocks of data, and must not have attributes that describe them.
  const bool inherits = fs::is_regular(request.mode) || fs::is_directory(request.mode);
  values.profile = inherits ? dir.inode->profile : u16{0};
  values.uid = c.command.uid;
  values.gid = creation.owner.gid;
  values.link_count = request.link_count;
  values.parent_or_device = fs::is_directory(request.mode) ? dir.number : request.device;
  values.flags = is_inline ? u32{format::inode_flag_inline} : 0u;
  const fs::InodeRef child = fs::commit_new_inode(g, fs, op, creation.number, values);
  GPU4FS_CHECK_EQ(child.number, creation.number);
  if (fs::is_directory(request.mode)) fs::create_directory(g, fs, op, child);
  u8* destination = nullptr;
  if (request.target != nullptr) {
    destination = child.inode->inline_data();
    if (!is_inline) {
      const u32 frame = fs::add_page(g, fs, op, child, {0, 0});
      destination = fs::page_data(fs, frame);
    }
    g.sync();
    copy_bytes(g, destination, request.target, request.target_length);
    on_leader(g, [&] { child.inode->size_bytes = request.target_length; });
  }
  fs::commit_inherited_access(g, fs, op, child, creation.inherited);
  fs::mark_inode_dirty(g, fs, op, child);
  GPU4FS_TRACE_POINT(commit);
  // The record's target is the committed copy.
  append_record(g, engine, c, creation_record(c, request, creation, child), destination);
  return child;
}

// Creates the inode and its name in the locked directory `dir`. The name was checked. exists: the name exists.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step create_in(Group g, Engine& engine, CommandState& c, const fs::InodeRef& dir,
                                         const CreateRequest& request) {
  GPU4FS_CHECK(holds_lock(c, dir.number, LockMode::exclusive));
  GPU4FS_CHECK_GT(u32{dir.inode->link_count}, 0u);
  fs::FileSystem& fs = engine.fs;
  const fs::HashedName name = hash_name(g, engine, first_name(c));
  Creation creation{};
  GPU4FS_STEP_TRY(fs::directory_prepare_insert(g, fs, c.operation, dir, name, &creation.plan));
  GPU4FS_STEP_TRY(prepare_creation(g, engine, c, dir, request, &creation));
  const fs::InodeRef child = commit_inode(g, engine, c, dir, request, creation);
  fs::directory_commit_insert(g, fs, c.operation, dir,
                              {creation.plan, name, {child.number, fs::entry_type(request.mode)}}, c.buffer);
  on_leader(g, [&] {
    set_modification_times(dir, c.operation.now);
    if (fs::is_directory(request.mode)) dir.inode->link_count += 1;
  });
  GPU4FS_TRACE_POINT(commit);
  put_attributes(g, engine, c, child);
  return Step::complete(child.number);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step create_named(Group g, Engine& engine, CommandState& c, const CreateRequest& request) {
  GPU4FS_STEP_TRY(check_name(g, first_name(c)));
  if (is_dots(first_name(c))) return Step::end(Status::exists);
  fs::InodeRef dir{};
  GPU4FS_STEP_TRY(lock_directory_for_change(g, engine, c, c.command.inode, &dir));
  return create_in(g, engine, c, dir, request);
}

}  // namespace detail

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_mknod(Group g, Engine& engine, CommandState& c) {
  u32 mode = c.command.mode;
  if ((mode & fs::mode_type_mask) == 0) mode |= fs::mode_regular;
  if (!fs::is_known_type(mode) || fs::is_symlink(mode)) return Step::end(Status::invalid_argument);
  if (fs::is_directory(mode)) return Step::end(Status::permission);
  if (fs::is_device(mode) && !session_is_trusted(engine, c) && c.command.uid != 0) {
    return Step::end(Status::permission);
  }
  mode &= fs::mode_type_mask | fs::mode_permissions;
  const u64 device = fs::is_device(mode) ? c.command.aux : 0;
  return detail::create_named(g, engine, c, {mode, 1, device, nullptr, 0, 0});
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_mkdir(Group g, Engine& engine, CommandState& c) {
  const u32 mode = fs::mode_directory | (c.command.mode & (0777 | fs::mode_sticky));
  return detail::create_named(g, engine, c, {mode, 2, 0, nullptr, 0, 0});
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_symlink(Group g, Engine& engine, CommandState& c) {
  if (c.command.length == 0) return Step::end(Status::not_found);
  if (c.command.length >= path_length_max) return Step::end(Status::name_too_long);
  u8* target = nullptr;
  GPU4FS_STEP_TRY(resolve(g, engine, c, c.command.data, c.command.length, &target));
  return detail::create_named(g, engine, c,
                              {fs::mode_symlink | 0777, 1, 0, target, static_cast<u32>(c.command.length), 0});
}

// open(2) with O_CREAT: opens the file if the name exists, unless O_EXCL is set.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_create(Group g, Engine& engine, CommandState& c) {
  const NameBytes name = first_name(c);
  GPU4FS_STEP_TRY(check_name(g, name));
  const bool is_exclusive = (c.command.mask & open_exclusive) != 0;
  if (is_dots(name)) return Step::end(is_exclusive ? Status::exists : Status::is_directory);
  fs::InodeRef dir{};
  GPU4FS_STEP_TRY(lock_directory(g, engine, c, c.command.inode, LockMode::exclusive, &dir));
  fs::FoundName found{};
  const Status status = fs::directory_find(g, engine.fs, c.operation, dir, hash_name(g, engine, name), &found);
  GPU4FS_TRACE_POINT(walk);
  if (status == Status::ok) {
    if (is_exclusive) return Step::end(Status::exists);
    fs::InodeRef child{};
    GPU4FS_STEP_TRY(lock_named_inode(g, engine, c, found.inode, LockMode::shared, &child));
    if (fs::is_directory(child.inode->mode)) return Step::end(Status::is_directory);
    GPU4FS_STEP_TRY(detail::check_open(g, engine, c, child, c.command.mask));
    put_attributes(g, engine, c, child);
    return Step::complete(child.number);
  }
  if (status != Status::not_found) return Step::end(status);
  // Takes the same lock, with the checks for a creation.
  GPU4FS_STEP_TRY(lock_directory_for_change(g, engine, c, c.command.inode, &dir));
  const u32 mode = fs::mode_regular | (c.command.mode & fs::mode_permissions);
  return detail::create_in(g, engine, c, dir, {mode, 1, 0, nullptr, 0, 0});
}

// Creates a regular file without a name. It is an orphan from the beginning, and `link` can name it.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_tmpfile(Group g, Engine& engine, CommandState& c) {
  fs::InodeRef dir{};
  GPU4FS_STEP_TRY(lock_directory(g, engine, c, c.command.inode, LockMode::shared, &dir));
  if (dir.inode->link_count == 0) return Step::end(Status::not_found);
  GPU4FS_STEP_TRY(require_access(g, engine, c, dir, fs::may_write));
  GPU4FS_STEP_TRY(check_writable(engine));
  const u32 mode = fs::mode_regular | (c.command.mode & fs::mode_permissions);
  const detail::CreateRequest request{mode, 0, 0, nullptr, 0, 0};
  detail::Creation creation{};
  GPU4FS_STEP_TRY(detail::prepare_creation(g, engine, c, dir, request, &creation));
  const fs::InodeRef file = detail::commit_inode(g, engine, c, dir, request, creation);
  fs::set_orphan(g, engine.fs, c.operation, file.number);
  put_attributes(g, engine, c, file);
  return Step::complete(file.number);
}

}  // namespace gpu4fs::engine
