#include "bench/process_client.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "base/host/json.hpp"
#include "base/host/json_value.hpp"
#include "client/process_session.hpp"

extern char** environ;

namespace gpu4fs::bench {
namespace {

void add_samples(JsonWriter& json, const char* name, const std::vector<double>& samples) {
  json.begin_array(name);
  for (const double sample : samples) json.add("", sample);
  json.end();
}

std::vector<double> samples_of(const JsonValue& result, const char* name) {
  std::vector<double> samples;
  for (const JsonValue& element : result[name].elements) samples.push_back(element.number);
  if (samples.empty()) throw std::runtime_error(fmt::format("a client process has no samples of {}", name));
  return samples;
}

// The members by name, for reading and writing.
template <class Load, class Visit>
void visit_load(Load& load, Visit&& visit) {
  visit("small_inode", load.small_inode);
  visit("small_file", load.small_file);
  visit("large_inode", load.large_inode);
  visit("large_file", load.large_file);
  visit("large_bytes", load.large_bytes);
  visit("calls", load.calls);
  visit("repeats", load.repeats);
}

std::string text_of(const ProcessWork& work) {
  JsonWriter json(JsonLayout::one_line);
  json.begin_object();
  visit_load(work.load, [&](const char* name, const auto& value) { json.add(name, value); });
  json.add("milliseconds", work.milliseconds);
  json.add("seed", work.seed);
  json.end();
  return json.text();
}

ProcessWork work_of(const JsonValue& text) {
  ProcessWork work;
  visit_load(work.load, [&](const char* name, auto& value) {
    value = static_cast<std::remove_reference_t<decltype(value)>>(text[name].number);
  });
  work.milliseconds = static_cast<u64>(text["milliseconds"].number);
  work.seed = static_cast<u64>(text["seed"].number);
  return work;
}

}  // namespace

int run_process_client(const std::string& socket) {
  client::ProcessSessionOptions opening;
  opening.data_bytes = session_load_data_bytes;
  BenchClient client(client::open_process_session(socket, opening).session);
  std::puts("open");
  std::fflush(stdout);
  char line[1024];
  if (std::fgets(line, sizeof(line), stdin) == nullptr) return 1;
  const ProcessWork work = work_of(parse_json(line));
  JsonWriter json(JsonLayout::one_line);
  json.begin_object();
  if (work.milliseconds != 0) {
    json.add("reads", read_small(client, work.load, static_cast<double>(work.milliseconds) / 1e3, work.seed));
  } else {
    const SessionFigures figures = measure_session(client, work.load);
    add_samples(json, "noop_us", figures.noop_us);
    add_samples(json, "read_us", figures.read_us);
    add_samples(json, "read_gb_per_s", figures.read_gb_per_s);
    add_samples(json, "write_gb_per_s", figures.write_gb_per_s);
  }
  json.end();
  std::fputs(json.text().c_str(), stdout);
  return 0;
}

ProcessClient::ProcessClient(const std::string& socket) {
  std::vector<std::string> words{"/proc/self/exe", "process-client", "--socket", socket};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int in[2];
  int out[2];
  if (::pipe2(in, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  if (::pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  to_ = in[1];
  from_ = out[0];
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  const int error = ::posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(in[0]);
  ::close(out[1]);
  if (error != 0) {
    pid_ = -1;
    throw std::runtime_error(fmt::format("a client process: {}", std::strerror(error)));
  }
  if (line() != "open") throw std::runtime_error("a client process opened no session");
}

ProcessClient::~ProcessClient() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(to_);
  ::close(from_);
}

void ProcessClient::begin(const ProcessWork& work) {
  const std::string text = text_of(work);
  if (::write(to_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw std::runtime_error("a client process has ended");
  }
}

std::string ProcessClient::line() {
  std::string text;
  char byte = 0;
  while (::read(from_, &byte, 1) == 1 && byte != '\n') text.push_back(byte);
  return text;
}

SessionFigures ProcessClient::figures() {
  const std::string text = line();
  if (text.empty()) throw std::runtime_error("a client process failed");
  const JsonValue result = parse_json(text);
  return {samples_of(result, "noop_us"), samples_of(result, "read_us"), samples_of(result, "read_gb_per_s"),
          samples_of(result, "write_gb_per_s")};
}

u64 ProcessClient::read_count() {
  const std::string text = line();
  if (text.empty()) throw std::runtime_error("a client process failed");
  return static_cast<u64>(parse_json(text)["reads"].number);
}

}  // namespace gpu4fs::bench
