#include "daemon/mount_restart.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "base/host/json.hpp"
#include "base/host/json_value.hpp"

namespace gpu4fs::daemon {
namespace {

constexpr std::size_t reason_bytes_max = 400;

bool write_all(int file, const std::string& bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t count = ::write(file, bytes.data() + at, bytes.size() - at);
    if (count <= 0) return false;
    at += static_cast<std::size_t>(count);
  }
  return true;
}

std::string error_text(const char* what) {
  return fmt::format("{}: {}", what, std::strerror(errno));
}

}  // namespace

bool note_death(RestartState& state, const std::string& reason, std::int64_t now_s) {
  while (!state.times_s.empty() &&
         (state.times_s.size() > restart_max || now_s - state.times_s.front() > restart_window_s)) {
    state.times_s.erase(state.times_s.begin());
    state.reasons.erase(state.reasons.begin());
  }
  state.times_s.push_back(now_s);
  state.reasons.push_back(reason.substr(0, reason_bytes_max));
  return state.times_s.size() <= restart_max;
}

std::string deaths_text(const RestartState& state) {
  return fmt::format("the engine died {} times within {} s, the last time: {}", state.times_s.size(), restart_window_s,
                     state.reasons.empty() ? "" : state.reasons.back());
}

// One line of JSON, followed by the front end's bytes.
std::string to_bytes(const RestartState& state) {
  JsonWriter json(JsonLayout::one_line);
  json.begin_object();
  json.add("pool_name", state.pool_name);
  json.add("engine", state.engine);
  json.add("restart_count", state.restart_count);
  json.add("device", static_cast<u64>(state.device));
  json.add("is_background", state.is_background);
  json.begin_array("deaths");
  for (std::size_t i = 0; i < state.times_s.size(); ++i) {
    json.begin_object();
    json.add("time", state.times_s[i]);
    json.add("reason", state.reasons[i]);
    json.end();
  }
  json.end();
  json.end();
  std::string line = json.text();
  if (line.back() != '\n') line += '\n';
  return line + frontend::to_bytes(state.mount);
}

RestartState restart_state_from(const std::string& bytes) {
  const std::size_t newline = bytes.find('\n');
  if (newline == std::string::npos) throw std::runtime_error("a saved mount is cut off");
  const JsonValue json = parse_json(bytes.substr(0, newline));
  RestartState state;
  state.mount = frontend::saved_mount_from(bytes.substr(newline + 1));
  state.pool_name = json["pool_name"].text;
  state.engine = json["engine"].text;
  state.restart_count = static_cast<u64>(json["restart_count"].number);
  state.device = static_cast<int>(json["device"].number);
  state.is_background = json["is_background"].boolean;
  for (const JsonValue& death : json["deaths"].elements) {
    state.times_s.push_back(static_cast<std::int64_t>(death["time"].number));
    state.reasons.push_back(death["reason"].text);
  }
  return state;
}

std::string execute_again(const RestartState& state, const std::vector<std::string>& words, const ImageEnd& end) {
  const int file = ::memfd_create("gpu4fs mount", 0);
  if (file < 0) return error_text("memfd_create");
  if (!write_all(file, to_bytes(state)) || ::lseek(file, 0, SEEK_SET) != 0) return error_text("the mount's state");
  if (::fcntl(state.device, F_SETFD, 0) != 0) return error_text("the channel to the kernel");
  std::vector<std::string> all = words;
  all.push_back("--resume");
  all.push_back(std::to_string(file));
  std::vector<char*> pointers;
  for (std::string& word : all) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  end.end_requests();
  (void)end.execute("/proc/self/exe", pointers.data());
  const std::string problem = error_text("execv");
  ::fcntl(state.device, F_SETFD, FD_CLOEXEC);
  ::close(file);
  return problem;
}

RestartState read_restart_state(int number) {
  std::string bytes;
  char buffer[65536];
  ssize_t count = 0;
  while ((count = ::read(number, buffer, sizeof(buffer))) > 0) bytes.append(buffer, static_cast<std::size_t>(count));
  ::close(number);
  if (count < 0) throw std::runtime_error("the mount's state cannot be read");
  return restart_state_from(bytes);
}

}  // namespace gpu4fs::daemon
