// Scrubs of a served pool: damage on its devices is found and reported by path, a valid pool is reported as valid,
// progress survives pauses and remounts, and files that are written meanwhile cause no false alarm.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "base/host/json_value.hpp"
#include "bench/client.hpp"
#include "format/chunk_format.hpp"
#include "frontend/local_session.hpp"
#include "pool/pool_make.hpp"
#include "pool/pool_open.hpp"
#include "server/pool_server.hpp"
#include "session/tree_walk.hpp"
#include "support/basic_test_pool.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::scrub_test {
namespace {

using maintenance::JobState;

constexpr u64 root = format::inode_number_root;

class ScrubPool : public ::testing::Test {
 protected:
  ScrubPool() {
    pool::MakePoolOptions make;
    make.device_paths = {folder_.device(0), folder_.device(1)};
    make.size_bytes = u64{64} << 20;
    make.chunk_size_bytes = u64{8} << 20;
    pool::make_pool(make);
    paths_ = make.device_paths;
    mount();
  }
  ~ScrubPool() override {
    client_.reset();
    server_.reset();
  }

  void mount() {
    session::ServerOptions options;
    options.device_paths = paths_;
    options.engine = session::EngineChoice::cpu;
    options.worker_count = 2;
    options.commit_interval_s = 0;
    server_ = std::make_unique<server::PoolServer>(options);
    server_->start();
    client_ = std::make_unique<bench::BenchClient>(frontend::open_local_session(*server_, 8 << 20));
  }
  void unmount() {
    client_.reset();
    ASSERT_TRUE(server_->stop());
    server_.reset();
  }

  u64 write(u64 inode, u64 page_count, u64 first_page = 0) {
    bench::fill_pattern(client_->buffer(), inode, first_page, page_count);
    client_->call(bench::BenchClient::transfer(wire::Opcode::write, inode, first_page * page_size,
                                               page_count * page_size, client_->buffer_address(0)),
                  "write");
    return inode;
  }
  void fallocate(u64 inode, u64 page_count) {
    wire::Command command{};
    command.opcode = wire::Opcode::fallocate;
    command.inode = inode;
    command.length = page_count * page_size;
    client_->call(command, "fallocate");
  }

  // Everything has its place on the medium, including map pages.
  void checkpoint() {
    const auto session = server_->open_internal_session(page_size);
    wire::Command command{};
    command.opcode = wire::Opcode::checkpoint;
    ASSERT_EQ(session->call(command).status, Status::ok);
  }

  // Place of a logical page in the device files.
  std::pair<std::string, u64> place(u64 address) {
    const pool::OpenedPool pool = pool::open_pool({.device_paths = paths_, .read_only = true, .lock = false});
    for (const pool::OpenedChunk& chunk : pool.chunks) {
      const u64 base = chunk.descriptor.base_address;
      if (address < base || address - base >= chunk.descriptor.size_bytes) continue;
      const u64 header = format::chunk_layout(chunk.descriptor.size_bytes / page_size).header_pages * page_size;
      return {paths_[chunk.columns[0].device_index()], chunk.columns[0].offset_bytes() + header + (address - base)};
    }
    throw std::runtime_error("no chunk has this page");
  }
  void damage(u64 address) {
    const auto [path, offset] = place(address);
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(offset + 100));
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(offset + 100));
    file.put(byte);
    ASSERT_TRUE(file.good());
  }
  // Addresses of all blocks of a kind.
  std::vector<u64> blocks(u64 inode, wire::BlockKind kind) {
    std::vector<u64> addresses;
    bool is_complete = false;
    session::PoolInspector inspector = server_->open_inspector();
    EXPECT_EQ(inspector.list_blocks(
                  inode,
                  [&](const wire::BlockRecord& block) {
                    for (u64 i = 0; block.kind == kind && i < block.page_count; ++i) {
                      addresses.push_back(block.address + i * page_size);
                    }
                  },
                  &is_complete),
              Status::ok);
    EXPECT_TRUE(is_complete);
    return addresses;
  }

  // Until the scrub has ended or is paused.
  maintenance::ScrubReport await_end() {
    for (;;) {
      maintenance::ScrubReport report = server_->scrubber().report();
      if (report.state != JobState::running) return report;
      std::this_thread::yield();
    }
  }
  maintenance::ScrubReport scrub(u64 rate = 0) {
    EXPECT_EQ(server_->scrubber().start(rate), "");
    return await_end();
  }
  JsonValue ask(const std::string& request) { return parse_json(server_->control().answer(parse_json(request))); }
  // Path -> damaged pages, as in the status; "" stands for pages without an owner.
  std::map<std::string, u64> damaged_files() {
    std::map<std::string, u64> files;
    const JsonValue status = ask("{\"request\": \"status\"}");
    EXPECT_TRUE(status["ok"].boolean) << status["error"].text;
    for (const JsonValue& file : status["damaged_files"].elements) {
      files[file["path"].text] += static_cast<u64>(file["pages"].number);
    }
    return files;
  }

  DeviceFolder folder_;
  std::vector<std::string> paths_;
  std::unique_ptr<server::PoolServer> server_;
  std::unique_ptr<bench::BenchClient> client_;
};

