// Fan-out: tasks of one command on any workers.
//
// The task word holds {count, next}; a fetch_add both takes a task and tells whether it exists, so a helper
// that comes too late, even after the slot was reused, either finds nothing or helps the newer fan-out.
// The run queue gets a bounded number of help items. Whoever ends the last task goes on with the command.
#pragma once

#include "base/bits.hpp"
#include "engine/command_life.hpp"
#include "engine/dispatch.hpp"
#include "engine/engine.hpp"

namespace gpu4fs::engine {

enum class HelpEnd : u32 {
  nothing_left,  // other workers end the rest
  was_last,      // the caller goes on with the command
  held_back,     // the step gate is closed; a help item was held back
};

namespace detail {

// Leader only.
GPU4FS_FN inline void begin_fan_out(Engine& engine, CommandState& c, u32 task_count) {
  GPU4FS_CHECK_GT(task_count, 0u);
  GPU4FS_CHECK_EQ((load<Order::relaxed, Scope::engine>(&c.tasks_left)), 0u);
  c.task_count = task_count;
  store<Order::relaxed, Scope::engine>(&c.task_status, static_cast<u32>(Status::ok));
  store<Order::relaxed, Scope::engine>(&c.tasks_left, task_count);
  store<Order::release, Scope::engine>(&c.task_word, u64{task_count} << 32);
  const u32 wanted = minimum(task_count, engine.config.worker_count) - 1;
  if (wanted == 0) return;
  const u32 queued = fetch_add<Order::relaxed, Scope::engine>(&engine.helpers_queued, wanted);
  const u32 room = queued < engine.helper_max ? engine.helper_max - queued : 0;
  const u32 helpers = minimum(wanted, room);
  if (helpers < wanted) fetch_sub<Order::relaxed, Scope::engine>(&engine.helpers_queued, wanted - helpers);
  if (helpers == 0) return;
  engine.run_queue.push_copies(c.index | item_help, helpers);
  wake_workers(engine, helpers);
}

enum class TaskTake : u32 { none, task, closed };

struct TakenTask {
  TaskTake take;
  u32 task;
  bool counted;  // inside the step gate
};

// Inside the step gate, unless the command itself has it closed. A helper that comes late, when the slot may
// hold another command, must not look at the command before it has a task. Leader only.
GPU4FS_FN inline TakenTask take_task(Engine& engine, CommandState& c, bool counted) {
  if (!counted && !is_closed_by(engine.step_gate, c)) {
    if (!try_enter(engine, engine.step_gate)) return {TaskTake::closed, 0, false};
    counted = true;
  }
  const u64 word = fetch_add<Order::acquire, Scope::engine>(&c.task_word, u64{1});
  const u32 task = static_cast<u32>(word);
  if (task < static_cast<u32>(word >> 32)) return {TaskTake::task, task, counted};
  if (counted) leave(engine, engine.step_gate);
  return {TaskTake::none, 0, false};
}

struct TaskEnd {
  bool last;
  bool counted;
};

// Once `tasks_left` is down, the command may be gone. The gate is left after each task while somebody wants
// it closed, so that it drains. Leader only.
GPU4FS_FN inline TaskEnd end_task(Engine& engine, CommandState& c, bool counted) {
  const bool last = fetch_sub<Order::acq_rel, Scope::engine>(&c.tasks_left, 1u) == 1;
  const bool keep = counted && !last && !is_closed(engine.step_gate);
  if (counted && !keep) leave(engine, engine.step_gate);
  return {last, keep};
}

// The gate is closed: what is left of the tasks is taken up when it opens. Leader only.
GPU4FS_FN inline bool hold_back_help(Engine& engine, CommandState& c) {
  fetch_add<Order::relaxed, Scope::engine>(&engine.helpers_queued, 1u);
  if (hold_back(engine, c.index | item_help)) return true;
  fetch_sub<Order::relaxed, Scope::engine>(&engine.helpers_queued, 1u);
  return false;
}

}  // namespace detail

// Runs tasks of `c` until none is left. The caller is outside the step gate.
template <class Group>
GPU4FS_FN HelpEnd run_tasks(Group g, Engine& engine, CommandState& c) {
  bool counted = false;
  for (;;) {
    const detail::TakenTask taken = serial(g, [&] { return detail::take_task(engine, c, counted); });
    if (taken.take == detail::TaskTake::none) return HelpEnd::nothing_left;
    if (taken.take == detail::TaskTake::closed) {
      const bool held = serial(g, [&] { return detail::hold_back_help(engine, c); });
      if (held) return HelpEnd::held_back;
      continue;
    }
    dispatch_task(g, engine, c, taken.task);
    const detail::TaskEnd ended = serial(g, [&] { return detail::end_task(engine, c, taken.counted); });
    if (ended.last) return HelpEnd::was_last;
    counted = ended.counted;
  }
}

}  // namespace gpu4fs::engine
