// Reads of several pages without locks, by a warp as a service kernel has it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/file_fixture.hpp"
#include "engine/optimistic/answer.hpp"
#include "engine/warp_workers.hpp"
#include "support/group_runner.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::optimistic_long_test {
namespace {

// Behind the slots of an inode, so there are map pages. Some pages are holes, and the last one is not whole.
constexpr u64 file_pages = 80;
constexpr u64 file_bytes = file_pages * page_size - 1000;
constexpr u64 long_pages = ring::long_read_max / page_size;

class LongReads : public ::testing::Test {
 protected:
  LongReads() {
    engine_.engine().config.caches_slots = 1;
    engine_.engine().config.batch_max = 1;
    bytes_.resize(file_bytes);
  }

  template <class FileCommands>
  void make_file(FileCommands& client) {
    inode_ = client.create("file").result;
    Sequence random(4);
    for (u64 page = 0; page < file_pages; ++page) {
      if (page % 7 == 3) continue;
      const u64 length = std::min<u64>(page_size, file_bytes - page * page_size);
      for (u64 i = 0; i < length; ++i) client.data()[i] = static_cast<u8>(random.next());
      std::memcpy(bytes_.data() + page * page_size, client.data(), length);
      ASSERT_EQ(client.write(inode_, page * page_size, length).result, length);
    }
    ASSERT_EQ(client.read(inode_, 0, file_bytes).result, file_bytes);
  }
  u64 optimistic_count() { return engine_.host().counters().commands_optimistic; }

