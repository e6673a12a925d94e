// gpu4fs trace record.
#pragma once

#include <string>

#include "cli/command_line.hpp"

namespace gpu4fs::tools {

struct TraceRecordCommand {
  std::string device;
  std::string output;
  unsigned seconds = 0;  // 0: until a signal
};

void add_trace_record_options(cli::CommandLine line, TraceRecordCommand& command);

// Returns the exit status. replay::TraceError.
int run_trace_record(const TraceRecordCommand& command);

}  // namespace gpu4fs::tools