TEST_F(ScrubPool, ASoundPoolIsSound) {
  write(client_->create(root, "file"), 700);
  checkpoint();
  const maintenance::ScrubReport report = scrub();
  EXPECT_EQ(report.state, JobState::finished);
  EXPECT_EQ(report.damaged_count, 0u);
  EXPECT_EQ(report.unreached_count, 0u);
  EXPECT_GE(report.page_count, 700u);
  EXPECT_GE(report.page_count, report.page_total);
  EXPECT_EQ(report.suspect_count, 0u);
  EXPECT_TRUE(report.files.empty());
  EXPECT_EQ(report.problem, "");
  EXPECT_TRUE(damaged_files().empty());
}

TEST_F(ScrubPool, DamageIsFoundAndNamed) {
  const u64 folder = client_->make_directory(root, "folder");
  const u64 deep = client_->make_directory(folder, "deep");
  const u64 plain = write(client_->create(deep, "plain file"), 20);
  const u64 large = write(client_->create(root, "large"), 1500);
  const u64 mapped = write(client_->create(root, "mapped"), 600, 9);
  for (u32 i = 0; i < 400; ++i) client_->create(folder, "name" + std::to_string(i));
  checkpoint();
  damage(blocks(plain, wire::BlockKind::content)[7]);
  for (const u64 i : {0u, 1u, 1499u}) damage(blocks(large, wire::BlockKind::content)[i]);
  damage(blocks(mapped, wire::BlockKind::map_page).back());
  const maintenance::ScrubReport report = scrub();
  EXPECT_EQ(report.damaged_count, 5u);
  EXPECT_EQ(report.ownerless_count, 0u);
  const std::map<std::string, u64> expected{{"/folder/deep/plain file", 1}, {"/large", 3}, {"/mapped", 1}};
  std::map<std::string, u64> found;
  for (const maintenance::DamagedFile& file : report.files) found[file.path] = file.page_count;
  EXPECT_EQ(found, expected);
  EXPECT_EQ(damaged_files(), expected);
  // A repetition gives the same result and not more.
  EXPECT_EQ(scrub().damaged_count, 5u);
  EXPECT_EQ(damaged_files(), expected);
  // A damaged file that is removed is not damage.
  client_->unlink(root, "large");
  checkpoint();
  const std::map<std::string, u64> left{{"/folder/deep/plain file", 1}, {"/mapped", 1}};
  EXPECT_EQ(damaged_files(), left);
  EXPECT_EQ(scrub().damaged_count, 2u);
}

TEST_F(ScrubPool, ReadingNamesTheFileToo) {
  const u64 file = write(client_->create(root, "read me"), 40);
  checkpoint();
  damage(blocks(file, wire::BlockKind::content)[13]);
  EXPECT_THROW(client_->call(bench::BenchClient::transfer(wire::Opcode::read, file, 0, 40 * page_size,
                                                          client_->buffer_address(0)),
                             "read"),
               std::runtime_error);
  const std::map<std::string, u64> expected{{"/read me", 1}};
  EXPECT_EQ(damaged_files(), expected);
  const JsonValue status = ask("{\"request\": \"status\"}");
  EXPECT_TRUE(status["takes_changes"].boolean) << "content is the file's own trouble";
  double mismatches = 0;
  for (const JsonValue& device : status["devices"].elements) mismatches += device["checksum_mismatches"].number;
  EXPECT_EQ(mismatches, 1);
}

