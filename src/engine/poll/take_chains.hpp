// Takes chains of commands. The leader decodes them and holds the token meanwhile.
#pragma once

#include "engine/command_life.hpp"
#include "engine/ring_token.hpp"
#include "engine/upcalls.hpp"

namespace gpu4fs::engine::detail {

// The number of staged descriptors, of `valid` valid ones, that form whole chains: at most `limit` positions, or one
// chain if that is longer. Sets *overlong if the first chain exceeds linked_command_max.
GPU4FS_FN inline u32 whole_chains(const wire::RingDescriptor* staging, u32 valid, u32 limit, bool* overlong) {
  u32 whole = 0;
  for (u32 i = 0; i < valid; ++i) {
    const bool links_on = ((staging[i].units[0].word >> 16) & wire::command_flag_link) != 0;
    if (links_on) continue;
    if (i + 1 > limit && whole > 0) break;
    whole = i + 1;
  }
  *overlong = whole == 0 && valid == linked_command_max;
  return whole;
}

// An answer to an upcall needs no slot, because the commands that wait for it may hold all slots.
GPU4FS_FN inline void accept_upcall_answer(Engine& engine, Session& session, const wire::Command& command,
                                           u64 position) {
  const Status status = answer_upcall(engine, command.inode, command.offset, command.aux);
  ring::write_completion(session.ring, position, status, 0);
}

struct Chain {
  u32 begin;  // staged descriptors [begin, end)
  u32 end;
  Status status;
};

// The chain that begins at staged descriptor `begin`, with the first error of its descriptors.
GPU4FS_FN inline Chain chain_at(const Session& session, const wire::RingDescriptor* staging, u32 begin, u32 count) {
  Chain chain{begin, begin, Status::ok};
  for (u32 i = begin; i < count; ++i) {
    const wire::Command command = wire::decode_command(staging[i]);
    const Status status = validate_command(command, sender_of(session), i != begin);
    if (chain.status == Status::ok) chain.status = status;
    // An upcall answer is executed here, out of order, so it cannot be part of a chain.
    const bool linked = i != begin || (command.flags & wire::command_flag_link) != 0;
    if (linked && command.opcode == wire::Opcode::upcall_done && chain.status == Status::ok) {
      chain.status = Status::bad_descriptor;
    }
    chain.end = i + 1;
    if ((command.flags & wire::command_flag_link) == 0) break;
  }
  return chain;
}

// Takes slots for a whole chain, or none. Returns the last slot popped. The others are linked to it by next_linked.
GPU4FS_FN inline u32 take_slots(Engine& engine, WorkerMemory& memory, u32 count) {
  if (count == 1 && memory.cached_slot_count != 0) {
    const u32 cached = memory.cached_slots[--memory.cached_slot_count];
    engine.commands[cached].next_linked = no_command;
    return cached;
  }
  u32 head = no_command;
  for (u32 i = 0; i < count; ++i) {
    u32 index = 0;
    if (!engine.free_commands.pop(&index)) {
      while (head != no_command) {
        const u32 next = engine.commands[head].next_linked;
        engine.free_commands.push(head);
        head = next;
      }
      return no_command;
    }
    engine.commands[index].next_linked = head;
    head = index;
  }
  return head;
}

// Fills the slots of a chain. Returns its head.
GPU4FS_FN inline void fill_chain(Engine& engine, WorkerMemory& memory, u32 session_index, const Chain& chain,
                                 u64 position, u32 head) {
  Session& session = engine.sessions[session_index];
  const u32 length = chain.end - chain.begin;
  add<Scope::engine>(&engine.commands_active, length);
  add<Scope::engine>(&session.in_flight, length);
  add_as_only_writer<Scope::engine>(&memory.counters.commands_started, u64{length});
  u32 at = head;
  for (u32 i = chain.begin; i < chain.end; ++i) {
    CommandState& c = engine.commands[at];
    const u32 next = c.next_linked;
    reset_command(engine, c, wire::decode_command(memory.staging[i]), session_index, position + i);
    c.next_linked = next;
    at = next;
  }
  GPU4FS_CHECK_EQ(at, u32{no_command});
}

// Slots for a chain, within the session's limit of commands in flight. If there are none, it sets slots_exhausted and
// then tries again, because a slot may have been freed in between. The worker that frees the next slot wakes a worker.
GPU4FS_FN inline u32 take_slots_or_starve(Engine& engine, const Session& session, WorkerMemory& memory, u32 count) {
  for (u32 attempt = 0; attempt < 2; ++attempt) {
    const u32 head = count <= session_room(session) ? take_slots(engine, memory, count) : u32{no_command};
    if (head != no_command || attempt == 1) return head;
    store<Order::relaxed, Scope::engine>(&engine.slots_exhausted, 1u);
    fence<Order::seq_cst, Scope::engine>();
  }
  return no_command;
}

// The chain is malformed: its malformed commands get their errors, the others are cancelled.
GPU4FS_FN inline void reject_chain(WorkerMemory& memory, Session& session, const Chain& chain, u64 position) {
  for (u32 i = chain.begin; i < chain.end; ++i) {
    const wire::Command command = wire::decode_command(memory.staging[i]);
    const Status own = validate_command(command, sender_of(session), i != chain.begin);
    const bool alone = chain.end - chain.begin == 1;
    reject(memory, session, position + i, own != Status::ok ? own : alone ? chain.status : Status::cancelled);
  }
}

// Turns `count` staged descriptors, which are whole chains, into commands. Leader only, with the token.
GPU4FS_FN inline Taken take_staged(Engine& engine, WorkerMemory& memory, u32 session_index, u64 position, u32 count) {
  Session& session = engine.sessions[session_index];
  const wire::RingDescriptor* staging = memory.staging;
  Taken taken{no_command, 0, 0, 0};
  u32 tail = no_command;
  while (taken.consumed < count) {
    const Chain chain = chain_at(session, staging, taken.consumed, count);
    const wire::Command first = wire::decode_command(staging[chain.begin]);
    if (chain.status != Status::ok) {
      reject_chain(memory, session, chain, position);
    } else if (first.opcode == wire::Opcode::upcall_done) {
      accept_upcall_answer(engine, session, first, position + chain.begin);
    } else {
      const u32 head = take_slots_or_starve(engine, session, memory, chain.end - chain.begin);
      if (head == no_command) break;
      fill_chain(engine, memory, session_index, chain, position, head);
      append_waiter(engine, taken.first_head, tail, head);
      ++taken.head_count;
    }
    taken.consumed = chain.end;
  }
  return taken;
}

// Reads ahead until `wanted` descriptors that end with a whole chain are staged, or the published ones end. Returns the
// number of staged descriptors. Collective, with the token.
template <class Group>
GPU4FS_FN u32 stage_descriptors(Group g, const ring::EngineRing& ring, wire::RingDescriptor* staging, u64 position,
                                u32 wanted) {
  constexpr u32 batch_max = Group::size() == 1 ? 1 : 4;
  u32 staged = 0;
  u32 batch = batch_max;
  while (batch != 0) {
    const u32 mask = ring::fetch_descriptors(g, ring, position + staged, batch, staging + staged).valid;
    const u32 found = minimum(count_trailing_zeros(u32{~mask}), batch);
    staged += found;
    if (found < batch) break;
    const bool more = on_leader(g, [&] {
      bool overlong = false;
      const u32 whole = whole_chains(staging, staged, linked_command_max, &overlong);
      return whole < staged || staged < wanted;
    });
    if (!more) break;
    batch = minimum(batch_max, linked_command_max - staged);
  }
  return staged;
}

// Leader only. The caller runs the first head. The other heads go to the run queue.
GPU4FS_FN inline void hand_out_heads(Engine& engine, const Taken& taken) {
  if (taken.head_count == 0) return;
  CommandState& first = engine.commands[taken.first_head];
  u32 at = first.wait_next;
  first.wait_next = no_command;
  store<Order::relaxed, Scope::engine>(&first.phase, static_cast<u32>(CommandPhase::running));
  while (at != no_command) {
    const u32 next = engine.commands[at].wait_next;
    enqueue_command(engine, at);
    at = next;
  }
}

// With the token: the leader decodes, chain by chain. The token stays held if nothing was taken. Otherwise it is passed
// on.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Taken take_chains(Group g, Engine& engine, WorkerState& worker, u32 session_index,
                                            u64 position) {
  Session& session = engine.sessions[session_index];
  WorkerMemory& memory = engine.worker_memory[worker.index];
  const u32 limit = minimum(engine.config.batch_max, linked_command_max);
  const u32 staged = stage_descriptors(g, session.ring, memory.staging, position, limit);
  if (staged == 0) return Taken{no_command, 0, 0, 0};
  return on_leader(g, [&] {
    ring::acquire_payload();
    bool overlong = false;
    const u32 whole = whole_chains(memory.staging, staged, limit, &overlong);
    Taken taken{no_command, 0, 0, 0};
    if (overlong) {
      for (u32 i = 0; i < linked_command_max; ++i) reject(memory, session, position + i, Status::bad_descriptor);
      taken.consumed = linked_command_max;
    } else if (whole > 0) {
      taken = take_staged(engine, memory, session_index, position, whole);
    }
    if (taken.consumed == 0) return taken;
    pass_token(session, position + taken.consumed);
    wake_client(session);
    hand_out_heads(engine, taken);
    return taken;
  });
}

}  // namespace gpu4fs::engine::detail
