// fallocate: allocate (unwritten blocks), punch a hole, zero a range; with and without FALLOC_FL_KEEP_SIZE.
//
// Zeroing a range is punching it and allocating it again. Each part is a commit of its own, in an order that
// leaves after a crash zeros or the old bytes in the range, and all other bytes untouched.
#pragma once

#include "engine/handlers/file_truncate.hpp"

namespace gpu4fs::engine {
namespace detail {

inline constexpr u32 fallocate_keep_size = 0x01;  // FALLOC_FL_* of Linux
inline constexpr u32 fallocate_punch_hole = 0x02;
inline constexpr u32 fallocate_zero_range = 0x10;

enum class AllocateStage : u32 { start = 0, allocate = 1, finish = 2 };

struct AllocateState {
  u64 page;        // allocated up to here
  u64 round_page;  // first page of the extents that wait for their commit
};

GPU4FS_FN constexpr bool is_known_allocation(u32 mode) {
  return (mode & ~(fallocate_keep_size | fallocate_zero_range)) == 0 ||
         mode == (fallocate_punch_hole | fallocate_keep_size);
}

// Zeros in [begin, end) of a file that lives in its inode.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status zero_inline(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref, u64 begin, u64 end) {
  GPU4FS_CHECK_LE(ref.inode->size_bytes, u64{format::inode_inline_capacity});
  const u64 stop = minimum(end, ref.inode->size_bytes);
  if (begin >= stop) return Status::ok;
  GPU4FS_TRY(fs::reserve_metadata(g, engine.fs, c.operation, 1, 0, 0));
  GPU4FS_TRY(reserve_record(g, engine, c));
  GPU4FS_TRY(enter_gate(g, engine, c));
  serial(g, [&] {
    __builtin_memset(ref.inode->inline_data() + begin, 0, stop - begin);
    stamp_change(c, *ref.inode);
  });
  fs::mark_inode_dirty(g, engine.fs, c.operation, ref);
  record_zeros(g, engine, c, ref, begin, stop - begin);
  leave_gate(g, engine, c);
  return Status::ok;
}

// [begin, end) reads as zeros; whole pages of it become a hole. Doing it twice changes nothing.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status punch_range(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref, u64 begin, u64 end) {
  serial(g, [&] { c.operation.may_use_emergency = 1; });
  if (ref.inode->is_inline()) return zero_inline(g, engine, c, ref, begin, end);
  const u64 first_whole = divide_up(begin, page_size);
  const u64 whole_end = end / page_size;
  const u32 head = static_cast<u32>(begin % page_size);
  const u32 tail = static_cast<u32>(end % page_size);
  if (first_whole > whole_end) return zero_in_page(g, engine, c, ref, whole_end, head, tail);
  // The middle first: it is the part that a restart finds done.
  GPU4FS_TRY(remove_pages(g, engine, c, ref, first_whole, minimum(whole_end, fs::map_page_max)));
  if (head != 0) {
    GPU4FS_TRY(zero_in_page(g, engine, c, ref, begin / page_size, head, static_cast<u32>(page_size)));
  }
  if (tail != 0) GPU4FS_TRY(zero_in_page(g, engine, c, ref, whole_end, 0, tail));
  return Status::ok;
}

// The next hole in [state.page, end), as far as one round goes; *count 0: none is left.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status find_hole(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref, u64 end, u32* count) {
  AllocateState& state = scratch_of<AllocateState>(c);
  *count = 0;
  for (;;) {
    const u64 page = serial(g, [&] { return state.page; });
    if (page >= end) return Status::ok;
    fs::MapRun run{};
    GPU4FS_TRY(fs::map_lookup(g, engine.fs, c.operation, ref, page, end - page, &run));
    if (run.kind == fs::MapKind::hole) {
      *count = round_pages(engine, page, run.page_count);
      return Status::ok;
    }
    serial(g, [&] { state.page = page + run.page_count; });
  }
}

// Fills holes before page `end` with unwritten blocks, in one commit that leaves the gate. ok: none is left.
// again: call it once more.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status allocate_holes(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref, u64 end) {
  fs::FileSystem& fs = engine.fs;
  AllocateState& state = scratch_of<AllocateState>(c);
  if (is_replay(c) && c.operation.replay->extent_count != 0) {
    const u32 pages = adopt_extents(g, c);
    GPU4FS_TRY(serial(g, [&] { return check_adopted_extents(engine, c); }));
    serial(g, [&] {
      state.round_page = c.command.offset / page_size;
      state.page = state.round_page + pages;
    });
  } else if (serial(g, [&] { return c.extent_count; }) == 0) {
    u32 wanted = 0;
    GPU4FS_TRY(find_hole(g, engine, c, ref, end, &wanted));
    if (wanted == 0) return Status::ok;
    const Allocated allocated = allocate_extents(g, engine, c, ref, 0, state.page, wanted, true);
    GPU4FS_TRY(allocated.status);
    g.sync();
    serial(g, [&] {
      state.round_page = state.page;
      state.page += allocated.page_count;
    });
  }
  GPU4FS_CHECK_LT(state.round_page, state.page);
  fs::MapCost cost{};
  GPU4FS_TRY(fs::map_prepare(g, fs, c.operation, ref, state.round_page, state.page, &cost));
  GPU4FS_TRY(fs::reserve_metadata(g, fs, c.operation, 1, cost.changed, cost.fresh));
  GPU4FS_TRY(reserve_record(g, engine, c, 0, c.extent_count));
  GPU4FS_TRY(enter_gate(g, engine, c));
  format::LogRecord record = file_record_of(c, format::LogOpcode::allocate, ref.number);
  record.offset = state.round_page * page_size;
  record.size = (state.page - state.round_page) * page_size;
  append_extent_record(g, engine, c, record, true);
  commit_extents(g, engine, c, ref, state.round_page, fs::MapKind::unwritten, true);
  fs::mark_inode_dirty(g, fs, c.operation, ref);
  leave_gate(g, engine, c);
  return serial(g, [&] { return state.page; }) >= end ? Status::ok : end_round(g, engine, c);
}

