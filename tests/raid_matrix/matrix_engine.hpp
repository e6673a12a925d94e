// The engines that serve the pools of the matrix of redundancy, and the moments at which these may lose devices while
// they are written.
//
// An engine without threads writes through layers, so a loss can happen at any single write. Other engines write
// directly to the devices' memory. Then a loss happens before an operation or a checkpoint, while the engine is idle.
// On request it happens during a running one, from another thread. This is more than they must tolerate: they may read
// back one copy of data that they have just written to memory, to write the others.
#pragma once

#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "crash/crash_history.hpp"
#include "crash/mapped_pool.hpp"

namespace gpu4fs::test {

// Counts the moments of a pool that is written, and executes an action at one of them.
struct MatrixWatch {
  bool armed = false;
  u64 seen = 0;
  u64 trigger = 0;  // 0: at none
  std::function<void()> fire;

  void pass() {
    if (armed && ++seen == trigger) fire();
  }
};

struct MatrixEngine {
  std::string name;
  bool has_layers;  // the moments are writes to devices, otherwise operations and checkpoints
  // `watch`: of the writes, if the engine has layers; may be nullptr.
  std::function<std::unique_ptr<ServedPool>(CrashImage&, const char* where, const std::shared_ptr<MatrixWatch>& watch)>
      mount;
  bool hits_running = false;  // without layers: losses happen during running operations
};

namespace detail {

class WatchLayer : public device::StackLayer {
 public:
  explicit WatchLayer(std::shared_ptr<MatrixWatch> watch) : watch_(std::move(watch)) {}
  void write(std::vector<device::StackWrite>&) override { watch_->pass(); }

 private:
  std::shared_ptr<MatrixWatch> watch_;
};

}  // namespace detail

inline MatrixEngine lone_matrix_engine() {
  const auto mount = [](CrashImage& image, const char* where, const std::shared_ptr<MatrixWatch>& watch) {
    CrashPoolSetup setup;
    setup.where = where;
    if (watch != nullptr) {
      setup.add_layers = [watch](u32, DeviceLayers& layers) {
        layers.push_back(std::make_unique<detail::WatchLayer>(watch));
      };
    }
    return std::make_unique<CrashPool>(image, std::move(setup));
  };
  return {"CPU, no threads", true, mount};
}

template <class Parts>
MatrixEngine mapped_matrix_engine(const std::string& name, const TestPoolOptions& options = crash_pool_options(),
                                  bool hits_running = false) {
  const auto mount = [options](CrashImage& image, const char*, const std::shared_ptr<MatrixWatch>&) {
    return std::make_unique<MappedPool<Parts>>(image, typename MappedPool<Parts>::Setup{options});
  };
  return {name, false, mount, hits_running};
}

// Executes work in a thread of its own, a while after the request; it is done when this ends.
class DelayedWork {
 public:
  void begin(std::chrono::nanoseconds delay, std::function<void()> work) {
    std::latch running(1);
    thread_ = std::jthread([delay, work = std::move(work), &running] {
      const auto due = std::chrono::steady_clock::now() + delay;
      running.count_down();
      while (std::chrono::steady_clock::now() < due) std::this_thread::yield();
      work();
    });
    running.wait();
  }
  void wait() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::jthread thread_;
};

// Tells a watch about each operation and checkpoint before it begins, and records how long they took.
class WatchedWriter : public CrashWriter {
 public:
  // `watch` may be nullptr.
  WatchedWriter(ServedPool& pool, const PosixModel& model, CrashRecord* record, MatrixWatch* watch)
      : CrashWriter(pool, model, nullptr, record), watch_(watch) {}

  client::Reply run(const FileOperation& op) override {
    client::Reply reply;
    watched([&] { reply = CrashWriter::run(op); });
    return reply;
  }
  void checkpoint() override {
    watched([&] { CrashWriter::checkpoint(); });
  }
  const std::vector<std::chrono::nanoseconds>& durations() const { return durations_; }

 private:
  void watched(const std::function<void()>& work) {
    if (watch_ != nullptr) watch_->pass();
    const auto begin = std::chrono::steady_clock::now();
    work();
    durations_.push_back(std::chrono::steady_clock::now() - begin);
  }

  MatrixWatch* watch_;
  std::vector<std::chrono::nanoseconds> durations_;
};

}  // namespace gpu4fs::test
