// A mounted pool on a faulty device: reads are EIO or right, never wrong bytes, and the engine survives.
//
// Right means: after a successful write its bytes; after a failed one a mixture of old and new pages. After the mount
// has ended and begun again on a good device: each page as some write left it, because a device that acknowledges what
// it forgets can also lose a single superblock.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <optional>
#include <ostream>

#include "device/stack/fault_layer.hpp"
#include "device/stack/stack_spec.hpp"
#include "device/stack/write_log.hpp"
#include "support/file_client.hpp"
#include "support/group_runner.hpp"
#include "support/test_pool.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::mounted_test {
namespace {

constexpr u32 file_count = 12;
constexpr u32 version_count = 4;

u64 size_of(u32 file) {
  const u64 sizes[] = {80, 500, page_size, 3 * page_size + 7, 20 * page_size, 45 * page_size + 1};
  return sizes[file % 6];
}

std::vector<u8> content(u32 file, u32 version) {
  std::vector<u8> bytes(size_of(file));
  Sequence sequence(1000 * file + version);
  for (u64 i = 0; i < bytes.size(); i += 8) {
    const u64 word = sequence.next();
    std::memcpy(&bytes[i], &word, std::min<u64>(8, bytes.size() - i));
  }
  return bytes;
}

struct Variant {
  const char* kind;
  const char* when;
  bool is_silent;  // the device reports no error

  friend std::ostream& operator<<(std::ostream& out, const Variant& v) { return out << v.kind << v.when; }
};

class FaultyMount : public ::testing::TestWithParam<Variant> {
 protected:
  FaultyMount() : pool_(options()) {}

  static TestPoolOptions options() {
    TestPoolOptions options;
    options.device_count = 1;
    options.device_bytes = u64{11} << 20;
    options.memory = {.frame_count = 320, .staging_count = 256, .shard_count = 2};
    // One access at a time: a misdirected write goes to a place that other accesses might be writing.
    options.config.inline_transfer_pages = 64;
    return options;
  }

  // With faults, or on the plain device.
  void use_faults(u64 seed) {
    const Variant v = GetParam();
    pool_.options().stack = [this, v, seed](u32) {
      device::FaultRules rules =
          device::parse_fault_rules(fmt::format("seed={},delay-us=50,{}{}", seed, v.kind, v.when));
      std::vector<std::unique_ptr<device::StackLayer>> layers;
      auto layer = std::make_unique<device::FaultLayer>(rules);
      faults_ = layer.get();
      layers.push_back(std::move(layer));
      stack_ = std::make_shared<device::DeviceStack>(std::move(layers));
      return stack_;
    };
  }

  void open() {
    session_ = pool_.open_session();
    client_.emplace(*session_);
  }
  void close() {
    client_.reset();
    session_.reset();
  }

  client::Reply write(u32 file, u32 version) {
    FileOperation op;
    op.opcode = wire::Opcode::write;
    op.inode = inodes_[file];
    op.length = size_of(file);
    const client::Reply reply = client_->call(op, content(file, version));
    if (reply.status == Status::ok) {
      EXPECT_EQ(reply.result, size_of(file));
    }
    return reply;
  }

  void make_files() {
    open();
    for (u32 file = 0; file < file_count; ++file) {
      FileOperation op;
      op.opcode = wire::Opcode::create;
      op.inode = PosixModel::root;
      op.name = fmt::format("file {}", file);
      op.mode = 0644;
      const client::Reply made = client_->call(op);
      ASSERT_EQ(made.status, Status::ok);
      inodes_[file] = made.result;
      ASSERT_EQ(write(file, 0).status, Status::ok);
      written_[file] = 1;
      certain_[file] = 0;
    }
    close();
    pool_.unmount();
  }

  // False: the mount was refused.
  bool mount() {
    try {
      pool_.mount();
      return true;
    } catch (const std::runtime_error&) {
      pool_.crash();
      return false;
    }
  }

  // Whether these pages are of versions that may be there.
  void expect_right(u32 file, const u8* bytes, u64 length, bool exact) {
    ASSERT_EQ(length, size_of(file));
    for (u64 at = 0; at < length; at += page_size) {
      const u64 part = std::min(page_size, length - at);
      bool known = false;
      for (u32 version = 0; version < version_count; ++version) {
        if ((written_[file] >> version & 1) == 0) continue;
        if (exact && certain_[file] && *certain_[file] != version) continue;
        known |= std::memcmp(bytes + at, content(file, version).data() + at, part) == 0;
      }
      ASSERT_TRUE(known) << "file " << file << " page " << at / page_size;
    }
  }

  void read_all(bool exact) {
    for (u32 file = 0; file < file_count; ++file) {
      const client::Reply reply = client_->simple(wire::Opcode::read, inodes_[file], 0, size_of(file) + 10);
      if (reply.status != Status::ok) {
        ASSERT_EQ(to_errno(reply.status), EIO) << status_name(reply.status);
        ++refused_;
        continue;
      }
      expect_right(file, client_->data(), reply.result, exact);
    }
  }

  // All clients write new versions; some of it is made durable.
  void work(u32 version) {
    for (u32 file = version % 2; file < file_count; file += 2) {
      const client::Reply reply = write(file, version);
      written_[file] |= 1u << version;
      certain_[file] = reply.status == Status::ok ? std::optional<u32>(version) : std::nullopt;
      if (reply.status == Status::ok) continue;
      ++refused_;
      ASSERT_TRUE(to_errno(reply.status) == EIO || to_errno(reply.status) == EROFS) << status_name(reply.status);
    }
    const client::Reply synced = client_->simple(wire::Opcode::sync);
    if (synced.status != Status::ok) ++refused_;
  }

