// Taking commands from rings.
//
// Whoever holds a session's poll token reads the ring's next descriptors into its own staging, decides how
// many whole chains it can take, and passes the token on before any of them runs. Token and next position are
// one word in engine memory, and nothing else is handed over with it, so it needs no fence. A chain is taken
// whole or not at all; one that is not published to its end stays in the ring, one that is too long is
// refused. Nothing waits for slots: what finds none stays in the ring, and freeing a slot wakes a worker
// (`slots_exhausted`).
//
// Three ways, told apart by what the fetch saw in registers. Noops that refer to nothing are answered at once
// and need no slot. Commands that are chains of their own get slots, then the token goes on, then each rank
// decodes one of them. Everything else (longer chains, upcall answers, no room) is decoded by the leader with
// the token held.
#pragma once

#include "engine/command_life.hpp"
#include "engine/upcalls.hpp"
#include "ring/ring.hpp"

namespace gpu4fs::engine {

namespace detail {

inline constexpr u32 polls_per_token = 64;

// Without acquiring anything: for looks at many rings.
GPU4FS_FN inline bool session_looks_open(const Session& session) {
  return load<Order::relaxed, Scope::system>(&session.phase) == static_cast<u32>(SessionPhase::open);
}
GPU4FS_FN inline bool session_is_open(const Session& session) {
  return load<Order::acquire, Scope::system>(&session.phase) == static_cast<u32>(SessionPhase::open);
}

// Takes the token if `word`, as just loaded, is still true of the session.
GPU4FS_FN inline bool try_token(Session& session, u64 word) {
  return compare_exchange<Order::relaxed, Scope::engine>(&session.poll_word, word, word | 1);
}
GPU4FS_FN inline void pass_token(Session& session, u64 position) {
  GPU4FS_CHECK_EQ((load<Order::relaxed, Scope::engine>(&session.poll_word)) & 1, u64{1});
  store<Order::relaxed, Scope::engine>(&session.poll_word, position << 1);
}

// What was taken from a ring. The heads of the chains are linked through wait_next.
struct Taken {
  u32 first_head;  // no_command: nothing to run
  u32 head_count;
  u32 consumed;     // ring positions
  u32 keeps_token;  // 1: the token has not been passed on although something was consumed
};

// How many staged descriptors, of `valid` valid ones, form whole chains; at most `limit` positions, or one
// chain if that is longer. Sets *overlong when the first chain exceeds linked_command_max.
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

GPU4FS_FN inline void reject(Engine& engine, Session& session, u64 position, Status status) {
  ring::write_completion(session.ring, position, status, 0);
  fetch_add<Order::relaxed, Scope::engine>(&engine.counters.descriptors_rejected, u64{1});
}

// An answer to an upcall needs no slot: those that wait for it may hold all of them.
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

// The chain that begins at staged descriptor `begin`, and whether all of it is well formed.
GPU4FS_FN inline Chain chain_at(const Session& session, const wire::RingDescriptor* staging, u32 begin, u32 count) {
  Chain chain{begin, begin, Status::ok};
  for (u32 i = begin; i < count; ++i) {
    const wire::Command command = wire::decode_command(staging[i]);
    const Status status = validate_command(command, sender_of(session), i != begin);
    if (chain.status == Status::ok) chain.status = status;
    // An upcall answer is executed here, out of any order, so it cannot be part of a chain.
    const bool linked = i != begin || (command.flags & wire::command_flag_link) != 0;
    if (linked && command.opcode == wire::Opcode::upcall_done && chain.status == Status::ok) {
      chain.status = Status::bad_descriptor;
    }
    chain.end = i + 1;
    if ((command.flags & wire::command_flag_link) == 0) break;
  }
  return chain;
}

// Slots for a whole chain, or none. The last one popped is returned, the others hang on next_linked.
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
GPU4FS_FN inline void fill_chain(Engine& engine, u32 session_index, const wire::RingDescriptor* staging,
                                 const Chain& chain, u64 position, u32 head) {
  Session& session = engine.sessions[session_index];
  const u32 length = chain.end - chain.begin;
  fetch_add<Order::relaxed, Scope::engine>(&engine.commands_active, length);
  fetch_add<Order::relaxed, Scope::engine>(&session.in_flight, length);
  fetch_add<Order::relaxed, Scope::engine>(&engine.counters.commands_started, u64{length});
  u32 at = head;
  for (u32 i = chain.begin; i < chain.end; ++i) {
    CommandState& c = engine.commands[at];
    const u32 next = c.next_linked;
    reset_command(engine, c, wire::decode_command(staging[i]), session_index, position + i);
    c.next_linked = next;
    at = next;
  }
  GPU4FS_CHECK_EQ(at, u32{no_command});
}

GPU4FS_FN inline u32 session_room(const Session& session) {
  const u32 depth = 1u << session.ring.depth_log2;
  const u32 used = load<Order::relaxed, Scope::engine>(&session.in_flight);
  return used < depth ? depth - used : 0;
}

// Slots for a chain, within what the session may have in flight. If there are none it says so first, then
// looks again: one may have been freed in between, and whoever frees the next one wakes a worker.
GPU4FS_FN inline u32 take_slots_or_starve(Engine& engine, const Session& session, WorkerMemory& memory, u32 count) {
  for (u32 attempt = 0; attempt < 2; ++attempt) {
    const u32 head = count <= session_room(session) ? take_slots(engine, memory, count) : u32{no_command};
    if (head != no_command || attempt == 1) return head;
    store<Order::relaxed, Scope::engine>(&engine.slots_exhausted, 1u);
    fence<Order::seq_cst, Scope::engine>();
  }
  return no_command;
}

// The chain is malformed: the malformed commands say why, the others are cancelled.
GPU4FS_FN inline void reject_chain(Engine& engine, Session& session, const wire::RingDescriptor* staging,
                                   const Chain& chain, u64 position) {
  for (u32 i = chain.begin; i < chain.end; ++i) {
    const wire::Command command = wire::decode_command(staging[i]);
    const Status own = validate_command(command, sender_of(session), i != chain.begin);
    const bool alone = chain.end - chain.begin == 1;
    reject(engine, session, position + i, own != Status::ok ? own : alone ? chain.status : Status::cancelled);
  }
}

// Turns `count` staged descriptors, whole chains, into commands. Leader only, with the token.
GPU4FS_FN inline Taken take_staged(Engine& engine, WorkerMemory& memory, u32 session_index, u64 position, u32 count) {
  Session& session = engine.sessions[session_index];
  const wire::RingDescriptor* staging = memory.staging;
  Taken taken{no_command, 0, 0, 0};
  u32 tail = no_command;
  while (taken.consumed < count) {
    const Chain chain = chain_at(session, staging, taken.consumed, count);
    const wire::Command first = wire::decode_command(staging[chain.begin]);
    if (chain.status != Status::ok) {
      reject_chain(engine, session, staging, chain, position);
    } else if (first.opcode == wire::Opcode::upcall_done) {
      accept_upcall_answer(engine, session, first, position + chain.begin);
    } else {
      const u32 head = take_slots_or_starve(engine, session, memory, chain.end - chain.begin);
      if (head == no_command) break;
      fill_chain(engine, session_index, staging, chain, position, head);
      append_waiter(engine, taken.first_head, tail, head);
      ++taken.head_count;
    }
    taken.consumed = chain.end;
  }
  return taken;
}

// Reads ahead until `wanted` descriptors that end with a whole chain are staged, or the published ones end.
// Returns how many. Collective, with the token.
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

// Leader only: the heads but the first are anybody's, the first is the caller's.
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

// With the token: the leader decodes, chain by chain. Leaves it held when nothing was taken, passes it on
// otherwise.
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
      for (u32 i = 0; i < linked_command_max; ++i) reject(engine, session, position + i, Status::bad_descriptor);
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

// With the token, which is kept: the next `count` noops refer to nothing, so they are done. They are not counted
// in Session::in_flight; who closes a session waits for the token, or for the kernel's end, as well.
template <class Group>
GPU4FS_FN Taken answer_plain(Group g, Engine& engine, Session& session, u64 position, u32 count) {
  GPU4FS_CHECK_LE(count, Group::size());
  if (g.rank() < count) ring::write_bare_completion(session.ring, position + g.rank(), Status::ok, 0);
  on_leader(g, [&] {
    fetch_add<Order::relaxed, Scope::engine>(&engine.counters.commands_started, u64{count});
    fetch_add<Order::relaxed, Scope::engine>(&engine.counters.commands_completed, u64{count});
    wake_client(session);
  });
  return Taken{no_command, 0, count, 1};
}

struct Grant {
  u32 count;
  u32 first;  // the slots are WorkerMemory::cached_slots[first, first + count)
};

// Slots for up to `wanted` commands of one chain each, within what the session may have in flight. With some,
// the commands count as started and the token has been passed on. Leader only.
GPU4FS_FN inline Grant grant_slots(Engine& engine, Session& session, WorkerMemory& memory, u64 position, u32 wanted) {
  const u32 room = session_room(session);
  wanted = minimum(wanted, room);
  while (memory.cached_slot_count < wanted) {
    u32 index = 0;
    if (!engine.free_commands.pop(&index)) break;
    memory.cached_slots[memory.cached_slot_count++] = index;
  }
  const u32 count = minimum(wanted, memory.cached_slot_count);
  if (count == 0) return {0, 0};
  memory.cached_slot_count -= count;
  fetch_add<Order::relaxed, Scope::engine>(&engine.commands_active, count);
  fetch_add<Order::relaxed, Scope::engine>(&session.in_flight, count);
  fetch_add<Order::relaxed, Scope::engine>(&engine.counters.commands_started, u64{count});
  pass_token(session, position + count);
  return {count, memory.cached_slot_count};
}

// A command of grant_slots() that is malformed. Leader only, when the ranks have read their slots.
GPU4FS_FN inline void reject_granted(Engine& engine, Session& session, WorkerMemory& memory, u32 slot, u64 position,
                                     Status status) {
  reject(engine, session, position, status);
  fetch_sub<Order::relaxed, Scope::engine>(&session.in_flight, 1u);
  free_command(engine, memory, slot);
  wake_client(session);
}

// With the token: the first `wanted` staged descriptors are chains of their own. Rank i makes a command of
// descriptor i. Takes nothing, and leaves the token held, when there is no slot.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Taken take_single(Group g, Engine& engine, WorkerState& worker, u32 session_index,
                                            u64 position, u32 wanted) {
  Session& session = engine.sessions[session_index];
  WorkerMemory& memory = engine.worker_memory[worker.index];
  const Grant grant = on_leader(g, [&] { return grant_slots(engine, session, memory, position, wanted); });
  if (grant.count == 0) return Taken{no_command, 0, 0, 0};
  GPU4FS_CHECK_LE(grant.count, Group::size());
  const u32 rank = g.rank();
  const bool is_mine = rank < grant.count;
  u32 slot = no_command;
  Status status = Status::ok;
  if (is_mine) {
    ring::acquire_payload();
    slot = memory.cached_slots[grant.first + rank];
    const wire::Command command = wire::decode_command(memory.staging[rank]);
    status = validate_command(command, sender_of(session), false);
    if (status == Status::ok) {
      reset_command(engine, engine.commands[slot], command, session_index, position + rank);
    }
  }
  const u32 started = g.ballot(is_mine && status == Status::ok);
  const u32 malformed = g.ballot(is_mine && status != Status::ok);
  for (u32 left = malformed; left != 0; left &= left - 1) {
    const u32 i = count_trailing_zeros(left);
    const u32 unused_slot = g.shuffle(slot, i);
    const Status why = g.shuffle(status, i);
    on_leader(g, [&] { reject_granted(engine, session, memory, unused_slot, position + i, why); });
  }
  if (started == 0) return Taken{no_command, 0, grant.count, 0};
  // The first one is the caller's, the others are anybody's.
  const u32 first = count_trailing_zeros(started);
  const u32 others = popcount(started) - 1;
  u64 queue_position = 0;
  if (others != 0) queue_position = on_leader(g, [&] { return engine.run_queue.claim(others); });
  if (((started >> rank) & 1) != 0) {
    const CommandPhase phase = rank == first ? CommandPhase::running : CommandPhase::queued;
    store<Order::relaxed, Scope::engine>(&engine.commands[slot].phase, static_cast<u32>(phase));
    if (rank != first) {
      const u32 before = popcount(started & ((1u << rank) - 1));
      engine.run_queue.put(queue_position + before - 1, slot);
    }
  }
  g.sync();
  if (others != 0) on_leader(g, [&] { wake_workers(engine, others); });
  return Taken{g.shuffle(slot, first), others + 1, grant.count, 0};
}

// With the token. Leaves it held when nothing was taken or Taken says so, passes it on otherwise.
// A warp fetches as many descriptors at once as it found the last time, up to four: a quiet ring costs one
// descriptor's bytes on the bus, a busy one few round trips.
template <class Group>
GPU4FS_FN Taken take_from_ring(Group g, Engine& engine, WorkerState& worker, u32 session_index, u64 position) {
  constexpr u32 fetch_max = Group::size() == 1 ? 1 : cached_slot_max;
  Session& session = engine.sessions[session_index];
  WorkerMemory& memory = engine.worker_memory[worker.index];
  const u32 batch = minimum(worker.fetch_count, fetch_max);
  GPU4FS_TRACE_BEGIN();
  const ring::FetchedDescriptors seen = ring::fetch_descriptors(g, session.ring, position, batch, memory.staging);
  const u32 found = minimum(count_trailing_zeros(u32{~seen.valid}), batch);
  worker.fetch_count = found == batch ? minimum(2 * batch, fetch_max) : maximum(found, 1u);
  if (found == 0) return Taken{no_command, 0, 0, 0};
  const u32 plain = minimum(count_trailing_zeros(u32{~seen.plain}), found);
  GPU4FS_TRACE_POINT(fetch);
  if (plain != 0) return answer_plain(g, engine, session, position, plain);
  const u32 other = seen.linked | seen.answers | seen.plain | (1u << found);
  const u32 single = minimum(count_trailing_zeros(other), engine.config.batch_max);
  // Sleeping workers are woken command by command, which take_chains() does.
  if (single != 0 && engine.config.caches_slots != 0) {
    const Taken taken = take_single(g, engine, worker, session_index, position, single);
    GPU4FS_TRACE_POINT(slot);
    if (taken.consumed != 0) return taken;
  }
  const Taken taken = take_chains(g, engine, worker, session_index, position);
  GPU4FS_TRACE_POINT(slot);
  return taken;
}

// Before a ring is looked at, so that its token is not held for it. Leader only.
GPU4FS_FN inline void refill_cached_slots(Engine& engine, WorkerMemory& memory) {
  while (memory.cached_slot_count < cached_slot_max) {
    u32 index = 0;
    if (!engine.free_commands.pop(&index)) return;
    memory.cached_slots[memory.cached_slot_count++] = index;
  }
}

enum class TokenEnd : u32 { taken, missed, closed };

// Leader only.
GPU4FS_FN inline TokenEnd take_token_of_open(Session& session, u64 word) {
  if (!try_token(session, word)) return TokenEnd::missed;
  // It may have been closed between the look and the token.
  if (session_is_open(session)) return TokenEnd::taken;
  pass_token(session, word >> 1);
  return TokenEnd::closed;
}

struct RingChoice {
  u32 session;  // session_max: none
  u32 saw_descriptor;
  u32 missed_token;
  u64 position;
};

struct RingsSeen {
  u32 end;       // sessions beyond it were never used
  u32 stopping;  // only the management process is listened to
};

struct RingLook {
  u64 word;   // Session::poll_word
  u32 shows;  // worth taking, as far as one can see
};

// A look at one ring; without `peek` it acquires nothing. Any rank.
GPU4FS_FN inline RingLook look_at_ring(const Engine& engine, u32 index, bool stopping, bool peek) {
  const Session& session = engine.sessions[index];
  // What lies in the session may be read only once it was seen to be open by an acquire.
  const bool is_open = peek ? session_is_open(session) : session_looks_open(session);
  if (!is_open || (stopping && session.internal == 0)) return {0, 0};
  const u64 word = load<Order::relaxed, Scope::engine>(&session.poll_word);
  const bool shows = !peek || ring::peek_descriptor(session.ring, word >> 1);
  return {word, shows ? 1u : 0u};
}

// A ring worth looking at, with its token taken. With `peek` only one that shows a descriptor. Once the
// engine is asked to stop only the management process is listened to. The ranks look at a ring each.
template <class Group>
GPU4FS_FN RingChoice choose_ring(Group g, Engine& engine, u32 cursor, bool peek) {
  RingChoice choice{session_max, 0, 0, 0};
  const RingsSeen rings = on_leader(g, [&] {
    return RingsSeen{load<Order::relaxed, Scope::system>(&engine.session_end),
                     load<Order::relaxed, Scope::system>(&engine.stop_requested)};
  });
  for (u32 base = 0; base < rings.end; base += Group::size()) {
    const u32 mine = base + g.rank() < rings.end ? (cursor + base + g.rank()) % rings.end : session_max;
    const RingLook look = mine == session_max ? RingLook{0, 0} : look_at_ring(engine, mine, rings.stopping != 0, peek);
    const u32 showing = g.ballot(look.shows != 0);
    u32 free = g.ballot(look.shows != 0 && (look.word & 1) == 0);
    if (showing != 0) choice.saw_descriptor = 1;
    if (showing != free) choice.missed_token = 1;
    for (; free != 0; free &= free - 1) {
      const u32 rank = count_trailing_zeros(free);
      const u32 index = g.shuffle(mine, rank);
      const u64 word = g.shuffle(look.word, rank);
      const TokenEnd end = on_leader(g, [&] { return take_token_of_open(engine.sessions[index], word); });
      if (end == TokenEnd::taken) {
        choice.session = index;
        choice.position = word >> 1;
        return choice;
      }
      if (end == TokenEnd::missed) choice.missed_token = 1;
    }
  }
  return choice;
}

}  // namespace detail