  FileEngine engine_{FileEngineOptions{.worker_count = 2, .start = false}};
  u64 inode_ = 0;
  std::string bytes_;
};

struct Range {
  u64 offset;
  u64 length;
};

u64 pages_of(const Range& range) {
  const u64 end = std::min(range.offset + range.length, file_bytes);
  return end <= range.offset ? 0 : divide_up(end, page_size) - range.offset / page_size;
}

TEST_F(LongReads, GiveTheBytesOfTheFile) {
  std::optional<BasicFileClient<WaitingClient>> client;
  std::optional<KernelWarp> warp(std::in_place, engine_.engine());
  client.emplace(engine_);
  make_file(*client);
  const u64 before = optimistic_count();
  u32 short_enough = 0;
  for (const u64 offset : {u64{0}, u64{1}, page_size - 1, 3 * page_size, 7 * page_size + 100, 63 * page_size + 17,
                           70 * page_size, file_bytes - 1, file_bytes, file_bytes + 5000}) {
    for (const u64 length : {u64{2}, page_size, page_size + 1, 2 * page_size, 4 * page_size, 5 * page_size - 3,
                             31 * page_size, long_pages * page_size, long_pages * page_size + 1, 60 * page_size}) {
      SCOPED_TRACE(std::to_string(offset) + " " + std::to_string(length));
      const Range range{offset, length};
      const u64 shift = (offset + length) % 32;
      const u64 expected = offset >= file_bytes ? 0 : std::min(length, file_bytes - offset);
      std::memset(client->data(), 0xcc, length + 64);
      ASSERT_EQ(client->read(inode_, offset, length, shift).result, expected);
      ASSERT_EQ(std::memcmp(client->data(shift), bytes_.data() + std::min(offset, file_bytes), expected), 0);
      for (u64 i = expected; i < expected + 32; ++i) ASSERT_EQ(client->data(shift)[i], 0xcc) << i;
      if (length <= long_pages * page_size && pages_of(range) <= long_pages) ++short_enough;
    }
  }
  // The counter follows the answers.
  warp.reset();
  const u64 unlocked = optimistic_count() - before;
  EXPECT_LE(unlocked, short_enough);
  // A warp that has just got the ring's token may take the ordinary way.
  EXPECT_GT(unlocked, short_enough / 2);
}

// Several of them are in the ring at once, so those of several pages are left to other workers.
TEST_F(LongReads, BesideOthersAreLeftToOthers) {
  std::optional<BasicFileClient<WaitingClient>> client;
  std::optional<Client> batch;
  constexpr u32 count = 8;
  constexpr u64 area = 8 * page_size;
  {
    const KernelWarp warp(engine_.engine());
    client.emplace(engine_);
    make_file(*client);
    batch.emplace(engine_, ClientOptions{.data_length = count * area, .trusted = true});
  }
  for (u32 pages = 1; pages <= 5; pages += 2) {
    SCOPED_TRACE(pages);
    const u64 before = optimistic_count();
    std::vector<u64> positions;
    for (u32 i = 0; i < count; ++i) {
      wire::Command command = make_command(wire::Opcode::read);
      command.inode = inode_;
      command.offset = (i + pages) * page_size + 10 * i;
      command.length = i % 2 == 0 ? pages * page_size - 10 * i : 100;
      command.data = wire::ring_address(0, i * area);
      std::memset(batch->data() + i * area, 0xcc, area);
      positions.push_back(batch->publish(command));
    }
    std::optional<KernelWarp> warp(std::in_place, engine_.engine());
    for (u32 i = 0; i < count; ++i) {
      ring::Completion done{Status::engine_died, 0};
      while (!batch->producer().poll(positions[i], &done)) std::this_thread::yield();
      const u64 length = i % 2 == 0 ? pages * page_size - 10 * i : 100;
      ASSERT_EQ(done.result, length);
      const u8* const data = batch->data() + i * area;
      ASSERT_EQ(std::memcmp(data, bytes_.data() + (i + pages) * page_size + 10 * i, length), 0) << i;
      EXPECT_EQ(data[length], 0xcc);
    }
    warp.reset();
    EXPECT_EQ(optimistic_count() - before, pages == 1 ? count : count / 2);
  }
}

// The client gets the bytes of one state of the file.
TEST_F(LongReads, ShowOneStateOfTheFile) {
  constexpr u64 pages = 6;
  std::optional<BasicFileClient<WaitingClient>> reader;
  std::optional<BasicFileClient<WaitingClient>> writer;
  std::optional<KernelWarp> warps(std::in_place, engine_.engine(), 2);
  reader.emplace(engine_);
  writer.emplace(engine_);
  const u64 inode = writer->create("file").result;
  std::memset(writer->data(), 1, pages * page_size);
  ASSERT_EQ(writer->write(inode, 0, pages * page_size).result, pages * page_size);
  std::atomic<bool> is_over{false};
  std::atomic<u32> written{0};
  std::thread writes([&] {
    for (u32 i = 0; !is_over.load(); ++i, ++written) {
      std::memset(writer->data(), static_cast<int>(i % 200 + 1), pages * page_size);
      EXPECT_EQ(writer->write(inode, 0, pages * page_size).result, pages * page_size);
      for (u32 k = 0; k < 20; ++k) std::this_thread::yield();
    }
  });
  const u64 before = optimistic_count();
  const u32 count = scaled(100);
  for (u32 i = 0; (i < count || written.load() < 20) && !HasFailure(); ++i) {
    ASSERT_EQ(reader->read(inode, 0, pages * page_size).result, pages * page_size);
    const u8* const data = reader->data();
    EXPECT_TRUE(std::all_of(data, data + pages * page_size, [&](u8 byte) { return byte == data[0]; })) << i;
  }
  is_over.store(true);
  writes.join();
  warps.reset();
  EXPECT_GT(optimistic_count(), before) << "nothing went without locks";
}

// The ordinary way finds the damage as well, and has no other copy.
TEST_F(LongReads, DamagedPagesAreNotGiven) {
  std::optional<BasicFileClient<WaitingClient>> client;
  engine::WorkerViews views{};
  engine::Session session{};
  session.trusted = 1;
  engine::ReadPlan plan{};
  std::optional<KernelWarp> warp(std::in_place, engine_.engine());
  client.emplace(engine_);
  make_file(*client);
  ASSERT_EQ(client->read(inode_, 0, 6 * page_size).status, Status::ok);
  warp.reset();
  views.root = engine::RootView::of(engine_.fs());
  const engine::Entered entered = engine::try_enter_era(engine_.engine(), engine_.engine().step_gate);
  const engine::ReaderContext reader{&engine_.engine(), &session, &views, entered.era, true, 1};
  engine::FreshViews fresh{};
  engine::FilledViews filled{};
  const engine::ReadRange third{inode_, 2 * page_size, page_size};
  ASSERT_EQ(engine::plan_read(reader, third, client->data(), &plan, &fresh, &filled), engine::PlannedRead::page);
  engine::leave(engine_.engine(), engine_.engine().step_gate);
  const_cast<u8*>(plan.page)[100] ^= 1;
  warp.emplace(engine_.engine());
  ASSERT_EQ(client->read(inode_, 0, 2 * page_size).status, Status::ok) << "the worker knows the file";
  EXPECT_EQ(client->read(inode_, 0, 6 * page_size).status, Status::checksum_mismatch);
  EXPECT_EQ(client->read(inode_, 3 * page_size, 3 * page_size).result, 3 * page_size);
}

// The ordinary way, which a longer read goes, is the oracle.
TEST_F(LongReads, WhoMayNotReadGetsNothing) {
  {
    std::optional<BasicFileClient<WaitingClient>> owner;
    const KernelWarp warp(engine_.engine());
    owner.emplace(engine_);
    make_file(*owner);
  }
  WaitingClient user(engine_, ClientOptions{.data_length = file_bytes, .trusted = false});
  engine::Session& session = engine_.engine().sessions[user.session()];
  ASSERT_EQ(session.trusted, 0u);
  fs::Operation op{};
  fs::InodeRef ref{};
  ASSERT_EQ(fs::get_inode(Lane{}, engine_.fs(), op, inode_, &ref), Status::ok);
  for (const u32 uid : {1001u, 0u}) {
    for (const u16 mode : {u16{0100600}, u16{0100604}}) {
      SCOPED_TRACE(std::to_string(uid) + " " + std::to_string(mode));
      session.uid = uid;
      session.gid = uid;
      ref.inode->mode = mode;
      const KernelWarp warp(engine_.engine());
      Status expected = Status::ok;
      for (const u64 pages : {long_pages + 1, u64{8}, u64{8}, u64{2}}) {
        wire::Command command = make_command(wire::Opcode::read);
        command.inode = inode_;
        command.length = pages * page_size;
        command.data = wire::ring_address(0, 0);
        std::memset(user.data(), 0xcc, command.length);
        const ring::Completion done = user.call(command);
        if (pages > long_pages) expected = done.status;
        EXPECT_EQ(done.status, expected);
        EXPECT_EQ(expected == Status::ok, uid == 0 || (mode & 4) != 0);
        const u8* const data = user.data();
        if (expected == Status::ok) {
          EXPECT_EQ(std::memcmp(data, bytes_.data(), command.length), 0);
        } else {
          EXPECT_TRUE(std::all_of(data, data + command.length, [](u8 byte) { return byte == 0xcc; }));
        }
      }
    }
  }
}

TEST_F(LongReads, WithoutChecksumsTheBytesAreGivenAsTheyAre) {
  engine_.fs().space.data_checksums = 0;
  std::optional<BasicFileClient<WaitingClient>> client;
  std::optional<KernelWarp> warp(std::in_place, engine_.engine());
  client.emplace(engine_);
  make_file(*client);
  const u64 before = optimistic_count();
  for (u32 times = 0; times < 8; ++times) {
    // After a no-op the warp keeps the ring, as one with few commands. A client that is faster than the warp would
    // never let it see an empty ring.
    ASSERT_EQ(client->call(make_command(wire::Opcode::noop)).status, Status::ok);
    std::memset(client->data(), 0xcc, 9 * page_size);
    ASSERT_EQ(client->read(inode_, page_size + 5, 8 * page_size).result, 8 * page_size);
    ASSERT_EQ(std::memcmp(client->data(), bytes_.data() + page_size + 5, 8 * page_size), 0);
    ASSERT_EQ(client->data()[8 * page_size], 0xcc);
  }
  warp.reset();
  EXPECT_GT(optimistic_count(), before) << "nothing went without locks";
}

// Pages of another version than that of the whole read are refused before the first byte.
TEST_F(LongReads, PagesOfAnotherVersionAreRefused) {
  {
    std::optional<BasicFileClient<WaitingClient>> client;
    const KernelWarp warp(engine_.engine());
    client.emplace(engine_);
    make_file(*client);
  }
  engine::WorkerViews views{};
  views.root = engine::RootView::of(engine_.fs());
  engine::Session session{};
  session.trusted = 1;
  const engine::Entered entered = engine::try_enter_era(engine_.engine(), engine_.engine().step_gate);
  const engine::ReaderContext reader{&engine_.engine(), &session, &views, entered.era, true, long_pages};
  const engine::ReadRange range{inode_, 0, 4 * page_size};
  std::vector<u8> buffer(4 * page_size, 0xcc);
  engine::ReadPlan plan{};
  engine::FreshViews fresh{};
  engine::FilledViews filled{};
  ASSERT_EQ(engine::plan_read(reader, range, buffer.data(), &plan, &fresh, &filled), engine::PlannedRead::pages);
  for (const bool is_right : {false, true}) {
    views.long_read = {range, plan};
    if (!is_right) --views.long_read.plan.version;
    bool moved = false;
    run_emulated_warps(1, [&](EmulatedWarp g, u32) {
      const bool result = engine::move_long_read(g, reader);
      on_leader(g, [&] { moved = result; });
    });
    EXPECT_EQ(moved, is_right);
    EXPECT_EQ(buffer[0] == 0xcc && buffer[page_size] == 0xcc, !is_right);
  }
  EXPECT_EQ(std::memcmp(buffer.data(), bytes_.data(), buffer.size()), 0);
  engine::leave(engine_.engine(), engine_.engine().step_gate);
}

}  // namespace
}  // namespace gpu4fs::test::optimistic_long_test
