// Every device access and every allocation of every operation fails once: the answer is an error or success, nothing
// acknowledged is lost, nothing leaks, and without the fault the same operation succeeds.
//
// For each operation of a table the first, the second ... read, write or flush fails until the operation completes
// without reaching the fault. Then pages: with 0, 1, 2 ... pages left, the operation succeeds, or fails with ENOSPC and
// changes nothing. Then frames: with 0, 1, 2 ... free ones, the operation waits for a checkpoint and succeeds.
#include <gtest/gtest.h>

#include <cstdio>

#include "fault/nth_fault.hpp"

namespace gpu4fs::test::nth_error_test {
namespace {

std::string check(const CrashImage& image) {
  fsck::CheckOptions options;
  options.device_paths = image.paths();
  const fsck::CheckResult result = fsck::check_pool(options);
  return result.findings.error_count() == 0 ? "" : "fsck:" + findings_text(result);
}

class NthError : public ::testing::TestWithParam<CrashPlace> {
 protected:
  NthError() : base_(base_of(GetParam())), image_(base_.devices) {}

  void mount() {
    client_.reset();
    pool_.reset();
    CrashPoolSetup setup;
    setup.where = where_.c_str();
    setup.add_layers = [this](u32, DeviceLayers& layers) { layers.push_back(std::make_unique<NthLayer>(plan_)); };
    pool_ = std::make_unique<CrashPool>(image_, std::move(setup));
    client_.emplace(pool_->session());
  }
  void unmount() {
    client_.reset();
    pool_.reset();
  }
  void begin() {
    unmount();
    image_.reset();
    plan_ = {};
    mount();
    actor_.emplace(base_.model);
  }
  std::string text() { return PoolText(pool_->session()).text(); }

  client::Reply call(const FileOperation& op) { return client_->call(op, Actor::content(op)); }

  // An operation that must succeed.
  void run(const FileOperation& op) {
    actor_->begin({}, op);
    ASSERT_EQ(actor_->end(call(op), &*client_), "");
  }
  // Data that is acknowledged and durable, but not in a checkpoint.
  void make_kept() {
    FileOperation op = on_inode(wire::Opcode::create, PosixModel::root);
    op.name = "kept";
    op.mode = 0600;
    actor_->begin({}, op);
    const client::Reply made = call(op);
    ASSERT_EQ(actor_->end(made, &*client_), "");
    FileOperation write = on_inode(wire::Opcode::write, made.result, 0, 6000);
    write.data_seed = 5;
    run(write);
    run(on_inode(wire::Opcode::sync, 0));
    actor_->promise(actor_->ended_count());
  }

  // As if the server had been killed: mounts the devices as they are, and compares with the actor's model.
  void kill_and_compare() {
    unmount();
    ASSERT_EQ(check(image_), "");
    ASSERT_NO_THROW(mount());
    actor_->consider_mixtures(*client_);
    const std::string found = text();
    const std::vector<StepMatch> matches = actor_->matches(found);
    ASSERT_FALSE(matches.empty()) << actor_->mismatch_text(found);
    ASSERT_EQ(actor_->survive(matches.back().count, found, *client_), "");
  }
  void end_clean() {
    ASSERT_EQ(pool_->checkpoint(true), Status::ok);
    unmount();
    ASSERT_EQ(check(image_), "");
  }

