// Tasks of commands, and the board where those ask for help that fanned out.
#include <gtest/gtest.h>

#include "engine/engine_fixture.hpp"
#include "engine/tasks.hpp"

namespace gpu4fs::test {
namespace {

using engine::CommandState;

bool is_on_board(const engine::Engine& engine, u32 index) {
  for (const u64 entry : engine.help_board.entries) {
    if (static_cast<u32>(entry) == index + 1) return true;
  }
  return false;
}

// More commands than places: the last one asks again while its tasks run, and is seen as soon as a place is free.
TEST(Tasks, ACommandBesideAFullBoardAsksForHelpAgain) {
  EngineFixture fixture({.worker_count = 2, .command_count = 64, .config = {}, .start = false});
  engine::Engine& engine = fixture.engine();
  Client client(fixture.host());
  for (u32 i = 1; i <= engine::help_board_size; ++i) {
    engine::detail::begin_fan_out(engine, engine.commands[i], 3);
    EXPECT_TRUE(is_on_board(engine, i));
  }
  CommandState& c = engine.commands[40];
  const u64 unit = u64{engine.config.task_pages} * page_size;
  constexpr u32 task_count = 4;
  ASSERT_LE(task_count * unit, u64{1} << 20);
  c.command = make_command(format::Opcode::memset);
  c.command.data = format::ring_address(0, 0);
  c.command.length = task_count * unit;
  c.command.mode = 0x5a;
  c.session = client.session();
  engine::detail::begin_fan_out(engine, c, task_count);
  EXPECT_FALSE(is_on_board(engine, c.index));
  EXPECT_EQ(c.wants_help, 1u);

  CommandState& done = engine.commands[7];
  done.task_word += 3;  // its tasks are taken
  EXPECT_EQ(engine::run_tasks(Lane{}, engine, c), engine::HelpEnd::was_last);
  EXPECT_TRUE(is_on_board(engine, c.index));
  EXPECT_FALSE(is_on_board(engine, done.index));
  EXPECT_EQ(c.wants_help, 0u);
  for (u64 i = 0; i < c.command.length; ++i) ASSERT_EQ(client.data()[i], 0x5a) << i;
}

}  // namespace
}  // namespace gpu4fs::test
