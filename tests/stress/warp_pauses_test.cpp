// An engine of emulated warps pauses and goes on as that of a GPU, while clients use it (support/warp_engine.hpp).
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "support/file_client.hpp"
#include "support/test_pool.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::warp_pauses_test {
namespace {

constexpr u64 page_count = 12;

class WarpPauses : public ::testing::Test {
 protected:
  static TestPoolOptions options() {
    TestPoolOptions options;
    options.warp_count = 2;
    return options;
  }

  // In a pause: no warp runs or has kept anything.
  void expect_rest() {
    engine::Engine& engine = *pool_.engine();
    const u64 before = pool_.host().counters().commands_completed;
    for (u32 i = 0; i < engine::session_max; ++i) {
      const u64 word = load<Order::relaxed, Scope::engine>(&engine.sessions[i].poll_word);
      EXPECT_EQ(word & 1, 0u) << "the token of session " << i;
    }
    for (u32 i = 0; i < options().warp_count; ++i) EXPECT_EQ(engine.worker_memory[i].cached_slot_count, 0u);
    const u64 gate = load<Order::relaxed, Scope::engine>(&engine.step_gate.word);
    EXPECT_EQ(engine::gate_state(gate) & ~engine::gate_closed, 0u);
    // A warp that still worked would complete the clients' commands in this time.
    std::this_thread::sleep_for(std::chrono::microseconds(300));
    EXPECT_EQ(pool_.host().counters().commands_completed, before);
  }
  void pause_twice() {
    pool_.host().while_paused([&] {
      pool_.host().while_paused([&] { expect_rest(); });
      expect_rest();
    });
  }

  // Gives two files new pages and reads these, again and again. Each file's map page gets the frame of the other's.
  void use_files(const std::string& name) {
    const auto session = pool_.open_session();
    FileClient client(*session);
    const u64 files[2] = {make_file(client, name + " 1"), make_file(client, name + " 2")};
    for (u32 round = 0; round < scaled(60); ++round) {
      for (const u64 file : files) ASSERT_EQ(client.simple(wire::Opcode::truncate, file).status, Status::ok);
      for (const u64 file : files) fill(client, file, static_cast<u8>(file + round));
      for (const u64 file : files) expect_filled(client, file, static_cast<u8>(file + round));
    }
  }
  static u64 make_file(FileClient& client, const std::string& name) {
    FileOperation op;
    op.opcode = wire::Opcode::create;
    op.inode = PosixModel::root;
    op.name = name;
    const client::Reply made = client.call(op);
    EXPECT_EQ(made.status, Status::ok);
    return made.result;
  }
  static void fill(FileClient& client, u64 file, u8 value) {
    FileOperation op;
    op.opcode = wire::Opcode::write;
    op.inode = file;
    op.length = page_count * page_size;
    ASSERT_EQ(client.call(op, std::vector<u8>(op.length, value)).result, op.length);
  }
  // Page by page: such reads can do without locks.
  static void expect_filled(FileClient& client, u64 file, u8 value) {
    const std::vector<u8> expected(page_size, value);
    for (u64 i = 0; i < page_count; ++i) {
      ASSERT_EQ(client.simple(wire::Opcode::read, file, i * page_size, page_size).result, page_size);
      ASSERT_EQ(std::memcmp(client.data(), expected.data(), page_size), 0) << "page " << i;
    }
  }

  TestPool pool_{options()};
};

TEST_F(WarpPauses, WarpsKeepNothingAndGoOnAfterwards) {
  std::thread clients[2] = {std::thread([&] { use_files("a"); }), std::thread([&] { use_files("b"); })};
  const u32 rounds = scaled(40);
  std::thread pauses([&] {
    for (u32 i = 0; i < rounds; ++i) pause_twice();
  });
  // Meanwhile sessions are opened and closed, which pauses as well.
  for (u32 i = 0; i < rounds; ++i) {
    const auto session = pool_.open_session();
    EXPECT_EQ(FileClient(*session).simple(wire::Opcode::statfs).status, Status::ok);
  }
  pauses.join();
  for (std::thread& client : clients) client.join();
  EXPECT_GT(pool_.host().counters().commands_optimistic, 0u);
  EXPECT_GT(dynamic_cast<WarpEngine&>(pool_.host()).quiet_step_count(), 0u);
  pool_.unmount();
  const fsck::CheckResult result = pool_.check();
  EXPECT_EQ(result.findings.error_count(), 0u) << findings_text(result);
}

}  // namespace
}  // namespace gpu4fs::test::warp_pauses_test
