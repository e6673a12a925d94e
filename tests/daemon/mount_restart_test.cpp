// How often a mount's engine is restarted, and that its state, but none of its requests, reaches the next image.
#include "daemon/mount_restart.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include "block/controller_fixture.hpp"

namespace gpu4fs::daemon {
namespace {

TEST(MountRestart, OnlySoManyDeathsInAWindow) {
  RestartState state;
  for (unsigned i = 0; i < restart_max; ++i) EXPECT_TRUE(note_death(state, "a fault", 1000 + i)) << i;
  EXPECT_FALSE(note_death(state, "the last fault", 1000 + restart_window_s - 1));
  EXPECT_NE(deaths_text(state).find("6 times"), std::string::npos) << deaths_text(state);
  EXPECT_NE(deaths_text(state).find("the last fault"), std::string::npos);
}

TEST(MountRestart, RareDeathsAreNoReasonToStop) {
  RestartState state;
  for (std::int64_t i = 0; i < 50; ++i) EXPECT_TRUE(note_death(state, "a fault", i * restart_window_s)) << i;
  EXPECT_LE(state.times_s.size(), std::size_t{restart_max} + 1);
}

TEST(MountRestart, StateSurvives) {
  RestartState state;
  state.pool_name = "a-name";
  state.engine = "cuda";
  state.restart_count = 3;
  state.device = 9;
  state.is_background = false;
  EXPECT_TRUE(note_death(state, "fault \"in\" a line\nand another", 1'700'000'000));
  state.mount.init_request = "init";
  state.mount.inodes = {{5, 1, 2, false, false}};
  const RestartState back = restart_state_from(to_bytes(state));
  EXPECT_EQ(back.pool_name, "a-name");
  EXPECT_EQ(back.engine, "cuda");
  EXPECT_EQ(back.restart_count, 3u);
  EXPECT_EQ(back.device, 9);
  EXPECT_FALSE(back.is_background);
  EXPECT_EQ(back.reasons, state.reasons);
  EXPECT_EQ(back.times_s, state.times_s);
  EXPECT_EQ(back.mount.init_request, "init");
  ASSERT_EQ(back.mount.inodes.size(), 1u);
  EXPECT_EQ(back.mount.inodes[0].inode, 5u);
  EXPECT_THROW(restart_state_from("no line"), std::runtime_error);
}

// Writes are held when the engine dies.
TEST(MountRestart, NoRequestIsInFlightWhenTheProgramIsExecutedAgain) {
  for (const block::ControllerKind kind : {block::ControllerKind::automatic, block::ControllerKind::threads}) {
    constexpr u64 page_count = 16;
    gpu4fs::test::DiskFile file(page_count * page_size);
    block::RequestFaults faults;
    block::ControllerOptions options;
    options.kind = kind;
    options.faults = &faults;
    gpu4fs::test::ControllerFixture fixture(file.path(), page_count, options);
    faults.hold([](const device::IoRequest& request) { return request.operation == device::IoOperation::write; });
    std::vector<u32> slots;
    for (u64 page = 0; page < page_count; ++page) {
      fixture.fill(page, static_cast<u8>(page + 1));
      slots.push_back(fixture.submit(device::IoOperation::write, page, page));
    }
    fixture.ring();
    faults.wait_until_held(page_count);

    RestartState state;
    state.device = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    ASSERT_GE(state.device, 0);
    u32 executed = 0;
    ImageEnd end;
    end.end_requests = [&] { fixture.controller().stop(); };
    end.execute = [&](const char*, char* const*) {
      ++executed;
      for (u64 page = 0; page < page_count; ++page) {
        EXPECT_FALSE(device::poll(fixture.queue(), slots[page]).is_pending) << page;
        EXPECT_EQ(file.read(page * page_size, 1)[0], static_cast<u8>(page + 1)) << page;
      }
      // What is submitted now never reaches the medium.
      fixture.fill(0, 99);
      fixture.submit(device::IoOperation::write, 0, 0);
      fixture.ring();
      return -1;
    };
    EXPECT_NE(execute_again(state, {"gpu4fs"}, end).find("execv"), std::string::npos);
    EXPECT_EQ(executed, 1u);
    EXPECT_FALSE(fixture.controller().describe().empty());
    fixture.stop();
    EXPECT_EQ(file.read(0, 1)[0], 1);
    ::close(state.device);
  }
}

}  // namespace
}  // namespace gpu4fs::daemon
