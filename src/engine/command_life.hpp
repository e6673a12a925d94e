// The life of a command outside its handler: reset, preparation, completion, release.
#pragma once

#include "base/copy.hpp"
#include "base/mutant.hpp"
#include "engine/command_reset.hpp"
#include "engine/engine.hpp"
#include "engine/log_flush.hpp"
#include "engine/owned_extents.hpp"
#include "fs/inode/inode.hpp"
#include "fs/journal/operation_log.hpp"
#include "fs/pages/change.hpp"
#include "ring/ring.hpp"
#include "wire/record_commands.hpp"

namespace gpu4fs::engine {

inline constexpr u64 deadline_ms_max = 24ull * 3600 * 1000;

GPU4FS_FN inline wire::Sender sender_of(const Session& session) {
  if (session.internal != 0) return wire::Sender::server;
  return session.trusted != 0 ? wire::Sender::front_end : wire::Sender::client;
}

// Checks of a descriptor that need no other data. `has_predecessor`: it is linked to the previous command.
GPU4FS_FN inline Status validate_command(const wire::Command& command, wire::Sender sender, bool has_predecessor) {
  if (!wire::is_command(command.opcode)) return Status::unknown_command;
  if ((command.flags & ~wire::command_flag_known) != 0) return Status::bad_descriptor;
  if ((command.flags & wire::command_flag_previous_inode) != 0 && !has_predecessor) {
    return Status::bad_descriptor;
  }
  if (u32{command.name_length} + command.second_name_length > command_name_capacity) {
    return Status::name_too_long;
  }
  if (GPU4FS_MUTANT(server_commands_for_all, !wire::may_send(sender, command.opcode), false)) {
    return Status::permission;
  }
  if ((command.flags & wire::command_flag_replay) == 0) return Status::ok;
  if (GPU4FS_MUTANT(replay_by_clients, sender != wire::Sender::server, false)) return Status::permission;
  return wire::takes_records(command.opcode) ? Status::ok : Status::bad_descriptor;
}

// Fills a newly taken slot with its command. Leader only.
GPU4FS_FN inline void reset_command(Engine& engine, CommandState& c, const wire::Command& command, u32 session,
                                    u64 position) {
  const Session& s = engine.sessions[session];
  reset_slot(c, command, session);
  if (GPU4FS_MUTANT(caller_names_itself, s.trusted == 0, false)) {
    c.command.uid = s.uid;
    c.command.gid = s.gid;
  }
  c.ring_position = position;
  store<Order::relaxed, Scope::engine>(&c.phase, static_cast<u32>(CommandPhase::linked));
}

template <class Group>
GPU4FS_FN void clear_scratch(Group g, CommandState& c) {
  g.sync();
  fill_bytes(g, c.scratch, 0, command_scratch_size);
  on_leader(g, [&] { c.prepared = Prepared::yes; });
}

// A command that replays a record takes its time stamp, and any other data that its handler needs, from the record. The
// server has validated the record. It is in memory that only the server writes.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status prepare_replay(Group g, Engine& engine, CommandState& c) {
  u8* memory = nullptr;
  GPU4FS_TRY(resolve(g, engine, c, c.command.output, sizeof(format::LogRecord), &memory));
  return on_leader(g, [&] {
    const format::LogRecord* record = reinterpret_cast<const format::LogRecord*>(memory);
    if (!format::is_log_opcode(record->opcode) || !format::is_time(record->time)) return Status::bad_descriptor;
    c.operation.replay = record;
    c.operation.now = record->time;
    c.operation.emergency_use = space::EmergencyUse::all;
    c.command.output = 0;
    if (!wire::is_in(wire::commands_that_adopt_records, c.command.opcode)) {
      store<Order::relaxed, Scope::engine>(&engine.fs.log.tail, record->lsn);
    }
    return Status::ok;
  });
}

