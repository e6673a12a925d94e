// gpu4fs trim: returns all free space of a mounted pool to the devices' media, and memory to the system.
#include <fmt/format.h>

#include <string>
#include <vector>

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
  const auto errors = static_cast<u64>(answer["errors"].number);
  const std::vector<JsonValue>& left_out = answer["left_out"].elements;
  fmt::print("{}\n", line.json ? text : fmt::format("{}: {} given back", mountpoint, size_text(bytes)));
  for (const JsonValue& device : left_out) fmt::print(stderr, "gpu4fs trim: {}\n", device.text);
  if (errors != 0) fmt::print(stderr, "gpu4fs trim: {} ranges could not be given back; the log says more\n", errors);
  return errors == 0 ? 0 : status_failure;
}

}  // namespace

const cli::Verb trim_verb = {
    "trim", "give free space back to memory and disks", nullptr, add_options, run, status_usage, status_failure};

}  // namespace gpu4fs::tools
