// Common functions of the handlers of file data: locking, the pages of one round of a transfer, time stamps.
//
// A transfer runs in rounds of at most round_pages() pages and `command_extent_capacity` extents. The steps of a round
// are prepare (allocate pages, or find the pages to read), transfer (in the step, or fanned out into tasks) and commit.
// The round's pages are numbered from 0, and c.extents holds its runs in order. While a command owns pages that are in
// no map yet, c.extent_count counts their extents (owned_extents.hpp).
#pragma once

#include "base/mutant.hpp"
#include "engine/damage_notes.hpp"
#include "engine/handlers/access_check.hpp"
#include "engine/log_records.hpp"
#include "engine/owned_extents.hpp"
#include "fs/inode/inode.hpp"
#include "fs/inode/inode_rules.hpp"
#include "fs/map/file_map.hpp"
#include "fs/names/attributes.hpp"
#include "fs/names/permissions.hpp"
#include "raid/page_run_io.hpp"

namespace gpu4fs::engine {

inline constexpr u32 round_pages_max = 65536;
inline constexpr u32 map_pages_per_round_max = 64;
inline constexpr u32 task_pages_min = 4;

namespace detail {

// Limit of the pages of one round. The map pages that a round may add are thereby a small part of the page table.
GPU4FS_FN inline u32 round_page_limit(const Engine& engine) {
  const fs::PageTable& table = engine.fs.pages;
  const u32 map_pages = maximum(minimum(table.frame_count, table.staging_count) / 8, 1u);
  return minimum(map_pages, round_pages_max / format::slots_per_block) * format::slots_per_block;
}

// Pages of the round that begins at file page `first`, with `wanted` pages remaining. A round may contain one whole
// block of 1 GiB. Earlier rounds end where such a block can begin.
GPU4FS_FN inline u32 round_pages(const Engine& engine, u64 first, u64 wanted) {
  const fs::PageTable& table = engine.fs.pages;
  const u64 limit = round_page_limit(engine);
  const bool fits_giant = minimum(table.frame_count, table.staging_count) / 8 >= format::slots_per_block;
  const u64 head = align_up(first, pages_per_block_1g) - first;
  if (fits_giant && wanted >= head + pages_per_block_1g) {
    return static_cast<u32>(head == 0 ? pages_per_block_1g : minimum(head, limit));
  }
  return static_cast<u32>(minimum(wanted, limit));
}

// Map pages that one commit removes or changes.
GPU4FS_FN inline u32 map_pages_per_round(const Engine& engine) {
  const fs::PageTable& table = engine.fs.pages;
  const u32 share = minimum(table.frame_count, table.staging_count) / 8;
  return minimum(maximum(share, 4u), map_pages_per_round_max);
}

// The division of a transfer's pages into tasks. Large tasks come first. Small ones follow, so the workers end at about
// the same time. There are several of each for every worker.
struct TaskSplit {
  u32 large_pages;  // pages of each of the first large_count tasks
  u32 large_count;
  u32 small_pages;  // of each of the others; the last one may have fewer
  u32 small_count;
};
GPU4FS_FN inline TaskSplit split_into_tasks(const Engine& engine, u32 page_count) {
  const u64 workers = engine.config.worker_count;
  TaskSplit split{};
  const u32 share = static_cast<u32>(divide_up(page_count, 4 * workers));
  split.large_pages = minimum(maximum(share, task_pages_min), engine.config.task_pages);
  split.small_pages = minimum(maximum(split.large_pages / 4, task_pages_min), split.large_pages);
  const u64 at_the_end = minimum<u64>(page_count, 2 * workers * split.small_pages);
  split.large_count = static_cast<u32>(page_count - at_the_end) / split.large_pages;
  const u32 left = page_count - split.large_count * split.large_pages;
  split.small_count = static_cast<u32>(divide_up(left, split.small_pages));
  return split;
}
GPU4FS_FN inline u32 page_task_count(const Engine& engine, u32 page_count) {
  const TaskSplit split = split_into_tasks(engine, page_count);
  return split.large_count + split.small_count;
}
struct TaskPages {
  u32 from;
  u32 to;
};
GPU4FS_FN inline TaskPages pages_of_task(const Engine& engine, u32 page_count, u32 task) {
  const TaskSplit split = split_into_tasks(engine, page_count);
  GPU4FS_CHECK_LT(task, split.large_count + split.small_count);
  if (task < split.large_count) return {task * split.large_pages, (task + 1) * split.large_pages};
  const u32 from = split.large_count * split.large_pages + (task - split.large_count) * split.small_pages;
  GPU4FS_CHECK_LT(from, page_count);
  return {from, minimum(from + split.small_pages, page_count)};
}

template <class T>
GPU4FS_FN T& scratch_of(CommandState& c) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= command_scratch_size && alignof(T) <= 16);
  return *reinterpret_cast<T*>(c.scratch);
}

