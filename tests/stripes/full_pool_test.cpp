// Full pools with parities: free pages of partly used stripes are allocated, and nothing is lost by this.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include <mutex>
#include <thread>

#include "base/bits.hpp"
#include "fault/losing_pool.hpp"
#include "support/file_client.hpp"
#include "support/group_runner.hpp"
#include "support/saved_devices.hpp"
#include "support/test_pool.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::full_pool_test {
namespace {

using wire::Opcode;

struct FullForm {
  const char* name;
  const char* profile;
  u32 device_count;
  u32 warp_count = 0;  // emulated warps take milliseconds a command
  u32 worker_count = 1;
  friend std::ostream& operator<<(std::ostream& out, const FullForm& form) { return out << form.name; }
};

std::vector<u8> content(u64 seed, u64 bytes) {
  std::vector<u8> made(align_up(bytes, u64{8}));
  Sequence sequence(seed);
  for (u64 i = 0; i < made.size(); i += 8) {
    const u64 word = sequence.next();
    std::memcpy(&made[i], &word, 8);
  }
  made.resize(bytes);
  return made;
}

// Files of three pages, or as much as fits of them: each in stripes of its own, which leaves free pages.
class FullStripes : public ::testing::TestWithParam<FullForm> {
 protected:
  static constexpr u64 file_bytes = 3 * page_size;

  FullStripes() : pool_(options()) { open(); }
  ~FullStripes() override { close(); }

  static TestPoolOptions options() {
    TestPoolOptions options;
    options.device_count = GetParam().device_count;
    options.device_bytes = u64{20} << 20;
    options.profile = GetParam().profile;
    options.warp_count = GetParam().warp_count;
    options.worker_count = GetParam().worker_count;
    return options;
  }
  void open() {
    session_ = pool_.open_session();
    client_.emplace(*session_);
  }
  void close() {
    client_.reset();
    session_.reset();
  }
  fs::FileSystem& fs() { return pool_.engine()->fs; }
  u64 used() { return fs().data_counters().used; }
  u64 total() { return fs().data_counters().total; }

  u64 create(u64 number) {
    FileOperation op;
    op.opcode = Opcode::create;
    op.inode = PosixModel::root;
    op.name = fmt::format("file {}", number);
    op.mode = 0644;
    const client::Reply made = client_->call(op);
    if (made.status == Status::no_space) return 0;
    EXPECT_EQ(made.status, Status::ok) << number;
    return made.result;
  }
  // The number of written bytes, or none.
  client::Reply write(u64 inode, u64 offset, const std::vector<u8>& bytes) {
    FileOperation op;
    op.opcode = Opcode::write;
    op.inode = inode;
    op.offset = offset;
    op.length = bytes.size();
    const client::Reply reply = client_->call(op, bytes);
    if (reply.status != Status::ok) return reply;
    std::vector<u8>& file = files_[inode];
    file.resize(std::max<u64>(file.size(), offset + reply.result));
    std::copy_n(bytes.begin(), reply.result, file.begin() + static_cast<std::ptrdiff_t>(offset));
    return reply;
  }
  // Blocks without content take most of the whole stripes.
  void shrink() {
    ASSERT_EQ(client_->simple(Opcode::statfs).status, Status::ok);
    const u64 pages = client_->statistics().page_available;
    const u64 inode = create(~u64{0});
    ASSERT_GT(pages, 400u);
    ASSERT_EQ(client_->simple(Opcode::fallocate, inode, 0, (pages - 300) * page_size, 1).status, Status::ok);
  }
  void fill() {
    if (names_.empty() && GetParam().warp_count != 0) shrink();
    for (u64 number = 0;; ++number) {
      const u64 inode = create(number);
      if (inode == 0) break;  // metadata has only whole stripes
      names_[number] = inode;
      files_[inode] = {};
      const client::Reply reply = write(inode, 0, content(++seed_, file_bytes));
      if (reply.status == Status::ok) continue;
      EXPECT_EQ(reply.status, Status::no_space);
      break;
    }
  }
  // The other files, after some have been emptied.
  std::vector<u64> make_room(u32 file_count) {
    std::vector<u64> inodes;
    for (const auto& [inode, bytes] : files_) {
      if (bytes.size() == file_bytes) inodes.push_back(inode);
    }
    for (u32 i = 0; i < file_count; ++i) {
      FileOperation op;
      op.opcode = Opcode::truncate;
      op.inode = inodes.back();
      EXPECT_EQ(client_->call(op).status, Status::ok);
      files_[op.inode].clear();
      inodes.pop_back();
    }
    return inodes;
  }
  void remove_all() {
    for (const auto& [number, inode] : names_) {
      FileOperation op;
      op.opcode = Opcode::unlink;
      op.inode = PosixModel::root;
      op.name = fmt::format("file {}", number);
      ASSERT_EQ(client_->call(op).status, Status::ok);
      ASSERT_EQ(client_->simple(Opcode::reclaim, inode).status, Status::ok);
    }
    names_.clear();
    files_.clear();
  }
  void compare_all() {
    for (const auto& [inode, bytes] : files_) {
      const client::Reply reply = client_->simple(Opcode::read, inode, 0, file_bytes + 100);
      ASSERT_EQ(reply.status, Status::ok) << inode;
      ASSERT_EQ(reply.result, bytes.size()) << inode;
      ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), client_->data())) << inode;
    }
  }
  void expect_sound() {
    close();
    pool_.unmount();
    const fsck::CheckResult result = pool_.check();
    EXPECT_EQ(result.findings.error_count(), 0u) << findings_text(result);
    pool_.mount();
    open();
  }

  TestPool pool_;
  std::unique_ptr<client::Session> session_;
  std::optional<FileClient> client_;
  std::map<u64, u64> names_;              // inodes by number
  std::map<u64, std::vector<u8>> files_;  // by inode
  u64 seed_ = 0;
};

