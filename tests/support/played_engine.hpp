// An engine that the test simulates: it records its input, and sends the requests that the test chooses. Any thread.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/access.hpp"
#include "engine/engine_host.hpp"
#include "support/command_list.hpp"

namespace gpu4fs::test {

class PlayedEngine final : public engine::EngineHost {
 public:
  struct Range {
    const u8* base;
    u64 length;
    bool operator==(const Range&) const = default;
  };

  // The commands of all sessions, each answered with the same status and no result.
  const CommandList& commands() const { return commands_; }
  void answer_with(Status status) { answer_.store(status); }

  // The memory that was made reachable since the last call.
  std::vector<Range> take_mapped() {
    const std::lock_guard guard(mutex_);
    return std::exchange(mapped_, {});
  }
  // The beginning of memory that cannot be made reachable.
  void refuse(const u8* base) {
    const std::lock_guard guard(mutex_);
    refused_.insert(base);
  }

  void ask(const ring::Upcall& upcall) {
    const std::lock_guard guard(mutex_);
    upcalls_.push_back(upcall);
    changed_.notify_all();
  }
  // Runs once, in the thread that looks for an upcall and finds none, before the thread is told.
  void when_idle(std::function<void()> run) {
    const std::lock_guard guard(mutex_);
    when_idle_ = std::move(run);
  }

  void die(const std::string& why) {
    const std::lock_guard guard(mutex_);
    fault_text_ = why;
    has_died_ = true;
  }
  void complete(u64 count) { completed_ += count; }
  // How often the counters were read.
  u64 look_count() const { return look_count_; }
  u64 open_session_count() const {
    const std::lock_guard guard(mutex_);
    return static_cast<u64>(
        std::count_if(sessions_.begin(), sessions_.end(), [](const Session& session) { return session.is_open; }));
  }

  u32 open_session(const engine::SessionRequest& request) override {
    const std::lock_guard guard(mutex_);
    const auto vacant =
        std::find_if(sessions_.begin(), sessions_.end(), [](const Session& session) { return !session.is_open; });
    if (vacant == sessions_.end()) return engine::session_max;
    vacant->is_open = true;
    vacant->engine = this;
    vacant->memory = request.memory;
    vacant->layout = request.layout;
    return static_cast<u32>(vacant - sessions_.begin());
  }
  void close_session(u32 session) override {
    const std::lock_guard guard(mutex_);
    sessions_[session].is_open = false;
  }
  ring::EnginePort& port(u32 session) override { return sessions_[session]; }
  bool wait_upcall(ring::Upcall* upcall, u64 /*timeout_ns*/) override {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::milliseconds(1), [this] { return !upcalls_.empty(); })) {
      *upcall = upcalls_.front();
      upcalls_.pop_front();
      return true;
    }
    const std::function<void()> run = std::exchange(when_idle_, nullptr);
    lock.unlock();
    if (run) run();
    return false;
  }
  Status map_memory(void* base, u64 length) override {
    const std::lock_guard guard(mutex_);
    if (refused_.contains(static_cast<const u8*>(base))) return Status::gpu_error;
    mapped_.push_back({static_cast<const u8*>(base), length});
    return Status::ok;
  }
  [[nodiscard]] bool has_died() const override { return has_died_; }
  [[nodiscard]] std::string fault_text() const override {
    const std::lock_guard guard(mutex_);
    return fault_text_;
  }
  [[nodiscard]] device::PageCacheCounters page_cache() const override { return {}; }
  [[nodiscard]] engine::EngineCounters counters() const override {
    ++look_count_;
    engine::EngineCounters counters{};
    counters.commands_completed = completed_;
    return counters;
  }

  void start() override {}
  void stop() override {}
  Status add_buffer(u32, u32, void*, u64) override { return Status::not_supported; }
  void remove_buffer(u32, u32) override {}
  void while_paused(const std::function<void()>& work) override { work(); }
  void request_death() override {}
  [[nodiscard]] std::string description() const override { return "played"; }
  [[nodiscard]] u64 durable_epoch() const override { return 1; }

 private:
  struct Session final : ring::EnginePort {
    void doorbell() override {}
    // The newest command, because each one is waited for.
    bool wait(std::uint64_t end_position, ring::Predicate done) override {
      const u64 position = end_position - 1;
      const u64 slot = position & ((u64{1} << layout.depth_log2) - 1);
      const u64 sequence = wire::ring_sequence(position, layout.depth_log2);
      const u8* descriptor = memory + layout.descriptor_offset + slot * sizeof(wire::RingDescriptor);
      engine->commands_.add(wire::decode_command(*reinterpret_cast<const wire::RingDescriptor*>(descriptor)));
      store_shared_16(memory + layout.completion_offset + slot * sizeof(wire::RingCompletion),
                      {0, static_cast<u64>(engine->answer_.load()) | sequence << 32});
      return done();
    }

    PlayedEngine* engine = nullptr;
    bool is_open = false;
    u8* memory = nullptr;
    ring::SessionLayout layout{};
  };

  CommandList commands_;
  std::atomic<Status> answer_{Status::ok};
  std::atomic<bool> has_died_{false};
  std::atomic<u64> completed_{0};
  mutable std::atomic<u64> look_count_{0};
  mutable std::mutex mutex_;  // protects everything below, and the owners of sessions
  std::condition_variable changed_;
  std::vector<Range> mapped_;
  std::set<const u8*> refused_;
  std::deque<ring::Upcall> upcalls_;
  std::function<void()> when_idle_;
  std::string fault_text_;
  std::array<Session, 8> sessions_;
};

}  // namespace gpu4fs::test
