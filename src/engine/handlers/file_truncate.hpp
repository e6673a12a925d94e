// truncate, and what else removes or zeroes parts of files.
//
// A change of size is one commit if it removes no more than about map_pages_per_round() map pages. More are removed
// from the end backwards, in commits of about so many each; after every one the file is as long as what is left of it.
// So a crash in the middle of shrinking a huge file leaves a file that is partly cut, never one with old blocks behind
// its end. Each commit is a step of its own, and the inode stays locked from the first to the last.
#pragma once

#include "base/mutant.hpp"
#include "engine/handlers/file_common.hpp"

namespace gpu4fs::engine {
namespace detail {

// A part of one page that becomes zeros in the next commit. `address` of the data there is no_address when it
// reads as zeros already; `in_place`: no checkpoint refers to it, so that it is overwritten in the gate;
// else the new page waits in c.extents[extent].
struct ZeroPlan {
  u64 file_page;
  u64 address;
  u32 from;
  u32 to;
  u32 in_place;
  u32 extent;
  fs::MapCost cost;
};

// `extent`: how many the command owns that are not the plan's.
GPU4FS_FN constexpr ZeroPlan zero_plan(u64 file_page, u32 from, u32 to, u32 extent) {
  return {file_page, 0, from, to, 0, extent, {}};
}

// Extents that the plan has of the command's.
GPU4FS_FN constexpr u32 extents_of(const ZeroPlan& plan) {
  return plan.to != 0 && plan.address != raid::no_address && plan.in_place == 0 ? 1 : 0;
}

// `plan` is one of zero_plan(). `may_be_in_place`: the commit has only this plan, which can fail in the gate: it reads
// a page.
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
    // A page prepared before the restart, when this one was stable, cannot be: stable pages stay so.
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

// Gate, before anything else of the commit: in place it can fail on a damaged page. again: a checkpoint came between.
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

// Gate: `length` bytes from `offset` on have become zeros.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void record_zeros(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                            u64 offset, u64 length) {
  GPU4FS_CHECK_GT(length, 0u);
  format::LogRecord record = file_record_of(c, format::LogOpcode::zero_range, ref.number);
  record.offset = offset;
  record.size = length;
  append_record(g, engine, c, record);
}

// Gate: the file has `size` bytes now.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void record_size(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                           u64 size) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  format::LogRecord record = file_record_of(c, format::LogOpcode::set_size, ref.number);
  record.size = size;
  append_record(g, engine, c, record);
}

// What a change of a file's size commits together with it.
struct SizeChange {
  u64 size;
  u32 record_bytes;               // of data in the record of the last commit, which the caller makes
  u32 attribute_pages;            // of extended attributes that change, the capability's going included
  fs::FoundAttribute capability;  // goes with the first commit that is not the last, else by the caller
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

// One commit of shrinking towards the size; stays in the gate. *done: the file has that size now.
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

// Gives the file its size. ok: done, still inside the gate, and the caller goes on with what else the commit changes
// and its record. May be called again after parked and again; after deadline_exceeded the file may be partly cut.
// The caller owns no extents of its own.
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

// Attributes to `output`.
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
