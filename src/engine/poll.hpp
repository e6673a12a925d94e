// Takes commands from rings.
//
// The holder of a session's poll token reads the ring's next descriptors into its own staging. It decides how many
// whole chains it can take, and passes the token on before any of them runs. Token and next position are one word in
// engine memory. Nothing else is handed over with it, so it needs no fence. A chain is taken as a whole or not at all.
// If it is not completely published, it stays in the ring. If it is too long, it is refused. Nothing waits for slots: a
// chain without slots stays in the ring, and freeing a slot wakes a worker (`slots_exhausted`).
//
// There are four ways. The descriptors that the fetch has in registers decide:
//   noops that refer to nothing are answered at once and need no slot;
//   commands that can do without locks are answered at once as well (poll/take_unlocked.hpp, optimistic/);
//   commands that are chains of their own get slots, the token is passed on, then each rank decodes one
//   (take_single.hpp);
//   the leader decodes everything else and holds the token meanwhile: longer chains, upcall answers (take_chains.hpp).
#pragma once

#include "engine/poll/quiet_ring.hpp"
#include "engine/poll/take_chains.hpp"
#include "engine/poll/take_single.hpp"
#include "engine/poll/take_unlocked.hpp"

namespace gpu4fs::engine {

namespace detail {

// With the token, which is kept: the next `count` noops refer to nothing, so they complete at once. They are not
// counted in Session::in_flight. This is safe because closing a session also waits for the token or for the kernel's
// end.
template <class Group>
GPU4FS_FN Taken answer_plain(Group g, WorkerMemory& memory, Session& session, u64 position, u32 count) {
  GPU4FS_CHECK_LE(count, Group::size());
  if (g.rank() < count) ring::write_bare_completion(session.ring, position + g.rank(), Status::ok, 0);
  on_leader(g, [&] {
    add_as_only_writer<Scope::engine>(&memory.counters.commands_started, u64{count});
    count_completed(memory.counters, count, 0, 0);
    wake_client(session);
  });
  return Taken{no_command, 0, count, 1};
}

template <class Group>
inline constexpr u32 fetch_max = cached_slot_max;

// How many of the first `count` commands, which may be answered without locks, are taken together. A Lane has one after
// the other, so it leaves chains to the ordinary way.
template <class Group>
GPU4FS_FN u32 unlocked_together(const ring::FetchedDescriptors& seen, u32 count) {
  if constexpr (Group::size() == 1) return minimum(count_trailing_zeros(seen.linked | 1u << count), count);
  return cut_to_chains(seen.linked, count);
}

// With the token, after `batch` descriptors were fetched and staged. The token stays held if nothing was taken or
// Taken::keeps_token is set. Otherwise it is passed on. A warp fetches up to eight descriptors at once at first.
// Afterwards it fetches twice as many as it found the last time. So a busy ring costs few round trips.
template <class Group>
GPU4FS_FN Taken take_fetched(Group g, Engine& engine, WorkerState& worker, const ring::FetchedDescriptors& seen,
                             u32 batch) {
  Session& session = engine.sessions[worker.held_session];
  const u64 position = worker.held_position;
  const u32 found = minimum(count_trailing_zeros(u32{~seen.valid}), batch);
  // No command follows if fewer descriptors were there than requested. Hardly any follows if the last look saw nothing.
  const bool is_quiet = found < batch || worker.ring_is_quiet != 0;
  worker.ring_is_quiet = is_quiet && found <= 1 ? 1 : 0;
  worker.fetch_count = minimum(maximum(2 * found, 1u), fetch_max<Group>);
  if (found == 0) return Taken{no_command, 0, 0, 0};
  GPU4FS_TRACE_POINT(fetch);
  const u32 plain = minimum(count_trailing_zeros(u32{~seen.plain}), found);
  if (plain != 0) {
    return answer_plain(g, engine.worker_memory[worker.index], session, position, minimum(plain, Group::size()));
  }
  const u32 other = seen.linked | seen.answers | seen.plain | (1u << found);
  const u32 apart = count_trailing_zeros(other);
  const RingTurn turn = RingTurn::make(engine, worker, is_quiet, seen.linked);
  const u32 may_be_unlocked = minimum(count_trailing_zeros(u32{~seen.unlocked}), found);
  const u32 unlocked = unlocked_together<Group>(seen, may_be_unlocked);
  // The first chain may end among descriptors that were not fetched.
  if (Group::size() != 1 && unlocked == 0 && may_be_unlocked == batch && batch < fetch_max<Group>) {
    worker.fetch_count = fetch_max<Group>;
    worker.ring_is_quiet = 0;
    return Taken{no_command, 0, 0, 0};
  }
  if (unlocked != 0) {
    const Taken taken = take_together(g, engine, turn, seen, unlocked);
    if (taken.consumed != 0) return taken;
  }
  const u32 single = minimum(apart, minimum(engine.config.batch_max, Group::size()));
  // If workers sleep, they have to be woken for each command, and take_chains() does this.
  if (single != 0 && engine.config.caches_slots != 0) {
    const Taken taken = take_single(g, engine, turn, single);
    GPU4FS_TRACE_POINT(slot);
    if (taken.consumed != 0) return taken;
  }
  const Taken taken = take_chains(g, engine, worker, worker.held_session, position);
  GPU4FS_TRACE_POINT(slot);
  return taken;
}

// With the token of worker.held_session, as take_fetched().
template <class Group>
GPU4FS_FN Taken take_from_ring(Group g, Engine& engine, WorkerState& worker) {
  Session& session = engine.sessions[worker.held_session];
  WorkerMemory& memory = engine.worker_memory[worker.index];
  const u32 batch = minimum(worker.fetch_count, fetch_max<Group>);
  GPU4FS_TRACE_BEGIN();
  const ring::FetchedDescriptors seen =
      ring::fetch_descriptors(g, session.ring, worker.held_position, batch, memory.staging);
  return take_fetched(g, engine, worker, seen, batch);
}

// Leader only.
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
  // The session may have been closed between the look and the token.
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
  u32 stopping;  // only the management process is served
};

struct RingLook {
  u64 word;   // Session::poll_word
  u32 shows;  // worth taking, as far as this look can tell
};

// Looks at one ring. Without `peek` it acquires nothing. For any rank.
GPU4FS_FN inline RingLook look_at_ring(const Engine& engine, u32 index, bool stopping, bool peek) {
  const Session& session = engine.sessions[index];
  // Data of the session may be read only after an acquire has shown that it is open.
  const bool is_open = peek ? session_is_open(session) : session_looks_open(session);
  if (!is_open || (stopping && session.internal == 0)) return {0, 0};
  const u64 word = load<Order::relaxed, Scope::engine>(&session.poll_word);
  const bool shows = !peek || ring::peek_descriptor(session.ring, word >> 1);
  return {word, shows ? 1u : 0u};
}

// Finds a ring worth looking at and takes its token. With `peek` it must show a descriptor. After the engine was asked
// to stop, only the management process is served. Each rank looks at one ring.
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

// After a look at the held ring: passes the token on if that is due. Returns the command to run, or no_command.
template <class Group>
GPU4FS_FN u32 end_look(Group g, Engine& engine, WorkerState& worker, const Taken& taken) {
  worker.held_position += taken.consumed;
  const bool is_passed = taken.consumed != 0 && taken.keeps_token == 0;
  if (!is_passed) {
    if (worker.keeps_token != 0 && worker.held_polls < worker.polls_per_token) return no_command;
    on_leader(g, [&] { pass_token(engine.sessions[worker.held_session], worker.held_position); });
  }
  worker.session_cursor = worker.held_session + 1;
  worker.held_session = session_max;
  return taken.first_head;
}

}  // namespace detail

