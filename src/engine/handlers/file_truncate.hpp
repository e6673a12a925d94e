// truncate, and what else removes or zeroes parts of files.
//
// Pages are removed from the end backwards, in commits of about map_pages_per_round() map pages each; after
// every one the file is as long as what is left of it. So a crash in the middle of shrinking a huge file
// leaves a file that is partly cut, never one with old blocks behind its end. Each commit is a step of its own,
// and the inode stays locked from the first to the last.
#pragma once

#include "engine/handlers/file_common.hpp"

namespace gpu4fs::engine {
namespace detail {

// A part of one page that becomes zeros in the next commit. `address` of the data there is no_address when it
// reads as zeros already; `in_place`: no checkpoint refers to it, so that it is overwritten in the gate;
// else the new page waits in c.extents[0].
struct ZeroPlan {
  u64 file_page;
  u64 address;
  u32 from;
  u32 to;
  u32 in_place;
  u32 reserved;
  fs::MapCost cost;
};

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status prepare_zero(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref, u64 file_page,
                              u32 from, u32 to, ZeroPlan* plan) {
  fs::FileSystem& fs = engine.fs;
  *plan = ZeroPlan{};
  plan->file_page = file_page;
  plan->from = from;
  plan->to = to;
  GPU4FS_CHECK_LT(from, to);
  GPU4FS_CHECK_LE(to, page_size);
  GPU4FS_TRY(data_page_of(g, engine, c, ref, file_page, &plan->address));
  if (plan->address == raid::no_address) return Status::ok;
  const u64 address = plan->address;
  plan->in_place = serial(g, [&] { return fs::may_overwrite(fs, address) ? 1u : 0u; });
  if (plan->in_place != 0) {
    // A page prepared before the restart, when this one was stable, cannot be: stable pages stay so.
    return Status::ok;
  }
  GPU4FS_TRY(fs::map_prepare(g, fs, c.operation, ref, file_page, file_page + 1, &plan->cost));
  if (serial(g, [&] { return c.extent_count; }) == 0) {
    const Allocated allocated = allocate_extents(g, engine, c, ref, 0, file_page, 1, false);
    GPU4FS_TRY(allocated.status);
    GPU4FS_TRY(raid::write_page_merged(g, fs.space, c.extents[0].address, address, from, to, nullptr,
                                       raid::PageUse::data));
  }
  return Status::ok;
}

// Gate, before anything else of the commit: can fail on a damaged page. again: a checkpoint came between.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status commit_zero(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref, const ZeroPlan& plan) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  if (plan.address == raid::no_address) return Status::ok;
  if (plan.in_place == 0) {
    commit_extents(g, engine, c, ref, plan.file_page, fs::MapKind::data);
    return Status::ok;
  }
  if (!serial(g, [&] { return fs::may_overwrite(engine.fs, plan.address); })) return Status::again;
  return raid::write_page_merged(g, engine.fs.space, plan.address, plan.address, plan.from, plan.to, nullptr,
                                 raid::PageUse::data);
}

// Gate: `length` bytes from `offset` on have become zeros.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void record_zeros(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref, u64 offset, u64 length) {
  format::LogRecord record = file_record_of(c, format::LogOpcode::zero_range, ref.number);
  record.offset = offset;
  record.size = length;
  append_record(g, engine, c, record);
}

// Gate: the file has `size` bytes now.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void record_size(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref, u64 size) {
  format::LogRecord record = file_record_of(c, format::LogOpcode::set_size, ref.number);
  record.size = size;
  append_record(g, engine, c, record);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status try_zero_in_page(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref, u64 file_page,
                                  u32 from, u32 to) {
  ZeroPlan plan{};
  GPU4FS_TRY(prepare_zero(g, engine, c, ref, file_page, from, to, &plan));
  if (plan.address == raid::no_address) return Status::ok;
  GPU4FS_TRY(fs::reserve_metadata(g, engine.fs, c.operation, 1, plan.cost.changed, plan.cost.fresh));
  GPU4FS_TRY(reserve_record(g, engine, c));
  GPU4FS_TRY(enter_gate(g, engine, c));
  GPU4FS_TRY(commit_zero(g, engine, c, ref, plan));
  serial(g, [&] { stamp_change(c, *ref.inode); });
  fs::mark_inode_dirty(g, engine.fs, c.operation, ref);
  record_zeros(g, engine, c, ref, file_page * page_size + from, to - from);
  leave_gate(g, engine, c);
  return Status::ok;
}

// Bytes [from, to) of one page become zeros, in a commit of its own that leaves the gate again. After a park
// the page is prepared anew: the command may have zeroed another one before.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status zero_in_page(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref, u64 file_page,
                              u32 from, u32 to) {
  const Status status = try_zero_in_page(g, engine, c, ref, file_page, from, to);
  if (status != Status::ok) abandon_extents(g, engine, c);
  return status;
}

