// A full pool can be emptied, whatever filled it: ten mixes of files on several kinds of pools, filled until there is
// no space; then everything is removed in one pass in which no command may be refused. Then the pool is as empty as a
// new one, and has room for as many files again.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "fmt/format.h"
#include "support/file_client.hpp"
#include "support/group_runner.hpp"
#include "support/test_pool.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::full_pool_test {
namespace {

using wire::Opcode;

enum class Mix : u32 {
  empty_files,
  inline_files,
  small_files,  // one page
  medium_files,
  large_files,
  directories,
  symbolic_links,
  attributes,
  long_names,
  everything,
  count,
};

enum class Order : u32 { as_made, backwards, any };

struct Case {
  const char* profile;
  Mix mix;
  Order order;
  bool with_checkpoint;  // between filling and emptying
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.profile << ", mix " << static_cast<u32>(c.mix) << ", order " << static_cast<u32>(c.order)
             << (c.with_checkpoint ? ", with a checkpoint" : "");
}

struct Name {
  std::string name;
  bool is_directory;
};

class FullPool : public ::testing::TestWithParam<Case> {
 protected:
  FullPool() : pool_(options()), session_(pool_.open_session()), client_(*session_) {}

  static TestPoolOptions options() {
    TestPoolOptions options;
    options.profile = GetParam().profile;
    options.device_count = options.profile == "single" ? 1 : 4;
    // Metadata has one chunk in a pool of two kinds of chunks. The first refused command may have needed room for a
    // split of a directory, 16 pages, which must be well below 1 % of that chunk.
    const bool has_two_kinds = options.profile == "raid0+raid1";
    options.device_bytes = (has_two_kinds ? u64{44} : u64{22}) << 20;
    return options;
  }

  client::Reply call(const FileOperation& op) {
    return client_.call(
        op, op.opcode == Opcode::write ? std::vector<u8>(op.length, static_cast<u8>(op.data_seed)) : std::vector<u8>{});
  }
  // False: no space left.
  bool tries(const FileOperation& op, u64* result = nullptr) {
    const client::Reply reply = call(op);
    EXPECT_TRUE(reply.status == Status::ok || reply.status == Status::no_space)
        << static_cast<u32>(op.opcode) << " answers " << status_name(reply.status);
    if (result != nullptr) *result = reply.result;
    return reply.status == Status::ok && (op.opcode != Opcode::write || reply.result == op.length);
  }
  bool write(u64 file, u64 length) {
    FileOperation op;
    op.opcode = Opcode::write;
    op.inode = file;
    op.length = length;
    op.data_seed = 1;
    return tries(op);
  }
  bool set_attribute(u64 file) {
    FileOperation op;
    op.opcode = Opcode::set_attribute;
    op.inode = file;
    op.name = "user.full";
    op.text = std::string(100, 'a');
    return tries(op);
  }

