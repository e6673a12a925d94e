// Takes commands that may be answered immediately, without slots and locks (engine/optimistic/).
#pragma once

#include "engine/optimistic/answer.hpp"
#include "engine/poll/answer_each.hpp"
#include "engine/poll/take_single.hpp"

namespace gpu4fs::engine::detail {

// Whether another worker should look at the ring meanwhile.
template <class Group>
GPU4FS_FN bool more_follows(Group g, const Engine& engine, const RingTurn& turn, u32 wanted) {
  if (engine.config.caches_slots != 0) return wanted > 1 || !turn.is_quiet;
  return on_leader(g, [&] { return ring::peek_descriptor(turn.ring, turn.position + 1); });
}

// No fence is needed, because the token has been passed on before. A worker that is about to sleep sees the ring and
// stays awake, or it has announced itself earlier. Workers of a kernel do not sleep.
GPU4FS_FN inline void wake_sleeper(Engine& engine) {
  if (sleeper_count(engine.parking) != 0) wake_workers(engine, 1);
}

// The commands of the grant that are in neither set begin their first steps: the caller runs the first one, the others
// go to the run queue. Each is a chain of its own.
template <class Group>
GPU4FS_FN Taken start_others(Group g, Engine& engine, const RingTurn& turn, const EachSlots& places, u32 done) {
  const Grant grant = places.grant;
  Taken taken{no_command, 0, grant.count, 0};
  WorkerMemory& memory = *turn.memory;
  for (u32 i = 0; i < grant.count; ++i) {
    if ((done >> i & 1) != 0) continue;
    // The only one of a grant of its own.
    RingTurn turn_of_one = turn;
    turn_of_one.position += i;
    memory.staging[0] = memory.staging[i];
    memory.cached_slots[grant.first] = places.slots[i];
    const u32 head = start_granted(g, engine, turn_of_one, {1, grant.first}, 0).first_head;
    if (head == no_command) continue;
    if (taken.first_head == no_command) {
      taken.first_head = head;
    } else {
      enqueue_command(engine, head);
    }
    ++taken.head_count;
  }
  return taken;
}

// The slots of commands that were answered without them.
GPU4FS_FN inline void return_slots(Engine& engine, const RingTurn& turn, const u32* slots, u32 set) {
  if (set == 0) return;
  subtract<Scope::engine>(&turn.session->in_flight, popcount(set));
  subtract<Scope::engine>(&engine.commands_active, popcount(set));
  for (u32 left = set; left != 0; left &= left - 1) engine.free_commands.push(slots[count_trailing_zeros(left)]);
  announce_free_slots(engine);
  wake_client(*turn.session);
}

// As take_unlocked(), by a Lane. A command whose page has to be loaded gets a slot even if none follows.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Taken take_each(Group g, Engine& engine, const RingTurn& turn, u32 wanted) {
  WorkerMemory& memory = *turn.memory;
  EachSlots places;
  places.grant = {0, 0};
  if (wanted > 1 || ring::peek_descriptor(turn.ring, turn.position + 1)) {
    take_each_slot(engine, turn, wanted, &places);
    if (places.grant.count == 0) return Taken{no_command, 0, 0, 0};
    wake_sleeper(engine);
  }
  const EachEnd end = answer_each(g, engine, turn, maximum(places.grant.count, 1u), &places);
  if (places.grant.count != 0) {
    return_slots(engine, turn, places.slots, end.answered);
    return start_others(g, engine, turn, places, end.answered | end.waiting);
  }
  if (end.answered == 0) return Taken{no_command, 0, 0, 0};
  add_as_only_writer<Scope::engine>(&memory.counters.commands_started, u64{1});
  wake_client(*turn.session);
  return Taken{no_command, 0, 1, 1};
}

// With the token: the first `wanted` staged descriptors may be answered without locks. If more commands follow, the
// token is passed on first. Otherwise it is kept, so a quiet ring stays with its worker, and at most one command is
// taken. Nothing is taken if that command has to go the ordinary way.
template <class Group>
GPU4FS_FN Taken take_unlocked(Group g, Engine& engine, const RingTurn& turn, const ring::FetchedDescriptors& seen,
                              u32 wanted) {
  Grant grant{0, 0};
  if (more_follows(g, engine, turn, wanted)) {
    grant = on_leader(g, [&] { return grant_slots(engine, turn, wanted); });
    if (grant.count != 0) on_leader(g, [&] { wake_sleeper(engine); });
  }
  // A chain needs slots, because a part of it may have to go the ordinary way.
  if (GPU4FS_MUTANT(chain_split, grant.count == 0 && (turn.linked & 1) != 0, false)) {
    return Taken{no_command, 0, 0, 0};
  }
  const u32 count = maximum(grant.count, 1u);
  const u32 answered = answer_without_locks(g, engine, turn, seen, count);
  if (grant.count != 0) {
    if (answered != (1u << grant.count) - 1) return start_granted(g, engine, turn, grant, answered);
    on_leader(g, [&] { return_unused(engine, turn, grant); });
    GPU4FS_TRACE_POINT(claims);
    GPU4FS_TRACE_FLUSH(engine.trace);
    return Taken{no_command, 0, grant.count, 0};
  }
  if (answered == 0) return Taken{no_command, 0, 0, 0};
  on_leader(g, [&] {
    add_as_only_writer<Scope::engine>(&turn.memory->counters.commands_started, u64{1});
    wake_client(*turn.session);
  });
  GPU4FS_TRACE_POINT(claims);
  GPU4FS_TRACE_FLUSH(engine.trace);
  return Taken{no_command, 0, 1, 1};
}

// With the token: takes some of the first `wanted` staged descriptors, which may be answered without locks.
template <class Group>
GPU4FS_FN Taken take_together(Group g, Engine& engine, const RingTurn& turn, const ring::FetchedDescriptors& seen,
                              u32 wanted) {
  if constexpr (Group::size() == 1) {
    return take_each(g, engine, turn, wanted);
  } else {
    return take_unlocked(g, engine, turn, seen, wanted);
  }
}

}  // namespace gpu4fs::engine::detail
