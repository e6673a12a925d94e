// gpu4fs trace replay.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.hpp"

namespace gpu4fs::tools {

struct TraceReplayCommand {
  std::vector<std::string> files;
  std::string cache_bytes;  // sizes with commas; empty: chosen by the footprint
  std::string format = "auto";
  std::string json_file;  // "-": standard output, instead of the text; empty: none
};

void add_trace_replay_options(cli::CommandLine line, TraceReplayCommand& command);

// Returns the exit status. replay::TraceError; std::runtime_error: the result cannot be written.
int run_trace_replay(const TraceReplayCommand& command);

}  // namespace gpu4fs::tools