template <class Group>
GPU4FS_FN void go_to_stage(Group g, CommandState& c, u32 stage) {
  on_leader(g, [&] { c.stage = stage; });
}

// Finds and locks any inode that a client may name. Status: stale (no such inode), waits_for_lock, or those of
// get_page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status lock_any(Group g, Engine& engine, CommandState& c, u64 number, LockMode mode,
                                          fs::InodeRef* ref) {
  if (number != format::inode_number_root && number < format::inode_number_first_free) return Status::stale;
  const Status status = fs::get_inode(g, engine.fs, c.operation, number, ref);
  GPU4FS_TRACE_POINT(inode);
  if (status == Status::not_found) return Status::stale;
  GPU4FS_TRY(status);
  GPU4FS_TRY(lock_inode(g, engine, c, *ref, mode));
  GPU4FS_TRACE_POINT(lock);
  return ref->inode->mode == 0 ? Status::stale : Status::ok;
}

// Leader: if the caller is in the inode's group, even by a supplementary group, the command continues under that group.
// The command's records contain this group, so a replay clears the same set-id bits.
GPU4FS_FN inline void join_group_of(const Engine& engine, CommandState& c, const format::Inode& inode) {
  if (c.command.uid != 0 && caller_in_group(engine, c, inode.gid)) c.command.gid = inode.gid;
}

// How a command uses a file.
struct FileUse {
  LockMode lock;
  u32 access;  // fs::may_read ..., the rights that the caller needs
};

// Like lock_any(), for a regular file that the caller may use in this way.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status lock_file(Group g, Engine& engine, CommandState& c, u64 number, FileUse use,
                                           fs::InodeRef* ref) {
  GPU4FS_TRY(lock_any(g, engine, c, number, use.lock, ref));
  const u32 type = ref->inode->mode & fs::mode_type_mask;
  if (type == fs::mode_directory) return Status::is_directory;
  if (type != fs::mode_regular) return Status::invalid_argument;
  if (!fs::inode_is_sound(*ref->inode)) return Status::corrupt_structure;
  GPU4FS_TRY(require_access(g, engine, c, *ref, use.access));
  if ((use.access & fs::may_write) != 0) on_leader(g, [&] { join_group_of(engine, c, *ref->inode); });
  return Status::ok;
}

// Index of the extent that contains page `page` of the round. The round's extents are c.extents[base, base + count),
// and page is less than the sum of their pages.
GPU4FS_FN inline u32 find_extent(const CommandState& c, u32 base, u32 count, u32 page) {
  GPU4FS_CHECK_GT(count, 0u);
  GPU4FS_CHECK_LE(base + count, command_extent_capacity);
  u32 low = base;
  u32 high = base + count;
  while (high - low > 1) {
    const u32 middle = low + (high - low) / 2;
    if (c.extents[middle].first_page() <= page) {
      low = middle;
    } else {
      high = middle;
    }
  }
  GPU4FS_CHECK_LT(page - c.extents[low].first_page(), c.extents[low].page_count);
  return low;
}

