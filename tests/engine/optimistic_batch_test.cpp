// Commands without locks that a warp takes together, and the token of a quiet ring.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engine/name_fixture.hpp"
#include "engine/warp_workers.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::optimistic_batch_test {
namespace {

constexpr u64 area_bytes = 2 * page_size;  // of each command: a name, a record, data
constexpr u64 record_at = 512;
constexpr u64 data_at = page_size;
constexpr u32 file_pages = 9;

class OptimisticBatches : public ::testing::Test {
 protected:
  // A command and its answer. `value`: of all bytes of the data; 0: none.
  struct Case {
    wire::Opcode opcode;
    u64 inode;
    std::string name;
    Status status;
    u64 result;
    bool is_optimistic;
    u64 page = 0;
    u8 value = 0;
    u16 flags = 0;
    u16 second_name_length = 0;
  };

  OptimisticBatches() {
    engine_.engine().config.caches_slots = 1;
    BasicNameClient<WaitingClient> names(engine_);
    const KernelWarp warp(engine_.engine());
    directory_ = names.mkdir(root, "directory").result;
    file_ = names.create(directory_, "file").result;
    small_ = names.create(directory_, "small").result;
    link_ = names.symlink(directory_, "link", "the target").result;
    std::memcpy(names.data(), "content", 7);
    EXPECT_EQ(names.call(names.with_data(names.named(wire::Opcode::write, small_, ""), 7)).result, 7u);
    for (u32 i = 0; i < file_pages; ++i) std::memset(names.data() + i * page_size, static_cast<int>(i + 1), page_size);
    const u64 bytes = file_pages * page_size;
    EXPECT_EQ(names.call(names.with_data(names.named(wire::Opcode::write, file_, ""), bytes)).result, bytes);
    // The first use of a file and of a leaf is the ordinary way's.
    for (const u64 inode : {file_, small_}) {
      EXPECT_EQ(names.call(names.with_data(names.named(wire::Opcode::read, inode, ""), bytes)).status, Status::ok);
    }
    std::string target;
    EXPECT_EQ(names.readlink(link_, &target).status, Status::ok);
    EXPECT_EQ(names.lookup_path(root, "directory/file").result, file_);
  }

  u64 optimistic_count() { return engine_.host().counters().commands_optimistic; }

  std::vector<Case> some_of_everything() const {
    using wire::Opcode;
    return {
        {Opcode::read, file_, "", Status::ok, page_size, true, 3, 4},
        {Opcode::lookup, directory_, "file", Status::ok, file_, true},
        {Opcode::lookup, directory_, "..", Status::ok, root, false},
        {Opcode::read, file_, "", Status::ok, page_size, true, 8, 9},
        {Opcode::lookup, directory_, "nothing", Status::not_found, 0, true},
        {Opcode::lookup_path, root, "directory/small", Status::ok, small_, true},
        {Opcode::getattr, 999999, "", Status::stale, 0, false},
        {Opcode::getattr, small_, "", Status::ok, small_, true},
        {Opcode::readlink, link_, "", Status::ok, 10, true},
        {Opcode::read, small_, "", Status::ok, 7, true},
        {Opcode::access, file_, "", Status::ok, 0, true},
        {Opcode::open, directory_, "", Status::ok, directory_, true},
        {Opcode::noop, 0, "", Status::ok, 0, false},
        {Opcode::read, file_, "", Status::ok, 0, true, file_pages},
        {Opcode::read, directory_, "", Status::is_directory, 0, false},
        {Opcode::lookup, file_, "x", Status::not_directory, 0, false},
    };
  }

