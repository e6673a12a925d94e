// Recovery: brings a pool from the newest checkpoint to the end of its operation log (docs/internals/durability.md).
// Host only.
//
// It always runs on a CPU engine: operations are repeated one after the other, and each needs the previous one.
// Everything that it writes goes to pages that neither the checkpoint nor the log names, until the checkpoint at its
// end, or one in between that records how far the log was replayed. So a crash during recovery does no harm.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "session/server_options.hpp"

namespace gpu4fs::server {

// One named step of the recovery. Ids are stable.
struct RecoveryStep {
  const char* id;
  const char* needs;     // its input
  const char* does;      // its effect
  const char* sentence;  // for the user
};
std::span<const RecoveryStep> recovery_steps();

// A step that ran.
struct RecoveryEntry {
  const RecoveryStep* step;
  u64 count;  // of the subject of the step: records, pages ...
  double seconds;
  std::string text;  // its result
};

struct RecoveryReport {
  std::vector<RecoveryEntry> entries;
  u64 records_replayed = 0;
  u64 pages_verified = 0;

  std::string text() const;  // a line for each entry
  std::string json() const;
};

// Reads the pool's log. If it holds records, replays them and writes a checkpoint. A clean pool is not written. With
// read-only options, a log that holds records is an error, unless options.ignore_log requests the pool as of its newest
// checkpoint. PoolError: as open_pool(); the log is damaged in an acknowledged part (unless options.drop_damaged_log);
// a record cannot be replayed. After an error the pool is unchanged, or further on in the replay of the same log.
RecoveryReport recover_pool(const session::ServerOptions& options);

}  // namespace gpu4fs::server
