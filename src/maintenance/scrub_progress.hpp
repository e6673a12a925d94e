// The progress of a scrub, and how it is kept over a remount. Host only.
//
// It is stored in the extended attribute `trusted.gpu4fs.scrub` of the root directory, as a line of `name=value` words.
// An attribute has advantages over bytes of the superblock: an ordinary command changes it, so it is committed,
// replayed and checkpointed like everything else. It needs no format of its own and no place in the checkpoint, and the
// superuser can read it with getfattr(1).
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
  u64 position = 0;         // logical address of the next page; all lower ones have been verified
  u64 damaged_count = 0;    // of the pages verified, known to be damaged
  u64 ownerless_count = 0;  // of the damaged ones, those that no file names
  u64 unreached_count = 0;  // pages of chunks that could not be reached
  // Not kept:
  bool looks_for_owners = false;   // everything is verified, and the damaged files are being determined
  u64 suspect_count = 0;           // pages that did not match and are still undecided
  std::vector<DamagedFile> files;  // found by this scrub since the mount, with a limit
};

std::string to_attribute(const ScrubReport& report);
// Nothing unless every word is known and in its bounds; the text is untrusted.
std::optional<ScrubReport> from_attribute(std::string_view text);

}  // namespace gpu4fs::maintenance