  void run(u64 seed) {
    use_faults(seed);
    certain_.fill(std::nullopt);  // data that the last mount had acknowledged may have been lost with it
    if (mount()) {
      open();
      for (u32 version = 1; version < version_count && !HasFatalFailure(); ++version) {
        work(version);
        read_all(true);
      }
      close();
      try {
        pool_.unmount();
      } catch (const std::runtime_error&) {
        ++refused_;
        pool_.crash();
        // Data that was not synced may be lost.
        certain_.fill(std::nullopt);
      }
    } else {
      ++refused_;
    }
    struck_ += faults_ == nullptr ? 0 : faults_->fault_count();
    faults_ = nullptr;
    stack_.reset();
    pool_.options().stack = nullptr;
    if (HasFatalFailure()) return;
    if (!mount()) {
      ++lost_pools_;
      return;
    }
    open();
    read_all(false);
    close();
    pool_.unmount();
  }

  TestPool pool_;
  std::shared_ptr<device::DeviceStack> stack_;
  device::FaultLayer* faults_ = nullptr;
  std::unique_ptr<client::Session> session_;
  std::optional<FileClient> client_;
  std::array<u64, file_count> inodes_{};
  std::array<u32, file_count> written_{};  // a bit a version
  std::array<std::optional<u32>, file_count> certain_;
  u64 refused_ = 0;
  u64 struck_ = 0;
  u64 lost_pools_ = 0;
};

// A pool for each seed, because a silent fault may destroy it.
class FaultSeeds : public FaultyMount {};

TEST_P(FaultSeeds, ReadsAreRightOrRefused) {
  const Variant v = GetParam();
  make_files();
  if (HasFatalFailure()) return;
  // The same pool is used as long as it can be mounted: damage stays and must always be noticed.
  for (u64 seed = 1; seed <= scaled(12) && lost_pools_ == 0; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    run(seed);
    if (HasFatalFailure()) return;
  }
  if (std::string(v.kind) == "delay") {
    EXPECT_EQ(refused_ + lost_pools_, 0u);
    return;
  }
  EXPECT_GT(struck_, 0u);
  if (v.is_silent) return;
  EXPECT_GT(refused_, 0u);
  EXPECT_EQ(lost_pools_, 0u);
}

INSTANTIATE_TEST_SUITE_P(Kinds, FaultSeeds,
                         ::testing::Values(Variant{"read-error", "=0.05", false}, Variant{"read-error", "#9", false},
                                           Variant{"write-error", "=0.02", false}, Variant{"write-error", "#20", false},
                                           Variant{"flush-error", "#2", false}, Variant{"decay", "=0.05", true},
                                           Variant{"flip", "=0.02", true}, Variant{"lost", "#25", true},
                                           Variant{"torn", "=0.04", true}, Variant{"misdirect", "=0.04", true},
                                           Variant{"delay", "=0.1", true}, Variant{"gone", "#60", false}));

// mkfs, mount and fsck accept devices with layers in place of paths.
TEST(StackedPaths, MakeAndCheckThroughLayers) {
  DeviceFolder folder;
  const std::string log = folder.device(7);
  pool::MakePoolOptions make;
  make.device_paths = {"record=" + log + ":" + folder.device(0), "record=" + log + ":" + folder.device(1)};
  make.size_bytes = u64{24} << 20;
  make.chunk_size_bytes = u64{8} << 20;
  pool::make_pool(make);
  // A replay of the log's writes gives the pool.
  std::vector<std::vector<u8>> images(2, std::vector<u8>(make.size_bytes));
  u64 flush_count = 0;
  for (const device::WriteLogEntry& entry : device::read_write_log(log)) {
    if (entry.kind == device::WriteLogKind::flush_end) ++flush_count;
    if (entry.kind != device::WriteLogKind::write) continue;
    ASSERT_LT(entry.device, 2u);
    std::memcpy(images[entry.device].data() + entry.offset, entry.bytes.data(), entry.bytes.size());
  }
  EXPECT_GE(flush_count, 4u);
  for (u32 i = 0; i < 2; ++i) {
    std::vector<u8> bytes(make.size_bytes);
    pool::DeviceFile::open(folder.device(i), pool::DeviceFile::Access::read_only, pool::DeviceFile::Locking::lock)
        .read_at(0, bytes.data(), bytes.size());
    EXPECT_EQ(bytes, images[i]) << "device " << i;
  }
  fsck::CheckOptions check;
  check.device_paths = {"fault=delay=0.01,delay-us=1:" + folder.device(0) + ":" + folder.device(1)};
  EXPECT_EQ(fsck::check_pool(check).findings.error_count(), 0u);
  check.device_paths = {"fault=read-error=1:" + folder.device(0), folder.device(1)};
  EXPECT_THROW(fsck::check_pool(check), pool::PoolError);
  check.device_paths = {"fault=nonsense:" + folder.device(0), folder.device(1)};
  EXPECT_THROW(fsck::check_pool(check), pool::PoolError);
}

TEST(StackedPaths, NullForgetsAPool) {
  pool::MakePoolOptions make;
  make.device_paths = {"null=64M:"};
  EXPECT_NO_THROW(pool::make_pool(make));
  pool::OpenPoolOptions open;
  open.device_paths = {"null=64M:"};
  EXPECT_THROW(pool::open_pool(open), pool::PoolError);
}

}  // namespace
}  // namespace gpu4fs::test::mounted_test