  std::vector<std::vector<Case>> some_chains() const {
    using wire::Opcode;
    constexpr u16 link = wire::command_flag_link;
    constexpr u16 previous = wire::command_flag_previous_inode;
    constexpr u16 both = link | previous;
    return {
        {{Opcode::lookup_path, root, "directory/file", Status::ok, file_, true, 0, 0, link},
         {Opcode::read, 0, "", Status::ok, page_size, true, 3, 4, previous}},
        // The error cancels the rest.
        {{Opcode::lookup, directory_, "nothing", Status::not_found, 0, false, 0, 0, link},
         {Opcode::read, 0, "", Status::cancelled, 0, false, 0, 0, both},
         {Opcode::getattr, file_, "", Status::cancelled, 0, false}},
        {{Opcode::lookup, directory_, "small", Status::ok, small_, true, 0, 0, link},
         {Opcode::open, 0, "", Status::ok, small_, true, 0, 0, both},
         {Opcode::read, 0, "", Status::ok, 7, true, 0, 0, previous}},
        // The ordinary way does the first part, and so the rest.
        {{Opcode::lookup, directory_, "..", Status::ok, root, false, 0, 0, link},
         {Opcode::getattr, 0, "", Status::ok, root, false, 0, 0, previous}},
        {{Opcode::getattr, file_, "", Status::ok, file_, false, 0, 0, link},
         {Opcode::read, directory_, "", Status::is_directory, 0, false}},
        // Nothing comes before it.
        {{Opcode::read, 0, "", Status::bad_descriptor, 0, false, 0, 0, previous}},
        {{Opcode::lookup, directory_, "file", Status::cancelled, 0, false, 0, 0, link},
         {Opcode::getattr, 0, "", Status::name_too_long, 0, false, 0, 0, previous, 60000}},
        {{Opcode::read, file_, "", Status::ok, page_size, true, 8, 9, link},
         {Opcode::read, file_, "", Status::ok, page_size, true, 0, 1, link},
         {Opcode::access, file_, "", Status::ok, 0, true}},
        {{Opcode::lookup, directory_, "file", Status::ok, file_, true}},
    };
  }

  wire::Command command_of(Client& client, const Case& one, u32 area) {
    u8* const memory = client.data() + area * area_bytes;
    std::memset(memory, 0xaa, area_bytes);
    std::memcpy(memory, one.name.data(), one.name.size());
    wire::Command command = make_command(one.opcode);
    if (one.opcode == wire::Opcode::noop) return command;
    command.inode = one.inode;
    command.flags = one.flags;
    command.second_name_length = one.second_name_length;
    command.mode = one.opcode == wire::Opcode::access ? 7 : 0;
    if (!one.name.empty()) command.name = wire::ring_address(0, area * area_bytes);
    command.name_length = static_cast<u16>(one.name.size());
    command.offset = one.page * page_size;
    command.output = wire::ring_address(0, area * area_bytes + record_at);
    if (one.opcode == wire::Opcode::read || one.opcode == wire::Opcode::readlink) {
      command.data = wire::ring_address(0, area * area_bytes + data_at);
      command.length = page_size;
    }
    return command;
  }
  static void expect_answer(Client& client, const Case& one, u32 area, const ring::Completion& done) {
    EXPECT_EQ(done.status, one.status) << status_name(done.status);
    EXPECT_EQ(done.result, one.result);
    const u8* const memory = client.data() + area * area_bytes;
    const auto& record = *reinterpret_cast<const format::AttributeRecord*>(memory + record_at);
    constexpr wire::CommandSet with_attributes = wire::set_of(wire::Opcode::lookup) | wire::set_of(wire::Opcode::open) |
                                                 wire::set_of(wire::Opcode::lookup_path) |
                                                 wire::set_of(wire::Opcode::getattr);
    const bool has_record = one.status == Status::ok && wire::is_in(with_attributes, one.opcode);
    EXPECT_EQ(record.inode, has_record ? one.result : 0xaaaaaaaaaaaaaaaau);
    u64 bytes = 0;
    while (bytes < page_size && memory[data_at + bytes] != 0xaa) ++bytes;
    const bool has_data = one.opcode == wire::Opcode::read || one.opcode == wire::Opcode::readlink;
    EXPECT_EQ(bytes, has_data ? one.result : 0);
    for (u64 i = 0; i < bytes && one.value != 0; ++i) ASSERT_EQ(memory[data_at + i], one.value) << i;
  }

