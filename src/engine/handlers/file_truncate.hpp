// truncate, and other functions that remove or zero parts of files.
//
// A change of size is one commit if it removes at most about map_pages_per_round() map pages. A larger number is
// removed from the end backwards, with about this many in each commit. After each commit the file's size is that of the
// remaining content. So a crash while a huge file shrinks leaves a partly cut file, never one with old blocks after its
// end. Each commit is a step of its own, and the inode stays locked from the first to the last one.
#pragma once

#include "base/mutant.hpp"
#include "engine/handlers/file_common.hpp"

namespace gpu4fs::engine {
namespace detail {

// A part of one page that the next commit zeroes. `address` is that of the data, or no_address if the part already
// reads as zeros. `in_place`: no checkpoint refers to the page, so the gate overwrites it. Otherwise c.extents[extent]
// holds the new page.
struct ZeroPlan {
  u64 file_page;
  u64 address;
  u32 from;
  u32 to;
  u32 in_place;
  u32 extent;
  fs::MapCost cost;
};

// `extent`: the number of extents that the command owns for other purposes.
GPU4FS_FN constexpr ZeroPlan zero_plan(u64 file_page, u32 from, u32 to, u32 extent) {
  return {file_page, 0, from, to, 0, extent, {}};
}

// The number of the command's extents that the plan uses.
GPU4FS_FN constexpr u32 extents_of(const ZeroPlan& plan) {
  return plan.to != 0 && plan.address != raid::no_address && plan.in_place == 0 ? 1 : 0;
}

// `plan` comes from zero_plan(). `may_be_in_place`: the commit has only this plan. Zeroing in place reads a page in the
// gate, and this can fail.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status prepare_zero(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                              bool may_be_in_place, ZeroPlan* plan) {
  fs::FileSystem& fs = engine.fs;
  GPU4FS_CHECK_LT(plan->from, plan->to);
  GPU4FS_CHECK_LE(plan->to, page_size);
  GPU4FS_TRY(data_page_of(g, engine, c, ref, plan->file_page, &plan->address));
  if (plan->address == raid::no_address) return Status::ok;
  const u64 address = plan->address;
  plan->in_place = on_leader(g, [&] { return may_be_in_place && fs::may_overwrite(fs, address) ? 1u : 0u; });
  if (plan->in_place != 0) {
    // No page was prepared before a restart: it would mean that this page was stable then, and stable pages stay
    // stable.
    return Status::ok;
  }
  GPU4FS_TRY(fs::map_prepare(g, fs, c.operation, ref, {plan->file_page, plan->file_page + 1}, &plan->cost));
  if (on_leader(g, [&] { return c.extent_count == plan->extent; })) {
    const Allocated allocated = allocate_extents(g, engine, c, ref, {plan->file_page, 0, 1, false});
    GPU4FS_TRY(allocated.status);
    const u64 target = c.extents[plan->extent].address;
    GPU4FS_TRY(
        raid::write_page_merged(g, fs.space, {target, address, {plan->from, plan->to}, nullptr, raid::PageUse::data}));
  }
  return Status::ok;
}

// Gate, before all other changes of the commit: zeroing in place can fail on a damaged page. again: a checkpoint ran in
// between.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status commit_zero(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                             const ZeroPlan& plan) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  if (plan.to == 0 || plan.address == raid::no_address) return Status::ok;
  if (plan.in_place == 0) {
    commit_one_extent(g, engine, c, ref, plan.extent, {plan.file_page, fs::MapKind::data, false});
    return Status::ok;
  }
  if (!on_leader(g, [&] { return fs::may_overwrite(engine.fs, plan.address); })) return Status::again;
  return raid::write_page_merged(g, engine.fs.space,
                                 {plan.address, plan.address, {plan.from, plan.to}, nullptr, raid::PageUse::data});
}

// Gate: records that `length` bytes from `offset` on were zeroed.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void record_zeros(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                            u64 offset, u64 length) {
  GPU4FS_CHECK_GT(length, 0u);
  format::LogRecord record = file_record_of(c, format::LogOpcode::zero_range, ref.number);
  record.offset = offset;
  record.size = length;
  append_record(g, engine, c, record);
}

// Gate: records the file's new size.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void record_size(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                           u64 size) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  format::LogRecord record = file_record_of(c, format::LogOpcode::set_size, ref.number);
  record.size = size;
  append_record(g, engine, c, record);
}

