// The server's answers about a chunk for whose memory a command waits, while chunks are created and deleted.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "engine/file_fixture.hpp"
#include "engine/upcalls.hpp"
#include "raid/translate.hpp"

namespace gpu4fs::test::chunk_mapping_test {
namespace {

constexpr u64 content_bytes = 3 * page_size;

class ChunkMapping : public ::testing::Test {
 protected:
  // A file whose chunk the engine cannot reach.
  ChunkMapping()
      : server_(engine_, ClientOptions{.depth_log2 = 4, .data_length = 4096, .trusted = true, .internal = true}),
        reader_(engine_) {
    FileClient writer(engine_);
    inode_ = writer.create("file").result;
    std::memset(writer.data(), 0x5a, content_bytes);
    EXPECT_EQ(writer.write(inode_, 0, content_bytes).status, Status::ok);
    fs::FileSystem& fs = engine_.fs();
    for (u32 i = 0; i < fs.space.chunk_count; ++i) withdraw(i);
  }
  // Workers may read it at any time.
  void withdraw(u64 index) {
    fetch_and<Order::relaxed, Scope::engine>(&chunk(index).presence, ~raid::chunk_accessible);
  }
  bool accessible(u64 index) { return raid::is_accessible(chunk(index)); }
  raid::ChunkState& chunk(u64 index) { return engine_.fs().space.chunks[index]; }

  u64 begin_read() {
    wire::Command command = make_command(wire::Opcode::read);
    command.inode = inode_;
    command.length = content_bytes;
    command.data = wire::ring_address(0, 0);
    std::memset(reader_.data(), 0, content_bytes);
    const u64 position = reader_.publish(command);
    reader_.doorbell();
    return position;
  }
  // The next request for a chunk; kind none: there is none.
  ring::Upcall next_upcall() {
    ring::Upcall upcall{};
    for (u32 i = 0; i < 10 && upcall.kind != ring::UpcallKind::map_chunk; ++i) {
      upcall = {};
      (void)engine_.host().wait_upcall(&upcall, 1'000'000'000);
    }
    return upcall;
  }
  void answer(const ring::Upcall& upcall, Status status) {
    EXPECT_EQ(server_.call(engine::answer_upcall_command(upcall, status)).status, Status::ok);
  }
  void expect_content(u64 position) {
    const ring::Completion done = reader_.wait(position);
    ASSERT_EQ(done.status, Status::ok) << status_name(done.status);
    ASSERT_EQ(done.result, content_bytes);
    for (u64 i = 0; i < content_bytes; ++i) ASSERT_EQ(reader_.data()[i], 0x5a) << i;
  }

  FileEngine engine_;
  Client server_;
  Client reader_;
  u64 inode_ = 0;
};

TEST_F(ChunkMapping, IsWaitedFor) {
  const u64 position = begin_read();
  const ring::Upcall upcall = next_upcall();
  EXPECT_FALSE(accessible(upcall.argument));
  answer(upcall, Status::ok);
  expect_content(position);
  EXPECT_TRUE(accessible(upcall.argument));
}

TEST_F(ChunkMapping, AnAnswerOfTheOldOccupantSaysNothingOfTheNewOne) {
  for (const Status status : {Status::ok, Status::io_error, Status::no_space}) {
    const u64 position = begin_read();
    const ring::Upcall upcall = next_upcall();
    // As when it is deleted and another one gets its place.
    ++chunk(upcall.argument).generation;
    answer(upcall, status);
    const ring::Upcall again = next_upcall();
    ASSERT_EQ(again.kind, ring::UpcallKind::map_chunk) << status_name(status);
    EXPECT_EQ(again.argument, upcall.argument);
    EXPECT_NE(again.id, upcall.id);
    EXPECT_FALSE(accessible(upcall.argument)) << "nobody made the new one accessible";
    answer(again, Status::ok);
    expect_content(position);
    withdraw(upcall.argument);
  }
}

TEST_F(ChunkMapping, AServerThatDoesNotKnowTheChunkYetIsAskedAgain) {
  const u64 position = begin_read();
  const ring::Upcall upcall = next_upcall();
  answer(upcall, Status::stale);
  const ring::Upcall again = next_upcall();
  ASSERT_EQ(again.kind, ring::UpcallKind::map_chunk);
  EXPECT_FALSE(accessible(upcall.argument));
  answer(again, Status::ok);
  expect_content(position);
}

TEST_F(ChunkMapping, AnErrorEndsTheCommand) {
  const u64 position = begin_read();
  answer(next_upcall(), Status::io_error);
  EXPECT_EQ(reader_.wait(position).status, Status::io_error);
}

}  // namespace
}  // namespace gpu4fs::test::chunk_mapping_test