// Takes commands from one ring and starts them; the first one's index is returned, in phase `running`, for
// the caller to run (no_command: there is none). *found: something was taken or answered. Collective.
template <class Group>
GPU4FS_FN u32 poll_rings(Group g, Engine& engine, WorkerState& worker, bool* found) {
  *found = false;
  worker.saw_descriptor = 0;
  worker.missed_token = 0;
  if (worker.polls_rings == 0) return no_command;
  const bool keeps = worker.keeps_token != 0;
  if (worker.held_session == session_max) {
    if (keeps) on_leader(g, [&] { detail::refill_cached_slots(engine, engine.worker_memory[worker.index]); });
    const detail::RingChoice choice = detail::choose_ring(g, engine, worker.session_cursor, !keeps);
    worker.saw_descriptor = choice.saw_descriptor;
    worker.missed_token = choice.missed_token;
    if (choice.session == session_max) return no_command;
    worker.held_session = choice.session;
    worker.held_position = choice.position;
    worker.held_polls = 0;
  }
  const u32 index = worker.held_session;
  const detail::Taken taken = detail::take_from_ring(g, engine, worker, index, worker.held_position);
  *found = taken.consumed != 0;
  if (*found && taken.keeps_token == 0) {
    worker.held_session = session_max;
    worker.session_cursor = index + 1;
    return taken.first_head;
  }
  worker.held_position += taken.consumed;
  ++worker.held_polls;
  if (keeps && worker.held_polls < detail::polls_per_token) return no_command;
  on_leader(g, [&] { detail::pass_token(engine.sessions[index], worker.held_position); });
  worker.held_session = session_max;
  worker.session_cursor = index + 1;
  return no_command;
}

}  // namespace gpu4fs::engine