// A change of a file's size, and what is committed with it.
struct SizeChange {
  u64 size;
  u32 record_bytes;               // of data in the record of the last commit, which the caller appends
  u32 attribute_pages;            // of extended attributes that change, including the removal of the capability
  fs::FoundAttribute capability;  // removed by the first commit that is not the last, else by the caller
};

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status reserve_size_change(Group g, Engine& engine, CommandState& c, const SizeChange& change,
                                                     fs::MapCost cost) {
  GPU4FS_TRY(fs::reserve_metadata(g, engine.fs, c.operation, {1, cost.changed + change.attribute_pages, cost.fresh}));
  return reserve_record(g, engine, c, change.record_bytes);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status resize_inline(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                               const SizeChange& change) {
  const u64 size = change.size;
  GPU4FS_TRY(reserve_size_change(g, engine, c, change, {0, 0}));
  GPU4FS_TRY(enter_gate(g, engine, c));
  on_leader(g, [&] {
    format::Inode& inode = *ref.inode;
    const u64 kept = minimum(inode.size_bytes, size);
    __builtin_memset(inode.inline_data() + kept, 0, format::inode_inline_capacity - kept);
    if (size == 0) clear_inline(inode);
    inode.size_bytes = size;
    stamp_change(c, inode);
  });
  fs::mark_inode_dirty(g, engine.fs, c.operation, ref);
  return Status::ok;
}

// One commit that shrinks the file towards the size. It stays in the gate. *done: the file has this size.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status shrink_once(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                             const SizeChange& change, bool* done) {
  fs::FileSystem& fs = engine.fs;
  const u64 size = change.size;
  const u64 keep = divide_up(size, page_size);
  fs::MapRemoval removal{{keep, fs::map_page_max}, map_pages_per_round(engine), {}};
  GPU4FS_TRY(fs::map_prepare_remove(g, fs, c.operation, ref, &removal));
  const u64 from = removal.range.first;
  const bool is_last = from <= keep;
  GPU4FS_CHECK_LE(size, ref.inode->size_bytes);
  ZeroPlan tail{};
  const u32 tail_from = static_cast<u32>(size % page_size);
  if (is_last && GPU4FS_MUTANT(tail_not_zeroed, tail_from != 0, false) && size < ref.inode->size_bytes) {
    tail = zero_plan(keep - 1, tail_from, static_cast<u32>(page_size), 0);
    GPU4FS_TRY(prepare_zero(g, engine, c, ref, true, &tail));
  }
  GPU4FS_TRY(reserve_size_change(g, engine, c, change, removal.cost + tail.cost));
  GPU4FS_TRY(enter_gate(g, engine, c));
  GPU4FS_TRY(commit_zero(g, engine, c, ref, tail));
  on_leader(g, [&] { c.extent_count = 0; });
  fs::map_remove(g, fs, c.operation, ref, removal.range);
  on_leader(g, [&] {
    format::Inode& inode = *ref.inode;
    inode.size_bytes = is_last ? size : minimum(inode.size_bytes, from * page_size);
    stamp_change(c, inode);
  });
  fs::mark_inode_dirty(g, fs, c.operation, ref);
  *done = is_last;
  return Status::ok;
}

// Gives the file its size. ok: done, still inside the gate; the caller makes the commit's other changes and appends its
// record. May be called again if keeps_extents(). After deadline_exceeded the file may be partly cut. The caller
// owns no extents of its own.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status truncate_to(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                             const SizeChange& change) {
  fs::FileSystem& fs = engine.fs;
  const u64 size = change.size;
  if (fs.read_only != 0) return Status::read_only;
  if (size > fs::file_size_max) return Status::file_too_large;
  if (ref.inode->is_inline()) {
    if (size <= format::inode_inline_capacity) return resize_inline(g, engine, c, ref, change);
    GPU4FS_TRY(spill_inline(g, engine, c, ref));
  }
  if (size > ref.inode->size_bytes) {
    GPU4FS_TRY(reserve_size_change(g, engine, c, change, {0, 0}));
    GPU4FS_TRY(enter_gate(g, engine, c));
    on_leader(g, [&] {
      ref.inode->size_bytes = size;
      stamp_change(c, *ref.inode);
    });
    fs::mark_inode_dirty(g, fs, c.operation, ref);
    return Status::ok;
  }
  on_leader(g, [&] { c.operation.emergency_use = space::EmergencyUse::all; });
  bool done = false;
  GPU4FS_TRY(shrink_once(g, engine, c, ref, change, &done));
  if (done) return Status::ok;
  record_size(g, engine, c, ref, ref.inode->size_bytes);
  commit_capability_drop(g, engine, c, ref, change.capability);
  leave_gate(g, engine, c);
  return end_round(g, engine, c);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status run_truncate(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  SizeChange change{c.command.offset, 0, 0, {}};
  GPU4FS_TRY(find_capability(g, engine, c, ref, &change.capability));
  change.attribute_pages = capability_pages(change.capability);
  GPU4FS_TRY(truncate_to(g, engine, c, ref, change));
  record_size(g, engine, c, ref, change.size);
  commit_capability_drop(g, engine, c, ref, change.capability);
  return Status::ok;
}

}  // namespace detail

// Writes the attributes to `output`.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_truncate(Group g, Engine& engine, CommandState& c) {
  fs::InodeRef ref{};
  Status status = detail::lock_file(g, engine, c, c.command.inode, {LockMode::exclusive, fs::may_write}, &ref);
  if (status == Status::ok) status = check_changeable(c, ref);
  if (status == Status::ok) status = detail::run_truncate(g, engine, c, ref);
  if (status != Status::ok) return detail::leave_with(g, engine, c, status);
  put_attributes(g, engine, c, ref);
  return Step::complete();
}

}  // namespace gpu4fs::engine