  // Runs the operation with the fault, if there is an n-th access: false if not.
  bool try_access(const TriedOperation& tried, NthKind kind, u64 nth) {
    begin();
    make_kept();
    for (const FileOperation& op : tried.before) run(op);
    if (HasFatalFailure()) return false;
    plan_.arm(kind, nth);
    const FileOperation op = tried.operation;
    actor_->begin({}, op);
    const client::Reply reply = call(op);
    plan_.disarm();
    const bool met = plan_.has_struck;
    const std::set<int> doubtful = met ? std::set<int>{EIO} : std::set<int>{};
    EXPECT_EQ(actor_->end(reply, &*client_, doubtful), "");
    if (met && reply.status == Status::ok) ++ignored_;
    if (!met) return false;
    EXPECT_EQ(actor_->settle(text(), *client_), "");
    kill_and_compare();
    if (HasFatalFailure()) return false;
    repeat(op);
    end_clean();
    return true;
  }
  // Without the fault, if that still makes sense (it may have succeeded, or an orphan is gone).
  void repeat(const FileOperation& op) {
    const std::set<int> expected = actor_->model().expect(op);
    const int error = to_errno(call(op).status);
    EXPECT_TRUE(expected.count(error) != 0 || op.opcode == wire::Opcode::reclaim) << "again: errno " << error;
  }

  // The answer of a scrub whose n-th read fails, and all later ones if `lasts`; not 0 in `suspects`: it found
  // something.
  Status scrub_meeting(u64 nth, bool lasts, u64* suspects) {
    u8* found = pool_->management().data();
    std::memset(found, 0, page_size);
    wire::Command command{};
    command.opcode = wire::Opcode::scrub;
    command.length = 2048;
    command.data = wire::ring_address(0, 0);
    plan_.arm(NthKind::read, nth, lasts);
    const ring::Completion completion = pool_->management().call(command);
    plan_.disarm();
    for (u64 i = 0; i < page_size && suspects != nullptr; ++i) *suspects += found[i];
    return completion.status;
  }

