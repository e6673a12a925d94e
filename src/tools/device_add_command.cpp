#include "tools/device_add_command.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "base/host/json.hpp"
#include "pool/pool_device_file.hpp"
#include "tools/mounted_pool.hpp"

namespace gpu4fs::tools {

namespace {

constexpr int status_failure = 8;

// The server has a working directory of its own.
std::string request(const DeviceAddCommand& command) {
  JsonWriter json(JsonLayout::one_line);
  json.begin_object();
  json.add("request", "device-add");
  json.add("force", command.force);
  json.begin_array("paths");
  for (const std::string& path : command.paths) json.add("", pool::absolute_device_path(path));
  json.end();
  json.end();
  std::string text = json.text();
  text.pop_back();
  return text;
}

}  // namespace

int run_device_add(const DeviceAddCommand& command) {
  const std::string mountpoint = find_mountpoint(command.place);
  if (mountpoint.empty()) {
    fmt::print(stderr, "gpu4fs device: {}: no gpu4fs pool is mounted there\n", command.place);
    return status_failure;
  }
  const std::string text = ask_server_text(mountpoint, request(command));
  const JsonValue answer = parse_json(text);
  if (!answer["ok"].boolean) throw ControlError(fmt::format("{}: {}", mountpoint, answer["error"].text));
  if (command.json) {
    fmt::print("{}\n", text);
    return 0;
  }
  const std::vector<JsonValue>& devices = answer["devices"].elements;
  for (std::size_t i = 0; i < devices.size() && i < command.paths.size(); ++i) {
    fmt::print("device {}: {}\n", static_cast<u64>(devices[i].number), command.paths[i]);
  }
  fmt::print("{} chunks more\n", static_cast<u64>(answer["chunks"].number));
  return 0;
}

}  // namespace gpu4fs::tools
