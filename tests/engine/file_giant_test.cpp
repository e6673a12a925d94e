// Blocks of 1 GiB through commands: created by fallocate and by large writes, read, split, truncated and freed. The
// pool occupies memory only where it is touched.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <string>

#include "engine/file_fixture.hpp"
#include "fs/map/map_types.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

constexpr u64 giga = u64{1} << 30;
constexpr u32 punch_hole_keeping_size = 3;

FileEngineOptions giant_options(u32 chunk_count) {
  FileEngineOptions options;
  options.pool.chunk_count = chunk_count;
  options.pool.chunk_bytes = giga;
  options.pool.frame_count = 8192;
  options.pool.staging_count = 8192;
  return options;
}

// The file's slot `index`; nothing changes it meanwhile.
format::BlockPointer slot_of(FileEngine& engine, u64 inode, u32 index) {
  fs::Operation op{};
  fs::InodeRef ref{};
  EXPECT_EQ(fs::get_inode(Lane{}, engine.fs(), op, inode, &ref), Status::ok);
  EXPECT_EQ(ref.inode->height, 2);
  return fs::load_slot(&ref.inode->slots[index]);
}
bool is_giant(format::BlockPointer pointer) {
  return pointer.is_valid() && !pointer.is_indirect() && pointer.size() == format::BlockSize::block_1g;
}

// Begins in the middle of a page, so the first GiB of the file is not a block.
TEST(FileGiant, AllocatedSplitReadAndFreed) {
  FileEngine engine(giant_options(5));
  FileClient client(engine);
  const u64 used_before = engine.fs().data_counters().used;
  const u64 inode = client.create("giant").result;
  ASSERT_EQ(client.fallocate(inode, 0, giga - 5000, 2 * giga + 10000).status, Status::ok);
  EXPECT_TRUE(slot_of(engine, inode, 0).is_indirect());
  for (const u32 slot : {1u, 2u}) {
    EXPECT_TRUE(is_giant(slot_of(engine, inode, slot))) << slot;
    EXPECT_TRUE(slot_of(engine, inode, slot).is_unwritten()) << slot;
  }
  EXPECT_TRUE(slot_of(engine, inode, 3).is_indirect());
  ASSERT_EQ(client.getattr(inode).status, Status::ok);
  EXPECT_EQ(client.attributes().size_bytes, 3 * giga + 5000);

  // Zeros, then three bytes in the middle of the first block.
  const u64 middle = giga + giga / 2 + 12345;
  std::memset(client.data(), 0xee, 100);
  EXPECT_EQ(client.read(inode, middle, 100).result, 100u);
  EXPECT_EQ(std::string(reinterpret_cast<char*>(client.data()), 100), std::string(100, '\0'));
  std::memcpy(client.data(), "abc", 3);
  ASSERT_EQ(client.write(inode, middle, 3).status, Status::ok);
  EXPECT_TRUE(slot_of(engine, inode, 1).is_indirect());
  EXPECT_TRUE(is_giant(slot_of(engine, inode, 2)));
  EXPECT_EQ(client.read(inode, middle - 1, 5).result, 5u);
  EXPECT_EQ(std::string(reinterpret_cast<char*>(client.data()), 5), std::string("\0abc\0", 5));

  // A hole splits the second, which a checkpoint has made durable.
  ASSERT_EQ(client.checkpoint().status, Status::ok);
  ASSERT_EQ(client.fallocate(inode, punch_hole_keeping_size, 2 * giga + 100 * page_size, 10 * page_size).status,
            Status::ok);
  EXPECT_TRUE(slot_of(engine, inode, 2).is_indirect());
  EXPECT_EQ(client.seek(inode, 3, 0).result, align_down(middle, page_size));

  ASSERT_EQ(client.truncate(inode, 0).status, Status::ok);
  ASSERT_EQ(client.getattr(inode).status, Status::ok);
  EXPECT_EQ(client.attributes().blocks_512, 0u);
  ASSERT_EQ(client.unlink("giant").result, inode);
  ASSERT_EQ(client.reclaim(inode).status, Status::ok);
  ASSERT_EQ(client.checkpoint().status, Status::ok);
  EXPECT_LE(engine.fs().data_counters().used, used_before + 8);
  EXPECT_EQ(engine.fs().had_error, 0u);

  // All of it can be allocated again.
  const u64 again = client.create("again").result;
  ASSERT_EQ(client.fallocate(again, 0, 0, 2 * giga).status, Status::ok);
  EXPECT_TRUE(is_giant(slot_of(engine, again, 0)));
  EXPECT_TRUE(is_giant(slot_of(engine, again, 1)));
  ASSERT_EQ(client.truncate(again, giga + 5).status, Status::ok);
  EXPECT_TRUE(is_giant(slot_of(engine, again, 0)));
  EXPECT_FALSE(is_giant(slot_of(engine, again, 1)));
}

