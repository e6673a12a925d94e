// Traces whose hit ratios are known from theory. Each request reads or writes one page of one device.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/limits.hpp"
#include "replay/block_trace.hpp"

namespace gpu4fs::test {

using replay::AccessKind;
using replay::BlockTrace;

inline BlockTrace trace_of_pages(const std::vector<u64>& pages, AccessKind kind = AccessKind::read) {
  BlockTrace trace;
  trace.devices = {"a"};
  for (const u64 page : pages) trace.requests.push_back({page * page_size, page_size, 0, kind});
  return trace;
}

inline std::vector<u64> sequential_pages(u64 count) {
  std::vector<u64> pages(count);
  for (u64 i = 0; i < count; ++i) pages[i] = i;
  return pages;
}

inline std::vector<u64> loop_pages(u64 page_count, u64 rounds) {
  std::vector<u64> pages;
  for (u64 i = 0; i < page_count * rounds; ++i) pages.push_back(i % page_count);
  return pages;
}

inline std::vector<u64> uniform_pages(u64 page_count, u64 access_count, u64 seed) {
  std::mt19937_64 random(seed);
  std::vector<u64> pages(access_count);
  for (u64& page : pages) page = random() % page_count;
  return pages;
}

// Probabilities of the pages: page i has 1 / (i + 1), scaled to a sum of one.
inline std::vector<double> zipf_probabilities(u64 page_count) {
  std::vector<double> probabilities(page_count);
  double sum = 0;
  for (u64 i = 0; i < page_count; ++i) sum += probabilities[i] = 1.0 / static_cast<double>(i + 1);
  for (double& probability : probabilities) probability /= sum;
  return probabilities;
}

inline std::vector<u64> zipf_pages(u64 page_count, u64 access_count, u64 seed) {
  std::vector<double> sums = zipf_probabilities(page_count);
  for (u64 i = 1; i < page_count; ++i) sums[i] += sums[i - 1];
  std::mt19937_64 random(seed);
  std::vector<u64> pages(access_count);
  for (u64& page : pages) {
    const double place = static_cast<double>(random() >> 11) * 0x1p-53;
    page = std::min<u64>(static_cast<u64>(std::upper_bound(sums.begin(), sums.end(), place) - sums.begin()),
                         page_count - 1);
  }
  return pages;
}

// Requests of all kinds over a few pages: reads and writes of several pages and parts, discards, flushes.
inline BlockTrace random_trace(u64 page_count, u64 request_count, u64 seed) {
  std::mt19937_64 random(seed);
  BlockTrace trace;
  trace.devices = {"a", "b"};
  for (u64 i = 0; i < request_count; ++i) {
    const u64 dice = random() % 16;
    const u32 device = static_cast<u32>(random() % 2);
    const AccessKind kind = dice == 0   ? AccessKind::flush
                            : dice <= 3 ? AccessKind::discard
                            : dice <= 9 ? AccessKind::read
                                        : AccessKind::write;
    const u64 unit = page_size / 4;
    const u64 first = random() % (page_count * 4);
    const u64 count = 1 + random() % std::min<u64>(10, page_count * 4 - first);
    if (kind == AccessKind::flush) {
      trace.requests.push_back({0, 0, device, kind});
    } else {
      trace.requests.push_back({first * unit, count * unit, device, kind});
    }
  }
  // A page of each device is accessed in every case.
  for (u32 device = 0; device < 2; ++device) trace.requests.push_back({0, page_size, device, AccessKind::read});
  return trace;
}

}  // namespace gpu4fs::test
