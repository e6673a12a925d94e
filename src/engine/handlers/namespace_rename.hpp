// Handler of rename: plain, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT.
//
// Locks. A rename between two directories first takes the rename lock. While it is held, no directory changes its
// parent, so the ancestors of both directories can be read without their locks. They determine the order of the two
// locks (the ancestor first) and reveal a move of a directory below itself. The source and the target are locked after
// the directories. Without such a move, neither can be an ancestor of the other, so two directories need no order.
// Files are locked after directories, in the order of their numbers.
#pragma once

#include "base/mutant.hpp"
#include "engine/handlers/namespace_remove.hpp"
#include "engine/handlers/namespace_whiteout.hpp"

namespace gpu4fs::engine {

inline constexpr u32 rename_no_replace = 1;  // RENAME_NOREPLACE
inline constexpr u32 rename_exchange = 2;    // RENAME_EXCHANGE
inline constexpr u32 rename_whiteout = format::rename_whiteout;

namespace detail {

// The state of one rename within a step.
struct RenameState {
  fs::InodeRef from_dir;
  fs::InodeRef to_dir;
  fs::InodeRef source;
  fs::InodeRef target;
  fs::RemovePlan from;
  fs::FoundName to;
  fs::InsertPlan plan;  // without a target
  u64 whiteout;         // inode number, 0: none
  u32 whiteout_generation;
  bool has_target;
  bool same_directory;
};

// Whether directory `upper` is `number` or an ancestor of it. Requires the rename lock. corrupt_structure: the parents
// form a cycle, or an ancestor is no directory.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status is_above(Group g, Engine& engine, CommandState& c, u64 upper, u64 number,
                                          bool* result) {
  u64 mark = 0;  // Brent's cycle detection
  u64 steps_to_mark = 1;
  u64 steps = 0;
  for (;;) {
    *result = number == upper;
    if (*result || number == format::inode_number_root) return Status::ok;
    fs::InodeRef dir{};
    const Status status = fs::get_inode(g, engine.fs, c.operation, number, &dir);
    if (status == Status::not_found) return Status::corrupt_structure;
    GPU4FS_TRY(status);
    const u64 parent = on_leader(g, [&] {
      const bool goes_on = fs::is_directory(fs::peek_mode(*dir.inode));
      return goes_on ? load<Order::relaxed, Scope::engine>(&dir.inode->parent_or_device) : u64{0};
    });
    if (parent == 0 || parent == mark) return Status::corrupt_structure;
    if (++steps == steps_to_mark) {
      mark = parent;
      steps = 0;
      steps_to_mark *= 2;
    }
    number = parent;
  }
}

// Returns the status that locking an inode would return, for a number from a client that is no directory.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status check_directory_number(Group g, Engine& engine, CommandState& c, u64 number) {
  if (!is_file_number(number)) return Status::stale;
  fs::InodeRef dir{};
  const Status status = fs::get_inode(g, engine.fs, c.operation, number, &dir);
  if (status == Status::not_found) return Status::stale;
  GPU4FS_TRY(status);
  const u32 mode = on_leader(g, [&] { return fs::peek_mode(*dir.inode); });
  if (mode == 0) return Status::stale;
  return fs::is_directory(mode) ? Status::ok : Status::not_directory;
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status lock_rename_directories(Group g, Engine& engine, CommandState& c, RenameState* state) {
  const u64 from = c.command.inode;
  const u64 to = c.command.second_inode;
  state->same_directory = from == to;
  if (state->same_directory) {
    GPU4FS_TRY(lock_directory_for_change(g, engine, c, from, &state->from_dir));
    state->to_dir = state->from_dir;
    return Status::ok;
  }
  GPU4FS_TRY(GPU4FS_MUTANT(rename_lock_not_taken, lock_rename(g, engine, c), Status::ok));
  GPU4FS_TRY(check_directory_number(g, engine, c, from));
  GPU4FS_TRY(check_directory_number(g, engine, c, to));
  bool to_first = false;
  GPU4FS_TRY(is_above(g, engine, c, to, from, &to_first));
  if (to_first) GPU4FS_TRY(lock_directory_for_change(g, engine, c, to, &state->to_dir));
  GPU4FS_TRY(lock_directory_for_change(g, engine, c, from, &state->from_dir));
  return to_first ? Status::ok : lock_directory_for_change(g, engine, c, to, &state->to_dir);
}

// Finds both names. If ok, has_target is set or there is a plan for the new name.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status find_rename_names(Group g, Engine& engine, CommandState& c, RenameState* state) {
  GPU4FS_CHECK(holds_lock(c, state->from_dir.number, LockMode::exclusive));
  GPU4FS_CHECK(holds_lock(c, state->to_dir.number, LockMode::exclusive));
  fs::FileSystem& fs = engine.fs;
  const u32 flags = c.command.mask;
  const fs::HashedName old_name = hash_name(g, engine, first_name(c));
  const fs::HashedName new_name = hash_name(g, engine, second_name(c));
  GPU4FS_TRY(fs::directory_prepare_remove(g, fs, c.operation, state->from_dir, old_name, &state->from));
  const Status status = fs::directory_prepare_change(g, fs, c.operation, state->to_dir, new_name, &state->to);
  state->has_target = status == Status::ok;
  if (state->has_target) return (flags & rename_no_replace) != 0 ? Status::exists : Status::ok;
  if (status != Status::not_found) return status;
  if ((flags & rename_exchange) != 0) return Status::not_found;
  return fs::directory_prepare_insert(g, fs, c.operation, state->to_dir, new_name, &state->plan);
}