// Pages [first, end) of a mapped file become a hole, from the end backwards; each commit leaves the gate. ok: all
// of them are. again: a part of them, and a second call does the rest.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status remove_pages(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref, u64 first, u64 end) {
  fs::FileSystem& fs = engine.fs;
  if (first >= end) return Status::ok;
  u64 from = first;
  fs::MapCost cost{};
  GPU4FS_TRY(fs::map_prepare_remove(g, fs, c.operation, ref, first, end, map_pages_per_round(engine), &from, &cost));
  GPU4FS_TRY(fs::reserve_metadata(g, fs, c.operation, 1, cost.changed, cost.fresh));
  GPU4FS_TRY(reserve_record(g, engine, c));
  GPU4FS_TRY(enter_gate(g, engine, c));
  fs::map_remove(g, fs, c.operation, ref, from, end);
  serial(g, [&] { stamp_change(c, *ref.inode); });
  fs::mark_inode_dirty(g, fs, c.operation, ref);
  record_zeros(g, engine, c, ref, from * page_size, (end - from) * page_size);
  leave_gate(g, engine, c);
  GPU4FS_CHECK_LT(from, end);
  return from == first ? Status::ok : end_round(g, engine, c);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status resize_inline(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref, u64 size) {
  GPU4FS_TRY(fs::reserve_metadata(g, engine.fs, c.operation, 1, 0, 0));
  GPU4FS_TRY(reserve_record(g, engine, c));
  GPU4FS_TRY(enter_gate(g, engine, c));
  serial(g, [&] {
    format::Inode& inode = *ref.inode;
    const u64 kept = minimum(inode.size_bytes, size);
    __builtin_memset(inode.inline_data() + kept, 0, format::inode_inline_capacity - kept);
    if (size == 0) clear_inline(inode);
    inode.size_bytes = size;
    stamp_change(c, inode);
  });
  fs::mark_inode_dirty(g, engine.fs, c.operation, ref);
  record_size(g, engine, c, ref, size);
  return Status::ok;
}

// One commit of shrinking towards `size`; stays in the gate. *done: the file has that size now.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status shrink_once(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref, u64 size, bool* done) {
  fs::FileSystem& fs = engine.fs;
  const u64 keep = divide_up(size, page_size);
  u64 from = keep;
  fs::MapCost cost{};
  GPU4FS_TRY(fs::map_prepare_remove(g, fs, c.operation, ref, keep, fs::map_page_max, map_pages_per_round(engine), &from,
                                    &cost));
  const bool is_last = from <= keep;
  GPU4FS_CHECK_LE(size, ref.inode->size_bytes);
  ZeroPlan tail{};
  const u32 tail_from = static_cast<u32>(size % page_size);
  if (is_last && tail_from != 0 && size < ref.inode->size_bytes) {
    GPU4FS_TRY(prepare_zero(g, engine, c, ref, keep - 1, tail_from, static_cast<u32>(page_size), &tail));
  }
  GPU4FS_TRY(fs::reserve_metadata(g, fs, c.operation, 1, cost.changed + tail.cost.changed,
                                  cost.fresh + tail.cost.fresh));
  GPU4FS_TRY(reserve_record(g, engine, c));
  GPU4FS_TRY(enter_gate(g, engine, c));
  GPU4FS_TRY(commit_zero(g, engine, c, ref, tail));
  fs::map_remove(g, fs, c.operation, ref, from, fs::map_page_max);
  serial(g, [&] {
    format::Inode& inode = *ref.inode;
    inode.size_bytes = is_last ? size : minimum(inode.size_bytes, from * page_size);
    stamp_change(c, inode);
  });
  fs::mark_inode_dirty(g, fs, c.operation, ref);
  record_size(g, engine, c, ref, ref.inode->size_bytes);
  *done = is_last;
  return Status::ok;
}

// Gives the file `size` bytes. ok: done, still inside the gate. May be called again after parked and again;
// after deadline_exceeded the file may be partly cut.
// The caller owns no extents of its own.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status truncate_to(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref, u64 size) {
  fs::FileSystem& fs = engine.fs;
  if (fs.read_only != 0) return Status::read_only;
  if (size > fs::file_size_max) return Status::file_too_large;
  GPU4FS_TRY(drop_capability(g, engine, c, ref));
  if (ref.inode->is_inline()) {
    if (size <= format::inode_inline_capacity) return resize_inline(g, engine, c, ref, size);
    GPU4FS_TRY(spill_inline(g, engine, c, ref));
  }
  if (size > ref.inode->size_bytes) {
    GPU4FS_TRY(fs::reserve_metadata(g, fs, c.operation, 1, 0, 0));
    GPU4FS_TRY(reserve_record(g, engine, c));
    GPU4FS_TRY(enter_gate(g, engine, c));
    serial(g, [&] {
      ref.inode->size_bytes = size;
      stamp_change(c, *ref.inode);
    });
    fs::mark_inode_dirty(g, fs, c.operation, ref);
    record_size(g, engine, c, ref, size);
    return Status::ok;
  }
  serial(g, [&] { c.operation.may_use_emergency = 1; });
  bool done = false;
  GPU4FS_TRY(shrink_once(g, engine, c, ref, size, &done));
  if (done) return Status::ok;
  leave_gate(g, engine, c);
  return end_round(g, engine, c);
}

}  // namespace detail

// Attributes to `output`.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_truncate(Group g, Engine& engine, CommandState& c) {
  fs::InodeRef ref{};
  Status status = detail::lock_file(g, engine, c, c.command.inode, LockMode::exclusive, fs::may_write, &ref);
  if (status == Status::ok) status = detail::truncate_to(g, engine, c, ref, c.command.offset);
  if (status != Status::ok) return detail::leave_with(g, engine, c, status);
  put_attributes(g, engine, c, ref);
  return Step::complete();
}

}  // namespace gpu4fs::engine
