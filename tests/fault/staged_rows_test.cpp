// Rows of pools with parities on staged devices behind an I/O queue: what was written by threads and by warps is there,
// and follows from the other devices when one cannot be read.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "fault/file_pool.hpp"

namespace gpu4fs::test::staged_rows_test {
namespace {

constexpr u32 file_pages = 2400;  // more than there are frames
constexpr u32 write_pages = 400;
constexpr u32 no_device = ~u32{0};

struct Kind {
  const char* name;
  u32 warp_count;
  const char* profile;
  u32 device_count;
};

class StagedRows : public FilePool<::testing::TestWithParam<Kind>> {
 protected:
  StagedRows() { fill_content(11, 0, u64{file_pages} * page_size); }

  void SetUp() override {
    TestPoolOptions options;
    options.profile = GetParam().profile;
    options.device_count = GetParam().device_count;
    options.is_staged = true;
    options.has_queue = true;
    options.tier_bytes = 0;
    options.warp_count = GetParam().warp_count;
    options.memory = {.frame_count = 320, .staging_count = 256, .shard_count = 2};
    make_pool(options);
    ASSERT_LT(pool_->engine()->fs.space.staged->cache.line_count, file_pages);
    pool_->media().on_report = [engine = pool_->engine()] { engine::wake_workers(*engine, 1); };
    pool_->media().before = [this](const device::IoRequest& request) {
      while (request.operation == device::IoOperation::write && is_held_) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
      const bool fails = request.device == bad_device_ && request.operation == device::IoOperation::read;
      return fails ? Status::medium_error : Status::ok;
    };
    make_file();
  }

  void write(u64 begin, u64 length) { write_content(inode_, begin, length); }
  void expect_content() {
    for (u32 page = 0; page < file_pages; page += write_pages) {
      const u64 begin = u64{page} * page_size;
      const client::Reply reply = client_->simple(wire::Opcode::read, inode_, begin, u64{write_pages} * page_size);
      ASSERT_EQ(reply.status, Status::ok) << page;
      ASSERT_EQ(std::memcmp(client_->data(), &content_[begin], u64{write_pages} * page_size), 0) << page;
    }
  }

  // The media take no page from now on. The write waits for them before its second round and is too late then. Returns
  // the bytes that it says to have written.
  u64 held_write(u64 begin, u64 length) {
    while (device::has_detached(*pool_->engine()->fs.space.staged)) std::this_thread::yield();
    is_held_ = true;
    wire::Command command = client_->command_of(on_inode(wire::Opcode::write, inode_, begin, length));
    command.deadline_ms = 1;
    std::memcpy(client_->data(), &content_[begin], length);
    const client::Reply reply = session_->call(command);
    is_held_ = false;
    EXPECT_EQ(reply.status, Status::ok) << "a part of the bytes is in the file";
    return reply.result;
  }
  // The pages of a stripe of data.
  u32 stripe_pages() const {
    const raid::LogicalSpace& space = pool_->engine()->fs.space;
    return space.page_cost[space.data_class];
  }
  u64 stranded_pages() const {
    const raid::LogicalSpace& space = pool_->engine()->fs.space;
    u64 sum = 0;
    for (u32 i = 0; i < raid::known_chunk_count(space); ++i) {
      sum += load<Order::relaxed, Scope::engine>(&space.chunks[i].stranded_pages);
    }
    return sum;
  }

  std::atomic<u32> bad_device_{no_device};
  std::atomic<bool> is_held_{false};
};

INSTANTIATE_TEST_SUITE_P(Kinds, StagedRows,
                         ::testing::Values(Kind{"threads_raid5", 0, "raid5", 4}, Kind{"warps_raid5", 3, "raid5", 4},
                                           Kind{"warps_raid6", 2, "raid6", 5}),
                         [](const auto& kind) { return std::string(kind.param.name); });

TEST_P(StagedRows, FollowFromTheOtherDevices) {
  for (u32 page = 0; page < file_pages; page += write_pages) {
    write(u64{page} * page_size, u64{write_pages} * page_size);
  }
  // Parts of rows, and bytes of pages.
  Sequence random(5);
  for (u32 i = 0; i < 40; ++i) {
    const u64 begin = random.next() % (content_.size() - 70000);
    const u64 length = 1 + random.next() % 70000;
    for (u64 at = begin; at < begin + length; ++at) content_[at] ^= 0x5a;
    write(begin, length);
  }
  ASSERT_EQ(pool_->checkpoint(), Status::ok);
  expect_content();
  for (u32 device = 0; device < GetParam().device_count; ++device) {
    bad_device_ = device;
    expect_content();
    bad_device_ = no_device;
  }
}

TEST_P(StagedRows, RoundsOfALongWriteFillWholeStripes) {
  ASSERT_GT(stripe_pages(), 1u);
  const u64 before = stranded_pages();
  write(0, u64{write_pages} * page_size);
  EXPECT_LT(stranded_pages() - before, stripe_pages()) << "only the last stripe is not full";
}

TEST_P(StagedRows, AWriteThatIsTooLateSaysWhatItHasWritten) {
  const u64 length = u64{write_pages} * page_size;
  const u64 written = held_write(0, length);
  EXPECT_GT(written, 0u);
  EXPECT_LT(written, length);
  EXPECT_EQ(written % (stripe_pages() * page_size), 0u);
  EXPECT_EQ(client_->simple(wire::Opcode::getattr, inode_).status, Status::ok);
  EXPECT_EQ(client_->attributes().size_bytes, written);
  EXPECT_EQ(client_->simple(wire::Opcode::read, inode_, 0, written).result, written);
  EXPECT_EQ(std::memcmp(client_->data(), content_.data(), written), 0);
}

}  // namespace
}  // namespace gpu4fs::test::staged_rows_test
