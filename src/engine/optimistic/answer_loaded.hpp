// Goes on with reads whose pages have been loaded (awaited_page.hpp). For a Lane.
#pragma once

#include "engine/command_life.hpp"
#include "engine/optimistic/answer.hpp"
#include "engine/optimistic/awaited_page.hpp"

namespace gpu4fs::engine::detail {

// Commands of one session that were answered, and what is not done for each of them.
struct AnsweredReads {
  u32 session;
  u32 count;
};

GPU4FS_FN inline void end_answered(Engine& engine, WorkerMemory& memory, AnsweredReads* answered) {
  if (answered->count == 0) return;
  Session& session = engine.sessions[answered->session];
  subtract<Scope::engine>(&session.in_flight, answered->count);
  wake_client(session);
  count_completed(memory.counters, answered->count, answered->count, 0);
  subtract<Scope::engine>(&engine.commands_active, answered->count);
  answered->count = 0;
}

// Frees the slots of the commands that are not in `left`.
GPU4FS_FN inline void free_answered(Engine& engine, const LoadedCommands& loaded, u32 left) {
  for (u32 i = 0; i < loaded.count; ++i) {
    if ((left >> i & 1) != 0) continue;
    store<Order::relaxed, Scope::engine>(&engine.commands[loaded.indices[i]].phase,
                                         static_cast<u32>(CommandPhase::free));
    engine.free_commands.push(loaded.indices[i]);
  }
  announce_free_slots(engine);
}

// Answers a command in phase `running` by its plan, inside the step gate. True: it is answered.
template <class Group>
GPU4FS_FN bool answer_one_loaded(Group g, Engine& engine, WorkerMemory& memory, u64 era, CommandState& c) {
  const AwaitedRead& awaited = awaited_read_of(c);
  if (GPU4FS_MUTANT(loaded_page_left, awaited.era != era, true)) return false;
  RootView& root = memory.views.root;
  if (root.pages.frames == nullptr) root = root_view(engine);
  if (failed_devices(root) != 0) return false;
  ReadPlan plan = awaited.read.plan;
  plan.page = device::look_at_frame(*awaited.read.device, awaited.read.page).memory;
  if (plan.page == nullptr || !move_planned(g, root, plan, memory.page)) return false;
  fence<Order::release, Scope::system>();
  ring::write_bare_completion(engine.sessions[c.session].ring, c.ring_position, Status::ok, plan.to - plan.from);
  return true;
}

// Tries commands in phase `running` whose loads have ended. The slots of those that are answered are free afterwards.
// Returns the set of the others, which begin their first step.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 answer_loaded(Group g, Engine& engine, WorkerMemory& memory,
                                            const LoadedCommands& loaded) {
  u32 left = (1u << loaded.count) - 1;
  for (u32 i = 0; i < loaded.count; ++i) {
    CommandState& c = engine.commands[loaded.indices[i]];
    c.awaits_page = 0;
    announce_wait(c, Status::ok);
  }
  const Entered entered = try_enter_era(engine, engine.step_gate);
  if (!entered.is_inside) return left;
  AnsweredReads answered{0, 0};
  for (u32 i = 0; i < loaded.count; ++i) {
    CommandState& c = engine.commands[loaded.indices[i]];
    if (!answer_one_loaded(g, engine, memory, entered.era, c)) continue;
    left &= ~(1u << i);
    if (answered.session != c.session) end_answered(engine, memory, &answered);
    answered.session = c.session;
    ++answered.count;
  }
  leave(engine, engine.step_gate);
  end_answered(engine, memory, &answered);
  free_answered(engine, loaded, left);
  return left;
}

}  // namespace gpu4fs::engine::detail