  FileEngine engine_{FileEngineOptions{.worker_count = 1, .start = false}};
  u64 directory_ = 0;
  u64 file_ = 0;
  u64 small_ = 0;
  u64 link_ = 0;
};

// All commands are in the ring before the warp begins, so it takes up to eight at once. Which ones these are changes
// with the commands before them.
TEST_F(OptimisticBatches, EachCommandGetsItsOwnAnswer) {
  const std::vector<Case> cases = some_of_everything();
  const u32 count = static_cast<u32>(cases.size());
  for (u32 first = 0; first < count; first += is_short() ? 5 : 1) {
    SCOPED_TRACE(first);
    Client client(engine_, {.data_length = count * area_bytes});
    std::vector<u64> positions;
    u64 expected = optimistic_count();
    for (u32 i = 0; i < count; ++i) {
      const Case& one = cases[(first + i) % count];
      expected += one.is_optimistic ? 1 : 0;
      positions.push_back(client.publish(command_of(client, one, i)));
    }
    {
      const KernelWarp warp(engine_.engine());
      for (u32 i = 0; i < count; ++i) {
        ring::Completion done{Status::engine_died, 0};
        while (!client.producer().poll(positions[i], &done)) std::this_thread::yield();
        SCOPED_TRACE("command " + std::to_string((first + i) % count));
        expect_answer(client, cases[(first + i) % count], i, done);
      }
    }
    EXPECT_EQ(optimistic_count(), expected);
    const engine::EngineCounters counters = engine_.host().counters();
    EXPECT_EQ(counters.commands_started, counters.commands_completed);
  }
  EXPECT_EQ((load<Order::acquire, Scope::engine>(&engine_.engine().commands_active)), 0u);
}

// Chains are answered without locks as a whole or not at all. Their commands begin at different places of a batch.
TEST_F(OptimisticBatches, ChainsAreAnsweredAsAWhole) {
  // As a kernel: the ordinary way takes one chain at a time.
  engine_.engine().config.batch_max = 1;
  const std::vector<std::vector<Case>> chains = some_chains();
  for (u32 first = 0; first < chains.size(); ++first) {
    SCOPED_TRACE(first);
    std::vector<Case> cases;
    for (u32 i = 0; i < chains.size(); ++i) {
      for (const Case& one : chains[(first + i) % chains.size()]) cases.push_back(one);
    }
    u64 expected = optimistic_count();
    for (const Case& one : cases) expected += one.is_optimistic ? 1 : 0;
    const u32 count = static_cast<u32>(cases.size());
    Client client(engine_, {.data_length = count * area_bytes});
    std::vector<u64> positions;
    for (u32 i = 0; i < count; ++i) positions.push_back(client.publish(command_of(client, cases[i], i)));
    {
      const KernelWarp warp(engine_.engine());
      for (u32 i = 0; i < count; ++i) {
        ring::Completion done{Status::engine_died, 0};
        while (!client.producer().poll(positions[i], &done)) std::this_thread::yield();
        SCOPED_TRACE("command " + std::to_string(i));
        expect_answer(client, cases[i], i, done);
      }
    }
    EXPECT_EQ(optimistic_count(), expected);
    EXPECT_EQ((load<Order::acquire, Scope::engine>(&engine_.engine().sessions[client.session()].in_flight)), 0u);
  }
  EXPECT_EQ((load<Order::acquire, Scope::engine>(&engine_.engine().commands_active)), 0u);
}

// Without a slot for each of its commands no part of a chain is answered.
TEST_F(OptimisticBatches, AChainWaitsForSlotsAsAWhole) {
  engine::Engine& engine = engine_.engine();
  std::vector<u32> taken;
  for (u32 index = 0; engine.free_commands.pop(&index);) taken.push_back(index);
  engine.free_commands.push(taken.back());
  taken.pop_back();
  const std::vector<Case> chain = some_chains().front();
  Client client(engine_, {.data_length = 2 * area_bytes});
  u64 positions[2] = {};
  for (u32 i = 0; i < 2; ++i) positions[i] = client.publish(command_of(client, chain[i], i));
  const KernelWarp warp(engine);
  ring::Completion early{};
  while (load<Order::acquire, Scope::engine>(&engine.slots_exhausted) == 0 &&
         !client.producer().poll(positions[0], &early)) {
    std::this_thread::yield();
  }
  for (const u32 index : taken) engine.free_commands.push(index);
  for (u32 i = 0; i < 2; ++i) {
    ring::Completion done{Status::engine_died, 0};
    while (!client.producer().poll(positions[i], &done)) std::this_thread::yield();
    expect_answer(client, chain[i], i, done);
  }
}

// One command after the other from a ring whose token stays with the warp until it looks at another ring or ends.
TEST_F(OptimisticBatches, AQuietRingStaysWithItsWorker) {
  const std::vector<Case> cases = some_of_everything();
  for (u32 session = 0; session < 2; ++session) {
    SCOPED_TRACE(session);
    WaitingClient client(engine_, {.depth_log2 = 3, .data_length = area_bytes});
    WaitingClient other(engine_, {.depth_log2 = 3, .data_length = area_bytes});
    const engine::Session& held = engine_.engine().sessions[client.session()];
    u64 expected = optimistic_count();
    u32 kept = 0;
    {
      const KernelWarp warp(engine_.engine());
      for (u32 i = 0; i < 2 * cases.size(); ++i) {
        SCOPED_TRACE("command " + std::to_string(i));
        const Case& one = cases[i % cases.size()];
        expect_answer(client, one, 0, client.call(command_of(client, one, 0)));
        expected += one.is_optimistic ? 1 : 0;
        kept += static_cast<u32>(load<Order::relaxed, Scope::engine>(&held.poll_word) & 1);
        if (i % 7 != 0) continue;
        expect_answer(other, cases[1], 0, other.call(command_of(other, cases[1], 0)));
        ++expected;
      }
    }
    EXPECT_EQ(optimistic_count(), expected);
    EXPECT_GT(kept, 0u) << "the token was never kept";
  }
  EXPECT_EQ((load<Order::acquire, Scope::engine>(&engine_.engine().commands_active)), 0u);
}

// The step gate is closed while commands are in the ring: none of them is answered before it opens, and then all are.
TEST_F(OptimisticBatches, NothingIsAnsweredWhileTheGateIsClosed) {
  const std::vector<Case> cases = some_of_everything();
  Client client(engine_, {.data_length = 8 * area_bytes});
  engine::CommandState& closer = engine_.engine().commands[engine::checkpoint_command];
  ASSERT_EQ(engine::close_or_park(engine_.engine().step_gate, closer), Status::ok);
  const u64 before = optimistic_count();
  std::vector<u64> positions;
  for (u32 i = 0; i < 8; ++i) positions.push_back(client.publish(command_of(client, cases[i], i)));
  {
    const KernelWarp warp(engine_.engine());
    while (load<Order::acquire, Scope::engine>(&engine_.engine().sessions[client.session()].in_flight) != 8) {
      std::this_thread::yield();
    }
  }
  ring::Completion done{Status::engine_died, 0};
  for (const u64 position : positions) EXPECT_FALSE(client.producer().poll(position, &done));
  EXPECT_EQ(optimistic_count(), before);
  engine::open(engine_.engine(), engine_.engine().step_gate, closer);
  engine::release_held_back(engine_.engine());
  const KernelWarp warp(engine_.engine());
  for (u32 i = 0; i < 8; ++i) {
    while (!client.producer().poll(positions[i], &done)) std::this_thread::yield();
    SCOPED_TRACE(i);
    expect_answer(client, cases[i], i, done);
  }
}

}  // namespace
}  // namespace gpu4fs::test::optimistic_batch_test
