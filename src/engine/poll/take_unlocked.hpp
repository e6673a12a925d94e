// Takes commands that may be answered immediately, without slots and locks (engine/optimistic/).
#pragma once

#include "engine/optimistic/answer.hpp"
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

}  // namespace gpu4fs::engine::detail