GPU4FS_FN inline u32 find_extent(const CommandState& c, u32 count, u32 page) {
  return find_extent(c, 0, count, page);
}

GPU4FS_FN inline u64 extent_page(const CommandState& c, u32 index, u32 page) {
  const fs::RoundExtent& extent = c.extents[index];
  return extent.address + u64{page - extent.first_page()} * page_size;
}

// Rounds page `page` of the round up to a stripe boundary. The round's extents are the first `count`. Inside a stripe
// of a chunk with parities the result is the first page after that stripe or its extent, else `page` itself. A stripe
// larger than a few tasks is shared by tasks, because the parallelism is worth it. The result is the same for all tasks
// of a transfer, even if a device is lost meanwhile.
GPU4FS_FN GPU4FS_NOINLINE inline u32 stripe_boundary(const Engine& engine, const CommandState& c, u32 count,
                                                     u32 page_count, u32 page) {
  if (page == 0 || page == page_count) return page;
  const fs::RoundExtent& extent = c.extents[find_extent(c, count, page)];
  const u32 inside = page - extent.first_page();
  raid::PageLocation location{};
  const raid::LogicalSpace& space = engine.fs.space;
  if (inside == 0 || extent.address == raid::no_address) return page;
  if (raid::find_page(space, extent.address + u64{inside} * page_size, &location) != Status::ok) return page;
  const raid::ChunkState& chunk = space.chunks[location.chunk];
  if (chunk.parity_count == 0) return page;
  const raid::Stripe stripe = raid::stripe_of(chunk, location.page);
  if (location.page == stripe.first || stripe.page_count > 4 * engine.config.task_pages) return page;
  const u64 left = minimum(stripe.first + stripe.page_count - location.page, u64{extent.page_count} - inside);
  return page + static_cast<u32>(left);
}

// A task's pages of the round. Tasks do not share a stripe: otherwise each of them would update the parities of its
// rows, and, with a lost device, read its pages. Leader only.
GPU4FS_FN inline TaskPages rows_of_task(const Engine& engine, const CommandState& c, u32 count, u32 page_count,
                                        u32 task) {
  const TaskPages pages = pages_of_task(engine, page_count, task);
  return {stripe_boundary(engine, c, count, page_count, pages.from),
          stripe_boundary(engine, c, count, page_count, pages.to)};
}

struct Allocated {
  Status status;
  u32 page_count;
};

// Allocates the next run. Its size is chosen to give aligned spans of 1 GiB and 2 MiB aligned runs.
template <class Group>
GPU4FS_FN raid::Extent allocate_next(Group g, fs::FileSystem& fs, fs::Operation& op, u64 file_page, u64 wanted) {
  GPU4FS_CHECK_GT(wanted, u64{0});
  if (file_page % pages_per_block_1g == 0 && wanted >= pages_per_block_1g) {
    const raid::Extent extent =
        space::allocate_run(g, fs, op, pages_per_block_1g, static_cast<u32>(pages_per_block_1g));
    if (extent.page_count != 0) return extent;
  }
  const u64 inside = file_page % pages_per_block_2m;
  if (inside == 0 && wanted >= pages_per_block_2m) {
    const u64 whole = align_down(wanted, pages_per_block_2m);
    const raid::Extent extent = space::allocate_run(g, fs, op, whole, static_cast<u32>(pages_per_block_2m));
    if (extent.page_count != 0) return extent;
  }
  const u64 head = pages_per_block_2m - inside;
  if (inside != 0 && wanted >= head + pages_per_block_2m) wanted = head;
  return space::allocate_run(g, fs, op, wanted, 1);
}

