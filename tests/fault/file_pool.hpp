// A pool with one large file, for fixtures of tests that read and write it. `Base` is the fixture of gtest:
// ::testing::Test, or ::testing::TestWithParam. At the end the pool is unmounted and checked.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "support/file_client.hpp"
#include "support/group_runner.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test {

template <class Base>
class FilePool : public Base {
 protected:
  // make_file() follows; what the test changes of the media comes before.
  void make_pool(const TestPoolOptions& options) { pool_ = std::make_unique<TestPool>(options); }
  // A session, and an empty file, whose inode is inode_.
  void make_file() {
    connect();
    inode_ = create("file");
  }
  // A session with the pool as it is mounted now.
  void connect() {
    session_ = pool_->open_session();
    client_ = std::make_unique<FileClient>(*session_);
  }
  void disconnect() {
    client_.reset();
    session_.reset();
  }
  void TearDown() override {
    disconnect();
    if (pool_ == nullptr) return;
    pool_->unmount();
    EXPECT_EQ(pool_->check().findings.error_count(), 0u) << findings_text(pool_->check());
  }

  // Gives bytes [begin, end) of content_ random values; it is as long as that at least.
  void fill_content(u64 seed, u64 begin, u64 end) {
    if (content_.size() < end) content_.resize(end);
    Sequence sequence(seed);
    for (u64 i = begin; i < end; i += 8) {
      const u64 word = sequence.next();
      std::memcpy(&content_[i], &word, 8);
    }
  }
  // The inode of a new file.
  u64 create(const char* name) {
    FileOperation op;
    op.opcode = wire::Opcode::create;
    op.inode = PosixModel::root;
    op.name = name;
    op.mode = 0644;
    return client_->call(op).result;
  }
  // Writes bytes of content_ to a file, at the same offset.
  void write_content(u64 inode, u64 begin, u64 length) {
    const auto from = content_.begin() + static_cast<std::ptrdiff_t>(begin);
    const FileOperation op = on_inode(wire::Opcode::write, inode, begin, length);
    ASSERT_EQ(client_->call(op, {from, from + static_cast<std::ptrdiff_t>(length)}).result, length) << begin;
  }

  std::unique_ptr<TestPool> pool_;
  std::unique_ptr<client::Session> session_;
  std::unique_ptr<FileClient> client_;
  u64 inode_ = 0;
  std::vector<u8> content_;
};

}  // namespace gpu4fs::test