  // The i-th one.
  bool make(Mix mix, u32 i) {
    if (mix == Mix::everything) mix = static_cast<Mix>(i % static_cast<u32>(Mix::everything));
    FileOperation op;
    op.opcode = mix == Mix::directories ? Opcode::mkdir : mix == Mix::symbolic_links ? Opcode::symlink : Opcode::create;
    op.inode = PosixModel::root;
    op.name = fmt::format("{}{}", i, mix == Mix::long_names ? std::string(200, 'n') : std::string());
    op.mode = 0755;
    if (op.opcode == Opcode::symlink) op.text = std::string(1000, 's');
    u64 made = 0;
    if (!tries(op, &made)) return false;
    names_.push_back({op.name, mix == Mix::directories});
    switch (mix) {
      case Mix::inline_files:
        return write(made, 100);
      case Mix::small_files:
        return write(made, 4096);
      case Mix::medium_files:
        return write(made, 30'000);
      case Mix::large_files:
        return write(made, 3'000'000);
      case Mix::attributes:
        return set_attribute(made);
      default:
        return true;
    }
  }

  // For data and for metadata, which may have chunks of their own.
  wire::StatfsRecord statistics() {
    EXPECT_EQ(client_.simple(Opcode::statfs).status, Status::ok);
    return client_.statistics();
  }

  // Until there is no space.
  void fill() {
    names_.clear();
    for (u32 i = 0; i < 4'000'000 && !HasFailure(); ++i) {
      if (!make(GetParam().mix, i)) return;
    }
    ADD_FAILURE() << "the pool never ran full";
  }

  void remove(const Name& name) {
    FileOperation op;
    op.opcode = name.is_directory ? Opcode::rmdir : Opcode::unlink;
    op.inode = PosixModel::root;
    op.name = name.name;
    const client::Reply reply = call(op);
    ASSERT_EQ(reply.status, Status::ok) << name.name << ": " << status_name(reply.status);
    if (reply.result == 0) return;
    FileOperation reclaim;
    reclaim.opcode = Opcode::reclaim;
    reclaim.inode = reply.result;
    ASSERT_EQ(call(reclaim).status, Status::ok) << name.name;
  }

  void empty() {
    Sequence order(5);
    if (GetParam().order == Order::backwards) std::reverse(names_.begin(), names_.end());
    for (std::size_t i = names_.size(); GetParam().order == Order::any && i > 1; --i) {
      std::swap(names_[i - 1], names_[order.next() % i]);
    }
    u32 removed = 0;
    for (const Name& name : names_) {
      SCOPED_TRACE(fmt::format("{} of {} removed", removed, names_.size()));
      remove(name);
      if (HasFatalFailure()) return;
      ++removed;
    }
  }

  TestPool pool_;
  std::unique_ptr<client::Session> session_;
  FileClient client_;
  std::vector<Name> names_;
};

TEST_P(FullPool, IsEmptiedInOnePass) {
  const wire::StatfsRecord when_new = statistics();
  const u64 one_percent = when_new.page_total / 100;
  fill();
  const std::size_t first_count = names_.size();
  if (GetParam().with_checkpoint) {
    EXPECT_EQ(pool_.checkpoint(), Status::ok);
  }
  empty();
  if (HasFatalFailure()) return;
  ASSERT_EQ(pool_.checkpoint(), Status::ok);
  const wire::StatfsRecord when_empty = statistics();
  EXPECT_GE(when_empty.page_free + one_percent, when_new.page_free) << first_count << " files were there";
  EXPECT_GE(when_empty.inode_free + when_new.inode_free / 100, when_new.inode_free);
  fill();
  if (HasFatalFailure()) return;
  EXPECT_GE(names_.size() + names_.size() / 100 + 1, first_count);
  EXPECT_LE(names_.size(), first_count + first_count / 100 + 1);
  empty();
  if (HasFatalFailure()) return;
  session_.reset();
  pool_.unmount();
  const fsck::CheckResult result = pool_.check();
  EXPECT_EQ(result.findings.error_count(), 0u) << findings_text(result);
}

// Sanitizers run each mix once, on a different kind of pool each time. The smallest pools come first, because the first
// mixes have the smallest files. With ThreadSanitizer, full pools of files without pages take half a minute each and
// are left out; the last mix has such files too.
std::vector<Case> cases() {
  std::vector<Case> all;
  u32 n = 0;
  u32 profile_index = 0;
  for (const char* profile : {"single", "raid0+raid1", "raid0", "raid1"}) {
    for (u32 mix = 0; mix < static_cast<u32>(Mix::count); ++mix, ++n) {
      if (is_short() && mix % 4 != profile_index) continue;
      const Mix kind = static_cast<Mix>(mix);
      const bool has_no_pages = kind == Mix::empty_files || kind == Mix::inline_files || kind == Mix::long_names;
      if (GPU4FS_TSAN && has_no_pages) continue;
      all.push_back({profile, static_cast<Mix>(mix), static_cast<Order>(n % 3), n % 2 == 0});
    }
    ++profile_index;
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Pools, FullPool, ::testing::ValuesIn(cases()));

}  // namespace
}  // namespace gpu4fs::test::full_pool_test
