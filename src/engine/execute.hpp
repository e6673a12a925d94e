// Runs a command, step after step, until it ends, parks, or is left to other workers.
#pragma once

#include "engine/admission.hpp"
#include "engine/command_life.hpp"
#include "engine/dispatch.hpp"
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

// Handles the server's answer about the chunk that the step wanted. If not ok, the command ends with this status.
// Inside the step gate. If the chunk was deleted meanwhile, the answer does not apply to the new chunk at its place in
// the table.
GPU4FS_FN GPU4FS_NOINLINE inline Status take_chunk_answer(Engine& engine, CommandState& c) {
  const bool has_memory = c.upcall_result == Status::ok;
  const u32 wanted = c.operation.wanted_chunk;
  if (wanted == raid::new_chunk) {
    if (!has_memory) space::refuse_growth(c.operation);
    return Status::ok;
  }
  GPU4FS_CHECK_LT(wanted, raid::known_chunk_count(engine.fs.space));
  const raid::ChunkState& chunk = engine.fs.space.chunks[wanted];
  const bool is_another = chunk.generation != c.wanted_generation || raid::is_erased(chunk) ||
                          load<Order::acquire, Scope::engine>(&chunk.trimming) != 0;
  // The step runs again in three cases: the server does not know the new chunk yet, it does not know that the old one
  // has ended, or it answered before it punched parts of the chunk.
  if (is_another || c.upcall_result == Status::stale) {
    if (!is_past_deadline(c, now_monotonic_ns())) return Status::ok;
    fetch_add<Order::relaxed, Scope::engine>(&engine.counters.deadlines_exceeded, u64{1});
    return Status::deadline_exceeded;
  }
  if (has_memory) {
    space::make_chunk_accessible(engine.fs, wanted);
    space::restore_backing(engine.fs, wanted);
    return Status::ok;
  }
  const bool goes_on = c.upcall_result == Status::no_space && space::refuse_wanted_chunk(engine.fs, c.operation);
  return goes_on ? Status::ok : c.upcall_result;
}

// Before a step. The command is in phase `running`. Leader only.
GPU4FS_FN GPU4FS_NOINLINE inline Decision before_step(Engine& engine, CommandState& c) {
  // This worker has just taken the command, and no other worker knows it.
  const bool is_new = c.prepared == Prepared::no;
  if (is_new && !wire::needs_step_gate(c.command.opcode)) return {Next::step, Status::ok, c.index, 0};
  if (is_new && c.index != checkpoint_command) return enter_step(engine, c);
  const Status cancelled = static_cast<Status>(load<Order::acquire, Scope::engine>(&c.cancel_status));
  if (cancelled != Status::ok) return {Next::end, cancelled, c.index, 0};
  const EngineWait waited = static_cast<EngineWait>(c.engine_wait);
  if (waited == EngineWait::checkpoint) {
    c.engine_wait = static_cast<u32>(EngineWait::none);
    const Status failed = static_cast<Status>(c.wait_status);
    if (failed != Status::ok) return {Next::end, failed, c.index, 0};
    if (c.deadline_ns != 0 && now_monotonic_ns() > c.deadline_ns) {
      fetch_add<Order::relaxed, Scope::engine>(&engine.counters.deadlines_exceeded, u64{1});
      return {Next::end, Status::deadline_exceeded, c.index, 0};
    }
  }
  if (wire::needs_step_gate(c.command.opcode) && !is_closed_by(engine.step_gate, c)) {
    const Decision entered = enter_step(engine, c);
    if (entered.next != Next::step) return entered;
  }
  if (waited != EngineWait::chunk_mapping) return {Next::step, Status::ok, c.index, 0};
  c.engine_wait = static_cast<u32>(EngineWait::none);
  const Status answered = take_chunk_answer(engine, c);
  if (answered == Status::ok) return {Next::step, Status::ok, c.index, 0};
  leave_step(engine, c);
  return {Next::end, answered, c.index, 0};
}

GPU4FS_FN inline Decision parked_or_again(CommandState& c) {
  if (park_command(c)) return {Next::leave, Status::ok, no_command, 0};
  return {Next::step, Status::ok, c.index, 0};
}