// Takes commands from one ring and starts them. Returns the index of the first one, in phase `running`, which the
// caller runs (no_command: none). *found: something was taken or answered. Collective.
template <class Group>
GPU4FS_FN u32 poll_rings(Group g, Engine& engine, WorkerState& worker, bool* found) {
  *found = false;
  worker.saw_descriptor = 0;
  worker.missed_token = 0;
  if (worker.polls_rings == 0) return no_command;
  const bool keeps = worker.keeps_token != 0;
  if (worker.held_session == session_max) {
    const auto refill = [&] {
      on_leader(g, [&] { detail::refill_cached_slots(engine, engine.worker_memory[worker.index]); });
    };
    // Before the look at the rings, because no token is held yet. But a worker that may never get one takes no slots,
    // since all workers would contend for them when a kernel starts. It does so with its first token.
    if (keeps && worker.has_had_ring != 0) refill();
    const detail::RingChoice choice = detail::choose_ring(g, engine, worker.session_cursor, !keeps);
    worker.saw_descriptor = choice.saw_descriptor;
    worker.missed_token = choice.missed_token;
    if (choice.session == session_max) return no_command;
    if (keeps && worker.has_had_ring == 0) refill();
    worker.has_had_ring = 1;
    worker.held_session = choice.session;
    worker.held_position = choice.position;
    worker.held_polls = 0;
    worker.ring_is_quiet = 0;
    worker.fetch_count = detail::fetch_max<Group>;
  }
  const detail::Taken taken = detail::take_from_ring(g, engine, worker);
  ++worker.held_polls;
  *found = taken.consumed != 0;
  return detail::end_look(g, engine, worker, taken);
}

}  // namespace gpu4fs::engine
