// Runs a command, step after step, until it ends, parks, or is left to other workers.
#pragma once

#include "engine/admission.hpp"
#include "engine/command_life.hpp"
#include "engine/dispatch.hpp"
#include "engine/optimistic/answer_loaded.hpp"
#include "engine/tasks.hpp"

namespace gpu4fs::engine {

namespace detail {

enum class Next : u32 {
  step,   // run the step
  end,    // end the command with `status`
  tasks,  // help with its tasks
  leave,  // nothing to do here
};

struct Decision {
  Next next;
  Status status;
  u32 command;  // the command to continue
  u64 result;
};

GPU4FS_FN inline void leave_step(Engine& engine, CommandState& c) {
  if (c.in_step_gate == 0) return;
  c.in_step_gate = 0;
  leave(engine, engine.step_gate);
}

// Enters the step gate, or holds the command back until the gate opens.
GPU4FS_FN inline Decision enter_step(Engine& engine, CommandState& c) {
  while (!try_enter(engine, engine.step_gate)) {
    set_phase(c, CommandPhase::queued);
    if (hold_back(engine, c.index)) return {Next::leave, Status::ok, no_command, 0};
    set_phase(c, CommandPhase::running);
  }
  c.in_step_gate = 1;
  return {Next::step, Status::ok, c.index, 0};
}

GPU4FS_FN inline Decision end_with(const CommandState& c, Status status) {
  return {Next::end, status, c.index, 0};
}

GPU4FS_FN inline Status exceed_deadline(Engine& engine) {
  add<Scope::engine>(&engine.counters.deadlines_exceeded, u64{1});
  return Status::deadline_exceeded;
}

// The checkpoint after which the command was to be restarted has ended. If not ok, the command ends with this status.
GPU4FS_FN inline Status take_checkpoint(Engine& engine, CommandState& c) {
  c.ended_with = Status::ok;
  const Status failed = static_cast<Status>(c.wait_status);
  if (failed != Status::ok) return failed;
  const bool is_late = c.deadline_ns != 0 && now_monotonic_ns() > c.deadline_ns;
  return is_late ? exceed_deadline(engine) : Status::ok;
}

// Handles the server's answer about the chunk that the step wanted. If not ok, the command ends with this status.
// Inside the step gate. If the chunk was deleted meanwhile, the answer does not apply to the new chunk at its place in
// the table.
GPU4FS_FN GPU4FS_NOINLINE inline Status take_chunk_answer(Engine& engine, CommandState& c) {
  const Status ended_with = c.ended_with;
  c.ended_with = Status::ok;
  const Status answered = take_answer(c).status;
  const bool has_memory = answered == Status::ok;
  if (ended_with == Status::needs_new_chunk) {
    if (!has_memory) space::refuse_growth(c.operation);
    return Status::ok;
  }
  GPU4FS_CHECK_EQ(ended_with, Status::chunk_not_mapped);
  const u32 wanted = c.operation.wanted_chunk;
  GPU4FS_CHECK_LT(wanted, raid::known_chunk_count(engine.fs.space));
  const raid::ChunkState& chunk = engine.fs.space.chunks[wanted];
  const bool is_another = chunk.generation != c.mailbox.chunk_generation || raid::is_erased(chunk) ||
                          load<Order::acquire, Scope::engine>(&chunk.trimming) != 0;
  // The step runs again in three cases: the server does not know the new chunk yet, it does not know that the old one
  // has ended, or it answered before it punched parts of the chunk.
  if (is_another || answered == Status::stale) {
    return is_past_deadline(c, now_monotonic_ns()) ? exceed_deadline(engine) : Status::ok;
  }
  if (has_memory) {
    space::make_chunk_accessible(engine.fs, wanted);
    space::restore_backing(engine.fs, wanted);
    return Status::ok;
  }
  const bool goes_on = answered == Status::no_space && space::refuse_wanted_chunk(engine.fs, c.operation);
  return goes_on ? Status::ok : answered;
}

// Before a step. The command is in phase `running`. Leader only.
GPU4FS_FN GPU4FS_NOINLINE inline Decision before_step(Engine& engine, CommandState& c) {
  // This worker has just taken the command, and no other worker knows it.
  const bool is_new = c.prepared == Prepared::no;
  if (is_new && !wire::needs_step_gate(c.command.opcode)) return {Next::step, Status::ok, c.index, 0};
  if (is_new && c.index != checkpoint_command) return enter_step(engine, c);
  announce_wait(c, Status::ok);
  const Status cancelled = static_cast<Status>(load<Order::acquire, Scope::engine>(&c.cancel_status));
  if (cancelled != Status::ok) return end_with(c, cancelled);
  if (c.ended_with == Status::retry_after_checkpoint) {
    const Status status = take_checkpoint(engine, c);
    if (status != Status::ok) return end_with(c, status);
  }
  if (wire::needs_step_gate(c.command.opcode) && !is_closed_by(engine.step_gate, c)) {
    const Decision entered = enter_step(engine, c);
    if (entered.next != Next::step) return entered;
  }
  if (c.ended_with == Status::ok) return {Next::step, Status::ok, c.index, 0};
  const Status answered = take_chunk_answer(engine, c);
  c.operation.wanted_chunk = raid::no_chunk;
  if (answered == Status::ok) return {Next::step, Status::ok, c.index, 0};
  leave_step(engine, c);
  return end_with(c, answered);
}

// The command begins anew later.
GPU4FS_FN inline void drop_progress(Engine& engine, CommandState& c) {
  GPU4FS_CHECK_NE(c.index, checkpoint_command);
  release_holdings(engine, c);
  c.stage = 0;
  c.prepared = Prepared::stale_scratch;
}

// The step ended with a code for which the engine still has to put the command into a list. Returns what it waits for.
GPU4FS_FN GPU4FS_NOINLINE inline Status begin_wait(Engine& engine, CommandState& c, Status status) {
  c.ended_with = status;
  switch (status) {
    case Status::chunk_not_mapped:
      return post_upcall(engine, c, ring::UpcallKind::map_chunk, c.operation.wanted_chunk);
    case Status::needs_new_chunk:
      // Nothing is held meanwhile, because a new chunk needs a checkpoint.
      drop_progress(engine, c);
      return post_upcall(engine, c, ring::UpcallKind::make_chunk, c.operation.wanted_class);
    default:
      GPU4FS_CHECK_EQ(status, Status::retry_after_checkpoint);
      drop_progress(engine, c);
      c.wait_status = static_cast<u32>(Status::ok);
      return wait_for_epoch(engine, c, any_epoch);
  }
}

// The command waits as the status says. Leader only.
GPU4FS_FN inline Decision wait_for(Engine& engine, CommandState& c, Status status) {
  if (!is_wait(status)) status = begin_wait(engine, c, status);
  GPU4FS_CHECK(is_wait(status));
  if (park_command(c)) return {Next::leave, Status::ok, no_command, 0};
  return {Next::step, Status::ok, c.index, 0};
}

// The step ended with no_space. Whether the command waits, once, for space that others may release.
GPU4FS_FN GPU4FS_NOINLINE inline bool waits_for_others(CommandState& c) {
  if (c.operation.blocked_by_reservations == 0 || c.waited_for_reservations != 0) return false;
  if (c.index == checkpoint_command) return false;
  c.waited_for_reservations = 1;
  return true;
}

// A command that is in a list must not end or run on, and one that is in none would never be woken. Called before the
// command is left to others.
GPU4FS_FN inline void check_announced(const CommandState& c, Step step) {
  const Status announced = static_cast<Status>(load<Order::relaxed, Scope::engine>(&c.waits_for));
  GPU4FS_CHECK_EQ(announced, is_wait(step.status()) ? step.status() : Status::ok);
}

// The step ended with chunk_not_mapped. Inside the step gate. If no function has said which chunk that is, a page of a
// file lies where no page is in use.
GPU4FS_FN GPU4FS_NOINLINE inline Step note_wanted_chunk(const Engine& engine, CommandState& c) {
  const u32 wanted = c.operation.wanted_chunk;
  if (wanted == raid::no_chunk) return Step::end(Status::corrupt_structure);
  c.mailbox.chunk_generation = engine.fs.space.chunks[wanted].generation;
  return Step::end(Status::chunk_not_mapped);
}

// Leader only, after a g.sync().
GPU4FS_FN GPU4FS_NOINLINE inline Decision after_step(Engine& engine, CommandState& c, Step step) {
  if (c.in_gate != 0) {
    c.in_gate = 0;
    leave(engine, engine.commit_gate);
  }
  check_announced(c, step);
  if (step.status() == Status::chunk_not_mapped) step = note_wanted_chunk(engine, c);
  if (step.status() == Status::no_space && waits_for_others(c)) step = Step::end(Status::retry_after_checkpoint);
  leave_step(engine, c);
  switch (step.kind()) {
    case StepKind::tasks:
      begin_fan_out(c, step.task_count());
      return {Next::tasks, Status::ok, c.index, 0};
    case StepKind::again:
      enqueue_command(engine, c.index);
      return {Next::leave, Status::ok, no_command, 0};
    case StepKind::waits:
      return wait_for(engine, c, step.status());
    default:
      return {Next::end, step.status(), c.index, step.result()};
  }
}

template <class Group>
GPU4FS_FN Decision run_step(Group g, Engine& engine, CommandState& c) {
  const Prepared prepared = on_leader(g, [&] { return c.prepared; });
  Status status = Status::ok;
  if (prepared == Prepared::no) status = prepare_command(g, engine, c);
  if (prepared == Prepared::stale_scratch) clear_scratch(g, c);
  if (prepared == Prepared::no && status == Status::ok)
    status = on_leader(g, [&] { return admit_command(engine.fs, c); });
  GPU4FS_TRACE_POINT(prepare);
  const Step step = status == Status::ok ? dispatch_step(g, engine, c) : Step::end(status);
  GPU4FS_TRACE_POINT(finish);
  const Decision decision = on_leader(g, [&] { return after_step(engine, c, step); });
  GPU4FS_TRACE_POINT(leave);
  return decision;
}

}  // namespace detail

// Runs a command in phase `running`, and then the commands linked to it. `decision` is the first thing to do.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void run_command(Group g, Engine& engine, WorkerState& worker, detail::Decision decision) {
  while (decision.next != detail::Next::leave) {
    CommandState& c = engine.commands[decision.command];
    switch (decision.next) {
      case detail::Next::step:
        decision = on_leader(g, [&] {
          c.operation.shard = worker.index % maximum(engine.fs.shard_count, 1u);
          c.operation.blocked_by_reservations = 0;
          return detail::before_step(engine, c);
        });
        GPU4FS_TRACE_POINT(gate);
        if (decision.next == detail::Next::step) decision = detail::run_step(g, engine, c);
        break;
      case detail::Next::tasks:
        worker.ran_tasks = 1;
        decision = run_tasks(g, engine, c) == HelpEnd::was_last
                       ? detail::Decision{detail::Next::step, Status::ok, decision.command, 0}
                       : detail::Decision{detail::Next::leave, Status::ok, no_command, 0};
        break;
      default: {
        const detail::Decision ended = decision;
        const u32 next = on_leader(
            g, [&] { return end_command(engine, engine.worker_memory[worker.index], c, ended.status, ended.result); });
        decision = next == no_command ? detail::Decision{detail::Next::leave, Status::ok, no_command, 0}
                                      : detail::Decision{detail::Next::step, Status::ok, next, 0};
        break;
      }
    }
  }
}

