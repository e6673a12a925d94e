// A pool whose devices can be lost while it is mounted, with files whose contents are known.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "base/bits.hpp"
#include "device/stack/device_stack.hpp"
#include "support/file_client.hpp"
#include "support/group_runner.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test {

inline constexpr u32 losing_file_count = 16;

// A device that is gone after a number of accesses.
struct Switch {
  std::atomic<std::int64_t> accesses_left{std::int64_t{1} << 60};
  std::atomic<bool> fails_flushes_only{false};
  std::atomic<std::int64_t>* common_left = nullptr;  // of all devices together: power failure
};

class SwitchLayer : public device::StackLayer {
 public:
  explicit SwitchLayer(Switch& gone) : gone_(gone) {}
  Status may_read(u64, u64) override { return access(false); }
  Status may_write(u64, u64) override { return access(false); }
  Status may_flush() override { return access(true); }

 private:
  Status access(bool flushes) {
    if (gone_.fails_flushes_only && !flushes) return Status::ok;
    if (gone_.common_left != nullptr && --*gone_.common_left < 0) return Status::device_failed;
    return --gone_.accesses_left < 0 ? Status::device_failed : Status::ok;
  }
  Switch& gone_;
};

struct LosingLevel {
  const char* profile;
  u32 device_count;
  u32 redundancy;
};

inline std::vector<u8> content(u32 file, u32 version) {
  const u64 sizes[] = {300, page_size, 5 * page_size + 11, 70 * page_size, 33 * page_size + 1};
  std::vector<u8> bytes(sizes[file % 5]);
  Sequence sequence(7000 * file + version);
  for (u64 i = 0; i < bytes.size(); i += 8) {
    const u64 word = sequence.next();
    std::memcpy(&bytes[i], &word, std::min<u64>(8, bytes.size() - i));
  }
  return bytes;
}

class LosingPool {
 public:
  explicit LosingPool(const LosingLevel& level) : switches_(level.device_count), pool_(options(level)) {
    pool_.options().stack = [this](u32 d) {
      std::vector<std::unique_ptr<device::StackLayer>> layers;
      layers.push_back(std::make_unique<SwitchLayer>(switches_[d]));
      return std::make_shared<device::DeviceStack>(std::move(layers));
    };
    open();
    for (u32 file = 0; file < losing_file_count; ++file) {
      FileOperation op;
      op.opcode = wire::Opcode::create;
      op.inode = PosixModel::root;
      op.name = fmt::format("file {}", file);
      op.mode = 0644;
      const client::Reply made = client_->call(op);
      EXPECT_EQ(made.status, Status::ok);
      inodes_.push_back(made.result);
      EXPECT_EQ(write(file, 0), Status::ok);
    }
    close();
    pool_.unmount();
    pool_.mount();
    open();
  }
  ~LosingPool() { close(); }

  static TestPoolOptions options(const LosingLevel& level) {
    TestPoolOptions options;
    options.device_count = level.device_count;
    options.device_bytes = u64{24} << 20;
    options.profile = level.profile;
    options.memory = {.frame_count = 320, .staging_count = 256, .shard_count = 2};
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
  TestPool& pool() { return pool_; }
  Switch& device(u32 d) { return switches_[d]; }

  void lose(u32 devices, std::int64_t after_accesses) {
    for (u32 d = 0; d < switches_.size(); ++d) {
      if ((devices >> d & 1) != 0) switches_[d].accesses_left = after_accesses;
    }
  }

  // All reads and writes fail after this number of accesses of all devices together.
  void cut_power(std::int64_t after_accesses) {
    common_left_ = after_accesses;
    for (Switch& device : switches_) device.common_left = &common_left_;
  }
  bool has_power() const { return common_left_ >= 0; }

  // Creates the file anew, with its blocks allocated before anything is written.
  Status recreate(u32 file) {
    FileOperation op;
    op.opcode = wire::Opcode::unlink;
    op.inode = PosixModel::root;
    op.name = fmt::format("file {}", file);
    const client::Reply gone = client_->call(op);
    if (gone.status != Status::ok) return gone.status;
    (void)client_->simple(wire::Opcode::reclaim, gone.result);
    op.opcode = wire::Opcode::create;
    op.mode = 0644;
    const client::Reply made = client_->call(op);
    if (made.status != Status::ok) return made.status;
    inodes_[file] = made.result;
    return client_->simple(wire::Opcode::fallocate, made.result, 0, content(file, 0).size()).status;
  }

  Status write(u32 file, u32 version) {
    FileOperation op;
    op.opcode = wire::Opcode::write;
    op.inode = inodes_[file];
    const std::vector<u8> bytes = content(file, version);
    op.length = bytes.size();
    const Status status = client_->call(op, bytes).status;
    if (status == Status::ok) versions_[file] = version;
    return status;
  }
  void write_all(u32 version) {
    for (u32 file = 0; file < losing_file_count; ++file) ASSERT_EQ(write(file, version), Status::ok) << file;
  }
  Status sync() { return client_->simple(wire::Opcode::sync).status; }

  // ok and right, or the status of the failed read.
  Status read(u32 file) {
    const std::vector<u8> expected = content(file, versions_[file]);
    const client::Reply reply = client_->simple(wire::Opcode::read, inodes_[file], 0, expected.size() + 10);
    if (reply.status != Status::ok) return reply.status;
    EXPECT_EQ(reply.result, expected.size()) << file;
    EXPECT_EQ(std::memcmp(client_->data(), expected.data(), expected.size()), 0) << file;
    return Status::ok;
  }
  void read_all() {
    for (u32 file = 0; file < losing_file_count; ++file) ASSERT_EQ(read(file), Status::ok) << file;
  }

  void power_loss() {
    close();
    pool_.crash();
    for (Switch& device : switches_) {
      device.accesses_left = std::int64_t{1} << 60;
      device.common_left = nullptr;
    }
    common_left_ = std::int64_t{1} << 60;
  }
  void mount(bool degraded) {
    pool_.options().degraded = degraded;
    pool_.mount();
    open();
  }
  std::string mount_problem() {
    pool_.options().degraded = false;
    try {
      pool_.mount();
      return "";
    } catch (const std::runtime_error& error) {
      pool_.crash();
      return error.what();
    }
  }

 private:
  std::vector<Switch> switches_;
  std::atomic<std::int64_t> common_left_{std::int64_t{1} << 60};
  TestPool pool_;
  std::unique_ptr<client::Session> session_;
  std::optional<FileClient> client_;
  std::vector<u64> inodes_;
  std::map<u32, u32> versions_;
};

inline u32 failed_mask(LosingPool& losing) {
  return static_cast<u32>(raid::failed_devices(losing.pool().engine()->fs.space));
}

}  // namespace gpu4fs::test
