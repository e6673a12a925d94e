// Fan-out: tasks of one command run on any workers.
//
// The task word holds {count, next}. One fetch_add takes a task and shows whether it exists. So a helper that comes too
// late, even after the slot was reused, either finds nothing or helps the newer fan-out.
//
// The command is on the help board, one cache line that workers without work check. All of them see it within a
// microsecond. Through the run queue, one item for each worker would take one microsecond each. The worker that fanned
// out puts the command there. If the board is full, it tries again after each task, because alone it would take a
// hundred times as long. It runs tasks until none is left. A helper runs a few tasks and then looks for other work. The
// worker that ends the last task continues the command.
#pragma once

#include "base/bits.hpp"
#include "engine/command_life.hpp"
#include "engine/dispatch.hpp"
#include "engine/engine.hpp"

namespace gpu4fs::engine {

enum class HelpEnd : u32 {
  nothing_left,  // other workers end the remaining tasks
  was_last,      // the caller continues the command
  held_back,     // the step gate is closed, or workers have to leave; the command's tasks continue later
  did_some,      // a helper: there may be more
};

namespace detail {

GPU4FS_FN inline u32 open_task_count(const Engine& engine, u32 index) {
  GPU4FS_CHECK_LT(index, engine.config.command_count);
  const u64 word = load<Order::relaxed, Scope::engine>(&engine.commands[index].tasks.word);
  const u32 count = static_cast<u32>(word >> 32);
  return static_cast<u32>(word) < count ? count - static_cast<u32>(word) : 0;
}

// Offers a command's tasks if they are enough for more than one worker. On the board it takes a free place, or one
// whose tasks have all been taken. False: there is none, and the caller may try again. The tasks may be done and the
// slot may belong to another command. Then the tasks of that command are offered. Leader only.
GPU4FS_FN inline bool ask_for_help(Engine& engine, u32 index) {
  const u32 open_count = minimum(open_task_count(engine, index), engine.config.worker_count);
  if (open_count < 2) return true;
  HelpBoard& board = engine.help_board;
  for (u32 i = 0; i < help_board_size; ++i) {
    u64* const place = &board.entries[(index + i) % help_board_size];
    u64 old = load<Order::relaxed, Scope::engine>(place);
    const u32 other = static_cast<u32>(old) - 1;
    if (old != 0 && other == index) return true;
    if (old != 0 && open_task_count(engine, other) != 0) continue;
    const u64 ticket = fetch_add<Order::relaxed, Scope::engine>(&board.tickets, 1u);
    if (!compare_exchange<Order::release, Scope::engine>(place, old, (ticket << 32) | (index + 1))) continue;
    wake_workers(engine, open_count - 1);
    return true;
  }
  return false;
}

// The caller calls run_tasks() next.
GPU4FS_FN inline void begin_fan_out(CommandState& c, u32 task_count) {
  GPU4FS_CHECK_GT(task_count, 0u);
  GPU4FS_CHECK_EQ((load<Order::relaxed, Scope::engine>(&c.tasks.left)), 0u);
  store<Order::relaxed, Scope::engine>(&c.tasks.status, static_cast<u32>(Status::ok));
  store<Order::relaxed, Scope::engine>(&c.tasks.left, task_count);
  store<Order::release, Scope::engine>(&c.tasks.word, u64{task_count} << 32);
}

enum class TaskTake : u32 { none, task, closed };

struct TakenTask {
  TaskTake take;
  u32 task;
  bool counted;  // inside the step gate
};

// Enters the step gate first, unless the command itself has closed it. The slot may hold another command if a helper
// comes late. So a helper must not use the command before it has a task. Leader only.
GPU4FS_FN inline TakenTask take_task(Engine& engine, CommandState& c, bool counted) {
  if (!counted && !is_closed_by(engine.step_gate, c)) {
    // Test first, because workers without work come here continuously. If they kept entering and leaving a closed gate,
    // it would never be seen empty.
    if (is_closed(engine.step_gate)) return {TaskTake::closed, 0, false};
    if (!try_enter(engine, engine.step_gate)) return {TaskTake::closed, 0, false};
    counted = true;
  }
  const u64 word = fetch_add<Order::acquire, Scope::engine>(&c.tasks.word, u64{1});
  const u32 task = static_cast<u32>(word);
  if (task < static_cast<u32>(word >> 32)) return {TaskTake::task, task, counted};
  if (counted) leave(engine, engine.step_gate);
  return {TaskTake::none, 0, false};
}

struct TaskEnd {
  bool last;
  bool counted;
  bool leaves;  // a service kernel's workers have to leave
};

// After `tasks.left` is decremented, the command may be gone. If the gate is to be closed, it is left after each task,
// which drains it. Leader only.
GPU4FS_FN inline TaskEnd end_task(Engine& engine, CommandState& c, bool counted) {
  const bool last = fetch_sub<Order::acq_rel, Scope::engine>(&c.tasks.left, 1u) == 1;
  const bool leaves = !last && exit_is_requested(engine);
  const bool keep = counted && !last && !leaves && !is_closed(engine.step_gate);
  if (counted && !keep) leave(engine, engine.step_gate);
  return {last, keep, leaves};
}

// The gate is closed: the remaining tasks continue after it opens. Leader only.
GPU4FS_FN inline bool hold_back_tasks(Engine& engine, CommandState& c) {
  return hold_back(engine, c.index | item_tasks);
}

struct WantedHelp {
  u64 entry;  // 0: none
  u32 place;
};

// Finds an entry of the board. Collective.
template <class Group>
GPU4FS_FN WantedHelp find_wanted_help(Group g, const Engine& engine, u32 start) {
  WantedHelp own{0, 0};
  for (u32 i = g.rank(); i < help_board_size; i += Group::size()) {
    const u32 place = (start + i) % help_board_size;
    const u64 entry = load<Order::relaxed, Scope::engine>(&engine.help_board.entries[place]);
    if (entry != 0 && own.entry == 0) own = {entry, place};
  }
  const u32 found = g.ballot(own.entry != 0);
  return found == 0 ? WantedHelp{0, 0} : g.shuffle(own, count_trailing_zeros(found));
}

}  // namespace detail

// Runs tasks of `c`, which fanned out or whose tasks were held back. It ends when no task is left or when workers have
// to leave. The next service kernel then runs the remaining tasks, because a worker that stayed would have to run them
// alone. The caller is outside the step gate.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE HelpEnd run_tasks(Group g, Engine& engine, CommandState& c) {
  bool counted = false;
  bool asks = true;  // used by the leader
  for (;;) {
    const detail::TakenTask taken = on_leader(g, [&] {
      if (asks) asks = !detail::ask_for_help(engine, c.index);
      return detail::take_task(engine, c, counted);
    });
    if (taken.take == detail::TaskTake::none) return HelpEnd::nothing_left;
    if (taken.take == detail::TaskTake::closed) {
      const bool held = on_leader(g, [&] { return detail::hold_back_tasks(engine, c); });
      if (held) return HelpEnd::held_back;
      continue;
    }
    dispatch_task(g, engine, c, taken.task);
    const detail::TaskEnd ended = on_leader(g, [&] {
      const detail::TaskEnd end = detail::end_task(engine, c, taken.counted);
      if (end.leaves) engine.run_queue.push(c.index | item_tasks);
      return end;
    });
    if (ended.last) return HelpEnd::was_last;
    if (ended.leaves) return HelpEnd::held_back;
    counted = ended.counted;
  }
}