// Leader: reserves `wanted` pages of the file's profile for a round, or as many as there are. no_space: none.
GPU4FS_FN GPU4FS_NOINLINE inline Allocated reserve_round(Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                         u32 wanted, bool is_named) {
  fs::Operation& op = c.operation;
  GPU4FS_CHECK_EQ(c.in_gate, 0u);
  GPU4FS_CHECK_EQ(op.pages_reserved, u64{0});
  op.whole_stripes = is_named ? 1 : 0;
  op.profile = space::effective_profile(engine.fs, ref.inode->profile);
  u32 reserved = wanted;
  Status status = space::reserve_pages(engine.fs, op, reserved);
  while (status == Status::no_space && reserved > 1) {
    reserved /= 2;
    status = space::reserve_pages(engine.fs, op, reserved);
  }
  return {status, status == Status::ok ? reserved : 0};
}

// Pages that a round needs for a file.
struct PagesWanted {
  u64 file_page;   // first page in the file
  u32 round_page;  // first page in the round
  u32 page_count;
  bool is_named;  // by a record of the log: in chunks with parities no other command gets pages of their stripes
  u32 extent_max = command_extent_capacity;  // of c.extents
};

// Allocates pages of the file's profile and appends them to c.extents. There are fewer than wanted if space or extents
// run out. no_space: none.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Allocated allocate_extents(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                     PagesWanted pages) {
  fs::FileSystem& fs = engine.fs;
  fs::Operation& op = c.operation;
  GPU4FS_CHECK_GT(pages.page_count, 0u);
  GPU4FS_CHECK_LE(pages.extent_max, command_extent_capacity);
  const Allocated reserved =
      on_leader(g, [&] { return reserve_round(engine, c, ref, pages.page_count, pages.is_named); });
  if (reserved.status != Status::ok) return reserved;
  u32 count = on_leader(g, [&] { return c.extent_count; });
  u32 done = 0;
  for (; done < reserved.page_count && count < pages.extent_max; ++count) {
    const raid::Extent extent = allocate_next(g, fs, op, pages.file_page + done, reserved.page_count - done);
    GPU4FS_CHECK_GT(extent.page_count, 0u);
    GPU4FS_CHECK_LE(extent.page_count, reserved.page_count - done);
    on_leader(g, [&] { c.extents[c.extent_count++] = {extent.address, extent.page_count, pages.round_page + done}; });
    done += extent.page_count;
  }
  if (done < reserved.page_count) on_leader(g, [&] { space::unreserve_pages(fs, op, reserved.page_count - done); });
  return {Status::ok, done};
}

// Frees pages that were allocated and will not be committed. The command restarts at stage 0.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void abandon_extents(Group g, Engine& engine, CommandState& c) {
  on_leader(g, [&] {
    abandon_owned_extents(engine, c);
    c.stage = 0;
  });
}

// True for a status after which the step is restarted and finds its extents.
GPU4FS_FN constexpr bool keeps_extents(Status status) {
  return is_wait(status) || status == Status::again;
}

// Leaves the step with a status other than ok. The command then owns nothing, unless the step is restarted.
template <class Group>
GPU4FS_FN Step leave_with(Group g, Engine& engine, CommandState& c, Status status) {
  if (!keeps_extents(status)) abandon_extents(g, engine, c);
  return Step::end(status);
}

// Called between two commits of a command with many commits. The step ends to let evictions and checkpoints run, and
// the deadline is checked. Locks stay held and commits stay. Status: again or deadline_exceeded.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status end_round(Group g, Engine& engine, CommandState& c) {
  return on_leader(g, [&] {
    GPU4FS_CHECK_EQ(c.in_gate, 0u);
    if (!is_past_deadline(c, now_monotonic_ns())) return Status::again;
    add<Scope::engine>(&engine.counters.deadlines_exceeded, u64{1});
    return Status::deadline_exceeded;
  });
}

// How a round's pages are committed.
struct RoundCommit {
  u64 first_page;  // of the round in the file
  fs::MapKind kind;
  bool logged;  // a record names the pages
};