  std::string where_ = "NthError";
  const CrashBase& base_;
  CrashImage image_;
  NthPlan plan_;
  std::unique_ptr<CrashPool> pool_;
  std::optional<FileClient> client_;
  std::optional<Actor> actor_;
  u64 ignored_ = 0;
};

using NthAccess = NthError;

TEST_P(NthAccess, OfEveryOperationFails) {
  begin();
  const std::vector<TriedOperation> table = tried_operations(*pool_, base_.model);
  u64 faults[3] = {};
  for (const TriedOperation& tried : table) {
    for (const NthKind kind : {NthKind::read, NthKind::write, NthKind::flush}) {
      for (u64 nth = 1; !HasFailure(); ++nth) {
        where_ = fmt::format("{}, {} {}", tried.name, nth_name(kind), nth);
        SCOPED_TRACE(where_);
        if (!try_access(tried, kind, nth)) break;
        ++faults[static_cast<u32>(kind)];
        ASSERT_LT(nth, 200u) << "the operation goes on for ever";
      }
    }
    if (HasFailure()) return;
  }
  std::printf("%zu operations met %llu failing reads, %llu writes and %llu flushes; %llu of these they got over\n",
              table.size(), static_cast<unsigned long long>(faults[0]), static_cast<unsigned long long>(faults[1]),
              static_cast<unsigned long long>(faults[2]), static_cast<unsigned long long>(ignored_));
  EXPECT_GT(faults[0], 20u);
  EXPECT_GT(faults[1], 10u);
  EXPECT_GE(faults[2], 2u);
}

// A failed checkpoint is reported, everything synced earlier stays, and the next mount makes the checkpoint.
TEST_P(NthAccess, OfACheckpointFails) {
  for (const NthKind kind : {NthKind::read, NthKind::write, NthKind::flush}) {
    for (u64 nth = 1;; ++nth) {
      SCOPED_TRACE(fmt::format("{} {}", nth_name(kind), nth));
      begin();
      make_kept();
      run(on_inode(wire::Opcode::truncate, base_.model.nodes.at(PosixModel::root).entries.at("h"), 10));
      plan_.arm(kind, nth);
      const Status status = pool_->checkpoint();
      plan_.disarm();
      if (!plan_.has_struck) {
        ASSERT_EQ(status, Status::ok);
        break;
      }
      ASSERT_EQ(to_errno(status), EIO);
      ASSERT_EQ(actor_->settle(text(), *client_), "");
      kill_and_compare();
      if (HasFatalFailure()) return;
      end_clean();
      if (HasFailure()) return;
      ASSERT_LT(nth, 500u);
    }
  }
}

// A failed mount leaves the pool unchanged; the next one succeeds.
TEST_P(NthAccess, OfAMountFails) {
  begin();
  make_kept();
  unmount();
  const DeviceBytes crashed = image_.bytes();
  const std::string expected = [&] {
    mount();
    return text();
  }();
  unmount();
  u64 failures = 0;
  for (const NthKind kind : {NthKind::read, NthKind::write, NthKind::flush}) {
    for (u64 nth = 1;; ++nth) {
      SCOPED_TRACE(fmt::format("{} {}", nth_name(kind), nth));
      CrashImage image(crashed);
      NthPlan plan;
      plan.arm(kind, nth);
      const auto try_mount = [&] {
        CrashPoolSetup setup;
        setup.where = "mounting";
        setup.add_layers = [&](u32, DeviceLayers& layers) { layers.push_back(std::make_unique<NthLayer>(plan)); };
        const CrashPool pool(image, std::move(setup));
      };
      try {
        try_mount();
      } catch (const std::runtime_error&) {
        ++failures;
        EXPECT_TRUE(plan.has_struck);
      }
      if (!plan.has_struck) break;
      ASSERT_EQ(check(image), "");
      CrashPool pool(image, nullptr, "mounting again");
      ASSERT_EQ(PoolText(pool.session()).text(), expected);
      ASSERT_LT(nth, 1000u);
    }
  }
  EXPECT_GT(failures, 10u);
}

// A scrub reports that it could not read, or what it found, and changes nothing.
TEST_P(NthAccess, OfAScrubFails) {
  begin();
  make_kept();
  ASSERT_EQ(pool_->checkpoint(), Status::ok);
  const std::string expected = text();
  for (u64 nth = 1;; ++nth) {
    SCOPED_TRACE(nth);
    // A page that was readable the second time is not damaged.
    const Status once = scrub_meeting(nth, false, nullptr);
    if (!plan_.has_struck) {
      ASSERT_EQ(once, Status::ok) << status_name(once);
      break;
    }
    EXPECT_TRUE(to_errno(once) == EIO || once == Status::ok) << status_name(once);
    // A page that stays unreadable is.
    u64 suspects = 0;
    const Status lasting = scrub_meeting(nth, true, &suspects);
    EXPECT_TRUE(plan_.has_struck);
    EXPECT_TRUE(to_errno(lasting) == EIO || (lasting == Status::ok && suspects != 0)) << status_name(lasting);
    ASSERT_LT(nth, 5000u);
  }
  EXPECT_EQ(text(), expected);
  end_clean();
}

INSTANTIATE_TEST_SUITE_P(Devices, NthAccess, ::testing::Values(CrashPlace::one_device, CrashPlace::two_devices));

class NthAllocation : public NthError {
 protected:
  // The amount that may be reserved; statfs reports only a part of it.
  u64 available() {
    const fs::FileSystem& fs = pool_->engine()->fs;
    return space::room_of(fs, fs.space.data_class).available;
  }
  u64 big() const { return base_.model.nodes.at(PosixModel::root).entries.at("big"); }
  // More than any operation needs.
  void make_room() {
    FileOperation op = on_inode(wire::Opcode::fallocate, big(), 0, u64{1} << 20);
    op.mode = 3;
    ASSERT_EQ(call(op).status, Status::ok);
    ASSERT_EQ(pool_->checkpoint(), Status::ok);
  }
  // Until `count` pages are left, or no fewer are possible.
  void leave_pages(u64 count) {
    for (u64 offset = u64{1} << 30; available() > count; offset += page_size * 64) {
      const u64 length = std::min<u64>(available() - count, 32) * page_size;
      FileOperation op = on_inode(wire::Opcode::fallocate, big(), offset, length);
      op.mode = 1;
      const client::Reply reply = call(op);
      if (reply.status == Status::no_space && length == page_size) break;
      if (reply.status == Status::no_space) leave_single_pages(count, offset + page_size * 32);
      if (reply.status == Status::no_space) break;
      ASSERT_EQ(reply.status, Status::ok);
    }
  }
  void leave_single_pages(u64 count, u64 offset) {
    for (; available() > count; offset += page_size) {
      FileOperation op = on_inode(wire::Opcode::fallocate, big(), offset, page_size);
      op.mode = 1;
      const Status status = call(op).status;
      if (status == Status::no_space) return;
      ASSERT_EQ(status, Status::ok);
    }
  }
};

TEST_P(NthAllocation, OfPagesFails) {
  begin();
  const std::vector<TriedOperation> table = tried_operations(*pool_, base_.model);
  u64 refusals = 0;
  for (const TriedOperation& tried : table) {
    for (u64 left = 0;; ++left) {
      where_ = fmt::format("{} with {} pages", tried.name, left);
      SCOPED_TRACE(where_);
      begin();
      make_room();
      for (const FileOperation& op : tried.before) run(op);
      leave_pages(left);
      if (HasFatalFailure()) return;
      const FileOperation op = tried.operation;
      actor_->begin({}, op);
      const client::Reply reply = call(op);
      const bool refused = reply.status == Status::no_space;
      const bool is_short = reply.status == Status::ok && op.opcode == wire::Opcode::write && reply.result < op.length;
      if (is_short) continue;  // the next one is complete
      ASSERT_EQ(actor_->end(reply, &*client_, {}, {ENOSPC}), "");
      ASSERT_EQ(actor_->settle(text(), *client_), "");
      if (!refused) break;
      ++refusals;
      // Removing something always succeeds, and then there is room.
      ASSERT_EQ(call(on_inode(wire::Opcode::truncate, big(), 0)).status, Status::ok);
      actor_->begin({}, op);
      ASSERT_EQ(actor_->end(call(op), &*client_), "");
      end_clean();
      if (HasFatalFailure()) return;
      ASSERT_LT(left, 100u);
    }
  }
  std::printf("%zu operations, refused %llu times for want of pages\n", table.size(),
              static_cast<unsigned long long>(refusals));
  EXPECT_GT(refusals, 10u);
}

// Frames held back until the next checkpoint begins to write its superblock.
TEST_P(NthAllocation, OfFramesWaits) {
  begin();
  const std::vector<TriedOperation> table = tried_operations(*pool_, base_.model);
  u64 waits = 0;
  for (const TriedOperation& tried : table) {
    for (u32 left = 0; left < 8; ++left) {
      where_ = fmt::format("{} with {} frames", tried.name, left);
      SCOPED_TRACE(where_);
      begin();
      make_room();
      make_kept();
      for (const FileOperation& op : tried.before) run(op);
      if (HasFatalFailure()) return;
      fs::PageTable& pages = pool_->engine()->fs.pages;
      const u32 held = pages.free_count - left;
      pages.frames_reserved += held;
      bool is_held = true;
      const auto let_go = [&] {
        if (is_held) pages.frames_reserved -= held;
        is_held = false;
      };
      plan_.on_superblock = let_go;
      const FileOperation op = tried.operation;
      actor_->begin({}, op);
      const client::Reply reply = call(op);
      const bool waited = !is_held;
      let_go();
      plan_.on_superblock = nullptr;
      ASSERT_EQ(actor_->end(reply, &*client_), "");
      ASSERT_EQ(actor_->settle(text(), *client_), "");
      if (!waited) break;
      ++waits;
    }
  }
  std::printf("%zu operations, %llu waits for frames\n", table.size(), static_cast<unsigned long long>(waits));
  EXPECT_GT(waits, 10u);
}

INSTANTIATE_TEST_SUITE_P(Devices, NthAllocation, ::testing::Values(CrashPlace::nearly_full));

}  // namespace
}  // namespace gpu4fs::test::nth_error_test
