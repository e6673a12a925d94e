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

#include "base/types.hpp"

namespace gpu4fs::maintenance {

inline constexpr std::string_view scrub_attribute = "trusted.gpu4fs.scrub";

enum class ScrubState { never, running, paused, finished, cancelled };

const char* scrub_state_name(ScrubState state);

struct ScrubProgress {
  ScrubState state = ScrubState::never;
  u64 position = 0;          // logical address of the next page; all below have been verified
  u64 page_total = 0;        // pages in use when it began
  u64 page_count = 0;        // verified
  u64 damaged_count = 0;     // of these, known to be damaged
  u64 ownerless_count = 0;   // of the damaged ones, those that no file names
  u64 unreached_count = 0;   // pages of chunks that could not be reached
  u64 rate_limit = 0;        // bytes/s, 0: none
  i64 started_s = 0;         // since 1970
  i64 ended_s = 0;           // 0: it has not
  u64 active_ms = 0;         // time spent, pauses excluded

  // Bytes verified a second, 0: unknown.
  [[nodiscard]] double rate() const;
  // Seconds that the rest will take, nothing while that is unknown.
  [[nodiscard]] std::optional<double> seconds_left() const;
};

std::string to_attribute(const ScrubProgress& progress);
// Nothing unless every word is known and in its bounds; the text may come from anywhere.
std::optional<ScrubProgress> from_attribute(std::string_view text);

}  // namespace gpu4fs::maintenance
