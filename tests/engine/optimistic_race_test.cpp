// Commands without locks while others change what they read. Every answer must be that of one moment between the
// question and the answer.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/name_fixture.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::optimistic_race_test {
namespace {

constexpr u32 rename_exchange = 2;

// Two directories change places on the way to a file that is renamed, so that states 0 to 3 follow each other for ever:
//   0: top/a is the directory with the file    the file is called g
//   1: top/a is the other directory            g
//   2: top/a is the other directory            f
//   3: top/a is the other directory            g
// So top/a/middle/g leads to the file in state 0, and top/a/middle/f never does.
struct World {
  explicit World(NameClient& client) {
    top = client.mkdir(root, "top").result;
    middle = client.mkdir(client.mkdir(top, "a").result, "middle").result;
    (void)client.mkdir(client.mkdir(top, "b").result, "middle");
    file = client.create(middle, "g").result;
  }
  // From state `state` % 4 to the next one.
  void step(NameClient& client, u64 state) const {
    ring::Completion done{};
    switch (state % 4) {
      case 1:
        done = client.rename(middle, "g", middle, "f");
        break;
      case 2:
        done = client.rename(middle, "f", middle, "g");
        break;
      default:
        done = client.rename(top, "a", top, "b", rename_exchange);
        break;
    }
    EXPECT_EQ(done.status, Status::ok) << status_name(done.status);
  }
  static bool finds(const std::string& name, u64 state) { return name == "g" && state % 4 == 0; }

  u64 top;
  u64 middle;
  u64 file;
};

// The numbers of changes of the state that have begun, and that have ended.
struct Progress {
  std::atomic<u64> begun{0};
  std::atomic<u64> ended{0};
};

// The least number of changes during a test, however late its threads begin.
constexpr u64 changes_min = 200;

void walk_while_names_move(NameClient& reader, const World& world, const Progress& progress, u32 count) {
  for (u32 i = 0; (i < count || progress.ended.load() < changes_min) && !::testing::Test::HasFailure(); ++i) {
    const std::string name = i % 2 == 0 ? "f" : "g";
    const u64 first = progress.ended.load();
    const ring::Completion done = reader.lookup_path(root, "top/a/middle/" + name, false);
    const u64 last = progress.begun.load();
    const bool is_found = done.status == Status::ok;
    EXPECT_TRUE(is_found ? done.result == world.file : done.status == Status::not_found) << status_name(done.status);
    bool is_possible = false;
    for (u64 state = first; state <= last; ++state) is_possible = is_possible || World::finds(name, state) == is_found;
    EXPECT_TRUE(is_possible) << name << " was " << (is_found ? "" : "not ") << "found, states " << first << " to "
                             << last;
  }
}

// The length of a file and the number of its pages, which are in different cache lines of the inode, always belong
// together.
void ask_while_attributes_change(FileEngine& engine) {
  FileClient writer(engine);
  NameClient reader(engine);
  const u64 file = writer.create("file").result;
  std::atomic<bool> is_over{false};
  std::atomic<u64> change_count{0};
  std::thread changes([&] {
    for (u32 i = 0; !is_over.load(); ++i, ++change_count) {
      EXPECT_EQ(writer.fallocate(file, 0, 0, (1 + i % 7) * page_size).status, Status::ok);
      EXPECT_EQ(writer.truncate(file, 0).status, Status::ok);
    }
  });
  const u64 before = engine.host().counters().commands_optimistic;
  const u32 count = scaled(40000);
  for (u32 i = 0; (i < count || change_count.load() < changes_min) && !::testing::Test::HasFailure(); ++i) {
    const bool by_name = i % 2 == 0;
    EXPECT_EQ((by_name ? reader.lookup(root, "file") : reader.getattr(file)).status, Status::ok);
    const format::AttributeRecord& record = reader.attributes();
    EXPECT_EQ(record.size_bytes, record.blocks_512 * 512);
  }
  is_over.store(true);
  changes.join();
  EXPECT_GT(engine.host().counters().commands_optimistic, before) << "nothing went without locks";
}

// More readers than cores, so walks are interrupted.
TEST(OptimisticRace, WalksFindWhatWasThereAtOneMoment) {
  constexpr u32 reader_count = 3;
  FileEngine engine(FileEngineOptions{.worker_count = 1});
  NameClient writer(engine);
  std::vector<std::unique_ptr<NameClient>> readers;
  for (u32 i = 0; i < reader_count; ++i) readers.push_back(std::make_unique<NameClient>(engine));
  const World world(writer);
  Progress progress;
  std::atomic<bool> is_over{false};
  std::thread moves([&] {
    for (u64 state = 0; !is_over.load(); ++state) {
      progress.begun.store(state + 1);
      world.step(writer, state);
      progress.ended.store(state + 1);
    }
  });
  const u64 before = engine.host().counters().commands_optimistic;
  std::vector<std::thread> walks;
  for (const std::unique_ptr<NameClient>& reader : readers) {
    walks.emplace_back([&, &client = *reader] { walk_while_names_move(client, world, progress, scaled(60000)); });
  }
  for (std::thread& walk : walks) walk.join();
  is_over.store(true);
  moves.join();
  for (u64 state = progress.ended.load(); state % 4 != 0; ++state) world.step(writer, state);
  EXPECT_EQ(writer.lookup_path(root, "top/a/middle/g").result, world.file);
  EXPECT_EQ(writer.lookup_path(root, "top/a/middle/f").status, Status::not_found);
  EXPECT_GT(engine.host().counters().commands_optimistic, before) << "no walk went without locks";
}

TEST(OptimisticRace, AttributesBelongTogether) {
  FileEngine engine(FileEngineOptions{.worker_count = 2});
  ask_while_attributes_change(engine);
}

}  // namespace
}  // namespace gpu4fs::test::optimistic_race_test
