// The engine as a service: links, malformed and hostile descriptors, deadlines, upcalls, sleep, stop.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "base/group.hpp"
#include "engine/admission.hpp"
#include "engine/engine_fixture.hpp"
#include "engine/worker.hpp"

namespace gpu4fs::test {
namespace {

using wire::Opcode;

wire::Command linked(wire::Command command) {
  command.flags |= wire::command_flag_link;
  return command;
}

wire::Command set_byte(u64 offset, u8 value) {
  wire::Command command = make_command(Opcode::memset);
  command.data = offset;
  command.length = 1;
  command.mode = value;
  return command;
}

wire::Command copy_byte(u64 from, u64 to) {
  wire::Command command = make_command(Opcode::memcopy);
  command.data = from;
  command.output = to;
  command.length = 1;
  return command;
}

TEST(Links, ChainRunsInOrder) {
  EngineFixture fixture;
  Client client(fixture.host());
  for (u32 round = 0; round < 200; ++round) {
    // A byte is copied from place to place; out of order it would get lost.
    const u8 value = static_cast<u8>(round + 1);
    u64 last = client.publish(linked(set_byte(0, value)));
    for (u64 i = 0; i < 14; ++i) last = client.publish(linked(copy_byte(i, i + 1)));
    last = client.publish(copy_byte(14, 15));
    ASSERT_EQ(client.wait(last).status, Status::ok);
    ASSERT_EQ(client.data()[15], value);
  }
}

TEST(Links, FailureCancelsTheRest) {
  EngineFixture fixture;
  Client client(fixture.host());
  const u64 first = client.publish(linked(set_byte(0, 1)));
  const u64 second = client.publish(linked(set_byte(u64{1} << 30, 1)));
  const u64 third = client.publish(linked(set_byte(1, 1)));
  const u64 fourth = client.publish(set_byte(2, 1));
  const u64 fifth = client.publish(set_byte(3, 1));
  EXPECT_EQ(client.wait(first).status, Status::ok);
  EXPECT_EQ(client.wait(second).status, Status::bad_address);
  EXPECT_EQ(client.wait(third).status, Status::cancelled);
  EXPECT_EQ(client.wait(fourth).status, Status::cancelled);
  EXPECT_EQ(client.wait(fifth).status, Status::ok);
  EXPECT_EQ(client.data()[0], 1);
  EXPECT_EQ(client.data()[1], 0);
  EXPECT_EQ(client.data()[2], 0);
  EXPECT_EQ(client.data()[3], 1);
}

TEST(Links, IncompleteChainWaitsForItsEnd) {
  EngineFixture fixture;
  Client client(fixture.host());
  Client other(fixture.host());
  const u64 first = client.publish(linked(set_byte(0, 1)));
  client.doorbell();
  for (u32 i = 0; i < 50; ++i) ASSERT_EQ(other.call(make_command(Opcode::noop)).status, Status::ok);
  ring::Completion completion{};
  EXPECT_FALSE(client.producer().poll(first, &completion));
  const u64 second = client.publish(set_byte(1, 1));
  EXPECT_EQ(client.wait(second).status, Status::ok);
  EXPECT_TRUE(client.producer().poll(first, &completion));
}

TEST(Links, OverlongChainIsRefused) {
  EngineFixture fixture;
  Client client(fixture.host());
  std::vector<u64> positions;
  for (u32 i = 0; i < 17; ++i) positions.push_back(client.publish(linked(make_command(Opcode::noop))));
  positions.push_back(client.publish(make_command(Opcode::noop)));
  for (u32 i = 0; i < 16; ++i) EXPECT_EQ(client.wait(positions[i]).status, Status::bad_descriptor);
  EXPECT_EQ(client.wait(positions[16]).status, Status::ok) << "the next chain begins behind the refused one";
  EXPECT_EQ(client.wait(positions[17]).status, Status::ok);
}

TEST(Descriptors, MalformedOnesAreAnswered) {
  EngineFixture fixture;
  Client client(fixture.host());
  wire::Command command = make_command(Opcode::noop);
  command.flags = 1u << 7;
  EXPECT_EQ(client.call(command).status, Status::bad_descriptor);
  EXPECT_EQ(client.call(make_command(Opcode::none)).status, Status::unknown_command);
  EXPECT_EQ(client.call(make_command(Opcode::count)).status, Status::unknown_command);
  EXPECT_EQ(client.call(make_command(static_cast<Opcode>(0xffff))).status, Status::unknown_command);
  command = make_command(Opcode::noop);
  command.flags = wire::command_flag_previous_inode;
  EXPECT_EQ(client.call(command).status, Status::bad_descriptor) << "there is no command before";
  command = make_command(Opcode::noop);
  command.name_length = 4000;
  command.second_name_length = 97;
  EXPECT_EQ(client.call(command).status, Status::name_too_long);
  command.second_name_length = 96;
  EXPECT_EQ(client.call(command).status, Status::ok);
  command.name = (1 << 20) - 4095;
  EXPECT_EQ(client.call(command).status, Status::bad_address);
  for (const wire::CommandRow& row : wire::command_rows) {
    if (row.sender != wire::Sender::server) continue;
    EXPECT_EQ(client.call(make_command(row.opcode)).status, Status::permission) << wire::command_name(row.opcode);
  }
  command = make_command(Opcode::noop);
  command.output = 8;
  EXPECT_EQ(client.call(command).status, Status::unaligned);
  command.output = (1 << 20) - 112;
  EXPECT_EQ(client.call(command).status, Status::bad_address);
  EXPECT_EQ(client.call(make_command(Opcode::noop)).status, Status::ok);
}

// Independent of the table: commands that clients must never send, and those for front ends only.
constexpr Opcode server_commands[] = {Opcode::checkpoint,  Opcode::upcall_done,  Opcode::reclaim_orphans,
                                      Opcode::load_chunks, Opcode::adopt_logged, Opcode::scrub,
                                      Opcode::health,      Opcode::list_blocks,  Opcode::grow,
                                      Opcode::check,       Opcode::rebuild,      Opcode::relocate};
constexpr Opcode front_end_commands[] = {Opcode::reclaim};

// The engine's answer to a command that it must not begin: it is linked to one that fails.
Status admitted(Client& client, Opcode opcode) {
  const u64 first = client.publish(linked(set_byte(u64{1} << 30, 1)));
  const Status status = client.wait(client.publish(make_command(opcode))).status;
  // If one command of a chain is refused, the others are cancelled.
  EXPECT_EQ(client.wait(first).status, status == Status::cancelled ? Status::bad_address : Status::cancelled);
  return status;
}

// All opcodes from a session of each kind: opcodes with a row are admitted from that kind on, others are not.
TEST(Descriptors, EachSessionIsAdmittedWhatTheTableSays) {
  EngineFixture fixture;
  struct Kind {
    wire::Sender sender;
    ClientOptions options;
  };
  const ClientOptions small{.depth_log2 = 5, .data_length = 4096, .trusted = false, .internal = false};
  ClientOptions trusted = small;
  trusted.trusted = true;
  ClientOptions internal = trusted;
  internal.internal = true;
  for (const Kind& kind : {Kind{wire::Sender::client, small}, Kind{wire::Sender::front_end, trusted},
                           Kind{wire::Sender::server, internal}}) {
    Client client(fixture.host(), kind.options);
    u32 admitted_count = 0;
    for (u32 number = 0; number <= 0xffff; ++number) {
      const Opcode opcode = static_cast<Opcode>(number);
      const wire::CommandRow* row = nullptr;
      for (const wire::CommandRow& one : wire::command_rows) {
        if (one.opcode == opcode) row = &one;
      }
      Status expected = Status::unknown_command;
      if (row != nullptr) {
        expected = row->sender <= kind.sender ? Status::cancelled : Status::permission;
      }
      if (opcode == Opcode::upcall_done && expected == Status::cancelled) {
        // Executed where the ring is read, and not part of chains.
        ASSERT_EQ(client.call(make_command(opcode)).status, Status::not_found) << "nobody made upcall 0";
        ++admitted_count;
        continue;
      }
      ASSERT_EQ(admitted(client, opcode), expected) << number << " " << wire::command_name(opcode);
      // A single command takes another path to the engine.
      if (expected != Status::cancelled) {
        ASSERT_EQ(client.call(make_command(opcode)).status, expected) << number;
      }
      admitted_count += expected == Status::cancelled ? 1 : 0;
    }
    EXPECT_GE(admitted_count, 33u);
  }
}

TEST(Descriptors, NobodyElseSendsWhatIsTheServers) {
  EngineFixture fixture;
  Client stranger(fixture.host(), {.depth_log2 = 5, .data_length = 4096, .trusted = false, .internal = false});
  Client front_end(fixture.host(), {.depth_log2 = 5, .data_length = 4096, .trusted = true, .internal = false});
  for (const Opcode opcode : server_commands) {
    EXPECT_EQ(admitted(stranger, opcode), Status::permission) << wire::command_name(opcode);
    EXPECT_EQ(admitted(front_end, opcode), Status::permission) << wire::command_name(opcode);
  }
  for (const Opcode opcode : front_end_commands) {
    EXPECT_EQ(admitted(stranger, opcode), Status::permission) << wire::command_name(opcode);
    EXPECT_EQ(admitted(front_end, opcode), Status::cancelled) << wire::command_name(opcode);
  }
}

// Replay is reserved for the server, and for commands with records.
TEST(Descriptors, OnlyLoggedCommandsAreReplayed) {
  for (const wire::CommandRow& row : wire::command_rows) {
    wire::Command command = make_command(row.opcode);
    command.flags = wire::command_flag_replay;
    for (const wire::Sender sender : {wire::Sender::client, wire::Sender::front_end}) {
      EXPECT_EQ(engine::validate_command(command, sender, false), Status::permission) << wire::command_name(row.opcode);
    }
    bool has_records = row.opcode == Opcode::noop || row.opcode == Opcode::adopt_logged;
    for (const wire::RecordCommand& record : wire::record_commands)
      has_records = has_records || record.command == row.opcode;
    EXPECT_EQ(engine::validate_command(command, wire::Sender::server, false),
              has_records ? Status::ok : Status::bad_descriptor)
        << wire::command_name(row.opcode);
  }
}

// A pool that refuses changes refuses everything that users would see, and commands without a row.
TEST(Admission, AStoppedPoolTakesNoChanges) {
  // Independent of the table.
  const std::set<Opcode> changing = {Opcode::setattr,          Opcode::mknod,      Opcode::mkdir,
                                     Opcode::unlink,           Opcode::rmdir,      Opcode::symlink,
                                     Opcode::rename,           Opcode::link,       Opcode::create,
                                     Opcode::tmpfile,          Opcode::write,      Opcode::truncate,
                                     Opcode::fallocate,        Opcode::copy_range, Opcode::set_attribute,
                                     Opcode::remove_attribute, Opcode::reclaim,    Opcode::reclaim_orphans};
  const std::set<Opcode> goes_on = {Opcode::read, Opcode::fsync, Opcode::sync, Opcode::checkpoint, Opcode::rebuild};
  const auto fs = std::make_unique<fs::FileSystem>();
  fs->stop_on_error = 1;
  fs->had_error = 1;
  const auto c = std::make_unique<engine::CommandState>();
  for (u32 number = 0; number <= 0xffff; ++number) {
    const Opcode opcode = static_cast<Opcode>(number);
    c->command = make_command(opcode);
    c->command.mode = ~0u;
    const bool may_change = changing.count(opcode) != 0 || !wire::is_command(opcode);
    const Status found = engine::admit_command(*fs, *c);
    const Status expected = may_change || wire::changes_the_pool(opcode) ? Status::read_only : Status::ok;
    ASSERT_EQ(found, expected) << number << " " << wire::command_name(opcode);
    if (goes_on.count(opcode) != 0) {
      ASSERT_EQ(found, Status::ok) << wire::command_name(opcode);
    }
  }
  c->command = make_command(Opcode::relocate);
  c->command.mode = static_cast<u32>(wire::RelocateStep::data);
  EXPECT_EQ(engine::admit_command(*fs, *c), Status::read_only);
}

TEST(Descriptors, MalformedLinkTakesItsChainDown) {
  EngineFixture fixture;
  Client client(fixture.host());
  const u64 first = client.publish(linked(set_byte(0, 1)));
  wire::Command bad = linked(make_command(Opcode::noop));
  bad.flags |= 1u << 9;
  const u64 second = client.publish(bad);
  const u64 third = client.publish(set_byte(1, 1));
  EXPECT_EQ(client.wait(third).status, Status::cancelled);
  EXPECT_EQ(client.wait(second).status, Status::bad_descriptor);
  EXPECT_EQ(client.wait(first).status, Status::cancelled);
  EXPECT_EQ(client.data()[0], 0);
}

// Commands that need no pool; the handlers of the others are fuzzed with one.
bool needs_no_pool(u32 opcode) {
  return opcode <= static_cast<u32>(Opcode::memcopy) || opcode >= static_cast<u32>(Opcode::count);
}

TEST(Descriptors, RandomBytesWithGoodSequenceNumbersDoNoHarm) {
  EngineFixture fixture;
  Client client(fixture.host());
  std::mt19937_64 random(3);
  ring::RingProducer& producer = client.producer();
  const u64 depth = producer.depth();
  for (u64 position = 0; position < 5000; ++position) {
    wire::RingDescriptor& slot = producer.descriptors[position % depth];
    const u32 sequence = wire::ring_sequence(position, producer.depth_log2);
    for (u32 unit = 8; unit-- > 0;) {
      u64 value = random();
      u32 word = static_cast<u32>(random());
      if (unit == 0) {
        // Half of them are plausible. The test would have to wait for the ends of chains.
        const u32 opcode = random() % 2 == 0 ? random() % 4 : word % 0x10000;
        word = (needs_no_pool(opcode) ? opcode : 0) | ((word >> 16) & ~u32{wire::command_flag_link}) << 16;
      }
      if (random() % 2 == 0) value %= 1 << 21;
      store_shared_16(&slot.units[unit], Vector16{value, u64{word} | (u64{sequence} << 32)});
    }
    producer.next_position = position + 1;
    client.wait(position);
  }
  EXPECT_EQ(client.call(make_command(Opcode::noop)).status, Status::ok);
  EXPECT_GT(fixture.host().counters().descriptors_rejected, 1000u);
}

// A client that keeps changing its ring while the engine reads it may or may not get answers; the engine and other
// clients are not affected.
TEST(Descriptors, RacingWriterHarmsNobody) {
  EngineFixture fixture;
  Client hostile(fixture.host());
  Client neighbour(fixture.host());
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    std::mt19937_64 random(5);
    ring::RingProducer& producer = hostile.producer();
    while (!stop.load()) {
      const u64 slot = random() % producer.depth();
      const u32 sequence = 1 + static_cast<u32>(random() % 3);
      for (u32 unit = 0; unit < 8; ++unit) {
        u32 word = static_cast<u32>(random());
        if (unit == 0) word = static_cast<u32>(random() % 4) | static_cast<u32>(random() % 4 == 0) << 16;
        store_shared_16(&producer.descriptors[slot].units[unit],
                        Vector16{random() % (1 << 21), u64{word} | (u64{sequence} << 32)});
      }
    }
  });
  for (u32 i = 0; i < 3000; ++i) {
    ASSERT_EQ(neighbour.call(make_command(Opcode::noop)).status, Status::ok);
    if (i % 10 == 0) hostile.doorbell();
  }
  stop = true;
  writer.join();
}

