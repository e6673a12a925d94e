// An error of the target of a moved page does not affect the existing page: a relocation ends with the error, and
// everything is unchanged and in its old place. A page that cannot be read stays, and the others move.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fault/nth_fault.hpp"
#include "support/file_client.hpp"
#include "support/group_runner.hpp"
#include "support/relocation_driver.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test::target_error_test {
namespace {

constexpr u64 file_pages = 60;

struct TargetVariant {
  const char* name;
  const char* profile;
  u32 device_count;
  u32 inline_pages;  // fewer than the file has: tasks copy it
};

class TargetError : public ::testing::TestWithParam<TargetVariant> {
 protected:
  TargetError() : pool_(options()) {
    pool_.options().stack = [this](u32) {
      std::vector<std::unique_ptr<device::StackLayer>> layers;
      layers.push_back(std::make_unique<NthLayer>(plan_));
      return std::make_shared<device::DeviceStack>(std::move(layers));
    };
    pool_.unmount();
    pool_.mount();
    session_ = pool_.open_session();
    client_.emplace(*session_);
    bytes_.resize(file_pages * page_size);
    fill_random(bytes_.data(), bytes_.size(), 17);
    FileOperation op;
    op.opcode = wire::Opcode::create;
    op.inode = PosixModel::root;
    op.name = "file";
    op.mode = 0600;
    inode_ = client_->call(op).result;
    op = {};
    op.opcode = wire::Opcode::write;
    op.inode = inode_;
    op.length = bytes_.size();
    EXPECT_EQ(client_->call(op, bytes_).status, Status::ok);
    EXPECT_EQ(pool_.checkpoint(), Status::ok);
  }
  ~TargetError() override {
    client_.reset();
    session_.reset();
  }

  static TestPoolOptions options() {
    TestPoolOptions options;
    options.profile = GetParam().profile;
    options.device_count = GetParam().device_count;
    options.config.inline_transfer_pages = GetParam().inline_pages;
    options.config.task_pages = 8;
    return options;
  }
  RelocationDriver driver() { return relocation_of(pool_); }
  // The chunks with content.
  std::vector<u32> freeze_used() {
    std::vector<u32> frozen;
    RelocationDriver mover = driver();
    for (u32 chunk = 0; chunk < pool_.engine()->fs.space.chunk_count; ++chunk) {
      if (mover.usage(chunk).occupied == 0) continue;
      EXPECT_EQ(mover.step(wire::RelocateStep::freeze, chunk).status, Status::ok) << chunk;
      frozen.push_back(chunk);
    }
    return frozen;
  }
  void expect_content(const std::string& when) {
    const client::Reply reply = client_->simple(wire::Opcode::read, inode_, 0, bytes_.size() + 1);
    ASSERT_EQ(reply.status, Status::ok) << when;
    ASSERT_EQ(reply.result, bytes_.size()) << when;
    EXPECT_EQ(std::memcmp(client_->data(), bytes_.data(), bytes_.size()), 0) << when;
  }
  u32 damage_count() { return pool_.engine()->fs.space.damage->entry_count; }
  void expect_clean_end() {
    client_.reset();
    session_.reset();
    pool_.unmount();
    const fsck::CheckResult check = pool_.check();
    EXPECT_EQ(check.findings.error_count(), 0u) << findings_text(check);
    pool_.mount();
    session_ = pool_.open_session();
    client_.emplace(*session_);
    expect_content("after another mount");
  }

  NthPlan plan_;
  TestPool pool_;
  std::unique_ptr<client::Session> session_;
  std::optional<FileClient> client_;
  std::vector<u8> bytes_;
  u64 inode_ = 0;
};

TEST_P(TargetError, IsTheRelocationsAndLosesNothing) {
  ASSERT_FALSE(freeze_used().empty());
  u32 errors = 0;
  for (u64 nth = 1; nth < 4 * file_pages; nth += 7) {
    RelocationDriver mover = driver();
    plan_.arm(NthKind::write, nth, true);
    const Status status = mover.move(wire::RelocateStep::data, inode_, wire::relocate_frozen);
    const bool has_struck = plan_.has_struck;
    plan_.disarm();
    EXPECT_EQ(mover.stayed_count(), 0u) << "all pages can be read";
    if (!has_struck) break;
    EXPECT_EQ(status, Status::device_failed) << nth;
    EXPECT_EQ(damage_count(), 0u) << nth;
    ++errors;
    expect_content(fmt::format("write {} failed", nth));
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(errors, 0u);
  RelocationDriver mover = driver();
  EXPECT_EQ(mover.move(wire::RelocateStep::data, inode_, wire::relocate_frozen), Status::ok);
  EXPECT_EQ(mover.stayed_count(), 0u);
  expect_content("everything moved");
  expect_clean_end();
}

TEST_P(TargetError, APageThatCannotBeReadStays) {
  ASSERT_FALSE(freeze_used().empty());
  // Metadata is in memory, so the first page is read first.
  RelocationDriver mover = driver();
  plan_.arm(NthKind::read, 1);
  EXPECT_EQ(mover.move(wire::RelocateStep::data, inode_, wire::relocate_frozen), Status::ok);
  EXPECT_TRUE(plan_.has_struck);
  plan_.disarm();
  EXPECT_EQ(mover.stayed_count(), 1u);
  EXPECT_EQ(mover.moved_count(), file_pages - 1);
  expect_content("all but one moved");
  expect_clean_end();
}

INSTANTIATE_TEST_SUITE_P(Pools, TargetError,
                         ::testing::Values(TargetVariant{"in_the_step", "single", 1, 64},
                                           TargetVariant{"in_tasks", "single", 2, 4}),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace gpu4fs::test::target_error_test
