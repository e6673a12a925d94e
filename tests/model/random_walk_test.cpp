// Random operations against a POSIX model, compared after each.
//
// A failure prints the seed and the number of steps, which with the same binary repeat it:
//     GPU4FS_MODEL_SEED=7 GPU4FS_MODEL_STEPS=123 gpu4fs_model_random_walk_test --gtest_filter=...
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "model/model_walk.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test::random_walk_test {
namespace {

// Nearly full, so pages of partly used stripes are allocated. This makes the log durable, which a crash of the walk
// does not expect.
std::vector<ModelVariant> full_variants() {
  std::vector<ModelVariant> list;
  for (const auto& [profile, devices, seed] : {std::tuple{"raid5+raid1", 3u, 22u}, {"raid6+raid1c3", 5u, 23u}}) {
    ModelVariant full{seed == 22 ? "full_raid5" : "full_raid6", seed, 1500, {}, {}, true};
    full.pool.profile = profile;
    full.pool.device_count = devices;
    full.pool.device_bytes = u64{20} << 20;
    full.source.node_max = 150;
    full.source.offset_max = u64{12} << 20;
    full.source.length_max = u64{3} << 20;
    full.source.big_length = u64{3500} << 10;
    full.source.sparse = false;
    full.source.zero_ranges = false;
    full.crash_every = ~u64{0};
    list.push_back(full);
  }
  return list;
}

// Emulated warps take milliseconds for each command.
std::vector<ModelVariant> warp_variants() {
  std::vector<ModelVariant> list;
  ModelVariant warp{"one_warp", 8, 70, {}, {}, false};
  warp.pool.warp_count = 1;
  warp.pool.memory = {.frame_count = 400, .staging_count = 256, .shard_count = 2};
  warp.source.offset_max = 20'000;
  warp.source.length_max = 9'000;
  warp.source.big_length = 40'000;
  warp.source.sparse = false;
  warp.source.node_max = 14;
  list.push_back(warp);
  ModelVariant warps = warp;
  warps.name = "two_warps";
  warps.seed = 9;
  warps.steps = 30;
  warps.pool.warp_count = 2;
  warps.pool.config.inline_transfer_pages = 1;
  warps.pool.config.task_pages = 1;
  list.push_back(warps);
  // Page cache and I/O queue as with the GPU engine.
  ModelVariant queued = warps;
  queued.name = "two_warps_queue";
  queued.seed = 10;
  queued.pool.is_staged = true;
  queued.pool.has_queue = true;
  list.push_back(queued);
  ModelVariant mixed_warp = warp;
  mixed_warp.name = "raid5_raid1_warp";
  mixed_warp.seed = 21;
  mixed_warp.steps = 25;
  mixed_warp.pool.profile = "raid5+raid1";
  mixed_warp.pool.device_count = 3;
  list.push_back(mixed_warp);
  ModelVariant parity_warp = warp;
  parity_warp.name = "raid6_warp";
  parity_warp.seed = 17;
  parity_warp.steps = 25;
  parity_warp.pool.profile = "raid6";
  parity_warp.pool.device_count = 4;
  list.push_back(parity_warp);
  ModelVariant mirror_warp = warp;
  mirror_warp.name = "raid1_warp";
  mirror_warp.seed = 13;
  mirror_warp.steps = 25;
  mirror_warp.pool.profile = "raid1";
  list.push_back(mirror_warp);
  return list;
}

// The shared variants, and those that only the CPU engine has.
std::vector<ModelVariant> random_variants() {
  std::vector<ModelVariant> list = model_variants();
  ModelVariant three{"three_workers", 2, 2000, {}, {}, false};
  three.pool.worker_count = 3;
  three.pool.config.inline_transfer_pages = 2;  // most transfers fan out
  three.pool.config.task_pages = 3;
  list.push_back(three);
  ModelVariant mirror{"raid1", 11, 2000, {}, {}, false};
  mirror.pool.profile = "raid1";
  list.push_back(mirror);
  ModelVariant stripes{"raid0", 12, 2000, {}, {}, false};
  stripes.pool.profile = "raid0";
  stripes.pool.device_count = 3;
  list.push_back(stripes);
  for (const auto& [profile, devices, seed] : {std::tuple{"raid5", 4u, 14u}, {"raid6", 5u, 15u}, {"raid7", 4u, 16u}}) {
    ModelVariant parities{profile, seed, 2000, {}, {}, false};
    parities.pool.profile = profile;
    parities.pool.device_count = devices;
    list.push_back(parities);
  }
  for (const auto& [profile, seed] : {std::tuple{"raid5+raid1c3", 18u}, {"single+raid1", 19u}, {"raid1+raid6", 20u}}) {
    ModelVariant mixed{"mixed", seed, 1500, {}, {}, false};
    mixed.name = seed == 18 ? "raid5_raid1c3" : seed == 19 ? "single_raid1" : "raid1_raid6";
    mixed.pool.profile = profile;
    mixed.pool.device_count = 4;
    mixed.pool.more_profiles = {{"raid0", 0.2}};
    mixed.source.profiles = {"raid0", mixed.pool.profile.substr(0, mixed.pool.profile.find('+'))};
    list.push_back(mixed);
  }
  for (const ModelVariant& full : full_variants()) list.push_back(full);
  for (const ModelVariant& warps : warp_variants()) list.push_back(warps);
  return list;
}

class RandomWalk : public ::testing::TestWithParam<ModelVariant> {};

TEST_P(RandomWalk, EngineAndModelAgree) {
  const ModelVariant variant = as_asked_for(GetParam());
  const ModelOutcome outcome = run_model_walk<TestPool>(variant);
  EXPECT_EQ(outcome.difference, "") << outcome.how_to_repeat(variant);
  EXPECT_GT(outcome.optimistic, 0u);
  if (variant.tight && variant.seed == GetParam().seed && variant.steps >= 1000) {
    EXPECT_GT(outcome.refused, 0u) << "the pool never ran full";
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, RandomWalk, ::testing::ValuesIn(random_variants()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

// A model with one wrong rule is detected, so the comparison works.
class Canary : public ::testing::TestWithParam<ModelFlaw> {};

TEST_P(Canary, WrongRuleIsNoticed) {
  ModelOutcome outcome;
  // The walks of smaller seeds reach some of the rules only after thousands of steps.
  for (u64 seed = 3; seed <= 7 && outcome.difference.empty(); ++seed) {
    outcome = run_model_walk<TestPool>({"canary", seed, 1500, {}, {}, false}, GetParam());
  }
  EXPECT_NE(outcome.difference, "");
}

INSTANTIATE_TEST_SUITE_P(Flaws, Canary,
                         ::testing::Values(ModelFlaw::rename_keeps_parent, ModelFlaw::truncate_keeps_tail,
                                           ModelFlaw::unlink_keeps_count));

}  // namespace
}  // namespace gpu4fs::test::random_walk_test
