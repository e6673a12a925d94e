// Serves a ring that shows at most one command at a time. The worker keeps the ring's token and stays inside the step
// gate, so between a command's arrival and its answer there is neither of them. It looks at the gate once for each look
// at the ring, and leaves when the gate is being closed.
#pragma once

#include "engine/optimistic/answer.hpp"
#include "engine/ring_token.hpp"

namespace gpu4fs::engine::detail {

// Looks without a command, and looks at all, after which the worker looks for other work. That takes several
// microseconds, for which a command would wait.
inline constexpr u32 quiet_idle_polls = 64;
inline constexpr u32 quiet_polls_max = 1024;
// One to answer, and one that shows that the ring is no longer quiet.
inline constexpr u32 quiet_fetch = 2;

struct QuietEnd {
  u32 answered;  // commands
  u32 found;     // descriptors that wait for another way: the first ones of the last fetch
};

// Numbers of commands. They are counted together when the worker ends its looks at the ring.
struct QuietCounts {
  u32 optimistic;  // answered without a lock
  u32 failed;      // of them, with an error
};

// The leader's command, from the units in registers. The other ranks have none.
template <class Group>
GPU4FS_FN wire::Command read_quiet(Group g, WorkerViews& views, const ring::FetchedDescriptors& seen) {
  if (g.rank() < ring::units_per_descriptor) {
    const Vector16& value = seen.units[0];
    views.descriptor.units[g.rank()] =
        wire::RingUnit{value.low, static_cast<u32>(value.high), ring::vector_sequence(value)};
  }
  g.sync();
  return g.leader() ? wire::decode_command(views.descriptor) : wire::Command{};
}

// Answers the only command that was found, or not. Inside the step gate. Uniform.
template <class Group>
GPU4FS_FN bool answer_quiet(Group g, const ReaderContext& reader, const RingTurn& turn,
                            const ring::FetchedDescriptors& seen, QuietCounts& counts) {
  OwnCommand own{read_quiet(g, *turn.views, seen), {}};
  if (g.any(ring::is_plain(own.command))) {
    if (g.leader()) ring::write_bare_completion(turn.ring, turn.position, Status::ok, 0);
  } else {
    const bool may_be_unlocked = ring::is_unlocked_alone(own.command, ring::long_read_max);
    if (may_be_unlocked) own.places = places_of(turn, own.command);
    GPU4FS_TRACE_POINT(slot);
    copy_names(g, *turn.views, own.command, own.places.are_good ? own.places.name : nullptr, 1);
    GPU4FS_TRACE_POINT(name);
    const Answered answered = answer_inside_gate(g, reader, turn, own, 1);
    if (answered.completed == 0) return false;
    ++counts.optimistic;
    counts.failed += answered.failed;  // at most bit 0
  }
  if (g.leader()) wake_client(*turn.session);
  GPU4FS_TRACE_POINT(claims);
  GPU4FS_TRACE_FLUSH(reader.engine->trace);
  return true;
}

// Looks at the held ring some times and answers what it can. *seen: the last fetch, of quiet_fetch descriptors, if some
// of them wait; only their validity is known. For a warp. Uniform. In a kernel this is a function of its own: idle
// workers would have what it keeps in local memory in the first-level cache as well.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE QuietEnd serve_quiet_ring(Group g, Engine& engine, WorkerState& worker,
                                                    ring::FetchedDescriptors* seen) {
  RingTurn turn = RingTurn::make(engine, worker, true, 0);
  WorkerViews& views = *turn.views;
  if (g.any(views.root.pages.frames == nullptr)) on_leader(g, [&] { views.root = root_view(engine); });
  g.sync();
  const Entered entered = on_leader(g, [&] { return try_enter_era(engine, engine.step_gate); });
  QuietEnd end{0, 0};
  QuietCounts counts{0, 0};
  // Access times do not depend on the time that this function takes.
  const ReaderContext reader{
      &engine,     turn.session, &views, entered.era, turn.is_trusted, long_read_pages_max, now_monotonic_ns(),
      &views.known};
  if (g.any(views.known.era != entered.era)) views.known.forget(g, entered.era);
  bool stays = entered.is_inside;
  u32 polls = 0;
  u32 idle_polls = 0;
  for (; stays && end.found == 0 && idle_polls < quiet_idle_polls && polls < quiet_polls_max; ++polls, ++idle_polls) {
    GPU4FS_TRACE_BEGIN();
    // The gate's word is on its way together with the descriptors.
    const bool is_closing = is_closed(engine.step_gate);
    const ring::FetchedDescriptors now = ring::fetch_units<1>(g, turn.ring, turn.position, quiet_fetch);
    stays = !g.any(is_closing);
    const u32 found = count_trailing_zeros(u32{~now.valid});
    if (found == 0) continue;
    GPU4FS_TRACE_POINT(fetch);
    if (found == 1 && answer_quiet(g, reader, turn, now, counts)) {
      ++end.answered;
      ++turn.position;
      idle_polls = 0;
      continue;
    }
    end.found = found;
    *seen = now;
  }
  on_leader(g, [&] {
    if (entered.is_inside) leave(engine, engine.step_gate);
    if (end.answered == 0) return;
    WorkerCounters& counters = engine.worker_memory[worker.index].counters;
    add_as_only_writer<Scope::engine>(&counters.commands_started, u64{end.answered});
    count_completed(counters, end.answered, counts.optimistic, counts.failed);
  });
  worker.held_position = turn.position;
  worker.held_polls += maximum(polls, 1u);
  // While the gate is closed, the ring is served outside of it: the closer may wait for an answer from the server.
  if (!stays) worker.ring_is_quiet = 0;
  return end;
}

}  // namespace gpu4fs::engine::detail
