// The server empties chunks of a mounted pool: all of one device's, and all files are kept. Too many chunks are refused
// and stay unchanged. The caller may end it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "growth/growing_pool.hpp"

namespace gpu4fs::test::empty_chunks_test {
namespace {

constexpr u64 block_count = 60;

class EmptyChunks : public ::testing::Test {
 protected:
  EmptyChunks() {
    pool::MakePoolOptions make;
    make.device_paths = {folder_ / "a", folder_ / "b"};
    make.size_bytes = u64{40} << 20;
    make.chunk_size_bytes = u64{8} << 20;
    make.root_uid = make.root_gid = 0;
    pool::make_pool(make);
    mount_ = std::make_unique<GrowthMount>(make.device_paths);
    inode_ = make_file(mount_->files(), "file");
    for (u64 block = 0; block < block_count; ++block) {
      EXPECT_EQ(write_block(mount_->files(), inode_, block, block), Status::ok);
    }
  }
  server::PoolServer& server() { return mount_->server(); }
  u64 wrong_blocks() {
    u64 wrong = 0;
    for (u64 block = 0; block < block_count; ++block) {
      FileClient& files = mount_->files();
      const client::Reply read =
          files.simple(wire::Opcode::read, inode_, block * growth_write_bytes, growth_write_bytes);
      const std::vector<u8> expected = growth_content(block);
      const bool same = read.status == Status::ok && read.result == growth_write_bytes &&
                        std::memcmp(files.data(), expected.data(), expected.size()) == 0;
      wrong += same ? 0 : 1;
    }
    return wrong;
  }
  std::vector<wire::ChunkUsage> usage() {
    std::vector<wire::ChunkUsage> usage;
    EXPECT_EQ(server().relocator().chunk_usage(&usage), Status::ok);
    return usage;
  }

  GrowthFolder folder_;
  std::unique_ptr<GrowthMount> mount_;
  u64 inode_ = 0;
};

TEST_F(EmptyChunks, HalfOfThemAtOnce) {
  const u32 chunk_count = static_cast<u32>(usage().size());
  ASSERT_GE(chunk_count, 4u);
  std::vector<u32> chunks;
  for (u32 i = 0; i < chunk_count; i += 2) chunks.push_back(i);
  u64 calls = 0;
  const maintenance::RelocationResult result =
      server().empty_chunks(chunks, [&](const maintenance::RelocationProgress& progress) {
        ++calls;
        EXPECT_GT(progress.page_total, 0u);
        return true;
      });
  EXPECT_EQ(result.status, Status::ok) << status_name(result.status);
  EXPECT_EQ(result.empty, chunks);
  EXPECT_TRUE(result.not_empty.empty());
  EXPECT_EQ(result.progress.stayed_count, 0u);
  EXPECT_GT(calls, 0u);
  for (const u32 chunk : chunks) EXPECT_EQ(usage()[chunk].is_frozen, 1u);
  EXPECT_EQ(wrong_blocks(), 0u);
  ASSERT_EQ(server().relocator().unfreeze_chunks(chunks), Status::ok);
  for (const u32 chunk : chunks) EXPECT_EQ(usage()[chunk].is_frozen, 0u);
  EXPECT_TRUE(mount_->stop());
}

TEST_F(EmptyChunks, NotAllOfThem) {
  std::vector<u32> chunks(usage().size());
  for (u32 i = 0; i < chunks.size(); ++i) chunks[i] = i;
  const maintenance::RelocationResult result = server().empty_chunks(chunks, nullptr);
  EXPECT_EQ(result.status, Status::no_space);
  EXPECT_TRUE(result.empty.empty());
  for (const wire::ChunkUsage& chunk : usage()) EXPECT_EQ(chunk.is_frozen, 0u);
  EXPECT_EQ(server().empty_chunks({1000}, nullptr).status, Status::out_of_range);
  EXPECT_EQ(wrong_blocks(), 0u);
}

TEST_F(EmptyChunks, WhoAsksMayEndIt) {
  const maintenance::RelocationResult result =
      server().empty_chunks({0}, [](const maintenance::RelocationProgress&) { return false; });
  EXPECT_EQ(result.status, Status::cancelled);
  EXPECT_EQ(result.not_empty, std::vector<u32>{0});
  EXPECT_EQ(usage()[0].is_frozen, 1u);
  EXPECT_EQ(server().empty_chunks({0}, nullptr).status, Status::ok) << "and go on later";
  EXPECT_EQ(wrong_blocks(), 0u);
}

}  // namespace
}  // namespace gpu4fs::test::empty_chunks_test
