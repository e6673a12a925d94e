// New inodes and clients that guess their numbers: nobody sees an inode before it is complete, and a file without a
// name gets one, loses it and is freed in any order.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/stepped_names.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

// The test holds the lock of the number that the worker's next command will claim.
class NewInode : public SteppedNames {
 protected:
  NewInode() {
    number_ = end_of(publish(names().named(wire::Opcode::create, root, "first"))).result + 1;
    ref_ = inode(number_);
    EXPECT_EQ(ref_.inode->mode, 0) << "not in use yet";
  }

  void hold() { SteppedNames::hold(ref_); }
  std::vector<wire::Command> creating_commands() {
    std::vector<wire::Command> commands;
    for (const wire::Opcode opcode : {wire::Opcode::create, wire::Opcode::mkdir, wire::Opcode::mknod,
                                      wire::Opcode::symlink, wire::Opcode::tmpfile}) {
      wire::Command command = names().named(opcode, root, "new");
      command.mode = 0700;
      if (opcode == wire::Opcode::symlink) command = names().with_data(command, 5);
      commands.push_back(command);
    }
    return commands;
  }

  u64 number_ = 0;
  fs::InodeRef ref_{};
};

TEST_F(NewInode, IsFilledUnderItsLock) {
  for (const wire::Command& command : creating_commands()) {
    hold();
    const u64 position = publish(command);
    ring::Completion done{};
    for (u32 i = 0; i < 20; ++i) step();
    EXPECT_FALSE(has_ended(position, &done)) << static_cast<u32>(command.opcode);
    EXPECT_EQ(ref_.inode->mode, 0) << static_cast<u32>(command.opcode);
    release();
    done = end_of(position);
    EXPECT_EQ(done.status, Status::ok) << status_name(done.status);
    EXPECT_EQ(done.result, number_);
    EXPECT_NE(ref_.inode->mode, 0);
    EXPECT_TRUE(ref_.lock->is_idle());
    // The next one gets the next number of the same page, or the same number again.
    if (command.opcode == wire::Opcode::mkdir) {
      EXPECT_EQ(names().rmdir(root, "new").status, Status::ok);
    } else if (command.opcode != wire::Opcode::tmpfile) {
      EXPECT_EQ(names().unlink(root, "new").status, Status::ok);
    }
    ++number_;
    fs::Operation op{};
    ASSERT_EQ(fs::get_inode(Lane{}, engine().fs, op, number_, &ref_), Status::ok);
  }
  EXPECT_EQ(engine().fs.had_error, 0u);
}

TEST_F(NewInode, GivesItsNumberBackWhenTheDeadlineEndsTheCommand) {
  for (u32 round = 0; round < 3; ++round) {
    hold();
    wire::Command command = names().named(wire::Opcode::create, root, "late");
    command.deadline_ms = 1;
    const u64 position = publish(command);
    step();
    const u64 begin_ns = now_monotonic_ns();
    while (now_monotonic_ns() < begin_ns + 2'000'000) {
    }
    engine::sweep_deadlines(Lane{}, engine(), now_monotonic_ns());
    EXPECT_EQ(end_of(position).status, Status::deadline_exceeded);
    release();
    EXPECT_TRUE(ref_.lock->is_idle());
  }
  EXPECT_EQ(end_of(publish(names().named(wire::Opcode::create, root, "later"))).result, number_);
}

// The guess waits until the file is complete, and then finds a valid temporary file.
TEST_F(NewInode, ALinkToAGuessedNumberWaitsForTheTemporaryFile) {
  hold();
  const u64 made = publish(names().named(wire::Opcode::tmpfile, root, ""));
  step();
  wire::Command link = names().named(wire::Opcode::link, root, "guessed");
  link.second_inode = number_;
  const u64 linked = publish(link);
  for (u32 i = 0; i < 20; ++i) step();
  ring::Completion done{};
  EXPECT_FALSE(has_ended(made, &done));
  EXPECT_FALSE(has_ended(linked, &done));
  release();
  EXPECT_EQ(end_of(made).result, number_);
  EXPECT_EQ(end_of(linked).status, Status::ok);
  fs::Operation op{};
  bool orphan = true;
  EXPECT_EQ(fs::is_orphan(Lane{}, engine().fs, op, number_, &orphan), Status::ok);
  EXPECT_FALSE(orphan);
  EXPECT_EQ(ref_.inode->link_count, 1u);
  EXPECT_EQ(names().unlink(root, "guessed").result, number_);
  EXPECT_EQ(names().reclaim(number_).result, 1u);
  EXPECT_EQ(engine().fs.had_error, 0u);
}

// So a handle of the deleted file does not lead to the new one.
TEST(NumbersUsedAgain, HaveANewGeneration) {
  FileEngine engine;
  NameClient client(engine);
  std::map<u64, u32> generations;  // by number
  u32 again = 0;
  for (u32 i = 0; i < 400 && again < 20; ++i) {
    const u64 number = client.create(root, "file").result;
    ASSERT_NE(number, 0u);
    const u32 generation = client.attributes().generation;
    const auto [place, is_new] = generations.emplace(number, generation);
    if (!is_new) {
      ++again;
      EXPECT_GT(generation, place->second) << "inode " << number;
      place->second = generation;
    }
    ASSERT_EQ(client.unlink(root, "file").result, number);
    ASSERT_EQ(client.reclaim(number).result, 1u);
  }
  EXPECT_EQ(again, 20u) << "numbers come back";
}