// Ensures that no directory becomes its own descendant.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status check_rename_topology(Group g, Engine& engine, CommandState& c,
                                                       const RenameState& state) {
  GPU4FS_CHECK_EQ(state.same_directory, state.from_dir.number == state.to_dir.number);
  const u64 from_dir = state.from_dir.number;
  const u64 to_dir = state.to_dir.number;
  const u64 source = state.from.name.inode;
  const u64 target = state.has_target ? state.to.inode : 0;
  if (state.same_directory) {
    return source == from_dir || target == from_dir ? Status::corrupt_structure : Status::ok;
  }
  bool is_circular = false;
  if (state.from.name.type == fs::entry_type(fs::mode_directory)) {
    GPU4FS_TRY(is_above(g, engine, c, source, to_dir, &is_circular));
    if (GPU4FS_MUTANT(rename_below_itself, is_circular, false)) return Status::would_orphan;
  }
  if (state.has_target && state.to.type == fs::entry_type(fs::mode_directory)) {
    GPU4FS_TRY(is_above(g, engine, c, target, from_dir, &is_circular));
    const bool exchanges = (c.command.mask & rename_exchange) != 0;
    if (is_circular) return exchanges ? Status::would_orphan : Status::directory_not_empty;
  }
  const bool names_itself = source == from_dir || source == to_dir || target == from_dir || target == to_dir;
  return names_itself ? Status::corrupt_structure : Status::ok;
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status lock_rename_inodes(Group g, Engine& engine, CommandState& c, RenameState* state) {
  GPU4FS_CHECK(!state->has_target || state->from.name.inode != state->to.inode);
  const u32 directory_type = fs::entry_type(fs::mode_directory);
  const bool source_is_directory = state->from.name.type == directory_type;
  const bool target_is_directory = state->has_target && state->to.type == directory_type;
  const bool target_first =
      state->has_target && !source_is_directory && (target_is_directory || state->to.inode < state->from.name.inode);
  if (target_first) GPU4FS_TRY(lock_named_inode(g, engine, c, state->to.inode, LockMode::exclusive, &state->target));
  GPU4FS_TRY(lock_named_inode(g, engine, c, state->from.name.inode, LockMode::exclusive, &state->source));
  if (state->has_target && !target_first) {
    GPU4FS_TRY(lock_named_inode(g, engine, c, state->to.inode, LockMode::exclusive, &state->target));
  }
  // The types in the names determined the order. An inode of another type is damaged.
  const bool source_fits = fs::entry_type(state->source.inode->mode) == state->from.name.type;
  const bool target_fits = !state->has_target || fs::entry_type(state->target.inode->mode) == state->to.type;
  const bool are_linked =
      state->source.inode->link_count != 0 && (!state->has_target || state->target.inode->link_count != 0);
  return source_fits && target_fits && are_linked ? Status::ok : Status::corrupt_structure;
}

// Checks rights, and whether the source may replace the target.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status check_rename(Group g, Engine& engine, CommandState& c, const RenameState& state) {
  GPU4FS_CHECK(holds_lock(c, state.source.number, LockMode::exclusive));
  GPU4FS_CHECK(!state.has_target || holds_lock(c, state.target.number, LockMode::exclusive));
  const bool exchanges = (c.command.mask & rename_exchange) != 0;
  const bool source_is_directory = fs::is_directory(state.source.inode->mode);
  GPU4FS_TRY(check_removable(c, state.from_dir, state.source));
  GPU4FS_TRY(check_sticky(engine, c, state.from_dir, state.source));
  if (state.has_target) {
    GPU4FS_TRY(check_removable(c, state.to_dir, state.target));
    GPU4FS_TRY(check_sticky(engine, c, state.to_dir, state.target));
    const bool target_is_directory = fs::is_directory(state.target.inode->mode);
    if (!exchanges) {
      if (source_is_directory && !target_is_directory) return Status::not_directory;
      if (!source_is_directory && target_is_directory) return Status::is_directory;
      if (target_is_directory && GPU4FS_MUTANT(full_directory_replaced, state.target.inode->entry_count != 0, false))
        return Status::directory_not_empty;
    } else if (target_is_directory && !state.same_directory) {
      GPU4FS_TRY(require_access(g, engine, c, state.target, fs::may_write));
    }
  }
  // The "..", although stored in the inode, is a change in the directory.
  if (source_is_directory && !state.same_directory) {
    GPU4FS_TRY(require_access(g, engine, c, state.source, fs::may_write));
  }
  return Status::ok;
}

