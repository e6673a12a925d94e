// Reads the operation log of an opened pool (format/log_format.hpp). Host only. The log is untrusted input: the result
// is always a list of well-formed records.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"
#include "format/log_format.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::server {

// "" or the fault of the record in memory [record, record + available) that should be the one of `lsn`.
std::string find_record_problem(const format::LogRecord& record, u64 available, u64 lsn, u64 seed);

struct LogScan {
  u64 capacity = 0;            // 0: the pool has no log
  u64 start = 0;               // LSN of the first record
  u64 end = 0;                 // LSN after the last valid one
  u64 durable = 0;             // the greatest durable_lsn in any record, including those after a gap
  std::vector<u8> bytes;       // the contiguous records, without fillers
  std::vector<u64> positions;  // of each record in `bytes`

  u64 record_count() const { return positions.size(); }
  const format::LogRecord& record(u64 index) const {
    return *reinterpret_cast<const format::LogRecord*>(bytes.data() + positions[index]);
  }
};

// Each record is read from the first log device with a valid copy. PoolError: a device cannot be read, or a valid
// record is of a kind that this version does not know.
LogScan scan_log(const pool::OpenedPool& pool);

}  // namespace gpu4fs::server
