// Replays the records of an operation log, on an engine in replay mode (it keeps no log). Host only.
//
//   const VerifiedLog log = verify_records(session, scan);   // the valid part
//   replay_records(session, scan, log.record_count);
//   set_log_end(session, log.end);
//   ... a checkpoint ...
//
// `session` is an internal one with at least format::log_record_bytes_max of data. All functions throw PoolError that
// names the record; then the engine must be discarded without a checkpoint.
#pragma once

#include "server/recovery/log_scan.hpp"
#include "session/server_session.hpp"

namespace gpu4fs::server {

struct VerifiedLog {
  u64 record_count = 0;  // the log ends before the first record whose pages are not on the medium
  u64 page_count = 0;    // of data, named by records
  u64 end = 0;           // LSN
};

// Replays the records of rows; then adopts the pages that records name and compares them with their digests.
VerifiedLog verify_records(session::ServerSession& session, const LogScan& scan);

// Everything acknowledged is before `end`; otherwise checksum_mismatch.
void require_nothing_lost(const LogScan& scan, u64 end);

void replay_records(session::ServerSession& session, const LogScan& scan, u64 record_count);

// In the next checkpoint the log begins at `lsn`.
void set_log_end(session::ServerSession& session, u64 lsn);

}  // namespace gpu4fs::server