// Before the first step: copies names into engine memory, checks the addresses of answers, starts the clock. Data that
// is read here is never read again from the session's memory. Collective.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status prepare_command(Group g, Engine& engine, CommandState& c) {
  const bool internal = c.session == session_max;
  g.sync();
  fill_bytes(g, c.scratch, 0, command_scratch_size);
  on_leader(g, [&] {
    c.prepared = Prepared::yes;
    if (internal) return;
    const u64 now_ns = now_monotonic_ns();
    c.operation.now = stamp_at(engine, now_ns);
    const u64 deadline_ms = c.command.deadline_ms != 0 ? c.command.deadline_ms : engine.config.default_deadline_ms;
    store<Order::relaxed, Scope::engine>(&c.deadline_ns, now_ns + minimum(deadline_ms, deadline_ms_max) * 1000000u);
  });
  if (internal) return Status::ok;
  const u64 name_bytes = u64{c.command.name_length} + c.command.second_name_length;
  if (name_bytes != 0) {
    u8* names = nullptr;
    GPU4FS_TRY(resolve(g, engine, c, c.command.name, name_bytes, &names));
    copy_bytes(g, c.names, names, name_bytes);
  }
  if ((c.command.flags & wire::command_flag_replay) != 0) GPU4FS_TRY(prepare_replay(g, engine, c));
  const u32 length = wire::output_bytes(c.command.opcode);
  if (c.command.output != 0 && length != 0) {
    u8* output = nullptr;
    GPU4FS_TRY(resolve(g, engine, c, c.command.output, length, &output));
    if (!is_aligned(output, 16)) return Status::unaligned;
  }
  g.sync();
  return Status::ok;
}

// Releases everything that the command still holds, except its locks. Leader only.
GPU4FS_FN GPU4FS_NOINLINE inline void release_claims(Engine& engine, CommandState& c) {
  if (c.in_gate != 0) {
    c.in_gate = 0;
    leave(engine, engine.commit_gate);
  }
  if (GPU4FS_MUTANT(abandoned_pages_lost, c.extent_count != 0, false)) abandon_owned_extents(engine, c);
  if (c.operation.claimed_inode != 0) fs::unclaim_inode(engine.fs, c.operation);
  abandon_log_flush(engine, c);
  const fs::Operation& op = c.operation;
  if (op.pages_reserved != 0 || op.frames_reserved != 0 || op.dirty_reserved != 0) {
    GPU4FS_MUTANT(promises_kept, fs::release_reservations(engine.fs, c.operation), static_cast<void>(0));
  }
  fs::release_log(engine.fs, c.operation);
}

// Leader only.
GPU4FS_FN GPU4FS_NOINLINE inline void release_holdings(Engine& engine, CommandState& c) {
  release_claims(engine, c);
  release_all_locks(engine, c);
}

// Slots were put into the list of free ones. If a ring was skipped because there was no slot, a worker is woken. Leader
// only.
GPU4FS_FN inline void announce_free_slots(Engine& engine) {
  // Workers of a kernel do not sleep, so there is nobody to wake.
  if (engine.config.caches_slots != 0) return;
  fence<Order::seq_cst, Scope::engine>();
  if (load<Order::relaxed, Scope::engine>(&engine.slots_exhausted) != 0) {
    store<Order::relaxed, Scope::engine>(&engine.slots_exhausted, 0u);
    wake_workers(engine, 1);
  }
}

// Returns a free slot. Leader only.
GPU4FS_FN inline void release_slot(Engine& engine, WorkerMemory& memory, u32 index) {
  GPU4FS_CHECK_GE(index, first_client_command);
  subtract<Scope::engine>(&engine.commands_active, 1u);
  if (engine.config.caches_slots != 0 && memory.cached_slot_count < cached_slot_max) {
    memory.cached_slots[memory.cached_slot_count++] = index;
    return;
  }
  engine.free_commands.push(index);
  announce_free_slots(engine);
}

// Frees the slot of a command that has ended. Leader only.
GPU4FS_FN inline void free_command(Engine& engine, WorkerMemory& memory, u32 index) {
  CommandState& c = engine.commands[index];
  GPU4FS_CHECK_EQ(c.lock_count, 0u);
  store<Order::relaxed, Scope::engine>(&c.phase, static_cast<u32>(CommandPhase::free));
  release_slot(engine, memory, index);
}

