// How far a scrub has come, and how that is kept over a remount. Host only.
//
// It is kept as the extended attribute `trusted.gpu4fs.scrub` of the root directory: a line of `name=value` words.
// An attribute rather than bytes of the superblock, because it is changed by an ordinary command: it commits, is
// replayed and checkpointed with everything else, needs no format of its own and no place in the checkpoint, and
// the superuser can look at it with getfattr(1).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.hpp"
#include "maintenance/damage_owners.hpp"
#include "maintenance/job_report.hpp"

namespace gpu4fs::maintenance {

inline constexpr std::string_view scrub_attribute = "trusted.gpu4fs.scrub";

struct ScrubReport : JobReport {
  u64 position = 0;         // logical address of the next page; all below have been verified
  u64 damaged_count = 0;    // of the pages verified, known to be damaged
  u64 ownerless_count = 0;  // of the damaged ones, those that no file names
  u64 unreached_count = 0;  // pages of chunks that could not be reached
  // Not kept:
  bool looks_for_owners = false;   // all is verified, the files are being looked for
  u64 suspect_count = 0;           // pages that did not match and are yet to be judged
  std::vector<DamagedFile> files;  // found by this scrub since the mount, a bounded number
};

std::string to_attribute(const ScrubReport& report);
// Nothing unless every word is known and in its bounds; the text may come from anywhere.
std::optional<ScrubReport> from_attribute(std::string_view text);

}  // namespace gpu4fs::maintenance