// Unwritten blocks have no content to verify, whatever their pages contain.
TEST_F(ScrubPool, UnwrittenBlocksRaiseNoAlarm) {
  const u64 allocated = client_->create(root, "allocated");
  fallocate(allocated, 3000);
  write(allocated, 5, 100);
  checkpoint();
  const std::vector<u64> unwritten = blocks(allocated, wire::BlockKind::unwritten);
  ASSERT_EQ(unwritten.size(), 2995u);
  damage(unwritten[0]);
  damage(unwritten[2000]);
  EXPECT_EQ(scrub().damaged_count, 0u);
  damage(blocks(allocated, wire::BlockKind::content)[2]);
  EXPECT_EQ(scrub().damaged_count, 1u);
  const std::map<std::string, u64> expected{{"/allocated", 1}};
  EXPECT_EQ(damaged_files(), expected);
}

// Files below a damaged directory cannot be named, but are not ignored.
TEST_F(ScrubPool, PagesWithoutAnOwnerAreCounted) {
  const u64 folder = client_->make_directory(root, "folder");
  const u64 inside = write(client_->create(folder, "inside"), 3);
  checkpoint();
  const u64 page = blocks(inside, wire::BlockKind::content)[1];
  const u64 leaf = blocks(folder, wire::BlockKind::content)[0];
  unmount();
  damage(page);
  damage(leaf);
  mount();
  const maintenance::ScrubReport report = scrub();
  EXPECT_EQ(report.damaged_count, 2u);
  EXPECT_EQ(report.ownerless_count, 1u);
  const std::map<std::string, u64> expected{{"/folder", 1}, {"", 1}};
  EXPECT_EQ(damaged_files(), expected);
  EXPECT_FALSE(ask("{\"request\": \"status\"}")["takes_changes"].boolean) << "a directory is damaged";
}

TEST_F(ScrubPool, ProgressIsKeptWhateverFlagsTheRootHas) {
  write(client_->create(root, "file"), 20);
  checkpoint();
  for (const u32 flags : {format::inode_flag_immutable, format::inode_flag_append_only}) {
    format::AttributeRecord record{};
    record.flags = flags;
    std::memcpy(client_->buffer(), &record, sizeof(record));
    wire::Command command{};
    command.opcode = wire::Opcode::setattr;
    command.inode = root;
    command.mask = format::set_flags;
    command.data = client_->buffer_address(0);
    client_->call(command, "setattr");
    const maintenance::ScrubReport report = scrub();
    EXPECT_EQ(report.state, JobState::finished);
    const i64 ended = report.ended_s;
    unmount();
    mount();
    EXPECT_EQ(server_->scrubber().report().state, JobState::finished);
    EXPECT_EQ(server_->scrubber().report().ended_s, ended);
    EXPECT_EQ(server_->scrubber().report().problem, "");
    // Everybody else is refused.
    wire::Command attribute = client_->named(wire::Opcode::set_attribute, root, "trusted.gpu4fs.scrub");
    attribute.data = client_->buffer_address(0);
    attribute.length = 5;
    EXPECT_EQ(client_->session().call(attribute).status, Status::permission);
  }
}

TEST_F(ScrubPool, PausesResumesAndSurvivesRemounts) {
  const u64 early = write(client_->create(root, "early"), 200);
  for (u32 i = 0; i < 12; ++i) write(client_->create(root, "file" + std::to_string(i)), 1500);
  checkpoint();
  damage(blocks(early, wire::BlockKind::content)[3]);
  EXPECT_EQ(server_->scrubber().start(20'000'000), "");
  EXPECT_EQ(server_->scrubber().start(0), "a scrub is running");
  EXPECT_EQ(server_->scrubber().job().resume(), "no scrub is paused");
  while (server_->scrubber().report().page_count < 300) std::this_thread::yield();
  EXPECT_EQ(server_->scrubber().job().pause(), "");
  const maintenance::ScrubReport paused = server_->scrubber().report();
  EXPECT_EQ(paused.state, JobState::paused);
  EXPECT_LT(paused.page_count, paused.page_total);
  EXPECT_EQ(server_->scrubber().job().pause(), "no scrub is running");
  unmount();

  mount();
  maintenance::ScrubReport again = server_->scrubber().report();
  EXPECT_EQ(again.state, JobState::paused) << "what was paused stays so";
  EXPECT_EQ(again.page_total, paused.page_total);
  EXPECT_EQ(again.started_s, paused.started_s);
  EXPECT_GE(again.page_count, 300u);
  EXPECT_EQ(server_->scrubber().job().resume(), "");
  unmount();  // running: it continues automatically

  mount();
  again = await_end();
  EXPECT_EQ(again.state, JobState::finished);
  EXPECT_EQ(again.damaged_count, 1u) << "suspects of before the remounts are not forgotten";
  EXPECT_EQ(again.started_s, paused.started_s);
  // Checkpoints in between move pages of metadata, some of them to places that the scrub has already passed.
  EXPECT_GE(again.page_count + 64, again.page_total);
  unmount();
  mount();
  EXPECT_EQ(server_->scrubber().report().state, JobState::finished) << "and it says so later";
  EXPECT_EQ(server_->scrubber().report().damaged_count, 1u);
}