// Goes on with commands whose page has been loaded. For a Lane.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void continue_loaded(Group g, Engine& engine, WorkerState& worker,
                                               const detail::LoadedCommands& loaded) {
  u32 left = detail::answer_loaded(g, engine, engine.worker_memory[worker.index], loaded);
  for (; left != 0; left &= left - 1) {
    const u32 index = loaded.indices[count_trailing_zeros(left)];
    run_command(g, engine, worker, detail::Decision{detail::Next::step, Status::ok, index, 0});
  }
}

// Runs an item of the run queue.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void run_item(Group g, Engine& engine, WorkerState& worker, u32 item) {
  GPU4FS_TRACE_BEGIN();
  const u32 index = item & ~item_tasks;
  GPU4FS_CHECK_LT(index, engine.config.command_count);
  CommandState& c = engine.commands[index];
  if ((item & item_tasks) != 0) {
    run_command(g, engine, worker, detail::Decision{detail::Next::tasks, Status::ok, index, 0});
    return;
  }
  on_leader(g, [&] {
    GPU4FS_CHECK(phase_of(c) == CommandPhase::queued);
    set_phase(c, CommandPhase::running);
  });
  if constexpr (Group::size() == 1) {
    if (c.awaits_page != 0) return continue_loaded(g, engine, worker, {1, {index}});
  }
  run_command(g, engine, worker, detail::Decision{detail::Next::step, Status::ok, index, 0});
}

}  // namespace gpu4fs::engine
