// Many clients on one engine: overlapping names and files, checkpoints in between, invalid commands. Each client's
// knowledge of its own files must be right, shared objects must be consistent, and the medium clean.
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>

#include "stress/stress_client.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::clients_test {
namespace {

struct Load {
  const char* name;
  u32 clients;
  u32 steps;
  bool tight;
  TestPoolOptions pool;
  friend void PrintTo(const Load& load, std::ostream* out) { *out << load.name; }
};

class Clients : public ::testing::TestWithParam<Load> {};

u64 make(FileClient& client, wire::Opcode opcode, u64 directory, const std::string& name) {
  FileOperation op;
  op.opcode = opcode;
  op.inode = directory;
  op.name = name;
  op.mode = 0755;
  const client::Reply reply = client.call(op);
  EXPECT_EQ(reply.status, Status::ok) << name;
  return reply.result;
}

// Each record once, each client's in order.
void expect_log_whole(FileClient& client, StressArea& area, const std::vector<u32>& counts) {
  std::vector<u32> next(counts.size());
  for (u64 offset = 0;;) {
    const client::Reply reply = client.simple(wire::Opcode::read, area.log_file, offset, 64 * 1024);
    ASSERT_EQ(reply.status, Status::ok);
    if (reply.result == 0) break;
    for (u64 at = 0; at + sizeof(LogRecord) <= reply.result; at += sizeof(LogRecord)) {
      LogRecord record;
      std::memcpy(&record, client.data() + at, sizeof(record));
      ASSERT_LT(record.client, counts.size()) << "at " << offset + at;
      const LogRecord expected = LogRecord::make(record.client, next[record.client]);
      ASSERT_EQ(std::memcmp(&record, &expected, sizeof(record)), 0) << "at " << offset + at;
      ++next[record.client];
    }
    offset += reply.result;
  }
  EXPECT_EQ(next, counts);
}

struct Walked {
  std::map<u64, u32> names;  // inode -> their number
  u64 directories = 0;
};

// Every name leads to an inode of the right type; directories know their parents.
void walk_tree(FileClient& client, u64 directory, u64 parent, Walked* walked) {
  ++walked->directories;
  std::string problem;
  const auto names = client.list(directory, 1500, true, &problem);
  ASSERT_EQ(problem, "");
  ASSERT_EQ(names.at(".").inode, directory);
  ASSERT_EQ(names.at("..").inode, parent);
  u32 subdirectories = 0;
  for (const auto& [name, entry] : names) {
    ASSERT_EQ(entry.count, 1u) << name;
    if (name == "." || name == "..") continue;
    ASSERT_EQ(client.simple(wire::Opcode::getattr, entry.inode).status, Status::ok) << name;
    const format::AttributeRecord attributes = client.attributes();
    ASSERT_EQ(attributes.mode >> 12, entry.type) << name;
    ++walked->names[entry.inode];
    if (entry.type != S_IFDIR >> 12) continue;
    ++subdirectories;
    ASSERT_EQ(attributes.parent, directory) << name;
    ASSERT_EQ(walked->names[entry.inode], 1u) << "a directory with two names";
    walk_tree(client, entry.inode, directory, walked);
  }
  ASSERT_EQ(client.simple(wire::Opcode::getattr, directory).status, Status::ok);
  ASSERT_EQ(client.attributes().link_count, 2 + subdirectories);
}

TEST_P(Clients, KeepWhatTheyKnow) {
  const Load& load = GetParam();
  TestPool pool(load.pool);
  StressArea area;
  area.tight = load.tight;
  std::vector<std::unique_ptr<StressClient>> clients;
  for (u32 i = 0; i < load.clients; ++i) clients.push_back(std::make_unique<StressClient>(pool, area, i));
  FileClient& first = clients[0]->client();
  for (const char* name : {"one", "two", "three"}) {
    area.shared_directories.push_back(make(first, wire::Opcode::mkdir, 1, name));
  }
  area.shared_directories.push_back(make(first, wire::Opcode::mkdir, area.shared_directories[0], "below"));
  area.log_file = make(first, wire::Opcode::create, 1, "log");
  area.page_file = make(first, wire::Opcode::create, 1, "pages");
  const u64 home = make(first, wire::Opcode::mkdir, 1, "home");
  for (auto& client : clients) client->make_private_files(home);

  std::atomic<bool> ended{false};
  std::latch begun(1);
  std::thread checkpointer([&] {
    begun.count_down();
    do {
      if (pool.checkpoint() != Status::ok) area.fail("a checkpoint fails");
    } while (!ended.load());
  });
  begun.wait();
  std::vector<std::thread> threads;
  for (auto& client : clients) threads.emplace_back([&] { client->run(scaled(load.steps)); });
  for (std::thread& thread : threads) thread.join();
  ended.store(true);
  checkpointer.join();
  ASSERT_EQ(area.failure, "");

  std::vector<u32> counts;
  for (auto& client : clients) counts.push_back(client->records_written());
  const auto verify_all = [&] {
    for (auto& client : clients) client->verify();
    ASSERT_EQ(area.failure, "");
    expect_log_whole(clients[0]->client(), area, counts);
    Walked walked;
    walk_tree(clients[0]->client(), 1, 1, &walked);
    for (const auto& [number, names] : walked.names) {
      ASSERT_EQ(clients[0]->client().simple(wire::Opcode::getattr, number).status, Status::ok);
      const format::AttributeRecord attributes = clients[0]->client().attributes();
      const bool is_directory = (attributes.mode & S_IFMT) == S_IFDIR;
      EXPECT_EQ(attributes.link_count, is_directory ? attributes.link_count : names) << "inode " << number;
    }
  };
  verify_all();
  for (auto& client : clients) client->close();
  pool.unmount();
  const fsck::CheckResult result = pool.check();
  for (const fsck::Finding& finding : result.findings.kept()) {
    ADD_FAILURE() << fsck::finding_kind(finding.id).id << " " << finding.place << ": " << finding.text;
  }
  pool.mount();
  for (auto& client : clients) client->open();
  verify_all();
  for (auto& client : clients) client->close();
}

std::vector<Load> loads() {
  std::vector<Load> list;
  Load plain{"two_workers", 4, 8000, false, {}};
  plain.pool.worker_count = 2;
  plain.pool.config.inline_transfer_pages = 8;
  plain.pool.config.task_pages = 8;
  list.push_back(plain);
  Load frames{"few_frames", 4, 4000, false, {}};
  frames.pool.worker_count = 2;
  frames.pool.memory = {.frame_count = 768, .staging_count = 640, .shard_count = 4};
  list.push_back(frames);
  Load space{"little_space", 4, 4000, true, {}};
  space.pool.worker_count = 1;
  space.pool.device_count = 1;
  space.pool.device_bytes = u64{20} << 20;
  list.push_back(space);
  Load warps{"two_warps", 2, 200, false, {}};
  warps.pool.warp_count = 2;
  warps.pool.config.inline_transfer_pages = 4;
  warps.pool.config.task_pages = 8;
  list.push_back(warps);
  return list;
}

INSTANTIATE_TEST_SUITE_P(Loads, Clients, ::testing::ValuesIn(loads()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace gpu4fs::test::clients_test