TEST_P(FullStripes, IsFilledToNinetyEightPercentAgainAndAgain) {
  const u64 rounds = GetParam().warp_count != 0 ? 1 : std::max<u64>(2, scaled(20));
  for (u64 round = 0; round < rounds; ++round) {
    fill();
    EXPECT_GE(used() * 100, total() * 98) << "round " << round;
    ASSERT_EQ(client_->simple(Opcode::statfs).status, Status::ok);
    EXPECT_LT(client_->statistics().page_available, 8u) << "round " << round;
    EXPECT_GT(client_->statistics().inode_free, 0u);
    compare_all();
    if (round + 1 == rounds) break;
    remove_all();
    ASSERT_EQ(pool_.checkpoint(), Status::ok);
    EXPECT_EQ(used(), 0u);
  }
  expect_sound();
  compare_all();
}

// Overwriting needs no more pages than exist.
TEST_P(FullStripes, TakesOverwritesOfSinglePages) {
  fill();
  const std::vector<u64> inodes = make_room(1);
  const u64 count = GetParam().warp_count != 0 ? 10 : scaled(400);
  Sequence random(5);
  for (u64 i = 0; i < count; ++i) {
    const u64 inode = inodes[random.next() % inodes.size()];
    const u64 offset = random.next() % file_bytes;
    const u64 length = 1 + random.next() % std::min<u64>(file_bytes - offset, page_size);
    const client::Reply reply = write(inode, offset, content(++seed_, length));
    ASSERT_EQ(reply.status, Status::ok) << i;
    if (i % 50 == 7) {
      ASSERT_EQ(client_->simple(Opcode::fsync, inode).status, Status::ok);
    }
    if (i % 100 == 99) {
      // Unsynced changes may be lost, so everything is synced.
      ASSERT_EQ(client_->simple(Opcode::sync).status, Status::ok);
      close();
      pool_.crash();
      pool_.mount();
      open();
      compare_all();
      ASSERT_FALSE(HasFatalFailure());
    }
  }
  compare_all();
  expect_sound();
  compare_all();
}

// A row that was changed in place yields the pages of a device that is lost afterwards.
TEST_P(FullStripes, OutlivesTheLossOfAnyDevice) {
  fill();
  const u64 pages = used();
  ASSERT_EQ(client_->simple(Opcode::sync).status, Status::ok);
  close();
  pool_.crash();
  const SavedDevices saved(pool_.device_paths());
  pool_.options().degraded = true;
  for (const std::string& path : pool_.device_paths()) {
    saved.restore(0);
    std::filesystem::remove(path);
    pool_.mount();
    open();
    EXPECT_EQ(used(), pages);
    compare_all();
    // Rows are not changed while a device is lost.
    EXPECT_EQ(write(names_.begin()->second, 0, content(1, page_size)).status, Status::no_space);
    close();
    pool_.crash();
    ASSERT_FALSE(HasFatalFailure());
  }
  saved.restore(0);
  pool_.options().degraded = false;
  pool_.mount();
  open();
}

