// Recovery: brings a pool from the newest checkpoint to the end of its operation log (docs/internals/durability.md).
// Host only.
//
// It runs on a CPU engine, whichever engine the mount uses afterwards: operations are carried out again one after
// the other, a chain in which each needs the one before. Everything it writes lies in pages that neither the
// checkpoint nor the log names, until the checkpoint at its end (or one in between, which says how far the log
// was replayed): so a crash in the middle of it costs nothing.
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
  const char* needs;     // what it works on
  const char* does;      // what it does
  const char* sentence;  // for the user
};
std::span<const RecoveryStep> recovery_steps();

// A step that ran.
struct RecoveryEntry {
  const RecoveryStep* step;
  u64 count;  // of what the step is about: records, pages ...
  double seconds;
  std::string text;  // what came of it
};

struct RecoveryReport {
  std::vector<RecoveryEntry> entries;
  u64 records_replayed = 0;
  u64 pages_verified = 0;

  std::string text() const;  // a line for each entry
  std::string json() const;
};

// Reads the pool's log and, if it holds records, replays them and writes a checkpoint. A pool that is clean is not
// written. Read-only options: a log that holds records is an error, unless options.ignore_log says to look at the
// pool as of its newest checkpoint. PoolError: as open_pool(); the log is damaged in a part that was acknowledged
// (unless options.drop_damaged_log); a record cannot be carried out. On an error the pool is as it was, or further on
// in the replay of the same log.
RecoveryReport recover_pool(const session::ServerOptions& options);

}  // namespace gpu4fs::server
