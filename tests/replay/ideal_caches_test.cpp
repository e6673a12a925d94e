// LRU and OPT against what theory says of synthetic traces, and against caches that are simulated plainly.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <list>
#include <map>

#include "replay/ideal_caches.hpp"
#include "replay/synthetic_traces.hpp"

namespace gpu4fs::replay {
namespace {

double ratio(IdealHits hits, const PageTrace& trace) {
  return static_cast<double>(hits.reads + hits.writes) / static_cast<double>(trace.access_count);
}

TEST(IdealCaches, SequentialPagesNeverHit) {
  const PageTrace trace = pages_of(test::trace_of_pages(test::sequential_pages(1000)));
  const LruHits lru(trace);
  const OptimalHits optimal(trace);
  for (const u32 lines : {1u, 100u, 1000u, 5000u}) {
    EXPECT_EQ(lru.with(lines).reads, 0u);
    EXPECT_EQ(optimal.with(lines).reads, 0u);
  }
}

// LRU removes just the page that comes next. The optimum of a loop of n pages in c lines tends to (c - 1) / (n - 1):
// between two misses all but one of the lines are used once.
TEST(IdealCaches, LoopsHaveKnownRatios) {
  constexpr u64 page_count = 97;
  constexpr u64 rounds = 400;
  const PageTrace trace = pages_of(test::trace_of_pages(test::loop_pages(page_count, rounds)));
  const LruHits lru(trace);
  const OptimalHits optimal(trace);
  for (const u32 lines : {1u, 2u, 50u, 96u}) {
    EXPECT_EQ(lru.with(lines).reads, 0u) << lines;
    EXPECT_NEAR(ratio(optimal.with(lines), trace), (lines - 1.0) / (page_count - 1), 1.0 / rounds) << lines;
  }
  for (const u32 lines : {97u, 98u, 1000u}) {
    EXPECT_EQ(lru.with(lines).reads, page_count * (rounds - 1));
    EXPECT_EQ(optimal.with(lines).reads, page_count * (rounds - 1));
  }
}

TEST(IdealCaches, UniformPagesHitLruByItsShareOfTheFootprint) {
  constexpr u64 page_count = 1000;
  const PageTrace trace = pages_of(test::trace_of_pages(test::uniform_pages(page_count, 200'000, 1)));
  const LruHits lru(trace);
  const OptimalHits optimal(trace);
  for (const u32 lines : {10u, 100u, 500u, 900u}) {
    EXPECT_NEAR(ratio(lru.with(lines), trace), lines / 1000.0, 0.01) << lines;
    EXPECT_GT(ratio(optimal.with(lines), trace), lines / 1000.0 + 0.03) << lines;
  }
}

// Che's approximation: a page with probability p is in an LRU cache with 1 - exp(-p t), where t is such that the cache
// is full (Che, Tung, Wang: Hierarchical web caching systems, IEEE JSAC 2002).
double che_ratio(const std::vector<double>& probabilities, double lines) {
  const auto cached_at = [&](double time) {
    double sum = 0;
    for (const double p : probabilities) sum += 1 - std::exp(-p * time);
    return sum;
  };
  double low = 0, high = 1e9;
  for (int i = 0; i < 200; ++i) (cached_at((low + high) / 2) < lines ? low : high) = (low + high) / 2;
  double ratio = 0;
  for (const double p : probabilities) ratio += p * (1 - std::exp(-p * low));
  return ratio;
}

TEST(IdealCaches, ZipfPagesHitLruAsChePredicts) {
  constexpr u64 page_count = 4000;
  const PageTrace trace = pages_of(test::trace_of_pages(test::zipf_pages(page_count, 400'000, 2)));
  const LruHits lru(trace);
  for (const u32 lines : {20u, 200u, 1000u, 3000u}) {
    EXPECT_NEAR(ratio(lru.with(lines), trace), che_ratio(test::zipf_probabilities(page_count), lines), 0.01) << lines;
  }
}

// A plain list, the most recently used page in front.
IdealHits simulated_lru(const PageTrace& trace, u32 lines) {
  std::list<u32> cache;
  IdealHits hits;
  walk(
      trace,
      [&](const PageRequest& request, u32 page, u32) {
        const auto found = std::find(cache.begin(), cache.end(), page);
        if (found != cache.end()) {
          ++(request.kind == AccessKind::read ? hits.reads : hits.writes);
          cache.erase(found);
        } else if (cache.size() == lines) {
          cache.pop_back();
        }
        cache.push_front(page);
      },
      [&](u32 page) { cache.remove(page); }, [](u32) {});
  return hits;
}

TEST(IdealCaches, LruIsThatOfAPlainList) {
  for (u64 seed = 1; seed <= 60; ++seed) {
    const PageTrace trace = pages_of(test::random_trace(12, 400, seed));
    const LruHits lru(trace);
    for (u32 lines = 1; lines <= trace.pages.size() + 1; ++lines) {
      const IdealHits expected = simulated_lru(trace, lines);
      EXPECT_EQ(lru.with(lines).reads, expected.reads) << seed << ' ' << lines;
      EXPECT_EQ(lru.with(lines).writes, expected.writes) << seed << ' ' << lines;
    }
  }
}

// The most hits over all choices of pages to remove: every reachable content of the cache is tried.
u64 most_hits(const PageTrace& trace, u32 lines) {
  std::map<u32, u64> best = {{0, 0}};  // set of cached pages -> hits so far
  const auto keep = [](std::map<u32, u64>& states, u32 pages, u64 hits) {
    u64& known = states[pages];
    known = std::max(known, hits);
  };
  walk(
      trace,
      [&](const PageRequest&, u32 page, u32) {
        std::map<u32, u64> after;
        const u32 own = 1u << page;
        for (const auto& [pages, hits] : best) {
          if ((pages & own) != 0) {
            keep(after, pages, hits + 1);
          } else if (static_cast<u32>(std::popcount(pages)) < lines) {
            keep(after, pages | own, hits);
          } else {
            for (u32 left = pages; left != 0; left &= left - 1) keep(after, (pages & ~(left & -left)) | own, hits);
          }
        }
        best = std::move(after);
      },
      [&](u32 page) {
        std::map<u32, u64> after;
        for (const auto& [pages, hits] : best) keep(after, pages & ~(1u << page), hits);
        best = std::move(after);
      },
      [](u32) {});
  u64 result = 0;
  for (const auto& [pages, hits] : best) result = std::max(result, hits);
  return result;
}

TEST(IdealCaches, NoChoiceOfPagesIsBetterThanTheOptimum) {
  for (u64 seed = 1; seed <= 100; ++seed) {
    const PageTrace trace = pages_of(test::random_trace(4, 60, seed));
    ASSERT_LE(trace.pages.size(), 8u);
    const OptimalHits optimal(trace);
    for (u32 lines = 1; lines <= 9; ++lines) {
      const IdealHits hits = optimal.with(lines);
      EXPECT_EQ(hits.reads + hits.writes, most_hits(trace, lines)) << seed << ' ' << lines;
    }
  }
}

TEST(IdealCaches, ReadsAndWritesAreCountedApart) {
  BlockTrace block = test::trace_of_pages({1, 2});
  const BlockTrace writes = test::trace_of_pages({1, 2, 3, 3}, AccessKind::write);
  block.requests.insert(block.requests.end(), writes.requests.begin(), writes.requests.end());
  block.requests.push_back(block.requests.front());
  const PageTrace trace = pages_of(block);
  for (const IdealHits hits : {LruHits(trace).with(3), OptimalHits(trace).with(3)}) {
    EXPECT_EQ(hits.reads, 1u);
    EXPECT_EQ(hits.writes, 3u);
  }
}

}  // namespace
}  // namespace gpu4fs::replay