// If there is no such block, smaller ones are used.
TEST(FileGiant, SmallerBlocksWhereNoneIsFree) {
  FileEngineOptions options = giant_options(12);
  options.pool.chunk_bytes = u64{128} << 20;
  FileEngine engine(options);
  FileClient client(engine);
  const u64 inode = client.create("file").result;
  ASSERT_EQ(client.fallocate(inode, 0, 0, giga).status, Status::ok);
  ASSERT_EQ(client.getattr(inode).status, Status::ok);
  EXPECT_EQ(client.attributes().size_bytes, giga);
  // 512 blocks of 2 MiB below one map page, or nearly so.
  EXPECT_GE(client.attributes().blocks_512, giga / 512 + 8);
  EXPECT_LE(client.attributes().blocks_512, giga / 512 + 8 * 8);
}

TEST(FileGiant, OneWriteMakesOneBlock) {
  if (is_short()) GTEST_SKIP() << "instrumented, hashing 1 GiB takes too long";
  FileEngine engine(giant_options(3));
  const u64 length = giga + 3 * page_size;
  const ring::SessionLayout layout = ring::SessionLayout::make(5, 1 << 16);
  SharedMemory memory(layout.total_length);
  // The source is zeros that take no memory, except for one page.
  void* source = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(source, MAP_FAILED);
  std::memset(static_cast<u8*>(source) + giga - 10, 0x5a, 20);
  FileClient client(engine);
  const u64 inode = client.create("file").result;
  engine::SessionRequest request{};
  request.memory = memory.data();
  request.layout = layout;
  request.trusted = true;
  const u32 session = engine.host().open_session(request);
  ASSERT_NE(session, engine::session_max);
  ASSERT_EQ(engine.host().add_buffer(session, 1, source, length), Status::ok);
  ring::RingProducer producer = ring::RingProducer::attach(memory.data(), layout);
  wire::Command command = make_command(wire::Opcode::write);
  command.inode = inode;
  command.length = length;
  command.data = wire::ring_address(1, 0);
  u64 position = 0;
  ASSERT_EQ(producer.publish(command, &position), Status::ok);
  ring::Completion done{Status::engine_died, 0};
  engine.host().port(session).wait(position + 1, [&] { return producer.poll(position, &done); });
  EXPECT_EQ(done.status, Status::ok) << status_name(done.status);
  EXPECT_EQ(done.result, length);
  EXPECT_TRUE(is_giant(slot_of(engine, inode, 0)));
  EXPECT_FALSE(slot_of(engine, inode, 0).is_unwritten());
  EXPECT_EQ(client.read(inode, giga - 20, 40).result, 40u);
  EXPECT_EQ(std::string(reinterpret_cast<char*>(client.data()), 40),
            std::string(10, '\0') + std::string(20, 'Z') + std::string(10, '\0'));
  engine.host().close_session(session);
  ::munmap(source, length);
}

}  // namespace
}  // namespace gpu4fs::test