// An inode in a frame of its own, which lets getattr work without a pool.
fs::InodeRef plant_inode(engine::Engine& engine, u64 number) {
  const fs::PageKey key = fs::PageKey::make(0, 0, number / format::inodes_per_page);
  u32 frame = fs::detail::find_frame(engine.fs.pages, key);
  if (frame == fs::no_frame) {
    frame = fs::detail::take_frame(engine.fs.pages, false);
    fs::detail::insert_frame(engine.fs.pages, frame, key, 4096, fs::frame_valid);
  }
  const u32 position = static_cast<u32>(number % format::inodes_per_page);
  auto* inode = reinterpret_cast<format::Inode*>(fs::page_data(engine.fs, frame)) + position;
  inode->mode = S_IFREG | 0644;
  inode->version = 1;
  inode->link_count = 1;
  return {number, inode, frame, 0, &engine.fs.pages.inode_locks[u64{frame} * 16 + position]};
}

class LockedInode : public ::testing::Test {
 protected:
  static constexpr u64 number = 20;
  static EngineOptions options() {
    EngineOptions options{};
    options.start = false;
    options.config.sweep_interval_ms = 5;
    return options;
  }
  LockedInode() : fixture_(options()), ref_(plant_inode(fixture_.engine(), number)) {
    fixture_.host().start();
    u32 slot = 0;
    EXPECT_TRUE(engine().free_commands.pop(&slot));
    holder_ = &engine().commands[slot];
    engine::set_phase(*holder_, engine::CommandPhase::running);
    EXPECT_EQ(engine::acquire_command_lock(engine(), *holder_, ref_.lock, number, engine::LockMode::exclusive),
              Status::ok);
  }
  engine::Engine& engine() { return fixture_.engine(); }
  void release() { engine::release_all_locks(engine(), *holder_); }
  static wire::Command getattr() {
    wire::Command command = make_command(Opcode::getattr);
    command.inode = number;
    command.output = 4096;
    return command;
  }

