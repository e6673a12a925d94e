// gpu4fs scrub: verifies all pages of a mounted pool, in its server.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "base/host/json.hpp"
#include "base/host/size_text.hpp"
#include "base/limits.hpp"
#include "tools/job_text.hpp"
#include "tools/mounted_pool.hpp"
#include "tools/verbs.hpp"

namespace gpu4fs::tools {
namespace {

constexpr int status_damaged = 4;  // as fsck(8): errors left uncorrected
constexpr int status_failure = 8;
constexpr int status_usage = 16;

struct Arguments {
  std::string action;
  std::string place;
  std::string rate;
  bool json = false;
  bool waits = false;
};
Arguments line;

void add_options(cli::CommandLine app) {
  line = {};
  app.option("action", line.action, "What to do").required().one_of({"start", "pause", "resume", "cancel", "status"});
  app.option("place", line.place, "The directory of the mount, or a device of the pool").required();
  app.option("--rate", line.rate, "With start: bytes a second at most, as 500M; without, as fast as it goes");
  app.flag("--json", line.json, "Print JSON");
  app.flag("--wait", line.waits, "Wait until the scrub is no longer running");
}

std::string request() {
  JsonWriter json(JsonLayout::one_line);
  json.begin_object();
  json.add("request", "scrub-" + line.action);
  if (!line.rate.empty()) json.add("rate", parse_size(line.rate));
  json.end();
  std::string text = json.text();
  text.pop_back();
  return text;
}

int run() {
  if (!line.rate.empty() && line.action != "start") {
    fmt::print(stderr, "gpu4fs scrub: --rate belongs to 'start'\n");
    return status_usage;
  }
  const std::string mountpoint = find_mountpoint(line.place);
  if (mountpoint.empty()) {
    fmt::print(stderr, "gpu4fs scrub: {}: no gpu4fs pool is mounted there\n", line.place);
    return status_failure;
  }
  std::string text = ask_server_text(mountpoint, request());
  JsonValue answer = parse_json(text);
  while (line.waits && answer["ok"].boolean && answer["scrub"]["state"].text == "running") {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    text = ask_server_text(mountpoint, "{\"request\": \"scrub-status\"}");
    answer = parse_json(text);
  }
  if (!answer["ok"].boolean) throw ControlError(fmt::format("{}: {}", mountpoint, answer["error"].text));
  const JsonValue& scrub = answer["scrub"];
  fmt::print("{}", line.json ? text + "\n" : scrub_text(scrub));
  return scrub["pages_damaged"].number > 0 ? status_damaged : 0;
}

}  // namespace

const cli::Verb scrub_verb = {
    "scrub", "verify all pages of a mounted pool", nullptr, add_options, run, status_usage, status_failure};

}  // namespace gpu4fs::tools
