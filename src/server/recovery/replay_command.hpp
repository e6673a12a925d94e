// From a record of the operation log to the command that carries it out again.
#pragma once

#include "format/log_format.hpp"
#include "format/ring_format.hpp"

namespace gpu4fs::server {

// `address`: where the record lies in the session's data area (format::ring_address). The record is a valid one.
format::Command replay_command(const format::LogRecord& record, u64 address);

// The pages that the record names are claimed and verified.
format::Command claim_command(u64 address);

}  // namespace gpu4fs::server