// Leader, gate: moves directory `moved` into `to`.
GPU4FS_FN inline void move_directory(fs::InodeRef moved, fs::InodeRef from, fs::InodeRef to) {
  GPU4FS_CHECK_NE(from.number, to.number);
  GPU4FS_CHECK(fs::is_directory(moved.inode->mode));
  store<Order::relaxed, Scope::engine>(&moved.inode->parent_or_device,
                                       GPU4FS_MUTANT(parent_kept, to.number, from.number));
  drop_subdirectory(from);
  to.inode->link_count += 1;
}

// Gate: removes the old name, or makes it the name of the whiteout. Pages that become empty stay, so a plan for the new
// name stays valid.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void commit_old_name(Group g, Engine& engine, CommandState& c, RenameState& state) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  if (state.whiteout == 0) return fs::directory_commit_take(g, engine.fs, c.operation, state.from_dir, state.from);
  const fs::InodeRef whiteout = commit_whiteout(g, engine, c, state.from_dir, state.whiteout);
  state.whiteout_generation = on_leader(g, [&] { return whiteout.inode->generation; });
  fs::directory_commit_replace(g, engine.fs, c.operation, state.from_dir, state.from.name,
                               {whiteout.number, fs::entry_type(fs::mode_character_device)});
  put_attributes(g, engine, c, whiteout);
}

// Gate: changes the names.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void commit_rename_names(Group g, Engine& engine, CommandState& c, RenameState& state) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  GPU4FS_CHECK((c.command.mask & rename_exchange) == 0 || (state.has_target && state.whiteout == 0));
  fs::FileSystem& fs = engine.fs;
  fs::Operation& op = c.operation;
  if ((c.command.mask & rename_exchange) != 0) {
    fs::directory_commit_replace(g, fs, op, state.from_dir, state.from.name, {state.to.inode, state.to.type});
    fs::directory_commit_replace(g, fs, op, state.to_dir, state.to, {state.from.name.inode, state.from.name.type});
  } else if (state.has_target) {
    // The replacement moves no slot, so the source's position stays valid.
    fs::directory_commit_replace(g, fs, op, state.to_dir, state.to, {state.from.name.inode, state.from.name.type});
    commit_old_name(g, engine, c, state);
    fs::directory_commit_shrink(g, fs, op, state.from_dir, state.from, c.buffer);
  } else {
    // The position of the new name was planned for the current pages.
    commit_old_name(g, engine, c, state);
    const fs::HashedName name = hash_name(g, engine, second_name(c));
    fs::directory_commit_insert(g, fs, op, state.to_dir,
                                {state.plan, name, {state.from.name.inode, state.from.name.type}}, c.buffer);
    fs::directory_commit_shrink(g, fs, op, state.from_dir, state.from, c.buffer);
  }
}

