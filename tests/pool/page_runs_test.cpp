// Sets of pages as runs, compared with a plain set.
#include "pool/page_runs.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "base/limits.hpp"

namespace gpu4fs::pool {
namespace {

std::set<u64> pages_of(const std::vector<PageRun>& runs) {
  std::set<u64> pages;
  for (const PageRun& run : runs) {
    for (u64 i = 0; i < run.page_count; ++i) EXPECT_TRUE(pages.insert(run.address / page_size + i).second);
  }
  return pages;
}

TEST(PageRuns, AgreesWithASetOfPages) {
  std::mt19937_64 random(11);
  for (u32 round = 0; round < 50; ++round) {
    PageRuns runs;
    std::set<u64> model;
    for (u32 step = 0; step < 200; ++step) {
      const u64 first = random() % 100;
      const u64 count = random() % 8;
      const bool adds = random() % 3 != 0;
      for (u64 i = 0; i < count; ++i) {
        if (adds) {
          model.insert(first + i);
        } else {
          model.erase(first + i);
        }
      }
      if (adds) {
        runs.add(first * page_size, count);
      } else {
        runs.remove(first * page_size, count);
      }
      ASSERT_EQ(pages_of(runs.all()), model);
      ASSERT_EQ(runs.page_count(), model.size());
      ASSERT_EQ(runs.empty(), model.empty());
      if (!model.empty()) {
        ASSERT_EQ(runs.first(), *model.begin() * page_size);
      }
      const u64 from = random() % 100;
      const u64 length = random() % 20;
      const std::set<u64> within(model.lower_bound(from), model.lower_bound(from + length));
      ASSERT_EQ(pages_of(runs.within(from * page_size, length)), within);
      // Adjacent runs are joined.
      u64 seams = 0;
      for (const u64 page : model) seams += model.count(page + 1) == 0 ? 1 : 0;
      ASSERT_EQ(runs.run_count(), seams);
    }
  }
}

}  // namespace
}  // namespace gpu4fs::pool
