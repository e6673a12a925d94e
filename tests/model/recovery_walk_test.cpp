// Random operations compared with a POSIX model, with a sync every few operations and a crash every few more: a mount
// recovers the state of the last sync from the operation log.
#include <gtest/gtest.h>

#include <string>

#include "model/model_walk.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test::recovery_walk_test {
namespace {

// The shared variants, shorter, crashing often; and a log that wraps.
std::vector<ModelVariant> recovery_variants() {
  std::vector<ModelVariant> list = model_variants();
  for (ModelVariant& variant : list) {
    variant.seed += 100;
    variant.steps = variant.steps * 2 / 3;
    variant.sync_every = 5;
    variant.crash_every = 33;
  }
  ModelVariant rare{"long_logs", 120, 3000, {}, {}, false};
  rare.sync_every = 50;
  rare.crash_every = 211;
  rare.source.flags = true;
  list.push_back(rare);
  ModelVariant mixed{"raid6_raid1c3", 122, 900, {}, {}, false};
  mixed.pool.profile = "raid6+raid1c3";
  mixed.pool.device_count = 4;
  mixed.pool.more_profiles = {{"raid1", 0.2}};
  mixed.source.profiles = {"raid1", "raid6"};
  mixed.sync_every = 5;
  mixed.crash_every = 33;
  list.push_back(mixed);
  ModelVariant warp{"one_warp", 121, 90, {}, {}, false};
  warp.pool.warp_count = 1;
  warp.pool.memory = {.frame_count = 400, .staging_count = 256, .shard_count = 2};
  warp.source.offset_max = 20'000;
  warp.source.length_max = 9'000;
  warp.source.big_length = 40'000;
  warp.source.sparse = false;
  warp.source.node_max = 14;
  warp.sync_every = 4;
  warp.crash_every = 18;
  list.push_back(warp);
  return list;
}

class RecoveryWalk : public ::testing::TestWithParam<ModelVariant> {};

TEST_P(RecoveryWalk, EverySyncSurvives) {
  const ModelVariant variant = as_asked_for(GetParam());
  const ModelOutcome outcome = run_model_walk<TestPool>(variant);
  EXPECT_EQ(outcome.difference, "") << outcome.how_to_repeat(variant);
  if (variant.steps >= 60) {
    EXPECT_GT(outcome.replayed, 0u);
  }
  std::printf("%s: %llu steps, %llu operations replayed\n", variant.name,
              static_cast<unsigned long long>(outcome.steps), static_cast<unsigned long long>(outcome.replayed));
}

INSTANTIATE_TEST_SUITE_P(Variants, RecoveryWalk, ::testing::ValuesIn(recovery_variants()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace gpu4fs::test::recovery_walk_test
