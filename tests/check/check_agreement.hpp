// Checks by the host's reader, by threads and by emulated warps have the same findings.
#pragma once

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "check/pool_image.hpp"
#include "check/warp_check.hpp"

namespace gpu4fs::test {

inline std::string describe(const fsck::CheckResult& result) {
  std::string text;
  for (const fsck::Finding& finding : result.findings.kept()) {
    text += std::string(fsck::finding_kind(finding.id).id) + ": " + finding.place + ": " + finding.text + "\n";
  }
  return text;
}

// The findings, without order.
inline std::multiset<std::string> found_by(const fsck::CheckResult& result) {
  std::multiset<std::string> found;
  for (const fsck::Finding& finding : result.findings.kept()) {
    found.insert(std::string(fsck::finding_kind(finding.id).id) + ": " + finding.place + ": " + finding.text);
  }
  return found;
}

inline void expect_same(const fsck::CheckResult& oracle, const fsck::CheckResult& other) {
  EXPECT_EQ(found_by(oracle), found_by(other));
  for (u32 i = 0; i < fsck::finding_id_count; ++i) {
    const auto id = static_cast<fsck::FindingId>(i);
    EXPECT_EQ(oracle.findings.count(id), other.findings.count(id)) << fsck::finding_kind(id).id;
  }
  EXPECT_EQ(oracle.pages_used, other.pages_used);
  EXPECT_EQ(oracle.inodes, other.inodes);
  EXPECT_EQ(oracle.directories, other.directories);
  EXPECT_EQ(oracle.names, other.names);
  EXPECT_EQ(oracle.orphans, other.orphans);
}

// Both kinds of engines have the findings of the host's reader.
inline void expect_engines_agree(const PoolImage& image, const fsck::CheckResult& oracle, bool check_data = true,
                                 bool by_warps = false) {
  {
    SCOPED_TRACE("threads");
    const fsck::CheckResult found = image.check_by(fsck::CheckEngine::cpu, check_data);
    expect_same(oracle, found);
    EXPECT_TRUE(found.engine != "none" || found.findings.count(fsck::FindingId::pool_unusable) > 0);
  }
  // Emulated warps are slow: they check every twenty-fourth damage, unless they are requested.
  static u32 calls = 0;
  if (calls++ % 24 != 0 && !by_warps) return;
  SCOPED_TRACE("emulated warps");
  fsck::CheckOptions options;
  options.device_paths = image.paths();
  options.check_data = check_data;
  expect_same(oracle, fsck::check::check_pool_with(options, run_warp_check));
}

}  // namespace gpu4fs::test