  EngineFixture fixture_;
  fs::InodeRef ref_;
  engine::CommandState* holder_ = nullptr;
};

TEST_F(LockedInode, CommandIsHandedTheLock) {
  Client client(fixture_.host());
  const u64 position = client.publish(getattr());
  client.doorbell();
  Client other(fixture_.host());
  for (u32 i = 0; i < 100; ++i) ASSERT_EQ(other.call(make_command(Opcode::noop)).status, Status::ok);
  ring::Completion completion{};
  EXPECT_FALSE(client.producer().poll(position, &completion));
  release();
  EXPECT_EQ(client.wait(position).status, Status::ok);
  const auto* record = reinterpret_cast<format::AttributeRecord*>(client.data() + 4096);
  EXPECT_EQ(record->inode, number);
  EXPECT_EQ(record->mode, u32{S_IFREG | 0644});
}

TEST_F(LockedInode, DeadlineEndsTheWaitAndLeavesTheLockIntact) {
  Client client(fixture_.host());
  wire::Command command = getattr();
  command.deadline_ms = 20;
  const u64 late = client.publish(command);
  const u64 patient = client.publish(getattr());
  command.flags = wire::command_flag_link;
  const u64 chained = client.publish(command);
  const u64 follower = client.publish(make_command(Opcode::noop));
  EXPECT_EQ(client.wait(late).status, Status::deadline_exceeded);
  EXPECT_EQ(client.wait(chained).status, Status::deadline_exceeded);
  EXPECT_EQ(client.wait(follower).status, Status::cancelled);
  EXPECT_EQ(fixture_.host().counters().deadlines_exceeded, 2u);
  release();
  EXPECT_EQ(client.wait(patient).status, Status::ok);
  EXPECT_EQ(client.call(getattr()).status, Status::ok);
  EXPECT_TRUE(ref_.lock->is_idle());
}

