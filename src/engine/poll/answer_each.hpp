// Commands that a Lane answers without locks when it takes them from the ring, one after the other. They share what
// does not depend on their number: the token, the step gate, and a look at who sleeps.
#pragma once

#include "engine/optimistic/answer.hpp"
#include "engine/optimistic/awaited_page.hpp"
#include "engine/poll/take_single.hpp"

namespace gpu4fs::engine::detail {

// Sets of the turn's commands.
struct EachEnd {
  u32 answered;
  u32 waiting;  // for their pages, in their slots
};

// Where the commands may wait. Commands that nothing follows need no slot, unless they wait.
struct EachSlots {
  Grant grant;
  u32 slots[cached_slot_max];
};

// Up to `wanted` slots for the turn's first commands. If there are some, the token has been passed on.
GPU4FS_FN inline void take_each_slot(Engine& engine, const RingTurn& turn, u32 wanted, EachSlots* places) {
  places->grant = grant_slots(engine, turn, wanted);
  for (u32 i = 0; i < places->grant.count; ++i) {
    places->slots[i] = turn.memory->cached_slots[places->grant.first + i];
  }
}

// Tries the turn's first `count` commands, which are staged and in no chains. Without slots it is one command, for
// which a slot is taken if it has to wait.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE EachEnd answer_each(Group g, Engine& engine, const RingTurn& turn, u32 count,
                                              EachSlots* places) {
  static_assert(Group::size() == 1);
  WorkerMemory& memory = *turn.memory;
  WorkerViews& views = *turn.views;
  if (views.root.pages.frames == nullptr) views.root = root_view(engine);
  memory.absent.device = nullptr;
  const Entered entered = try_enter_era(engine, engine.step_gate);
  if (!entered.is_inside) return {0, 0};
  const ReaderContext reader{&engine, turn.session, &views, entered.era, turn.is_trusted, 1};
  EachEnd end{0, 0};
  u32 failed = 0;
  for (u32 i = 0; i < count; ++i) {
    RingTurn turn_of_one = turn;
    turn_of_one.position += i;
    OwnCommand own{wire::decode_command(memory.staging[i]), {}};
    own.places = places_of(turn, own.command);
    copy_names(g, views, own.command, own.places.are_good ? own.places.name : nullptr, 1);
    memory.absent.device = nullptr;
    const Answered answered = answer_inside_gate(g, reader, turn_of_one, own, 1);
    end.answered |= answered.completed << i;
    failed += answered.failed;
    if (memory.absent.device == nullptr) continue;
    if (places->grant.count == 0) take_each_slot(engine, turn, 1, places);
    if (places->grant.count == 0) break;
    if (await_page(g, engine, turn_of_one, own.command, {places->slots[i], entered.era})) end.waiting |= 1u << i;
  }
  leave(engine, engine.step_gate);
  if (end.waiting != 0) raid::ring_staged(engine.fs.space);
  const u32 completed = popcount(end.answered);
  count_completed(memory.counters, completed, completed, failed);
  return end;
}

}  // namespace gpu4fs::engine::detail
