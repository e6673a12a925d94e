// gpu4fs trim: returns the memory of all free space of a mounted pool to the system.
#include <fmt/format.h>

#include <string>

#include "base/host/json_value.hpp"
#include "base/host/size_text.hpp"
#include "tools/mounted_pool.hpp"
#include "tools/verbs.hpp"

namespace gpu4fs::tools {
namespace {

constexpr int status_failure = 8;
constexpr int status_usage = 16;

struct Arguments {
  std::string place;
  bool json = false;
};
Arguments line;

void add_options(cli::CommandLine app) {
  line = {};
  app.option("place", line.place, "The directory of the mount, or a device of the pool").required();
  app.flag("--json", line.json, "Print JSON");
}

int run() {
  const std::string mountpoint = find_mountpoint(line.place);
  if (mountpoint.empty()) {
    fmt::print(stderr, "gpu4fs trim: {}: no gpu4fs pool is mounted there\n", line.place);
    return status_failure;
  }
  const std::string text = ask_server_text(mountpoint, "{\"request\": \"trim\"}");
  const JsonValue answer = parse_json(text);
  if (!answer["ok"].boolean) throw ControlError(fmt::format("{}: {}", mountpoint, answer["error"].text));
  const auto bytes = static_cast<u64>(answer["bytes"].number);
  fmt::print("{}\n", line.json ? text : fmt::format("{}: {} given back", mountpoint, size_text(bytes)));
  return 0;
}

}  // namespace

const cli::Verb trim_verb = {
    "trim", "give memory of free space back to the system", nullptr, add_options, run, status_usage, status_failure};

}  // namespace gpu4fs::tools
