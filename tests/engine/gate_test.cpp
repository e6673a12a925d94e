#include <gtest/gtest.h>

#include "engine/command_crew.hpp"
#include "engine/gate.hpp"

namespace gpu4fs::test {
namespace {

using engine::CommandPhase;

TEST(Gate, DrainsBeforeTheCloserGoesOn) {
  EngineFixture fixture({.worker_count = 1, .command_count = 64, .config = {}, .start = false});
  engine::Engine& engine = fixture.engine();
  engine::Gate& gate = engine.commit_gate;
  for (u32 i = 1; i < 8; ++i) engine::set_phase(engine.commands[i], CommandPhase::running);
  engine::CommandState& closer = engine.commands[1];
  EXPECT_EQ(engine::enter_or_park(engine, gate, engine.commands[2]), Status::ok);
  EXPECT_EQ(engine::enter_or_park(engine, gate, engine.commands[3]), Status::ok);
  EXPECT_EQ(engine::close_or_park(gate, closer), Status::waits_for_drain);
  EXPECT_TRUE(engine::park_command(closer));
  EXPECT_EQ(engine::close_or_park(gate, engine.commands[4]), Status::again) << "somebody else closes it";
  EXPECT_EQ(engine::enter_or_park(engine, gate, engine.commands[5]), Status::waits_for_gate);
  EXPECT_EQ(engine::enter_or_park(engine, gate, engine.commands[6]), Status::waits_for_gate);
  EXPECT_TRUE(engine::park_command(engine.commands[5]));
  EXPECT_TRUE(engine::park_command(engine.commands[6]));
  u32 item = 0;
  engine::leave(engine, gate);
  EXPECT_FALSE(engine.run_queue.pop(&item));
  engine::leave(engine, gate);
  ASSERT_TRUE(engine.run_queue.pop(&item));
  EXPECT_EQ(item, 1u);
  engine::set_phase(closer, CommandPhase::running);
  EXPECT_EQ(engine::close_or_park(gate, closer), Status::ok);
  engine::open(engine, gate, closer);
  ASSERT_TRUE(engine.run_queue.pop(&item));
  EXPECT_EQ(item, 5u);
  ASSERT_TRUE(engine.run_queue.pop(&item));
  EXPECT_EQ(item, 6u);
  EXPECT_EQ(engine::gate_state(gate.word), 0u);
}

TEST(Gate, NobodyIsInsideAClosedGate) {
  EngineFixture fixture({.worker_count = 1, .command_count = 64, .config = {}, .start = false});
  engine::Engine& engine = fixture.engine();
  engine::Gate& gate = engine.commit_gate;
  constexpr u32 rounds = 2000;
  std::vector<u32> done(64, 0);
  std::atomic<i32> inside{0};
  std::atomic<u32> violations{0};
  std::atomic<u32> closings{0};
  u64 committed = 0;  // changed inside with atomics, read by the closer without
  CommandCrew crew(engine);
  crew.run(1, 24, 3, [&](engine::CommandState& c) {
    if (c.index == 1) {
      const Status status = engine::close_or_park(gate, c);
      if (status != Status::ok) return status;
      if (inside.load() != 0) ++violations;
      const u64 before = __atomic_load_n(&committed, __ATOMIC_RELAXED);
      for (u32 i = 0; i < 50; ++i) cpu_relax();
      if (__atomic_load_n(&committed, __ATOMIC_RELAXED) != before) ++violations;
      ++closings;
      engine::open(engine, gate, c);
      return ++done[1] == rounds ? Status::ok : Status::again;
    }
    const Status status = engine::enter_or_park(engine, gate, c);
    if (status != Status::ok) return status;
    ++inside;
    __atomic_fetch_add(&committed, 1, __ATOMIC_RELAXED);
    --inside;
    engine::leave(engine, gate);
    return ++done[c.index] == rounds ? Status::ok : Status::again;
  });
  EXPECT_EQ(violations.load(), 0u);
  EXPECT_EQ(closings.load(), rounds);
  EXPECT_EQ(committed, u64{23} * rounds);
  EXPECT_EQ(engine::gate_state(gate.word), 0u);
}

}  // namespace
}  // namespace gpu4fs::test
