// noop, memset and memcopy: self-test of the engine and bandwidth probes (thesis, section 5.3.1). They only access the
// session's memory.
#pragma once

#include "base/bits.hpp"
#include "base/copy.hpp"
#include "engine/engine.hpp"

namespace gpu4fs::engine {

namespace detail {

struct ProbeRange {
  u64 from;
  u64 length;
};

GPU4FS_FN inline ProbeRange probe_task_range(const Engine& engine, u64 length, u32 task) {
  const u64 unit = u64{engine.config.task_pages} * page_size;
  const u64 from = unit * task;
  GPU4FS_CHECK_LT(from, length);
  return {from, minimum(unit, length - from)};
}

// Number of tasks for `length` bytes; 1: do it in the step.
GPU4FS_FN inline u32 probe_task_count(const Engine& engine, u64 length) {
  if (length <= u64{engine.config.inline_transfer_pages} * page_size) return 1;
  return static_cast<u32>(divide_up(length, u64{engine.config.task_pages} * page_size));
}

inline constexpr u64 probe_length_max = u64{1} << 40;

}  // namespace detail

template <class Group>
GPU4FS_FN Step step_noop(Group /*g*/, Engine& /*engine*/, CommandState& /*c*/) {
  return Step::complete();
}

template <class Group>
GPU4FS_FN Step step_memset(Group g, Engine& engine, CommandState& c) {
  const u64 length = c.command.length;
  u8* destination = nullptr;
  GPU4FS_STEP_TRY(resolve(g, engine, c, c.command.data, length, &destination));
  if (length > detail::probe_length_max) return Step::end(Status::out_of_range);
  const bool is_filled = on_leader(g, [&] { return c.stage == 1; });
  if (is_filled) return Step::complete(length);
  const u32 task_count = detail::probe_task_count(engine, length);
  if (task_count > 1) {
    on_leader(g, [&] { c.stage = 1; });
    return Step::fan_out(task_count);
  }
  fill_bytes(g, destination, static_cast<u8>(c.command.mode), length);
  return Step::complete(length);
}

template <class Group>
GPU4FS_FN void task_memset(Group g, Engine& engine, CommandState& c, u32 task) {
  const detail::ProbeRange range = detail::probe_task_range(engine, c.command.length, task);
  u8* destination = nullptr;
  const Status status = resolve(g, engine, c, c.command.data, c.command.length, &destination);
  GPU4FS_CHECK_OK(status);
  fill_bytes(g, destination + range.from, static_cast<u8>(c.command.mode), range.length);
}

// Status: invalid_argument if the ranges overlap.
template <class Group>
GPU4FS_FN Step step_memcopy(Group g, Engine& engine, CommandState& c) {
  const u64 length = c.command.length;
  u8* source = nullptr;
  u8* destination = nullptr;
  GPU4FS_STEP_TRY(resolve(g, engine, c, c.command.data, length, &source));
  GPU4FS_STEP_TRY(resolve(g, engine, c, c.command.output, length, &destination));
  if (length > detail::probe_length_max) return Step::end(Status::out_of_range);
  if (source < destination + length && destination < source + length) {
    return Step::end(Status::invalid_argument);
  }
  const bool is_copied = on_leader(g, [&] { return c.stage == 1; });
  if (is_copied) return Step::complete(length);
  const u32 task_count = detail::probe_task_count(engine, length);
  if (task_count > 1) {
    on_leader(g, [&] { c.stage = 1; });
    return Step::fan_out(task_count);
  }
  copy_bytes(g, destination, source, length);
  GPU4FS_TRACE_POINT(transfer);
  return Step::complete(length);
}

template <class Group>
GPU4FS_FN void task_memcopy(Group g, Engine& engine, CommandState& c, u32 task) {
  const detail::ProbeRange range = detail::probe_task_range(engine, c.command.length, task);
  u8* source = nullptr;
  u8* destination = nullptr;
  Status status = resolve(g, engine, c, c.command.data, c.command.length, &source);
  GPU4FS_CHECK_OK(status);
  status = resolve(g, engine, c, c.command.output, c.command.length, &destination);
  GPU4FS_CHECK_OK(status);
  copy_bytes(g, destination + range.from, source + range.from, range.length);
}

}  // namespace gpu4fs::engine
