// gpu4fs balance: evens out the free space of the devices of a mounted pool.
//
//   gpu4fs balance MOUNTPOINT

#include "tools/reshape_command.hpp"
#include "tools/verbs.hpp"

namespace gpu4fs::tools {
namespace {

constexpr int status_failure = 8;
constexpr int status_usage = 16;

ReshapeCommand line;

void add_options(cli::CommandLine app) {
  line = {};
  line.request = "balance";
  app.option("place", line.place, "The directory of the mount").required();
  cli::Option pause = app.flag("--pause", line.pauses, "Stop for a while");
  cli::Option resume = app.flag("--resume", line.resumes, "Go on").excludes(pause);
  cli::Option cancel = app.flag("--cancel", line.cancels, "End it where it is").excludes(pause).excludes(resume);
  app.flag("--status", line.only_status, "Only say how far it is").excludes(pause).excludes(resume).excludes(cancel);
  app.option("--rate", line.rate, "Bytes a second at most, as 500M; 0: as fast as it goes");
  app.flag("--wait", line.waits, "Wait until it is no longer running");
  app.flag("--json", line.json, "Print JSON");
}

int run() {
  return run_reshape(line);
}

}  // namespace

const cli::Verb balance_verb = {
    "balance",     "even out how full the devices of a mounted pool are", nullptr, add_options, run, status_usage,
    status_failure};

}  // namespace gpu4fs::tools
