// Tasks of commands, and the board on which commands that fanned out ask for help.
#include <gtest/gtest.h>

#include "engine/engine_fixture.hpp"
#include "engine/tasks.hpp"

namespace gpu4fs::test {
namespace {

using engine::CommandState;

u32 entry_count(const engine::Engine& engine, u32 index) {
  u32 count = 0;
  for (const u64 entry : engine.help_board.entries) count += static_cast<u32>(entry) == index + 1 ? 1 : 0;
  return count;
}

// More commands than slots: the last one gets a slot when one is free.
TEST(Tasks, ACommandBesideAFullBoardAsksForHelpAgain) {
  EngineFixture fixture({.worker_count = 2, .command_count = 64, .config = {}, .start = false});
  engine::Engine& engine = fixture.engine();
  Client client(fixture.host());
  for (u32 i = 1; i <= engine::help_board_size; ++i) {
    engine::detail::begin_fan_out(engine.commands[i], 3);
    EXPECT_TRUE(engine::detail::ask_for_help(engine, i));
    EXPECT_TRUE(engine::detail::ask_for_help(engine, i)) << "it stands there already";
    EXPECT_EQ(entry_count(engine, i), 1u);
  }
  CommandState& c = engine.commands[40];
  const u64 unit = u64{engine.config.task_pages} * page_size;
  constexpr u32 task_count = 4;
  ASSERT_LE(task_count * unit, u64{1} << 20);
  c.command = make_command(wire::Opcode::memset);
  c.command.data = wire::ring_address(0, 0);
  c.command.length = task_count * unit;
  c.command.mode = 0x5a;
  c.session = client.session();
  engine::detail::begin_fan_out(c, task_count);
  EXPECT_FALSE(engine::detail::ask_for_help(engine, c.index));
  EXPECT_EQ(entry_count(engine, c.index), 0u);

  CommandState& other = engine.commands[7];
  other.tasks.word += 3;  // its tasks are taken
  EXPECT_EQ(engine::run_tasks(Lane{}, engine, c), engine::HelpEnd::was_last);
  EXPECT_EQ(entry_count(engine, c.index), 1u);
  EXPECT_EQ(entry_count(engine, other.index), 0u);
  EXPECT_TRUE(engine::detail::ask_for_help(engine, 50)) << "without tasks there is nothing to ask for";
  EXPECT_EQ(entry_count(engine, 50), 0u);
  for (u64 i = 0; i < c.command.length; ++i) ASSERT_EQ(client.data()[i], 0x5a) << i;
}

}  // namespace
}  // namespace gpu4fs::test