// Gate: mode and times as they have become.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void record_stamps(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  serial(g, [&] { attributes_of(ref, &c.attributes); });
  format::LogRecord record = file_record_of(c, format::LogOpcode::set_inode, ref.number);
  record.mask = format::set_mode | format::set_modification_time | format::set_change_time;
  record.data_length = sizeof(format::AttributeRecord);
  append_record(g, engine, c, record, reinterpret_cast<const u8*>(&c.attributes));
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status finish_allocate(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref, u64 end) {
  const u32 mode = c.command.mode;
  GPU4FS_TRY(fs::reserve_metadata(g, engine.fs, c.operation, 1, 0, 0));
  GPU4FS_TRY(reserve_record(g, engine, c, sizeof(format::AttributeRecord)));
  GPU4FS_TRY(enter_gate(g, engine, c));
  const bool grows = serial(g, [&] {
    format::Inode& inode = *ref.inode;
    const bool is_shorter = (mode & fallocate_keep_size) == 0 && inode.size_bytes < end;
    if (is_shorter) inode.size_bytes = end;
    if (is_shorter || (mode & ~fallocate_keep_size) != 0) {
      stamp_change(c, inode);
    } else {
      store<Order::relaxed, Scope::engine>(&inode.change_time, c.operation.now);
      drop_set_id(c, inode);
    }
    return is_shorter;
  });
  fs::mark_inode_dirty(g, engine.fs, c.operation, ref);
  if (grows) {
    record_size(g, engine, c, ref, end);
  } else {
    record_stamps(g, engine, c, ref);
  }
  return Status::ok;
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status run_allocate(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  const u32 mode = c.command.mode;
  const u64 begin = c.command.offset;
  const u64 end = begin + c.command.length;
  GPU4FS_CHECK_LT(begin, end);
  GPU4FS_CHECK_LE(end, fs::file_size_max);
  AllocateState& state = scratch_of<AllocateState>(c);
  const bool punches = (mode & (fallocate_punch_hole | fallocate_zero_range)) != 0;
  const bool allocates = (mode & fallocate_punch_hole) == 0;
  if (c.stage == static_cast<u32>(AllocateStage::start)) {
    GPU4FS_TRY(drop_capability(g, engine, c, ref));
    // A command that begins again because the pool is full must not free what it has allocated.
    if (punches && serial(g, [&] { return c.command.aux == 0; })) {
      GPU4FS_TRY(punch_range(g, engine, c, ref, begin, end));
      serial(g, [&] { c.command.aux = 1; });
    }
    const bool stays_inline = ref.inode->is_inline() && end <= format::inode_inline_capacity;
    if (allocates && ref.inode->is_inline() && !stays_inline) GPU4FS_TRY(spill_inline(g, engine, c, ref));
    serial(g, [&] {
      c.operation.may_use_emergency = 0;
      state = {begin / page_size, 0};
      const bool skips = !allocates || stays_inline;
      c.stage = static_cast<u32>(skips ? AllocateStage::finish : AllocateStage::allocate);
    });
  }
  if (c.stage == static_cast<u32>(AllocateStage::allocate)) {
    GPU4FS_TRY(allocate_holes(g, engine, c, ref, divide_up(end, page_size)));
    // The rest has a record of its own.
    if (is_replay(c) && c.operation.replay->extent_count != 0) return Status::ok;
    go_to_stage(g, c, static_cast<u32>(AllocateStage::finish));
  }
  return finish_allocate(g, engine, c, ref, end);
}

}  // namespace detail

// mode: FALLOC_FL_*; not_supported for collapse, insert and unshare. A failure may leave a part allocated.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_fallocate(Group g, Engine& engine, CommandState& c) {
  if (!detail::is_known_allocation(c.command.mode)) return Step::fail(Status::not_supported);
  if (engine.fs.read_only != 0) return Step::fail(Status::read_only);
  if (c.command.length == 0) return Step::fail(Status::invalid_argument);
  const bool fits = c.command.offset <= fs::file_size_max &&
                    c.command.length <= fs::file_size_max - c.command.offset;
  if (!fits) return Step::fail(Status::file_too_large);
  fs::InodeRef ref{};
  Status status = detail::lock_file(g, engine, c, c.command.inode, LockMode::exclusive, fs::may_write, &ref);
  if (status == Status::ok) status = detail::run_allocate(g, engine, c, ref);
  if (status != Status::ok) return detail::leave_with(g, engine, c, status);
  put_attributes(g, engine, c, ref);
  return Step::complete();
}

}  // namespace gpu4fs::engine