struct Help {
  HelpEnd end;
  u32 command;
};

inline constexpr u32 tasks_per_help = 4;

// Runs tasks of a command on the board. nothing_left: there was none to run.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Help help_somebody(Group g, Engine& engine, u32 start) {
  const detail::WantedHelp wanted = detail::find_wanted_help(g, engine, start);
  if (wanted.entry == 0) return {HelpEnd::nothing_left, 0};
  const u32 index = static_cast<u32>(wanted.entry) - 1;
  GPU4FS_CHECK_LT(index, engine.config.command_count);
  CommandState& c = engine.commands[index];
  bool counted = false;
  for (u32 done = 0; done < tasks_per_help; ++done) {
    const detail::TakenTask taken = on_leader(g, [&] {
      const detail::TakenTask task = detail::take_task(engine, c, counted);
      if (task.take == detail::TaskTake::none) {
        u64 entry = wanted.entry;
        compare_exchange<Order::relaxed, Scope::engine>(&engine.help_board.entries[wanted.place], entry, u64{0});
      }
      return task;
    });
    // If the gate is closed, the entry stays and is found again after the gate has opened. A cleared entry counts as
    // work, because the board may have further entries.
    if (taken.take == detail::TaskTake::none) return {HelpEnd::did_some, 0};
    if (taken.take == detail::TaskTake::closed) return {done == 0 ? HelpEnd::nothing_left : HelpEnd::did_some, 0};
    dispatch_task(g, engine, c, taken.task);
    const detail::TaskEnd ended = on_leader(g, [&] {
      detail::TaskEnd end = detail::end_task(engine, c, taken.counted);
      if (end.counted && done + 1 == tasks_per_help) leave(engine, engine.step_gate);
      return end;
    });
    if (ended.last) return {HelpEnd::was_last, index};
    if (ended.leaves) break;
    counted = ended.counted;
  }
  return {HelpEnd::did_some, index};
}

}  // namespace gpu4fs::engine