// Gate: the round's extents become pages of the file.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void commit_extents(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                              RoundCommit round) {
  fs::FileSystem& fs = engine.fs;
  const u32 count = c.extent_count;
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  GPU4FS_CHECK_LE(count, command_extent_capacity);
  for (u32 i = 0; i < count; ++i) {
    const raid::Extent extent = c.extents[i].pages();
    const u64 first = round.first_page + c.extents[i].first_page();
    if (c.extents[i].is_in_place()) {
      fs::map_mark_written(g, fs, c.operation, ref, {first, first + extent.page_count});
      on_leader(g, [&] { space::touch_extent(fs, extent); });
    } else {
      fs::map_replace(g, fs, c.operation, ref, first, {round.kind, 0, extent.address, extent.page_count});
      space::commit_extent(g, fs, extent,
                           GPU4FS_MUTANT(logged_pages_not_stable, round.logged && fs::log_is_on(fs), false));
    }
  }
  on_leader(g, [&] { c.extent_count = 0; });
}

// Gate: the pages of c.extents[index] become pages of the file. They stay in c.extents.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void commit_one_extent(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                 u32 index, RoundCommit round) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  GPU4FS_CHECK_LT(index, c.extent_count);
  const raid::Extent extent = c.extents[index].pages();
  const u64 first = round.first_page + c.extents[index].first_page();
  fs::map_replace(g, engine.fs, c.operation, ref, first, {round.kind, 0, extent.address, extent.page_count});
  space::commit_extent(g, engine.fs, extent, round.logged && fs::log_is_on(engine.fs));
}

// `mode` without the set-group-id bit if the caller's change clears it. It is always cleared for programs. For other
// files it is cleared if the caller, after join_group_of(), is not in their group.
GPU4FS_FN inline u32 without_set_gid(const CommandState& c, u32 mode, u32 gid) {
  const bool keeps = (mode & 010) == 0 && (c.command.uid == 0 || c.command.gid == gid);
  return keeps ? mode : mode & ~fs::mode_set_gid;
}

// Leader, gate: changes set-id bits like Linux when a user other than the superuser changes content.
GPU4FS_FN inline void drop_set_id(const CommandState& c, format::Inode& inode) {
  if (GPU4FS_MUTANT(set_id_kept_by_writes, c.command.uid == 0, true)) return;
  fs::set_mode(inode, without_set_gid(c, inode.mode & ~fs::mode_set_uid, inode.gid));
}

// Leader, gate: sets times and mode after a change of content.
GPU4FS_FN inline void stamp_change(const CommandState& c, format::Inode& inode) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  store<Order::relaxed, Scope::engine>(&inode.modification_time, c.operation.now);
  store<Order::relaxed, Scope::engine>(&inode.change_time, c.operation.now);
  drop_set_id(c, inode);
}

// Leader: replaces the content of an inline file by an empty map.
GPU4FS_FN inline void clear_inline(format::Inode& inode) {
  __builtin_memset(inode.inline_data(), 0, format::inode_inline_capacity);
  inode.flags &= ~format::inode_flag_inline;
  inode.height = 0;
}

// The page of a regular file: its logical address if it holds data, no_address if it reads as zeros. Also checks that
// the page can be read (chunk_not_mapped).
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status data_page_of(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                              u64 file_page, u64* address) {
  *address = raid::no_address;
  fs::MapRun run{};
  GPU4FS_TRY(fs::map_lookup(g, engine.fs, c.operation, ref, {file_page, file_page + 1}, &run));
  if (run.kind != fs::MapKind::data) return Status::ok;
  *address = run.address;
  return on_leader(g, [&] { return space::check_accessible(engine.fs, c.operation, run.address); });
}

