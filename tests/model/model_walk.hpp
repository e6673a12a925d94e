// Random walks over a pool and its model: the variants, and the code that runs one. For any engine and any test
// framework.
//
// Environment: GPU4FS_MODEL_SEED and GPU4FS_MODEL_STEPS repeat a walk, GPU4FS_TEST_SCALE shortens all.
#pragma once

#include <chrono>
#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

#include "model/model_runner.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {

struct ModelVariant {
  const char* name;
  u64 seed;
  u64 steps;
  TestPoolOptions pool;
  SourceOptions source;
  bool tight;
  u64 crash_every = 211;
  u64 sync_every = 0;  // 0: only when the source requests it

  friend std::ostream& operator<<(std::ostream& out, const ModelVariant& variant) { return out << variant.name; }
};

struct ModelOutcome {
  std::string difference;  // empty: none
  u64 steps = 0;           // executed ones, including the one with the difference
  u64 refused = 0;
  u64 replayed = 0;    // operations that recoveries replayed
  u64 optimistic = 0;  // commands since the last mount that were answered without a lock
  std::string history;

  std::string how_to_repeat(const ModelVariant& variant) const {
    return fmt::format("GPU4FS_MODEL_SEED={} GPU4FS_MODEL_STEPS={}\nthe last operations:\n{}", variant.seed, steps,
                       history);
  }
};

// The variants that every engine walks.
inline std::vector<ModelVariant> model_variants() {
  std::vector<ModelVariant> list;
  list.push_back({"plain", 1, 3000, {}, {}, false});
  ModelVariant frames{"few_frames", 3, 2000, {}, {}, false};
  frames.pool.memory = {.frame_count = 320, .staging_count = 256, .shard_count = 2};
  list.push_back(frames);
  ModelVariant space{"little_space", 4, 2000, {}, {}, true};
  space.pool.device_count = 1;
  space.pool.device_bytes = u64{11} << 20;  // one chunk
  space.source.node_max = 150;
  space.source.offset_max = u64{12} << 20;
  space.source.length_max = u64{3} << 20;
  space.source.big_length = u64{3500} << 10;
  space.source.sparse = false;
  space.source.zero_ranges = false;
  list.push_back(space);
  ModelVariant chunks{"larger_chunks", 5, 1500, {}, {}, false};
  chunks.pool.device_count = 3;
  chunks.pool.device_bytes = u64{80} << 20;
  chunks.pool.chunk_bytes = u64{16} << 20;
  chunks.source.big_length = u64{3500} << 10;
  chunks.source.length_max = u64{1} << 20;
  list.push_back(chunks);
  ModelVariant names{"names_only", 6, 3000, {}, {}, false};
  names.source.offset_max = 200;
  names.source.length_max = 128;
  names.source.big_length = 128;
  names.source.sparse = false;
  names.source.node_max = 120;
  names.pool.access_times = fs::AccessTimeMode::strict;
  list.push_back(names);
  ModelVariant many = names;
  many.name = "large_directories";
  many.seed = 7;
  many.steps = 6000;
  many.source.name_count = 2000;
  many.source.node_max = 2500;
  many.source.directory_max = 3;
  many.source.make_percent = 80;
  list.push_back(many);
  ModelVariant flags{"flags", 8, 3000, {}, {}, false};
  flags.source.flags = true;
  list.push_back(flags);
  return list;
}

// With the length and seed in the environment.
inline ModelVariant as_asked_for(ModelVariant variant) {
  const auto number = [](const char* name, u64 otherwise) {
    const char* text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
  };
  variant.seed = number("GPU4FS_MODEL_SEED", variant.seed);
  variant.steps = number("GPU4FS_MODEL_STEPS", scaled(static_cast<u32>(variant.steps)));
  return variant;
}

inline FileOperation sync_operation() {
  FileOperation op;
  op.opcode = wire::Opcode::sync;
  return op;
}

// Steps, with full comparisons, remounts, crashes and checks of the medium in between, and one of each at the end.
// Stops at `limit`.
template <class Pool>
ModelOutcome run_model_walk(
    const ModelVariant& variant, ModelFlaw flaw = ModelFlaw::none,
    std::chrono::steady_clock::time_point limit = std::chrono::steady_clock::time_point::max()) {
  Pool pool(variant.pool);
  ModelRunner runner(pool, variant.tight);
  runner.model().flaw = flaw;
  SourceOptions options = variant.source;
  options.whiteouts = true;
  OperationSource source(variant.seed, options);
  ModelOutcome outcome;
  bool same = true;
  for (u64 i = 1; i <= variant.steps && same && std::chrono::steady_clock::now() < limit; ++i) {
    outcome.steps = i;
    same = runner.step(source.next(runner.model()));
    if (!same) break;
    if (variant.sync_every != 0 && i % variant.sync_every == 0) same = runner.step(sync_operation());
    if (i % 97 == 0) same = runner.check_tree();
    if (same && i % variant.crash_every == 0) same = runner.crash();
    if (same && i % 331 == 0) same = runner.remount();
    if (same && i % 499 == 0) same = runner.check_medium();
  }
  same = same && runner.check_tree();
  outcome.optimistic = pool.host().counters().commands_optimistic;
  same = same && runner.check_medium() && runner.crash();
  outcome.difference = runner.difference();
  outcome.refused = runner.refused_count();
  outcome.replayed = runner.replayed_count();
  outcome.history = runner.history();
  runner.close();
  return outcome;
}

}  // namespace gpu4fs::test
