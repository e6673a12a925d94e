#include "tools/reshape_command.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "base/host/json.hpp"
#include "base/host/json_value.hpp"
#include "base/host/size_text.hpp"
#include "base/types.hpp"
#include "pool/pool_device_file.hpp"
#include "tools/job_text.hpp"
#include "tools/mounted_pool.hpp"

namespace gpu4fs::tools {
namespace {

constexpr int status_not_done = 4;  // it ended early; the pool is in use as before
constexpr int status_failure = 8;

std::string one_line(const JsonWriter& json) {
  std::string text = json.text();
  text.pop_back();
  return text;
}

std::string status_request() {
  return "{\"request\": \"reshape-status\"}";
}

std::string request(const ReshapeCommand& command, bool runs) {
  if (command.only_status) return status_request();
  JsonWriter json(JsonLayout::one_line);
  json.begin_object();
  if (command.pauses || command.resumes || command.cancels) {
    json.add("request", command.pauses ? "reshape-pause" : command.resumes ? "reshape-resume" : "reshape-cancel");
  } else if (runs && !command.rate.empty()) {
    json.add("request", "reshape-rate");
  } else {
    json.add("request", command.request);
    if (!command.device.empty()) json.add("device", command.device);
  }
  if (!command.rate.empty()) json.add("rate", parse_size(command.rate));
  json.end();
  return one_line(json);
}

std::string require_mountpoint(const std::string& place) {
  std::string mountpoint = find_mountpoint(place);
  if (mountpoint.empty()) throw ControlError(fmt::format("{}: no gpu4fs pool is mounted there", place));
  return mountpoint;
}

}  // namespace

std::string spares_text(const JsonValue& spares) {
  std::string text;
  for (const JsonValue& spare : spares.elements) {
    text += fmt::format("spare       {}: {}, {}\n", spare["path"].text, size_text(count_of(spare["size_bytes"])),
                        spare["state"].text);
  }
  return text;
}

int run_reshape(const ReshapeCommand& command) {
  const std::string mountpoint = require_mountpoint(command.place);
  const bool runs = is_busy(ask_server(mountpoint, status_request())["reshape"]);
  std::string text = ask_server_text(mountpoint, request(command, runs));
  JsonValue answer = parse_json(text);
  while (command.waits && answer["ok"].boolean && answer["reshape"]["state"].text == "running") {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    text = ask_server_text(mountpoint, status_request());
    answer = parse_json(text);
  }
  if (!answer["ok"].boolean) throw ControlError(fmt::format("{}: {}", mountpoint, answer["error"].text));
  fmt::print("{}", command.json ? text + "\n" : reshape_text(answer["reshape"]));
  const std::string& state = answer["reshape"]["state"].text;
  return state == "failed" || state == "cancelled" ? status_not_done : 0;
}

int run_spare(const SpareCommand& command) {
  const std::string mountpoint = require_mountpoint(command.place);
  JsonWriter json(JsonLayout::one_line);
  json.begin_object();
  json.add("request", command.request);
  // The server has a working directory of its own.
  if (!command.path.empty()) json.add("path", pool::absolute_device_path(command.path));
  json.add("force", command.force);
  json.end();
  const std::string text = ask_server_text(mountpoint, one_line(json));
  const JsonValue answer = parse_json(text);
  if (!answer["ok"].boolean) {
    fmt::print(stderr, "gpu4fs device: {}: {}\n", mountpoint, answer["error"].text);
    return status_failure;
  }
  if (command.json) {
    fmt::print("{}\n", text);
    return 0;
  }
  const std::string words = spares_text(answer["spares"]);
  fmt::print("{}", words.empty() ? "spare       none\n" : words);
  return 0;
}

}  // namespace gpu4fs::tools
