// Counting users by phases.
#include <gtest/gtest.h>

#include "base/phase_users.hpp"

namespace gpu4fs {
namespace {

TEST(PhaseUsers, APhaseWaitsForWhoBeganBeforeIt) {
  PhaseUsers users{};
  EXPECT_FALSE(older_uses_run(users));
  const u32 older = begin_use(users);
  const u32 another = begin_use(users);
  EXPECT_FALSE(older_uses_run(users)) << "no phase has begun since";
  begin_phase(users);
  EXPECT_TRUE(older_uses_run(users));
  const u32 later = begin_use(users);
  EXPECT_NE(later, older);
  end_use(users, older);
  EXPECT_TRUE(older_uses_run(users));
  end_use(users, another);
  EXPECT_FALSE(older_uses_run(users)) << "the one that is left belongs to this phase";
  begin_phase(users);
  EXPECT_TRUE(older_uses_run(users)) << "not to the next one";
  end_use(users, later);
  EXPECT_FALSE(older_uses_run(users));
}

TEST(PhaseUsers, NoPhaseIsBegunWhileUsersFromBeforeTheLastOneRun) {
  PhaseUsers users{};
  const u32 first = begin_use(users);
  EXPECT_EQ(try_begin_phase(users), 1u);
  EXPECT_EQ(try_begin_phase(users), 0u) << "a third counter would be needed";
  const u32 second = begin_use(users);
  EXPECT_EQ(try_begin_phase(users), 0u);
  end_use(users, first);
  EXPECT_EQ(try_begin_phase(users), 2u);
  EXPECT_EQ(try_begin_phase(users), 0u);
  end_use(users, second);
  EXPECT_EQ(try_begin_phase(users), 3u);
}

}  // namespace
}  // namespace gpu4fs
