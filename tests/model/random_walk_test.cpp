// Random operations against a POSIX model, compared after each (design section 11).
//
// A failure prints the seed and the number of steps, which with the same binary repeat it:
//     GPU4FS_MODEL_SEED=7 GPU4FS_MODEL_STEPS=123 gpu4fs_model_random_walk_test --gtest_filter=...
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "model/model_runner.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

struct Variant {
  friend void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }
  const char* name;
  u64 seed;
  u32 steps;
  TestPoolOptions pool;
  SourceOptions source;
  bool tight;
};

u64 environment_number(const char* name, u64 otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

struct Outcome {
  std::string difference;  // empty: none
  u64 steps = 0;           // done, the one that differed included
  u64 refused = 0;
  std::string history;
};

// Steps, with full comparisons, remounts, crashes and checks of the medium in between.
Outcome walk(const Variant& variant, u64 seed, u64 steps, ModelFlaw flaw) {
  TestPool pool(variant.pool);
  ModelRunner runner(pool, variant.tight);
  runner.model().flaw = flaw;
  OperationSource source(seed, variant.source);
  Outcome outcome;
  bool same = true;
  for (u64 i = 1; i <= steps && same; ++i) {
    outcome.steps = i;
    same = runner.step(source.next(runner.model()));
    if (!same) break;
    if (i % 97 == 0) same = runner.check_tree();
    if (same && i % 211 == 0) same = runner.crash();
    if (same && i % 331 == 0) same = runner.remount();
    if (same && i % 499 == 0) same = runner.check_medium();
  }
  same = same && runner.check_tree() && runner.check_medium();
  outcome.difference = runner.difference();
  outcome.refused = runner.refused_count();
  outcome.history = runner.history();
  runner.close();
  return outcome;
}

std::vector<Variant> variants() {
  std::vector<Variant> list;
  list.push_back({"one_worker", 1, 3000, {}, {}, false});
  Variant three{"three_workers", 2, 2000, {}, {}, false};
  three.pool.worker_count = 3;
  three.pool.config.inline_transfer_pages = 2;  // most transfers fan out
  three.pool.config.task_pages = 3;
  list.push_back(three);
  Variant frames{"few_frames", 3, 2000, {}, {}, false};
  frames.pool.memory = {.frame_count = 320, .staging_count = 256, .shard_count = 2};
  list.push_back(frames);
  Variant space{"little_space", 4, 2500, {}, {}, true};
  space.pool.device_count = 1;
  space.pool.device_bytes = u64{20} << 20;
  space.source.sparse = false;
  space.source.zero_ranges = false;
  list.push_back(space);
  Variant chunks{"larger_chunks", 5, 1500, {}, {}, false};
  chunks.pool.device_count = 3;
  chunks.pool.device_bytes = u64{80} << 20;
  chunks.pool.chunk_bytes = u64{16} << 20;
  chunks.source.big_length = u64{3500} << 10;
  chunks.source.length_max = u64{1} << 20;
  list.push_back(chunks);
  Variant names{"names_only", 6, 3000, {}, {}, false};
  names.source.offset_max = 200;
  names.source.length_max = 128;
  names.source.big_length = 128;
  names.source.sparse = false;
  names.source.node_max = 120;
  names.pool.access_times = fs::AccessTimeMode::strict;
  list.push_back(names);
  Variant many = names;
  many.name = "large_directories";
  many.seed = 7;
  many.steps = 6000;
  many.source.name_count = 2000;
  many.source.node_max = 2500;
  many.source.directory_max = 3;
  many.source.make_percent = 80;
  list.push_back(many);
  // Emulated warps take milliseconds a command.
  Variant warp{"one_warp", 8, 100, {}, {}, false};
  warp.pool.warp_count = 1;
  warp.pool.memory = {.frame_count = 400, .staging_count = 256, .shard_count = 2};
  warp.source.offset_max = 20'000;
  warp.source.length_max = 9'000;
  warp.source.big_length = 40'000;
  warp.source.sparse = false;
  warp.source.node_max = 14;
  list.push_back(warp);
  Variant warps = warp;
  warps.name = "two_warps";
  warps.seed = 9;
  warps.steps = 50;
  warps.pool.warp_count = 2;
  warps.pool.config.inline_transfer_pages = 1;
  warps.pool.config.task_pages = 1;
  list.push_back(warps);
  return list;
}

class RandomWalk : public ::testing::TestWithParam<Variant> {};

TEST_P(RandomWalk, EngineAndModelAgree) {
  const Variant& variant = GetParam();
  const u64 seed = environment_number("GPU4FS_MODEL_SEED", variant.seed);
  const u64 steps = environment_number("GPU4FS_MODEL_STEPS", scaled(variant.steps));
  const Outcome outcome = walk(variant, seed, steps, ModelFlaw::none);
  EXPECT_EQ(outcome.difference, "") << "GPU4FS_MODEL_SEED=" << seed << " GPU4FS_MODEL_STEPS=" << outcome.steps
                                    << "\nthe last operations:\n" << outcome.history;
  if (variant.tight && seed == variant.seed && steps >= 1000) {
    EXPECT_GT(outcome.refused, 0u) << "the pool never ran full";
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, RandomWalk, ::testing::ValuesIn(variants()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

// A model with one wrong rule is found out: the comparison sees what it should.
class Canary : public ::testing::TestWithParam<ModelFlaw> {};

TEST_P(Canary, WrongRuleIsNoticed) {
  const Variant variant{"canary", 0, 0, {}, {}, false};
  Outcome outcome;
  for (u64 seed = 1; seed <= 5 && outcome.difference.empty(); ++seed) outcome = walk(variant, seed, 1500, GetParam());
  EXPECT_NE(outcome.difference, "");
}

INSTANTIATE_TEST_SUITE_P(Flaws, Canary,
                         ::testing::Values(ModelFlaw::rename_keeps_parent, ModelFlaw::truncate_keeps_tail,
                                           ModelFlaw::unlink_keeps_count));

}  // namespace
}  // namespace gpu4fs::test
