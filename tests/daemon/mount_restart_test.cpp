// How often a mount's engine is restarted, and that its state reaches the next program image.
#include "daemon/mount_restart.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace gpu4fs::daemon