// The numbers on an unreadable page are skipped, one by each command.
TEST(DamagedInodePage, DoesNotStopCreation) {
  FileEngineOptions options;
  options.worker_count = 1;
  DeviceImages images;
  {
    FileEngine engine(options);
    NameClient client(engine);
    const u64 number = client.create(root, "first").result;
    ASSERT_EQ(client.call(make_command(wire::Opcode::checkpoint)).status, Status::ok);
    images = engine.images();
    const u32 frame =
        fs::resident_frame(engine.fs(), format::inode_number_inode_file, 0, number / format::inodes_per_page);
    ASSERT_NE(frame, fs::no_frame);
    raid::PageLocation location{};
    ASSERT_EQ(raid::find_page(engine.fs().space, engine.fs().pages.frames[frame].address, &location), Status::ok);
    const raid::ColumnState& column = engine.fs().space.chunks[location.chunk].columns[0];
    const u64 garbage = 0x1234567890abcdef;
    images[column.device].write(column.data_offset + location.page * page_size + 100, &garbage, sizeof(garbage));
  }
  FileEngine engine(options, images);
  NameClient client(engine);
  Status status = Status::no_inodes;
  u32 attempts = 0;
  for (; attempts <= 2 * format::inodes_per_page && status != Status::ok; ++attempts) {
    status = client.create(root, "new" + std::to_string(attempts)).status;
    EXPECT_TRUE(status == Status::ok || status == Status::checksum_mismatch) << status_name(status);
  }
  EXPECT_EQ(status, Status::ok);
  EXPECT_GT(attempts, 1u) << "the page was damaged";
}

// One client creates and names temporary files while others name, unlink and free all files with these numbers. Damage
// to the orphan bitmap or to a count would be recorded in had_error.
TEST(Checkpoints, SayHowLongTheyKeptOthersFromCommitting) {
  FileEngine engine;
  NameClient client(engine);
  const auto checkpoint = [&] {
    ASSERT_EQ(client.create(root, "file", 0644).status, Status::ok);
    ASSERT_EQ(client.call(make_command(wire::Opcode::checkpoint)).status, Status::ok);
    ASSERT_EQ(client.unlink(root, "file").status, Status::ok);
  };
  EXPECT_EQ(engine.host().counters().checkpoint_pause_max_ns, 0u);
  u64 longest_ns = 0;
  for (u32 i = 0; i < 4; ++i) {
    checkpoint();
    const engine::EngineCounters counters = engine.host().counters();
    EXPECT_GT(counters.checkpoint_pause_last_ns, 0u);
    longest_ns = std::max(longest_ns, counters.checkpoint_pause_last_ns);
    EXPECT_EQ(counters.checkpoint_pause_max_ns, longest_ns);
  }
}

TEST(TemporaryFiles, AreNamedAndFreedByAllAtOnce) {
  FileEngine engine;
  const u64 used_before = engine.fs().inode_used;
  const u32 rounds = scaled(20000);
  std::atomic<u64> newest{format::inode_number_first_free};
  std::atomic<bool> ended{false};
  std::atomic<u32> surprises{0};
  std::mutex mutex;
  std::string first_surprise;
  const auto surprise = [&](const std::string& what) {
    const std::lock_guard guard(mutex);
    if (surprises.fetch_add(1) == 0) first_surprise = what;
  };
  const auto expect = [&](const char* what, Status status, bool may_be_gone) {
    const bool gone = status == Status::stale;
    if (status != Status::ok && !(may_be_gone && gone)) surprise(std::string(what) + ": " + status_name(status));
    return status == Status::ok;
  };
  const auto name_and_unname = [&](NameClient& client, u64 number, const std::string& name) {
    if (!expect("link", client.link(number, root, name).status, true)) return;
    const format::AttributeRecord& attributes = client.attributes();
    if (attributes.link_count == 0) surprise("no link after link");
    if (attributes.inode != number) surprise("another inode");
    if (attributes.mode != 0100640) surprise("mode " + std::to_string(attributes.mode));
    expect("unlink", client.unlink(root, name).status, false);
  };
  std::thread maker([&] {
    NameClient client(engine);
    for (u32 i = 0; i < rounds; ++i) {
      const ring::Completion made = client.tmpfile(root, 0640);
      if (!expect("tmpfile", made.status, false)) break;
      newest.store(made.result);
      if (i % 2 == 0) name_and_unname(client, made.result, "maker");
      expect("reclaim", client.reclaim(made.result).status, true);
    }
    ended = true;
  });
  std::vector<std::thread> guessers;
  for (u32 t = 0; t < 2; ++t) {
    guessers.emplace_back([&, t] {
      NameClient client(engine);
      for (u32 i = 0; !ended; ++i) {
        const u64 guess = newest.load() + i % 3;
        name_and_unname(client, guess, "guesser" + std::to_string(t));
        if (i % 4 == 0) expect("reclaim", client.reclaim(guess).status, true);
      }
    });
  }
  maker.join();
  for (std::thread& thread : guessers) thread.join();
  NameClient client(engine);
  EXPECT_EQ(surprises.load(), 0u) << first_surprise;
  EXPECT_EQ(client.call(make_command(wire::Opcode::reclaim_orphans)).status, Status::ok);
  EXPECT_EQ(engine.fs().inode_used, used_before);
  EXPECT_EQ(engine.fs().had_error, 0u);
}

}  // namespace
}  // namespace gpu4fs::test