TEST_F(LockedInode, StopDrainsWhatIsUnderWay) {
  Client client(fixture_.host());
  std::vector<u64> positions;
  for (u32 i = 0; i < 8; ++i) {
    wire::Command command = getattr();
    command.output += 4096 * i;  // two workers may answer at the same time
    positions.push_back(client.publish(command));
  }
  client.doorbell();
  while (load<Order::acquire, Scope::engine>(&engine().commands_active) != 8) std::this_thread::yield();
  std::thread releaser([&] {
    while (load<Order::acquire, Scope::system>(&engine().stop_requested) == 0) std::this_thread::yield();
    release();
  });
  fixture_.host().stop();
  releaser.join();
  for (const u64 position : positions) {
    ring::Completion completion{};
    ASSERT_TRUE(client.producer().poll(position, &completion));
    EXPECT_EQ(completion.status, Status::ok);
  }
  EXPECT_EQ(engine().commands_active, 0u);
  // A command that nobody processes does not block its client forever.
  EXPECT_EQ(client.call(make_command(Opcode::noop)).status, Status::engine_died);
}

TEST(Upcalls, AnswerRestartsTheCommand) {
  EngineFixture fixture({.worker_count = 1, .command_count = 64, .config = {}, .start = false});
  engine::Engine& engine = fixture.engine();
  Client server(fixture.host(), ClientOptions{.depth_log2 = 4, .data_length = 4096, .trusted = true, .internal = true});
  engine::CommandState& c = engine.commands[5];
  engine::set_phase(c, engine::CommandPhase::running);
  EXPECT_EQ(engine::post_upcall(engine, c, engine::UpcallKind::flush_device, 3), Status::waits_for_answer);
  EXPECT_TRUE(engine::park_command(c));
  ring::Upcall upcall{};
  ASSERT_TRUE(fixture.host().wait_upcall(&upcall, 0));
  EXPECT_EQ(upcall.kind, engine::UpcallKind::flush_device);
  EXPECT_EQ(upcall.argument, 3u);
  engine::WorkerState worker = engine::WorkerState::make(0);
  ring::Upcall wrong = upcall;
  wrong.id += 1 << 16;
  const u64 first = server.publish(engine::answer_upcall_command(wrong, Status::ok));
  const u64 second = server.publish(engine::answer_upcall_command(upcall, Status::io_error));
  const u64 third = server.publish(engine::answer_upcall_command(upcall, Status::ok));
  EXPECT_TRUE(engine::worker_step(Lane{}, engine, worker));
  ring::Completion completion{};
  ASSERT_TRUE(server.producer().poll(first, &completion));
  EXPECT_EQ(completion.status, Status::not_found) << "nobody made this upcall";
  ASSERT_TRUE(server.producer().poll(second, &completion));
  EXPECT_EQ(completion.status, Status::ok);
  ASSERT_TRUE(server.producer().poll(third, &completion));
  EXPECT_EQ(completion.status, Status::not_found) << "answered already";
  EXPECT_EQ(engine::take_answer(c).status, Status::io_error);
  u32 item = 0;
  ASSERT_TRUE(engine.run_queue.pop(&item));
  EXPECT_EQ(item, 5u);
}

