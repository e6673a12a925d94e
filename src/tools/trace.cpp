// gpu4fs trace: block traces.
//
//   gpu4fs trace record DEVICE --output FILE
//   gpu4fs trace replay FILE...
#include <optional>

#include "tools/trace_record_command.hpp"
#include "tools/trace_replay_command.hpp"
#include "tools/verbs.hpp"

namespace gpu4fs::tools {
namespace {

TraceRecordCommand record_command;
TraceReplayCommand replay_command;
std::optional<cli::CommandLine> record_line;

void add_options(cli::CommandLine app) {
  record_command = {};
  replay_command = {};
  app.require_subcommand();
  record_line = app.subcommand("record", "Record the requests to a block device");
  add_trace_record_options(*record_line, record_command);
  add_trace_replay_options(app.subcommand("replay", "Show how traces hit page caches of several sizes"),
                           replay_command);
}

int run() {
  return record_line->is_selected() ? run_trace_record(record_command) : run_trace_replay(replay_command);
}

}  // namespace

const cli::Verb trace_verb = {
    "trace", "record block traces, and replay them against the page cache", nullptr, add_options, run, 16, 8};

}  // namespace gpu4fs::tools