// As for retry_after_checkpoint, nothing is held meanwhile, because a new chunk needs a checkpoint.
GPU4FS_FN inline Decision ask_for_chunk(Engine& engine, CommandState& c) {
  GPU4FS_CHECK_NE(c.index, checkpoint_command);
  release_holdings(engine, c);
  c.stage = 0;
  c.prepared = Prepared::stale_scratch;
  c.operation.wanted_chunk = raid::new_chunk;
  c.engine_wait = static_cast<u32>(EngineWait::chunk_mapping);
  const Status posted = post_upcall(engine, c, ring::UpcallKind::make_chunk, c.operation.wanted_class);
  GPU4FS_CHECK_EQ(posted, Status::parked);
  return parked_or_again(c);
}

// The step returned a control code or `parked`. Leader only.
GPU4FS_FN inline Decision restart_later(Engine& engine, CommandState& c, Status status) {
  switch (status) {
    case Status::parked:
      return parked_or_again(c);
    case Status::again:
      enqueue_command(engine, c.index);
      return {Next::leave, Status::ok, no_command, 0};
    case Status::chunk_not_mapped:
      if (c.operation.wanted_chunk == raid::new_chunk) return ask_for_chunk(engine, c);
      c.engine_wait = static_cast<u32>(EngineWait::chunk_mapping);
      if (post_upcall(engine, c, ring::UpcallKind::map_chunk, c.operation.wanted_chunk) == Status::parked) {
        return parked_or_again(c);
      }
      return {Next::end, Status::upcall_failed, c.index, 0};
    default:
      break;
  }
  GPU4FS_CHECK_EQ(status, Status::retry_after_checkpoint);
  GPU4FS_CHECK_NE(c.index, checkpoint_command);
  release_holdings(engine, c);
  c.stage = 0;
  c.prepared = Prepared::stale_scratch;
  c.wait_status = static_cast<u32>(Status::ok);
  c.engine_wait = static_cast<u32>(EngineWait::checkpoint);
  const Status waiting = wait_for_epoch(engine, c, any_epoch);
  GPU4FS_CHECK_EQ(waiting, Status::parked);
  return parked_or_again(c);
}

// Whether the command waits once for space that others may release, before it ends with no_space.
GPU4FS_FN GPU4FS_NOINLINE inline bool waits_for_others(CommandState& c, const Step& step) {
  if (step.kind != StepKind::complete || step.status != Status::no_space) return false;
  if (c.operation.blocked_by_reservations == 0 || c.waited_for_reservations != 0) return false;
  if (c.index == checkpoint_command) return false;
  c.waited_for_reservations = 1;
  return true;
}

// Leader only, after a g.sync().
GPU4FS_FN GPU4FS_NOINLINE inline Decision after_step(Engine& engine, CommandState& c, const Step& step) {
  if (c.in_gate != 0) {
    c.in_gate = 0;
    leave(engine, engine.commit_gate);
  }
  const bool wants_chunk = step.kind != StepKind::parked && step.kind != StepKind::fan_out &&
                           step.status == Status::chunk_not_mapped && c.operation.wanted_chunk != raid::new_chunk;
  if (wants_chunk) c.wanted_generation = engine.fs.space.chunks[c.operation.wanted_chunk].generation;
  leave_step(engine, c);
  if (step.kind == StepKind::parked) return restart_later(engine, c, Status::parked);
  if (step.kind == StepKind::fan_out) {
    if (step.task_count == 0) return {Next::step, Status::ok, c.index, 0};
    begin_fan_out(c, step.task_count);
    return {Next::tasks, Status::ok, c.index, 0};
  }
  if (waits_for_others(c, step)) return restart_later(engine, c, Status::retry_after_checkpoint);
  const bool restart = step.status == Status::parked || step.status == Status::again ||
                       step.status == Status::chunk_not_mapped || step.status == Status::retry_after_checkpoint;
  if (restart) return restart_later(engine, c, step.status);
  return {Next::end, step.status, c.index, step.result};
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
  run_command(g, engine, worker, detail::Decision{detail::Next::step, Status::ok, index, 0});
}

}  // namespace gpu4fs::engine
