// The model walk (tests/model) with the GPU engine: random operations compared after each, remounts, crashes
// and checks of the medium in between.
//
// usage: gpu4fs_gpu_model_walk_test [VARIANT]
// GPU4FS_TEST_SECONDS: about how long all of it may take (default 60); walks end early then.
// GPU4FS_MODEL_SEED, GPU4FS_MODEL_STEPS, GPU4FS_TEST_SCALE: as in tests/model.
#include <algorithm>
#include <cstring>
#include <exception>

#include "gpu/gpu_test_pool.hpp"
#include "model/model_walk.hpp"

namespace gpu4fs::test {
namespace {

using Clock = std::chrono::steady_clock;

ModelOutcome walk(const ModelVariant& variant, ModelFlaw flaw, Clock::time_point limit) {
  try {
    return run_model_walk<GpuTestPool>(variant, flaw, limit);
  } catch (const std::exception& error) {
    ModelOutcome outcome;
    outcome.difference = error.what();
    return outcome;
  }
}

void test_variant(const ModelVariant& named, Clock::time_point limit) {
  const ModelVariant variant = as_asked_for(named);
  const Clock::time_point begin = Clock::now();
  const ModelOutcome outcome = walk(variant, ModelFlaw::none, limit);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::printf("%s: %llu of %llu steps in %.1f s, %llu without space\n", variant.name,
              static_cast<unsigned long long>(outcome.steps), static_cast<unsigned long long>(variant.steps), seconds,
              static_cast<unsigned long long>(outcome.refused));
  check(outcome.difference.empty(),
        fmt::format("{}: {}\n{}", variant.name, outcome.difference, outcome.how_to_repeat(variant)));
  if (variant.tight && variant.seed == named.seed && outcome.steps >= 1000) {
    check(outcome.refused > 0, "the pool runs full");
  }
}

// A model with one wrong rule is detected, so the comparison works.
void test_canary(Clock::time_point limit) {
  ModelOutcome outcome;
  for (u64 seed = 1; seed <= 5 && outcome.difference.empty(); ++seed) {
    outcome = walk({"canary", seed, 1500, {}, {}, false}, ModelFlaw::truncate_keeps_tail, limit);
  }
  check(!outcome.difference.empty(), "a wrong rule of the model is noticed");
}

void run(const char* only) {
  const char* text = std::getenv("GPU4FS_TEST_SECONDS");
  const u64 seconds = text == nullptr ? 60 : std::strtoull(text, nullptr, 10);
  const Clock::time_point end = Clock::now() + std::chrono::seconds(seconds);
  std::vector<ModelVariant> variants = model_variants();
  if (only != nullptr) {
    std::erase_if(variants, [&](const ModelVariant& variant) { return std::strcmp(variant.name, only) != 0; });
  }
  // Each gets an equal share of the remaining time, whatever the previous ones have used.
  for (std::size_t i = 0; i < variants.size(); ++i) {
    const Clock::time_point now = Clock::now();
    const auto share = std::max<Clock::duration>(end - now, {}) / (variants.size() - i);
    test_variant(variants[i], now + share);
  }
  // The canary's first steps show the difference; under a sanitizer there may not be enough time for them.
  if (only == nullptr && !is_sanitized()) test_canary(Clock::now() + std::chrono::seconds(seconds));
}

}  // namespace
}  // namespace gpu4fs::test

int main(int argument_count, char** arguments) {
  if (gpu4fs::test::has_gpu()) gpu4fs::test::run(argument_count > 1 ? arguments[1] : nullptr);
  return gpu4fs::test::finish();
}
