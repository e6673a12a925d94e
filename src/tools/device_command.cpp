// gpu4fs device: devices of a mounted pool.
//
//   gpu4fs device add MOUNTPOINT PATH...
//   gpu4fs device replace MOUNTPOINT OLD NEW
//   gpu4fs device rebuild MOUNTPOINT [DEVICE]
//   gpu4fs device remove MOUNTPOINT DEVICE
//   gpu4fs device spare add|remove|list MOUNTPOINT [PATH]
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>

#include "base/host/json.hpp"
#include "base/host/size_text.hpp"
#include "pool/pool_device_file.hpp"
#include "tools/device_add_command.hpp"
#include "tools/job_text.hpp"
#include "tools/mounted_pool.hpp"
#include "tools/reshape_command.hpp"
#include "tools/verbs.hpp"

namespace gpu4fs::tools {
namespace {

constexpr int status_degraded = 4;  // the rebuild failed: the pool is degraded as before
constexpr int status_failure = 8;
constexpr int status_usage = 16;

struct Arguments {
  std::string place;
  std::string device;
  std::string replacement;
  std::string rate;
  bool force = false;
  bool pauses = false;
  bool resumes = false;
  bool only_status = false;
  bool json = false;
  bool waits = false;
  std::optional<cli::CommandLine> add;
  std::optional<cli::CommandLine> replace;
  std::optional<cli::CommandLine> remove;
};
Arguments line;
DeviceAddCommand add_command;
ReshapeCommand remove_command;
SpareCommand spare_command;

void add_add_options(cli::CommandLine app) {
  add_command = {};
  cli::CommandLine add = app.subcommand("add", "Make files members of the pool, and chunks of their space");
  add.option("place", add_command.place, "The directory of the mount, or a device of the pool").required();
  add.option("paths", add_command.paths, "The new devices").required();
  add.flag("-f,--force", add_command.force, "Overwrite devices that hold something");
  add.flag("--json", add_command.json, "Print JSON");
  line.add = add;
}

void add_remove_options(cli::CommandLine app) {
  remove_command = {};
  remove_command.request = "device-remove";
  cli::CommandLine remove =
      app.subcommand("remove", "Empty a device of the pool and take it out, or steer what is running");
  remove.option("place", remove_command.place, "The directory of the mount").required();
  cli::Option device = remove.option("device", remove_command.device, "The device: its index, its path or its UUID");
  cli::Option pause = remove.flag("--pause", remove_command.pauses, "Stop for a while");
  cli::Option resume = remove.flag("--resume", remove_command.resumes, "Go on").excludes(pause);
  cli::Option cancel =
      remove.flag("--cancel", remove_command.cancels, "End it where it is").excludes(pause).excludes(resume);
  cli::Option status = remove.flag("--status", remove_command.only_status, "Only say how far it is");
  for (cli::Option other : {pause, resume, cancel, device}) status.excludes(other);
  remove.option("--rate", remove_command.rate, "Bytes a second at most, as 500M; 0: as fast as it goes");
  remove.flag("--wait", remove_command.waits, "Wait until it is no longer running");
  remove.flag("--json", remove_command.json, "Print JSON");
  line.remove = remove;
}

void add_spare_options(cli::CommandLine app) {
  spare_command = {};
  cli::CommandLine spare = app.subcommand("spare", "Devices that take the place of one that is lost");
  spare.require_subcommand();
  const auto add_verb = [&](const char* name, const char* summary, const char* request) {
    cli::CommandLine verb = spare.subcommand(name, summary);
    verb.option("place", spare_command.place, "The directory of the mount").required();
    verb.flag("--json", spare_command.json, "Print JSON");
    verb.on_selected([request] { spare_command.request = request; });
    return verb;
  };
  cli::CommandLine add = add_verb("add", "Let a device wait", "spare-add");
  add.option("path", spare_command.path, "The device").required();
  add.flag("-f,--force", spare_command.force, "Also one that holds something");
  add_verb("remove", "Let it go", "spare-remove").option("path", spare_command.path, "The device").required();
  add_verb("list", "Show them", "spare-list");
}

void add_common_options(cli::CommandLine app) {
  app.option("--rate", line.rate, "Bytes a second at most, as 500M; 0: as fast as it goes");
  app.flag("--json", line.json, "Print JSON");
  app.flag("--wait", line.waits, "Wait until the rebuild is no longer running");
}

void add_options(cli::CommandLine app) {
  line = {};
  app.require_subcommand();
  add_add_options(app);
  add_remove_options(app);
  add_spare_options(app);
  cli::CommandLine replace = app.subcommand("replace", "Another device takes the place of one of the pool");
  replace.option("place", line.place, "The directory of the mount").required();
  replace.option("old", line.device, "The device that goes: its index, its path or its UUID").required();
  replace.option("new", line.replacement, "The device that comes").required();
  replace.flag("-f,--force", line.force, "Overwrite what the new device holds");
  add_common_options(replace);
  line.replace = replace;
  cli::CommandLine rebuild =
      app.subcommand("rebuild", "Fill a stale device of the pool again, or steer what is running");
  rebuild.option("place", line.place, "The directory of the mount").required();
  rebuild.option("device", line.device, "The stale device: its index, its path or its UUID; without, the only one");
  cli::Option pause = rebuild.flag("--pause", line.pauses, "Stop for a while");
  cli::Option resume = rebuild.flag("--resume", line.resumes, "Go on").excludes(pause);
  rebuild.flag("--status", line.only_status, "Only say how far it is").excludes(pause).excludes(resume);
  add_common_options(rebuild);
}

std::string one_line(const JsonWriter& json) {
  std::string text = json.text();
  text.pop_back();
  return text;
}

std::string status_request() {
  return "{\"request\": \"rebuild-status\"}";
}

std::string request(bool runs) {
  if (line.only_status) return status_request();
  JsonWriter json(JsonLayout::one_line);
  json.begin_object();
  if (line.replace->is_selected()) {
    json.add("request", "device-replace");
    json.add("device", line.device);
    json.add("path", pool::absolute_device_path(line.replacement));
    json.add("force", line.force);
  } else if (line.pauses || line.resumes) {
    json.add("request", line.pauses ? "rebuild-pause" : "rebuild-resume");
  } else if (runs && !line.rate.empty()) {
    json.add("request", "rebuild-rate");
  } else {
    json.add("request", "device-rebuild");
    json.add("device", line.device);
  }
  if (!line.rate.empty()) json.add("rate", parse_size(line.rate));
  json.end();
  return one_line(json);
}

int run() {
  if (line.add->is_selected()) return run_device_add(add_command);
  if (line.remove->is_selected()) return run_reshape(remove_command);
  if (!spare_command.request.empty()) return run_spare(spare_command);
  const std::string mountpoint = find_mountpoint(line.place);
  if (mountpoint.empty()) {
    fmt::print(stderr, "gpu4fs device: {}: no gpu4fs pool is mounted there\n", line.place);
    return status_failure;
  }
  const bool runs = is_busy(ask_server(mountpoint, status_request())["rebuild"]);
  std::string text = ask_server_text(mountpoint, request(runs));
  JsonValue answer = parse_json(text);
  while (line.waits && answer["ok"].boolean && answer["rebuild"]["state"].text == "running") {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    text = ask_server_text(mountpoint, status_request());
    answer = parse_json(text);
  }
  if (!answer["ok"].boolean) throw ControlError(fmt::format("{}: {}", mountpoint, answer["error"].text));
  const std::string words = rebuild_text(answer["rebuild"]);
  fmt::print("{}", line.json ? text + "\n" : words.empty() ? "rebuild     none since the mount\n" : words);
  return answer["rebuild"]["state"].text == "failed" ? status_degraded : 0;
}

}  // namespace

const cli::Verb device_verb = {
    "device",      "add devices to a mounted pool, remove and replace them, and fill stale ones again",
    nullptr,       add_options,
    run,           status_usage,
    status_failure};

}  // namespace gpu4fs::tools