// A device is lost at any moment of such writes: written data stays, and synced data survives a crash.
TEST_P(FullStripes, OutlivesALossInTheMiddle) {
  fill();
  const std::vector<u64> inodes = make_room(1);
  ASSERT_EQ(pool_.checkpoint(), Status::ok);
  close();
  pool_.unmount();
  std::vector<Switch> switches(GetParam().device_count);
  pool_.options().stack = [&](u32 d) {
    std::vector<std::unique_ptr<device::StackLayer>> layers;
    layers.push_back(std::make_unique<SwitchLayer>(switches[d]));
    return std::make_shared<device::DeviceStack>(std::move(layers));
  };
  const SavedDevices saved(pool_.device_paths());
  const std::map<u64, std::vector<u8>> before = files_;
  const u32 step = GetParam().warp_count != 0 ? 37 : 3 + 100 / scaled(100);
  u32 lost_count = 0;
  for (u32 moment = 1; moment < 120; moment += step) {
    SCOPED_TRACE(moment);
    const u32 lost = moment % GetParam().device_count;
    files_ = before;
    pool_.options().degraded = false;
    pool_.mount();
    open();
    switches[lost].accesses_left = moment;
    for (u32 i = 0; i < 12; ++i) {
      const Status status = write(inodes[7 * i], (i % 3) * page_size, content(++seed_, 1000)).status;
      ASSERT_TRUE(status == Status::ok || status == Status::no_space) << status_name(status);
      if (i % 4 == 3) {
        ASSERT_EQ(client_->simple(Opcode::fsync, inodes[7 * i]).status, Status::ok);
      }
    }
    ASSERT_EQ(client_->simple(Opcode::sync).status, Status::ok);
    lost_count += raid::failed_devices(fs().space) != 0 ? 1 : 0;
    compare_all();
    close();
    pool_.crash();
    switches[lost].accesses_left = std::int64_t{1} << 60;
    pool_.options().degraded = true;
    pool_.mount();
    open();
    compare_all();
    close();
    pool_.crash();
    saved.restore(0);
    ASSERT_FALSE(HasFatalFailure());
  }
  EXPECT_GT(lost_count, 0u);
  files_ = before;
  pool_.options().degraded = false;
  pool_.mount();
  open();
  compare_all();
}

INSTANTIATE_TEST_SUITE_P(Forms, FullStripes,
                         ::testing::Values(FullForm{"raid5_3", "raid5+raid1", 3}, FullForm{"raid5_5", "raid5+raid1", 5},
                                           FullForm{"raid6_6", "raid6+raid1c3", 6},
                                           FullForm{"raid7_5", "raid7+raid1c4", 5},
                                           FullForm{"raid5_warp", "raid5+raid1", 3, 1}),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

// Commands of several clients use the same rows, with checkpoints in between.
class SharedFullStripes : public FullStripes {};

TEST_P(SharedFullStripes, ManyOverwriteAtOnce) {
  fill();
  const std::vector<u64> inodes = make_room(12);
  constexpr u32 client_count = 3;
  std::mutex mutex;
  std::vector<std::string> problems;
  std::atomic<u64> written{0};
  const auto work = [&](u32 number) {
    const auto session = pool_.open_session();
    FileClient client(*session);
    Sequence random(number);
    for (u32 i = 0; i < scaled(300); ++i) {
      const u64 inode = inodes[(random.next() % (inodes.size() / client_count)) * client_count + number];
      FileOperation op;
      op.opcode = Opcode::write;
      op.inode = inode;
      op.offset = random.next() % file_bytes;
      op.length = 1 + random.next() % std::min<u64>(file_bytes - op.offset, page_size);
      const std::vector<u8> bytes = content(u64{number} << 32 | i, op.length);
      const client::Reply reply = client.call(op, bytes);
      const std::lock_guard guard(mutex);
      if (reply.status == Status::ok) {
        std::copy_n(bytes.begin(), reply.result, files_.at(inode).begin() + static_cast<std::ptrdiff_t>(op.offset));
        ++written;
      } else if (reply.status != Status::no_space) {
        problems.push_back(status_name(reply.status));
      }
      if (i % 40 == 11) (void)client.simple(Opcode::fsync, inode);
    }
  };
  std::vector<std::thread> threads;
  for (u32 i = 0; i < client_count; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(problems.empty()) << problems.front();
  EXPECT_GT(written, scaled(300));
  compare_all();
  ASSERT_EQ(client_->simple(Opcode::sync).status, Status::ok);
  close();
  pool_.crash();
  pool_.mount();
  open();
  compare_all();
  expect_sound();
}

INSTANTIATE_TEST_SUITE_P(Forms, SharedFullStripes,
                         ::testing::Values(FullForm{"raid5_3", "raid5+raid1", 3, 0, 3},
                                           FullForm{"raid5_3_shared", "raid5", 3, 0, 3},
                                           FullForm{"raid6_6", "raid6+raid1c3", 6, 0, 2}),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace gpu4fs::test::full_pool_test