TEST(Idle, AllWorkersSleepAndWakeAgain) {
  EngineOptions options{};
  options.worker_count = 3;
  options.config.spin_ns = 1000;
  EngineFixture fixture(options);
  Client client(fixture.host());
  for (u32 round = 0; round < 50; ++round) {
    while (fixture.host().sleeping_worker_count() != 3) std::this_thread::yield();
    const u64 position = client.publish(make_command(Opcode::noop));
    client.doorbell();
    // No waiting thread works for the engine: it has to wake up by itself.
    ring::Completion completion{};
    while (!client.producer().poll(position, &completion)) std::this_thread::yield();
    ASSERT_EQ(completion.status, Status::ok);
  }
}

TEST(Sessions, OpenAndCloseWhileTheEngineIsBusy) {
  EngineFixture fixture;
  std::vector<std::thread> threads;
  for (u32 t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (u32 round = 0; round < 60; ++round) {
        Client client(fixture.host(),
                      ClientOptions{.depth_log2 = 3, .data_length = 4096, .trusted = true, .internal = false});
        for (u32 i = 0; i < 20; ++i) ASSERT_EQ(client.call(make_command(Opcode::noop)).status, Status::ok);
        // The last ones complete while the session closes.
        client.publish(make_command(Opcode::noop));
        client.doorbell();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fixture.engine().commands_active, 0u);
}

TEST(Sessions, TableIsBounded) {
  EngineFixture fixture;
  std::vector<std::unique_ptr<Client>> clients;
  const ClientOptions small{.depth_log2 = 1, .data_length = 4096, .trusted = true, .internal = false};
  for (u32 i = 0; i < engine::session_max; ++i) clients.push_back(std::make_unique<Client>(fixture.host(), small));
  EXPECT_THROW(Client(fixture.host(), small), std::runtime_error);
  EXPECT_EQ(clients[63]->call(make_command(Opcode::noop)).status, Status::ok);
  clients.pop_back();
  Client again(fixture.host(), small);
  EXPECT_EQ(again.call(make_command(Opcode::noop)).status, Status::ok);
}

// Without a pool there is nothing to write: a checkpoint ends at once for all that wait.
TEST(Checkpoints, RequestsAreAnsweredByRounds) {
  EngineOptions options{};
  options.start = false;
  EngineFixture fixture(options);
  fixture.engine().fs.read_only = 1;
  fixture.host().start();
  Client server(fixture.host(), ClientOptions{.depth_log2 = 4, .data_length = 4096, .trusted = true, .internal = true});
  for (u32 i = 0; i < 20; ++i) {
    const u64 a = server.publish(make_command(Opcode::checkpoint));
    const u64 b = server.publish(make_command(Opcode::checkpoint));
    ASSERT_EQ(server.wait(a).status, Status::ok);
    ASSERT_EQ(server.wait(b).status, Status::ok);
  }
  EXPECT_GE(fixture.engine().epochs.round_ended, 20u);
}

}  // namespace
}  // namespace gpu4fs::test