// The front end leaves the removal of file capabilities to the engine when content or owner change. Prepare: if the
// file has no capability, the entry_offset of `found` is 0.
GPU4FS_FN inline fs::AttributeName capability_name() {
  return {reinterpret_cast<const u8*>("security.capability"), 19, 0};
}
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status find_capability(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                 fs::FoundAttribute* found) {
  *found = fs::FoundAttribute::none();
  if (!fs::load_slot(&ref.inode->attributes).is_valid()) return Status::ok;
  Status status = fs::attribute_find(g, engine.fs, c.operation, ref, capability_name(), found);
  if (status == Status::ok) status = fs::attribute_prepare_remove(g, engine.fs, c.operation, ref, *found);
  if (is_control(status)) return status;
  // The file has none. A damaged page does not prevent a write of data.
  if (status != Status::ok) *found = fs::FoundAttribute::none();
  return Status::ok;
}
// Metadata pages that the commit changes for the removal.
GPU4FS_FN constexpr u32 capability_pages(const fs::FoundAttribute& found) {
  return found.entry_offset != 0 ? fs::attribute_removal_pages : 0;
}

// Gate, after any other use of the page of attributes. A replay of the commit's record removes the capability too.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void commit_capability_drop(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                      const fs::FoundAttribute& found) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  if (found.entry_offset != 0) fs::attribute_commit_remove(g, engine.fs, c.operation, ref, found);
}

// Removes the capability in a separate commit, before the commits of a write. The command must own no pages yet. A
// second call has no effect.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status drop_capability(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  fs::FileSystem& fs = engine.fs;
  const fs::AttributeName name = capability_name();
  fs::FoundAttribute found{};
  GPU4FS_TRY(find_capability(g, engine, c, ref, &found));
  if (found.entry_offset == 0) return Status::ok;
  GPU4FS_TRY(fs::reserve_metadata(g, fs, c.operation, {1, capability_pages(found), 0}));
  GPU4FS_TRY(fs::reserve_log(g, fs, c.operation, fs::log_bytes(name.length, 0, 0)));
  GPU4FS_TRY(enter_gate(g, engine, c));
  fs::attribute_commit_remove(g, fs, c.operation, ref, found);
  format::LogRecord record = file_record_of(c, format::LogOpcode::remove_attribute, ref.number);
  record.name_length = static_cast<u16>(name.length);
  fs::append_log(g, fs, c.operation, record, fs::LogPayload{name.bytes, nullptr, nullptr, 0});
  leave_gate(g, engine, c);
  return Status::ok;
}

// Moves the content of an inline file into page 0, in a separate commit. Call it at stage 0 while the file is inline.
// If the step runs again from here, the page stays in c.extents (keeps_extents).
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status spill_inline(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  fs::FileSystem& fs = engine.fs;
  GPU4FS_CHECK(ref.inode->is_inline());
  const u32 length = static_cast<u32>(ref.inode->size_bytes);
  GPU4FS_CHECK_LE(length, format::inode_inline_capacity);
  if (c.extent_count == 0 && length != 0) {
    const Allocated allocated = allocate_extents(g, engine, c, ref, {0, 0, 1, false});
    GPU4FS_TRY(allocated.status);
    const raid::PageMerge merge{
        c.extents[0].address, raid::no_address, {0, length}, ref.inode->inline_data(), raid::PageUse::data};
    GPU4FS_TRY(raid::write_page_merged(g, fs.space, merge));
  }
  GPU4FS_TRY(fs::reserve_metadata(g, fs, c.operation, {1, 0, 0}));
  GPU4FS_TRY(enter_gate(g, engine, c));
  on_leader(g, [&] { clear_inline(*ref.inode); });
  fs::mark_inode_dirty(g, fs, c.operation, ref);
  commit_extents(g, engine, c, ref, {0, fs::MapKind::data, false});
  leave_gate(g, engine, c);
  return Status::ok;
}

}  // namespace detail
}  // namespace gpu4fs::engine
