// gpu4fs balance: evens out how full the devices of a mounted pool are.
//
//   gpu4fs balance MOUNTPOINT
#include <CLI/CLI.hpp>

#include "tools/reshape_command.hpp"
#include "tools/verb.hpp"

namespace gpu4fs::tools {
namespace {

constexpr int status_failure = 8;
constexpr int status_usage = 16;

ReshapeCommand line;

void add_options(CLI::App& app) {
  line = {};
  line.request = "balance";
  app.add_option("place", line.place, "The directory of the mount")->required();
  CLI::Option* pause = app.add_flag("--pause", line.pauses, "Stop for a while");
  CLI::Option* resume = app.add_flag("--resume", line.resumes, "Go on")->excludes(pause);
  CLI::Option* cancel = app.add_flag("--cancel", line.cancels, "End it where it is")->excludes(pause)->excludes(resume);
  app.add_flag("--status", line.only_status, "Only say how far it is")->excludes(pause)->excludes(resume)->excludes(cancel);
  app.add_option("--rate", line.rate, "Bytes a second at most, as 500M; 0: as fast as it goes");
  app.add_flag("--wait", line.waits, "Wait until it is no longer running");
  app.add_flag("--json", line.json, "Print JSON");
}

int run() { return run_reshape(line); }

}  // namespace

const Verb balance_verb = {"balance", "even out how full the devices of a mounted pool are", nullptr, add_options,
                           run,       status_usage,                                           status_failure};

}  // namespace gpu4fs::tools
