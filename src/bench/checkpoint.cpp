// How long a checkpoint delays changes: a client changes a file's times repeatedly while checkpoints of freshly written
// data run. Its longest call during each of them is the pause.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/limits.hpp"
#include "bench/client.hpp"
#include "bench/parts.hpp"
#include "format/inode_format.hpp"
#include "frontend/local_session.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u64 step_bytes = 32ull << 20;
constexpr double pause_ms_max = 20;
constexpr u32 dirty_file_count = 2000;

struct Call {
  double began;
  double ended;
};

class Prober {
 public:
  Prober(BenchContext& context, u64 inode)
      : client_(frontend::open_local_session(context.server, BenchClient::control_bytes + page_size)),
        inode_(inode),
        thread_([this] { work(); }) {}
  ~Prober() { join(); }

  // All calls in order.
  const std::vector<Call>& finish() {
    join();
    if (failure_) std::rethrow_exception(failure_);
    return calls_;
  }

 private:
  void work() {
    try {
      while (!stop_) {
        const double began = now_seconds();
        client_.set_times(inode_);
        calls_.push_back({began, now_seconds()});
      }
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  void join() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

  BenchClient client_;
  u64 inode_;
  std::vector<Call> calls_;
  std::exception_ptr failure_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace

void bench_checkpoint_pause(BenchContext& context) {
  const u64 length = context.scale.file_bytes;
  BenchClient writer(frontend::open_local_session(context.server, length + BenchClient::control_bytes));
  fill_pattern(writer.buffer(), 7, 0, length / page_size);
  const u64 directory = writer.make_directory(format::inode_number_root, "checkpoint");
  const u64 probed = writer.create(directory, "probed");
  std::vector<Call> checkpoints;
  std::vector<Call> calls;
  {
    Prober prober(context, probed);
    for (u32 round = 0; round < context.scale.checkpoint_count; ++round) {
      const u64 file_count = context.scale.dirty_bytes / length;
      for (u64 i = 0; i < file_count; ++i) {
        const u64 inode = writer.create(directory, fmt::format("big-{}-{}", round, i));
        writer.stream(wire::Opcode::write, inode, length, step_bytes, 2, writer.buffer_address(0));
      }
      for (u32 i = 0; i < dirty_file_count; ++i) writer.create(directory, fmt::format("small-{}-{}", round, i));
      const double began = now_seconds();
      writer.sync();
      checkpoints.push_back({began, now_seconds()});
      for (u64 i = 0; i < file_count; ++i) writer.unlink(directory, fmt::format("big-{}-{}", round, i));
    }
    calls = prober.finish();
  }
  std::vector<double> pauses_ms;
  std::vector<double> checkpoint_ms;
  for (const Call& checkpoint : checkpoints) {
    checkpoint_ms.push_back((checkpoint.ended - checkpoint.began) * 1e3);
    double longest = 0;
    for (const Call& call : calls) {
      const bool overlaps = call.began <= checkpoint.ended && call.ended >= checkpoint.began;
      if (overlaps) longest = std::max(longest, call.ended - call.began);
    }
    pauses_ms.push_back(longest * 1e3);
  }
  BenchRow pause;
  pause.name = "checkpoint-pause";
  pause.what = fmt::format("pause by a checkpoint of {} MiB, p99", context.scale.dirty_bytes >> 20);
  pause.unit = "ms";
  set_samples(pause, pauses_ms);
  pause.value = percentile(pauses_ms, 0.99);
  if (context.on_gpu) {
    pause.requirement = Requirement::at_most;
    pause.required = pause_ms_max;
  }
  context.result.rows.push_back(pause);
  BenchRow whole;
  whole.name = "checkpoint";
  whole.what = fmt::format("a checkpoint of {} MiB in all", context.scale.dirty_bytes >> 20);
  whole.unit = "ms";
  set_samples(whole, checkpoint_ms);
  context.result.rows.push_back(whole);
}

}  // namespace gpu4fs::bench
