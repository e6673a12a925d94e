// A pool that is filled, emptied and filled again a hundred times loses no page and no inode.
//
// It is filled with inline files, files of one page and of many, with holes and unwritten blocks, directories, symbolic
// links, hard links, attributes. With the log on, some of it is synced and some overwritten, with checkpoints in
// between. Everything is removed again, each time in another order, beginning while the pool is full.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "fmt/format.h"
#include "support/file_client.hpp"
#include "support/group_runner.hpp"
#include "support/test_pool.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::refill_test {
namespace {

using wire::Opcode;

struct Name {
  u64 directory;
  std::string name;
  bool is_directory;
};

// A page of the inode file stays until a later checkpoint if the command that freed its last inode still holds the
// lock. Its pages count as free here, and have a limit of their own.
struct Space {
  u64 page_free;
  u64 page_available;
  u64 inode_used;
  bool operator==(const Space&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Space& space) {
  return out << space.page_free << " pages free or of the inode file, " << space.page_available << " available, "
             << space.inode_used << " inodes";
}

class Refill : public ::testing::TestWithParam<u32> {
 protected:
  Refill() : pool_(options()) { open(); }
  ~Refill() override { close(); }

  static TestPoolOptions options() {
    TestPoolOptions options;
    options.device_count = 1;
    options.device_bytes = u64{22} << 20;
    options.worker_count = GetParam();
    options.config.inline_transfer_pages = 8;
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

  client::Reply call(const FileOperation& op) {
    return client_->call(
        op, op.opcode == Opcode::write ? std::vector<u8>(op.length, static_cast<u8>(op.data_seed)) : std::vector<u8>{});
  }
  FileOperation on(Opcode opcode, u64 inode, u64 offset = 0, u64 length = 0) {
    FileOperation op;
    op.opcode = opcode;
    op.inode = inode;
    op.offset = offset;
    op.length = length;
    op.data_seed = random_.next();
    return op;
  }
  // False: no space left.
  bool tries(const FileOperation& op, u64* result = nullptr) {
    const client::Reply reply = call(op);
    EXPECT_TRUE(reply.status == Status::ok || reply.status == Status::no_space)
        << static_cast<u32>(op.opcode) << " answers " << status_name(reply.status);
    if (result != nullptr) *result = reply.result;
    return reply.status == Status::ok && (op.opcode != Opcode::write || reply.result == op.length);
  }
  bool make(Opcode opcode, u64 directory, const std::string& name, u64* result) {
    FileOperation op = on(opcode, directory);
    op.name = name;
    op.mode = opcode == Opcode::mknod ? S_IFIFO | 0600 : 0755;
    if (opcode == Opcode::symlink) op.text = std::string(1 + random_.next() % 1000, 's');
    if (!tries(op, result)) return false;
    names_.push_back({directory, name, opcode == Opcode::mkdir});
    return true;
  }
  bool set_attribute(u64 inode) {
    FileOperation op = on(Opcode::set_attribute, inode);
    op.name = "user.refill";
    op.text = std::string(1 + random_.next() % 3000, 'a');
    return tries(op);
  }
  bool link(u64 directory, u64 inode, const std::string& name) {
    FileOperation op = on(Opcode::link, directory);
    op.second_inode = inode;
    op.name = name;
    if (!tries(op)) return false;
    names_.push_back({directory, name, false});
    return true;
  }

  bool fill_file(u64 file) {
    switch (random_.next() % 7) {
      case 0:
        return tries(on(Opcode::write, file, 0, 100));
      case 1:
        return tries(on(Opcode::write, file, 0, 4096)) && tries(on(Opcode::write, file, 300, 2000));
      case 2:
        return tries(on(Opcode::write, file, 0, 1 + random_.next() % (u64{1} << 20)));
      case 3:
        return tries(on(Opcode::write, file, u64{1} << (13 + random_.next() % 22), 5000));
      case 4:
        return tries(on(Opcode::fallocate, file, 0, 1 + random_.next() % (u64{1} << 19)));
      case 5: {
        FileOperation punch = on(Opcode::fallocate, file, 5000, 100'000);
        punch.mode = 3;
        return tries(on(Opcode::write, file, 0, 300'000)) && tries(punch) && set_attribute(file);
      }
      default: {
        const u64 length = 1 + random_.next() % 200'000;
        return tries(on(Opcode::write, file, 0, length)) && tries(on(Opcode::truncate, file, length / 2)) &&
               tries(on(Opcode::write, file, length / 4, length));
      }
    }
  }

  // The same each time, until the pool is full.
  void fill() {
    random_ = Sequence(7);
    std::vector<u64> directories = {PosixModel::root};
    for (u32 i = 0; i < 10'000 && !HasFailure(); ++i) {
      const u64 directory = directories[random_.next() % directories.size()];
      const std::string name = fmt::format("{}{}", i, std::string(random_.next() % 2 * 200, 'n'));
      u64 made = 0;
      const u64 choice = random_.next() % 12;
      const Opcode opcode = choice == 0   ? Opcode::mkdir
                            : choice == 1 ? Opcode::symlink
                            : choice == 2 ? Opcode::mknod
                                          : Opcode::create;
      if (!make(opcode, directory, name, &made)) return;
      if (choice == 0) directories.push_back(made);
      if (choice == 0 && !set_attribute(made)) return;
      if (choice > 2 && !fill_file(made)) return;
      if (choice == 3 && !link(directory, made, name.substr(0, 200) + "+")) return;
      if (random_.next() % 16 == 0 && !tries(on(Opcode::sync, 0))) return;
    }
    ADD_FAILURE() << "the pool never ran full";
  }

  void remove(const Name& name) {
    FileOperation op = on(name.is_directory ? Opcode::rmdir : Opcode::unlink, name.directory);
    op.name = name.name;
    const client::Reply reply = call(op);
    ASSERT_EQ(reply.status, Status::ok) << name.name << ": " << status_name(reply.status);
    if (reply.result == 0) return;
    ASSERT_EQ(call(on(Opcode::reclaim, reply.result)).status, Status::ok);
  }
  // Files in any order, then directories, the last one first.
  void empty(u64 seed) {
    Sequence order(seed);
    std::stable_partition(names_.begin(), names_.end(), [](const Name& name) { return name.is_directory; });
    const std::size_t directories = static_cast<std::size_t>(
        std::count_if(names_.begin(), names_.end(), [](const Name& n) { return n.is_directory; }));
    for (std::size_t i = names_.size(); i > directories + 1; --i) {
      std::swap(names_[i - 1], names_[directories + order.next() % (i - directories)]);
    }
    for (; !names_.empty() && !HasFatalFailure(); names_.pop_back()) remove(names_.back());
  }

  // After a checkpoint that has released pages that the previous one still needed.
  Space space() {
    EXPECT_EQ(client_->simple(Opcode::sync).status, Status::ok);
    for (u32 i = 0; i < 2; ++i) EXPECT_EQ(pool_.checkpoint(), Status::ok);
    EXPECT_EQ(client_->simple(Opcode::statfs).status, Status::ok);
    const wire::StatfsRecord& s = client_->statistics();
    const u64 inode_pages = inode_file_pages();
    return {s.page_free + inode_pages, s.page_available + inode_pages, s.inode_used};
  }

  u64 inode_file_pages() { return pool_.engine()->fs.inode_file.page_count; }

  TestPool pool_;
  std::unique_ptr<client::Session> session_;
  std::optional<FileClient> client_;
  Sequence random_{1};
  std::vector<Name> names_;
};

TEST_P(Refill, ATiredPoolLosesNothing) {
  const Space fresh = space();
  const u64 fresh_inode_pages = inode_file_pages();
  std::optional<Space> first;
  u64 name_count = 0;
  const u32 round_count = scaled(100);
  for (u32 round = 0; round < round_count; ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    fill();
    name_count += names_.size();
    if (round % 10 == 3) {
      // Full, and then a crash: a recovery on a full pool, which must leave enough room for itself.
      EXPECT_EQ(client_->simple(Opcode::sync).status, Status::ok);
      close();
      pool_.crash();
      pool_.mount();
      open();
    }
    empty(round);
    const Space now = space();
    if (!first) first = now;
    ASSERT_EQ(now, *first);
    if (HasFailure()) return;
  }
  // Pages of the bitmap files stay.
  EXPECT_EQ(first->inode_used, fresh.inode_used);
  EXPECT_LE(fresh.page_free - first->page_free, 4u);
  EXPECT_LE(inode_file_pages(), fresh_inode_pages + GetParam());
  close();
  pool_.unmount();
  const fsck::CheckResult result = pool_.check();
  EXPECT_EQ(result.findings.error_count(), 0u) << findings_text(result);
  pool_.mount();
  open();
  EXPECT_EQ(space(), *first) << "after a mount";
  std::printf("%u rounds, %llu names made and removed\n", round_count, static_cast<unsigned long long>(name_count));
}

INSTANTIATE_TEST_SUITE_P(Workers, Refill, ::testing::Values(1u, 2u));

}  // namespace
}  // namespace gpu4fs::test::refill_test
