#include "tools/trace_record_command.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/host/size_text.hpp"
#include "replay/kernel_recorder.hpp"

namespace gpu4fs::tools {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto copy_interval = std::chrono::milliseconds(50);
constexpr unsigned seconds_max = 86'400 * 365;

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

[[noreturn]] void fail_output(const std::string& path) {
  throw replay::TraceError(path + ": " + std::strerror(errno));
}

// Waits for the interval; true: a signal has ended the recording.
bool is_ended(const sigset_t& signals) {
  const timespec interval = {0, std::chrono::nanoseconds(copy_interval).count()};
  return ::sigtimedwait(&signals, nullptr, &interval) > 0;
}

}  // namespace

void add_trace_record_options(cli::CommandLine line, TraceRecordCommand& command) {
  line.option("device", command.device, "The disk, partition, loop or device-mapper device").required();
  line.option("-o,--output", command.output, "The trace, which is overwritten").required();
  line.option("--seconds", command.seconds, "Record for this time; without, until Ctrl-C").in_range(1, seconds_max);
}

int run_trace_record(const TraceRecordCommand& command) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, number);
  // From here on no signal leaves the instance behind.
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  const replay::RequestSelection requests = replay::requests_to(command.device);
  const std::string folder = replay::tracing_folder();
  const std::unique_ptr<std::FILE, FileCloser> output(std::fopen(command.output.c_str(), "we"));
  if (!output) fail_output(command.output);
  replay::KernelRecorder recorder(folder, fmt::format("gpu4fs-{}", ::getpid()), requests);
  fmt::print("recording the requests to {} in {}\n", command.device, command.output);
  std::fflush(stdout);
  const Clock::time_point end = Clock::now() + std::chrono::seconds(command.seconds);
  u64 bytes = 0;
  while (!is_ended(signals) && (command.seconds == 0 || Clock::now() < end)) bytes += recorder.copy_to(output.get());
  recorder.stop();
  bytes += recorder.copy_to(output.get());
  if (std::fflush(output.get()) != 0) fail_output(command.output);
  fmt::print("{} recorded\n", size_text(bytes));
  return 0;
}

}  // namespace gpu4fs::tools
