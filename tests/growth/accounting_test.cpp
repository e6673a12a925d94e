// What statfs promises for a pool that may still grow, which command gets the last of its space, and what commands do
// that need more space than there is.
#include <algorithm>
#include <optional>

#include "growth/growing_pool.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::test::accounting_test {
namespace {

using wire::Opcode;

constexpr u64 device_bytes = u64{48} << 20;
constexpr u64 chunk_bytes = u64{8} << 20;
constexpr u64 large_bytes = u64{900} << 10;  // the size of a session's area

struct PoolForm {
  const char* data;
  const char* metadata;
  u32 device_count;
  u32 initial_share;
  std::vector<std::pair<std::string, double>> more = {};
  friend std::ostream& operator<<(std::ostream& out, const PoolForm& form) {
    return out << form.data << "+" << form.metadata << " on " << form.device_count << ", " << form.initial_share
               << " %";
  }
};

class AccountedPool {
 public:
  explicit AccountedPool(const PoolForm& form) {
    pool::MakePoolOptions options;
    for (u32 i = 0; i < form.device_count; ++i) devices_.push_back(folder_ / fmt::format("device{}", i));
    options.device_paths = devices_;
    options.size_bytes = device_bytes;
    options.chunk_size_bytes = chunk_bytes;
    options.data_profile = form.data;
    options.metadata_profile = form.metadata;
    options.metadata_share = 0.25;
    options.initial_share = form.initial_share;
    options.more_profiles = form.more;
    pool::make_pool(options);
    mount_.emplace(devices_);
  }
  GrowthMount& mount() { return *mount_; }
  FileClient& files() { return mount_->files(); }
  maintenance::PoolGrower& grower() { return mount_->server().grower(); }
  u32 chunk_count() { return mount_->server().superblock().chunk_count; }
  // While nothing grows: the created chunks are on the medium.
  std::vector<u64> columns_by_device() {
    std::vector<u64> counts(devices_.size());
    const pool::OpenedPool opened = pool::open_pool({devices_, true, false});
    for (const pool::OpenedChunk& chunk : opened.chunks) {
      for (const format::ColumnAddress column : chunk.columns) ++counts[column.device_index()];
    }
    return counts;
  }

  wire::StatfsRecord statistics() {
    EXPECT_EQ(files().simple(Opcode::statfs).status, Status::ok);
    return files().statistics();
  }
  client::Reply write(u64 inode, u64 offset, u64 length) {
    FileOperation op;
    op.opcode = Opcode::write;
    op.inode = inode;
    op.offset = offset;
    op.length = length;
    return files().call(op, std::vector<u8>(length, static_cast<u8>(offset >> 16)));
  }
  // Writes until the pool is full; returns the number of bytes.
  u64 fill(u64 inode, u64 offset, u64 length) {
    const u64 first = offset;
    for (;;) {
      const client::Reply reply = write(inode, offset, length);
      if (reply.status != Status::ok) {
        EXPECT_EQ(reply.status, Status::no_space);
        return offset - first;
      }
      EXPECT_GT(reply.result, 0u);
      offset += reply.result;
    }
  }
  void expect_sound() {
    ASSERT_TRUE(mount_->stop());
    mount_.reset();
    EXPECT_EQ(find_problems(devices_), "");
  }