// Of the completed commands, `optimistic` were answered by engine/optimistic/, and `failed` with an error. Leader only.
GPU4FS_FN inline void count_completed(WorkerCounters& counters, u32 completed, u32 optimistic, u32 failed) {
  if (completed == 0) return;
  add_as_only_writer<Scope::engine>(&counters.commands_completed, u64{completed});
  if (optimistic != 0) add_as_only_writer<Scope::engine>(&counters.commands_optimistic, u64{optimistic});
  if (failed != 0) add_as_only_writer<Scope::engine>(&counters.commands_failed, u64{failed});
}

// Answers the client. Leader only, after a g.sync().
GPU4FS_FN GPU4FS_NOINLINE inline void answer_client(Engine& engine, WorkerMemory& memory, CommandState& c,
                                                    Status status, u64 result) {
  Session& session = engine.sessions[c.session];
  ring::write_completion(session.ring, c.ring_position, status, result);
  subtract<Scope::engine>(&session.in_flight, 1u);
  wake_client(session);
  count_completed(memory.counters, 1, 0, status != Status::ok ? 1 : 0);
}

// The part that such a command has committed remains, whatever ends the command: the engine may end it after a deadline
// or a failed checkpoint. The answer is a short write, because after an error the client would append the same bytes
// again.
GPU4FS_FN inline bool has_done_a_part(const CommandState& c) {
  return wire::is_in(wire::commands_with_partial_results, c.command.opcode) && c.prepared != Prepared::no &&
         c.progress != 0 && (c.command.flags & wire::command_flag_replay) == 0;
}

// Ends the command. Returns the next command of its chain, ready to run and in phase `running`, or no_command. If a
// command of a chain fails, the rest of the chain is cancelled. Leader only, after a g.sync().
GPU4FS_FN GPU4FS_NOINLINE inline u32 end_command(Engine& engine, WorkerMemory& memory, CommandState& c, Status status,
                                                 u64 result) {
  GPU4FS_CHECK(!is_control(status));
  // A command that succeeds has committed its allocations.
  if (status == Status::ok) GPU4FS_CHECK_EQ(c.extent_count, 0u);
  if (c.index == checkpoint_command) {
    release_holdings(engine, c);
    set_phase(c, CommandPhase::free);
    checkpoint_ended(engine, status);
    return no_command;
  }
  const u32 next = c.next_linked;
  // Unused reservations are released before the answer. So a client that fills the pool with one command after the
  // other is not refused because of its previous command. Locks can be released later, because the next command would
  // wait for them.
  release_claims(engine, c);
  GPU4FS_TRACE_POINT(claims);
  if (status != Status::ok && GPU4FS_MUTANT(done_part_forgotten, has_done_a_part(c), false)) {
    status = Status::ok;
    result = c.progress;
  }
  answer_client(engine, memory, c, status, result);
  GPU4FS_TRACE_POINT(completion);
  GPU4FS_MUTANT(locks_kept, release_all_locks(engine, c), static_cast<void>(0));
  free_command(engine, memory, c.index);
  GPU4FS_TRACE_POINT(unlock);
  GPU4FS_TRACE_FLUSH(engine.trace);
  if (next == no_command) return no_command;
  if (GPU4FS_MUTANT(chain_not_cancelled, status == Status::ok, true)) {
    CommandState& successor = engine.commands[next];
    if ((successor.command.flags & wire::command_flag_previous_inode) != 0) {
      successor.command.inode = result;
    }
    set_phase(successor, CommandPhase::running);
    return next;
  }
  for (u32 at = next; at != no_command;) {
    CommandState& cancelled = engine.commands[at];
    at = cancelled.next_linked;
    answer_client(engine, memory, cancelled, Status::cancelled, 0);
    free_command(engine, memory, cancelled.index);
  }
  return no_command;
}

}  // namespace gpu4fs::engine
