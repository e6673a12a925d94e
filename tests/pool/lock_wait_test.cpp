// Devices that are locked by others: which locks are waited for, and that no lock is held meanwhile.
#include "pool/lock_wait.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "pool/pool_make.hpp"
#include "pool/pool_open.hpp"
#include "support/memory_folder.hpp"

namespace gpu4fs::pool::lock_wait_test {
namespace {

class LockWait : public ::testing::Test {
 protected:
  LockWait() {
    std::string name = gpu4fs::test::memory_folder() + "/gpu4fs_locks_XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    MakePoolOptions make;
    make.device_paths = open_.device_paths = {folder_ / "a", folder_ / "b"};
    make.size_bytes = u64{32} << 20;
    make_pool(make);
  }
  ~LockWait() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<DeviceFile> lock(u32 device, DeviceFile::Locking locking = DeviceFile::Locking::lock) {
    return std::make_unique<DeviceFile>(
        DeviceFile::open(open_.device_paths[device], DeviceFile::Access::read_write, locking));
  }
  Status opening() {
    try {
      const OpenedPool pool = open_pool(open_);
      return Status::ok;
    } catch (const PoolError& error) {
      return error.status();
    }
  }

  std::filesystem::path folder_;
  OpenPoolOptions open_;
};

// This process has not ended.
TEST_F(LockWait, NobodyWaitsForAProcessThatGoesOn) {
  const auto held = lock(1);
  u32 pauses = 0;
  open_.patience.pause = [&] { return ++pauses < 100; };
  EXPECT_EQ(opening(), Status::already_mounted);
  open_.patience.holder_lets_go = [] { return false; };
  EXPECT_EQ(opening(), Status::already_mounted);
  EXPECT_EQ(pauses, 0u);
  try {
    (void)lock(1);
    ADD_FAILURE() << "it is locked twice";
  } catch (const DeviceInUse& error) {
    EXPECT_FALSE(error.is_being_released());
  }
}

TEST_F(LockWait, WhoLetsGoIsWaitedForWithoutHoldingTheOthers) {
  auto held = lock(1);
  u32 pauses = 0;
  open_.patience.holder_lets_go = [] { return true; };
  open_.patience.pause = [&] {
    EXPECT_NO_THROW(lock(0, DeviceFile::Locking::lock_at_once)) << "the other device is held";
    if (++pauses == 3) held.reset();
    return true;
  };
  EXPECT_EQ(opening(), Status::ok);
  EXPECT_EQ(pauses, 3u);
}

TEST_F(LockWait, WhoWaitsMayBeStopped) {
  const auto held = lock(0);
  u32 pauses = 0;
  open_.patience.holder_lets_go = [] { return true; };
  open_.patience.pause = [&] { return ++pauses < 5; };
  EXPECT_EQ(opening(), Status::already_mounted);
  EXPECT_EQ(pauses, 5u);
}

TEST_F(LockWait, AProcessThatHasEndedIsWaitedFor) {
  u32 pauses = 0;
  LockPatience patience;
  patience.pause = [&] { return ++pauses < 7; };
  const auto attempt = [&]() -> int { throw DeviceInUse("held", true); };
  EXPECT_THROW(wait_for_locks(patience, attempt), DeviceInUse);
  EXPECT_EQ(pauses, 7u);
  u32 attempts = 0;
  EXPECT_EQ(wait_for_locks({}, [&] { return ++attempts == 3 ? 42 : throw DeviceInUse("held", true); }), 42);
}

}  // namespace
}  // namespace gpu4fs::pool::lock_wait_test