// Gate: changes link counts, parents and times. Returns true if the target has lost its last name.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool commit_rename_inodes(Group g, Engine& engine, CommandState& c,
                                                    const RenameState& state) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  GPU4FS_CHECK_GT(u32{state.source.inode->link_count}, 0u);
  const u64 now = c.operation.now;
  const bool exchanges = (c.command.mask & rename_exchange) != 0;
  const bool lost = on_leader(g, [&] {
    const bool source_is_directory = fs::is_directory(state.source.inode->mode);
    set_modification_times(state.from_dir, now);
    set_modification_times(state.to_dir, now);
    set_change_time(state.source, now);
    if (source_is_directory && !state.same_directory) move_directory(state.source, state.from_dir, state.to_dir);
    if (!state.has_target) return false;
    const bool target_is_directory = fs::is_directory(state.target.inode->mode);
    if (exchanges) {
      set_change_time(state.target, now);
      if (target_is_directory && !state.same_directory) move_directory(state.target, state.to_dir, state.from_dir);
      return false;
    }
    drop_link(state.target, now);
    if (target_is_directory) {
      drop_subdirectory(state.to_dir);
      state.target.inode->link_count = 0;
    }
    return state.target.inode->link_count == 0;
  });
  fs::mark_inode_dirty(g, engine.fs, c.operation, state.source);
  if (state.has_target) fs::mark_inode_dirty(g, engine.fs, c.operation, state.target);
  return lost;
}

template <class Group>
GPU4FS_FN Status check_rename_command(Group g, const CommandState& c) {
  const u32 flags = c.command.mask;
  if ((flags & ~(rename_no_replace | rename_exchange | rename_whiteout)) != 0) return Status::invalid_argument;
  if ((flags & rename_exchange) != 0 && flags != rename_exchange) return Status::invalid_argument;
  GPU4FS_TRY(check_name(g, first_name(c)));
  GPU4FS_TRY(check_name(g, second_name(c)));
  if (is_dots(first_name(c))) return Status::busy;
  if (is_dots(second_name(c))) return (flags & rename_no_replace) != 0 ? Status::exists : Status::busy;
  return Status::ok;
}

}  // namespace detail

// If both names belong to one inode, nothing happens, as POSIX requires.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_rename(Group g, Engine& engine, CommandState& c) {
  GPU4FS_STEP_TRY(detail::check_rename_command(g, c));
  fs::FileSystem& fs = engine.fs;
  fs::Operation& op = c.operation;
  detail::RenameState state{};
  GPU4FS_STEP_TRY(detail::lock_rename_directories(g, engine, c, &state));
  GPU4FS_STEP_TRY(detail::find_rename_names(g, engine, c, &state));
  GPU4FS_STEP_TRY(detail::check_rename_topology(g, engine, c, state));
  if (state.has_target && state.from.name.inode == state.to.inode) return Step::complete();
  GPU4FS_STEP_TRY(detail::lock_rename_inodes(g, engine, c, &state));
  GPU4FS_STEP_TRY(detail::check_rename(g, engine, c, state));
  const bool exchanges = (c.command.mask & rename_exchange) != 0;
  if (state.has_target && !exchanges) GPU4FS_STEP_TRY(fs::prepare_orphan(g, fs, op, state.target.number));
  const bool leaves_whiteout = (c.command.mask & rename_whiteout) != 0;
  if (leaves_whiteout) GPU4FS_STEP_TRY(detail::prepare_whiteout(g, engine, c, &state.whiteout));
  // The old name's position stays in use.
  if (exchanges || leaves_whiteout) state.from.merges = 0;
  // The two directories and the source, the target and its bit in the orphan bitmap, the whiteout.
  const u32 inodes = 3 + (state.has_target ? 2 : 0) + (leaves_whiteout ? 1 : 0);
  GPU4FS_STEP_TRY(
      detail::reserve_removal(g, engine, c, {inodes, 1 + state.plan.touched_pages, state.plan.new_pages}, &state.from));
  GPU4FS_STEP_TRY(reserve_record(g, engine, c));
  GPU4FS_STEP_TRY(enter_gate(g, engine, c));
  detail::commit_rename_names(g, engine, c, state);
  const bool lost = detail::commit_rename_inodes(g, engine, c, state);
  if (lost) fs::set_orphan(g, fs, op, state.target.number);
  format::LogRecord record = record_of(c, format::LogOpcode::rename);
  record.second_inode = c.command.second_inode;
  record.mask = c.command.mask;
  record.number = state.whiteout;
  record.size = state.whiteout_generation;
  append_record(g, engine, c, record);
  if (!leaves_whiteout) put_attributes(g, engine, c, state.source);
  return Step::complete(lost ? state.target.number : 0);
}

}  // namespace gpu4fs::engine
