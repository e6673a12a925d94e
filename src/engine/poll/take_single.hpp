// Takes commands, each rank one: first their slots, then the token is passed on, then they are decoded.
#pragma once

#include "engine/command_life.hpp"
#include "engine/ring_token.hpp"

namespace gpu4fs::engine::detail {

struct Grant {
  u32 count;
  u32 first;  // the slots are WorkerMemory::cached_slots[first, first + count)
};

// Slots for up to `wanted` commands, which are whole chains, within the session's limit of commands in flight. If there
// are any, the commands count as started and the token has been passed on. Leader only.
GPU4FS_FN inline Grant grant_slots(Engine& engine, const RingTurn& turn, u32 wanted) {
  Session& session = *turn.session;
  WorkerMemory& memory = *turn.memory;
  wanted = minimum(wanted, session_room(session));
  while (memory.cached_slot_count < wanted) {
    u32 index = 0;
    if (!engine.free_commands.pop(&index)) break;
    memory.cached_slots[memory.cached_slot_count++] = index;
  }
  const u32 count = cut_to_chains(turn.linked, minimum(wanted, memory.cached_slot_count));
  if (count == 0) return {0, 0};
  memory.cached_slot_count -= count;
  add<Scope::engine>(&engine.commands_active, count);
  add<Scope::engine>(&session.in_flight, count);
  add_as_only_writer<Scope::engine>(&memory.counters.commands_started, u64{count});
  pass_token(session, turn.position + count);
  return {count, memory.cached_slot_count};
}

// A rank's share of the commands that got slots from grant_slots().
struct Granted {
  u32 slot;  // no_command: none
  Status status;
  wire::Command command;
};

// The rank's slot and command, with the checks that need only the descriptor.
template <class Group>
GPU4FS_FN Granted read_granted(Group g, const RingTurn& turn, Grant grant) {
  Granted own{no_command, Status::ok, {}};
  if (g.rank() >= grant.count) return own;
  own.slot = turn.memory->cached_slots[grant.first + g.rank()];
  own.command = wire::decode_command(turn.memory->staging[g.rank()]);
  const bool has_predecessor = (turn.linked << 1 >> g.rank() & 1) != 0;
  own.status = validate_command(own.command, sender_of(*turn.session), has_predecessor);
  return own;
}

// All commands of the grant were answered without their slots, which are where it left them. Leader only.
GPU4FS_FN inline void return_unused(Engine& engine, const RingTurn& turn, const Grant& grant) {
  WorkerMemory& memory = *turn.memory;
  GPU4FS_CHECK_EQ(memory.cached_slot_count, grant.first);
  subtract<Scope::engine>(&turn.session->in_flight, grant.count);
  if (engine.config.caches_slots != 0) {
    subtract<Scope::engine>(&engine.commands_active, grant.count);
    memory.cached_slot_count += grant.count;
  } else {
    for (u32 i = 0; i < grant.count; ++i) release_slot(engine, memory, memory.cached_slots[grant.first + i]);
  }
  wake_client(*turn.session);
}

// Ends commands that need no slots: those in `answered` are completed, those in `malformed` are refused.
template <class Group>
GPU4FS_FN void return_granted(Group g, Engine& engine, const RingTurn& turn, const Granted& own, u32 answered,
                              u32 malformed) {
  for (u32 left = answered | malformed; left != 0; left &= left - 1) {
    const u32 i = count_trailing_zeros(left);
    const u32 unused_slot = g.shuffle(own.slot, i);
    const Status why = g.shuffle(own.status, i);
    on_leader(g, [&] {
      if ((malformed >> i & 1) != 0) reject(*turn.memory, *turn.session, turn.position + i, why);
      subtract<Scope::engine>(&turn.session->in_flight, 1u);
      release_slot(engine, *turn.memory, unused_slot);
    });
  }
  if ((answered | malformed) != 0) on_leader(g, [&] { wake_client(*turn.session); });
}

// Starts the chains that got slots, except for those in `answered`. Rank i has descriptor i.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Taken start_granted(Group g, Engine& engine, const RingTurn& turn, Grant grant,
                                              u32 answered) {
  GPU4FS_CHECK_LE(grant.count, Group::size());
  Granted own = read_granted(g, turn, grant);
  const u32 rank = g.rank();
  const u32 all = g.ballot(own.slot != no_command);
  const u32 linked = turn.linked & all;
  // The rest of a chain with a malformed command is cancelled.
  const u32 refused = whole_chains_of(linked, g.ballot(own.slot != no_command && own.status != Status::ok)) & ~answered;
  if ((refused >> rank & 1) != 0 && own.status == Status::ok) own.status = Status::cancelled;
  return_granted(g, engine, turn, own, answered, refused);
  const u32 started = all & ~(answered | refused);
  if (started == 0) return Taken{no_command, 0, grant.count, 0};
  // The caller runs the first chain. The others go to the run queue.
  const u32 heads = started & ~(linked << 1);
  const u32 first = count_trailing_zeros(heads);
  const u32 others = popcount(heads) - 1;
  u64 queue_position = 0;
  if (others != 0) queue_position = on_leader(g, [&] { return engine.run_queue.claim(others); });
  const u32 next = g.shuffle(own.slot, (rank + 1) % Group::size());
  if ((started >> rank & 1) != 0) {
    ring::acquire_payload();
    CommandState& c = engine.commands[own.slot];
    reset_command(engine, c, own.command, turn.session_index, turn.position + rank);
    if ((linked >> rank & 1) != 0) c.next_linked = next;
  }
  // A head that others can see leads to commands that are complete.
  g.sync();
  if ((heads >> rank & 1) != 0) {
    const CommandPhase phase = rank == first ? CommandPhase::running : CommandPhase::queued;
    store<Order::relaxed, Scope::engine>(&engine.commands[own.slot].phase, static_cast<u32>(phase));
    if (rank != first) {
      const u32 before = popcount(heads & ((1u << rank) - 1));
      engine.run_queue.put(queue_position + before - 1, own.slot);
    }
  }
  g.sync();
  if (others != 0) on_leader(g, [&] { wake_workers(engine, others); });
  return Taken{g.shuffle(own.slot, first), others + 1, grant.count, 0};
}

// With the token: the first `wanted` staged descriptors are chains of their own. If there is no slot, nothing is taken
// and the token stays held.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Taken take_single(Group g, Engine& engine, const RingTurn& turn, u32 wanted) {
  const Grant grant = on_leader(g, [&] { return grant_slots(engine, turn, wanted); });
  if (grant.count == 0) return Taken{no_command, 0, 0, 0};
  return start_granted(g, engine, turn, grant, 0);
}

}  // namespace gpu4fs::engine::detail