 private:
  GrowthFolder folder_;
  std::vector<std::string> devices_;
  std::optional<GrowthMount> mount_;
};

class PromisedSpace : public ::testing::TestWithParam<PoolForm> {};

// And little more than that. Minus names, maps and their second copies if they share the chunks of data.
TEST_P(PromisedSpace, CanBeWritten) {
  AccountedPool pool(GetParam());
  const wire::StatfsRecord before = pool.statistics();
  const u64 inode = make_file(pool.files(), "file");
  const u64 written = pool.fill(inode, 0, u64{96} << 10) / page_size;
  EXPECT_GE(written, before.page_available);
  EXPECT_LE(written, before.page_available + before.page_available * 3 / 100 + 64);
  EXPECT_LE(pool.statistics().page_available, 8u);
  // Pages that are allocated only with their whole region count when their chunk is created.
  EXPECT_NEAR(static_cast<double>(pool.statistics().page_total), static_cast<double>(before.page_total), 100.0);
  pool.expect_sound();
}

INSTANTIATE_TEST_SUITE_P(Forms, PromisedSpace,
                         ::testing::Values(PoolForm{"single", "single", 1, 100}, PoolForm{"single", "single", 2, 30},
                                           PoolForm{"raid0", "raid0", 3, 30}, PoolForm{"raid1", "raid1", 3, 40},
                                           PoolForm{"raid5", "raid5", 3, 40}, PoolForm{"raid5", "raid1c3", 4, 40},
                                           PoolForm{"single", "raid1", 2, 40}));

// Data does not get the space of metadata's last chunk before metadata has it.
TEST(GrowingPoolOfTwoProfiles, LeavesTheLastChunkToMetadata) {
  AccountedPool pool({"single", "raid1", 2, 40});
  const u32 metadata_class = static_cast<u32>(format::Profile::raid1) - 1;
  const u32 chunks = pool.chunk_count();
  (void)pool.fill(make_file(pool.files(), "file"), 0, u64{128} << 10);
  EXPECT_GT(pool.chunk_count(), chunks);
  EXPECT_EQ(pool.grower().add_chunks(~u64{0}), 0u);
  EXPECT_EQ(pool.grower().add_chunks(~u64{0}, metadata_class), 1u);
  EXPECT_EQ(pool.grower().add_chunks(~u64{0}, metadata_class), 0u);
  pool.expect_sound();
}

// Files that must lie on device 1 fill only this device.
TEST(GrowingPoolWithAProfileOfADevice, GrowsThere) {
  AccountedPool pool({"raid1", "raid1", 3, 30, {{"physical:1", 0.1}}});
  const u64 inode = make_file(pool.files(), "file");
  const std::vector<u64> before = pool.columns_by_device();
  FileOperation op;
  op.opcode = Opcode::set_attribute;
  op.inode = inode;
  op.name = "user.gpu4fs.raid";
  op.text = "physical:1";
  ASSERT_EQ(pool.files().call(op).status, Status::ok);
  const u64 written = pool.fill(inode, 0, u64{96} << 10);
  const std::vector<u64> after = pool.columns_by_device();
  EXPECT_EQ(after[0], before[0]);
  EXPECT_GE(after[1], before[1] + 2);
  EXPECT_EQ(after[2], before[2]);
  EXPECT_GT(written, 2 * chunk_bytes);
  op.text = "physical:0";
  EXPECT_EQ(pool.files().call(op).status, Status::not_supported);
  op.text = "physical:1x";
  EXPECT_EQ(pool.files().call(op).status, Status::invalid_argument);
  pool.expect_sound();
}

// For example while a device is being replaced. A write gets the space of the existing chunks, and the rest when the
// pool may grow again.
TEST(PoolThatMayNotGrowNow, WritesAsMuchAsFits) {
  AccountedPool pool({"single", "single", 1, 40});
  const u64 inode = make_file(pool.files(), "file");
  const u32 chunks = pool.chunk_count();
  u64 end = 0;
  {
    const maintenance::GrowthHold hold(pool.grower());
    client::Reply reply{};
    do {
      reply = pool.write(inode, end, large_bytes);
      ASSERT_EQ(reply.status, Status::ok) << end;
      end += reply.result;
    } while (reply.result == large_bytes);
    EXPECT_EQ(pool.chunk_count(), chunks);
    const u64 space = chunks * chunk_bytes;
    EXPECT_GT(end, space - space / 8);
    EXPECT_EQ(pool.write(inode, end, large_bytes).status, Status::no_space);
    EXPECT_LE(pool.statistics().page_available, 64u);
  }
  EXPECT_GT(pool.statistics().page_available, chunk_bytes / page_size);
  EXPECT_EQ(pool.write(inode, end, large_bytes).result, large_bytes);
  EXPECT_GT(pool.chunk_count(), chunks);
  pool.expect_sound();
}

// Nearly everything that it can allocate is what it frees, which becomes available with a checkpoint.
TEST(FullPool, ZeroesARangeByAllocatingItAnew) {
  AccountedPool pool({"single", "single", 1, 100});
  const u64 inode = make_file(pool.files(), "file");
  const u64 length = u64{20} << 20;
  for (u64 at = 0; at < length; at += u64{512} << 10) {
    ASSERT_EQ(pool.write(inode, at, u64{512} << 10).result, u64{512} << 10);
  }
  ASSERT_EQ(pool.files().simple(Opcode::fsync, inode).status, Status::ok);
  const u64 rest = make_file(pool.files(), "rest");
  const u64 end = pool.fill(rest, 0, u64{64} << 10);
  constexpr u32 punch_hole = 0x03;
  const u64 spare = u64{256} << 10;  // for maps
  EXPECT_EQ(pool.files().simple(Opcode::fallocate, rest, end - spare, spare, punch_hole).status, Status::ok);
  constexpr u32 zero_range = 0x10;
  EXPECT_EQ(pool.files().simple(Opcode::fallocate, inode, 0, length, zero_range).status, Status::ok);
  const client::Reply read = pool.files().simple(Opcode::read, inode, length / 2, u64{64} << 10);
  ASSERT_EQ(read.result, u64{64} << 10);
  EXPECT_EQ(std::count(pool.files().data(), pool.files().data() + read.result, 0), std::ptrdiff_t{64} << 10);
  pool.expect_sound();
}

}  // namespace
}  // namespace gpu4fs::test::accounting_test
