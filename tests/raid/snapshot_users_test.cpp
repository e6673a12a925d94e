// Counting users that work across a snapshot.
#include <gtest/gtest.h>

#include "raid/snapshot_users.hpp"

namespace gpu4fs::raid {
namespace {

TEST(SnapshotUsers, ACheckpointWaitsForWhoBeganBeforeItsSnapshot) {
  SnapshotUsers users{};
  EXPECT_FALSE(older_uses_run(users));
  const u32 older = begin_use(users);
  const u32 another = begin_use(users);
  EXPECT_FALSE(older_uses_run(users)) << "no snapshot was taken since";
  note_snapshot(users);
  EXPECT_TRUE(older_uses_run(users));
  const u32 later = begin_use(users);
  EXPECT_NE(later, older);
  end_use(users, older);
  EXPECT_TRUE(older_uses_run(users));
  end_use(users, another);
  EXPECT_FALSE(older_uses_run(users)) << "the one that is left has seen the snapshot";
  note_snapshot(users);
  EXPECT_TRUE(older_uses_run(users)) << "not the next one";
  end_use(users, later);
  EXPECT_FALSE(older_uses_run(users));
}

}  // namespace
}  // namespace gpu4fs::raid