TEST_F(ScrubPool, CancelledScrubsEnd) {
  for (u32 i = 0; i < 4; ++i) write(client_->create(root, "file" + std::to_string(i)), 1500);
  EXPECT_EQ(server_->scrubber().job().cancel(), "no scrub is running or paused");
  EXPECT_EQ(server_->scrubber().start(1'000'000), "");
  EXPECT_EQ(server_->scrubber().job().cancel(), "");
  EXPECT_EQ(server_->scrubber().report().state, JobState::cancelled);
  EXPECT_EQ(scrub().state, JobState::finished) << "another may begin";
}

// Files are written in place, replaced, removed and allocated, with checkpoints, as fast as possible.
TEST_F(ScrubPool, BusyPoolsRaiseNoAlarm) {
  const u32 rounds = scaled(4000);
  std::atomic<u32> rounds_done{0};
  std::thread writer([&] {
    bench::BenchClient client(frontend::open_local_session(*server_, 8 << 20));
    bench::fill_pattern(client.buffer(), 1, 0, 64);
    for (u32 round = 0; round < rounds; ++round) {
      const std::string name = "busy" + std::to_string(round % 7);
      const u64 inode = client.create(root, name);
      wire::Command allocate{};
      allocate.opcode = wire::Opcode::fallocate;
      allocate.inode = inode;
      allocate.length = 100 * page_size;
      if (round % 2 == 0) client.call(allocate, "fallocate");
      for (u32 i = 0; i < 40; ++i) {
        client.call(bench::BenchClient::transfer(wire::Opcode::write, inode, (i * 977) % 50000, 9000,
                                                 client.buffer_address(i * 8)),
                    "write");
      }
      if (round % 5 == 0) client.sync();
      client.unlink(root, name);
      ++rounds_done;
    }
  });
  u64 verified = 0;
  while (rounds_done < rounds) {
    const maintenance::ScrubReport report = scrub();
    EXPECT_EQ(report.damaged_count, 0u);
    verified += report.page_count;
  }
  writer.join();
  EXPECT_GT(verified, 0u);
  EXPECT_TRUE(damaged_files().empty());
}

TEST_F(ScrubPool, RequestsAreChecked) {
  for (const char* request :
       {"{}", "{\"request\": 5}", "{\"request\": \"format\"}", "{\"request\": \"scrub-start\", \"rate\": -1}",
        "{\"request\": \"scrub-start\", \"rate\": 1e300}", "{\"request\": \"scrub-start\", \"rate\": \"fast\"}",
        "{\"request\": \"scrub-resume\"}"}) {
    const JsonValue answer = ask(request);
    EXPECT_FALSE(answer["ok"].boolean) << request;
    EXPECT_FALSE(answer["error"].text.empty()) << request;
  }
  EXPECT_EQ(ask("{\"request\": \"scrub-start\", \"rate\": 5e8}")["scrub"]["rate_limit"].number, 5e8);
  await_end();
  const JsonValue status = ask("{\"request\": \"scrub-status\"}");
  EXPECT_EQ(status["scrub"]["state"].text, "finished");
  EXPECT_EQ(status["scrub"]["pages_damaged"].number, 0);
}

}  // namespace
}  // namespace gpu4fs::test::scrub_test
