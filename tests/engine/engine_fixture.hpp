// A CPU engine without a pool, and sessions to it: for tests of the engine itself.
#pragma once

#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/engine_build.hpp"
#include "engine/engine_cpu.hpp"
#include "ring/ring_client.hpp"

namespace gpu4fs::test {

// Zeroed shared memory, page aligned.
class SharedMemory {
 public:
  explicit SharedMemory(u64 length) : length_(length) {
    void* memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<u8*>(memory);
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory() { munmap(memory_, length_); }
  u8* data() const { return memory_; }

 private:
  u8* memory_;
  u64 length_;
};

struct EngineOptions {
  u32 worker_count = 2;
  u32 command_count = 64;
  engine::EngineConfig config{};
  bool start = true;
};

class EngineFixture {
 public:
  explicit EngineFixture(EngineOptions options = {}) : upcalls_(sizeof(ring::UpcallRing)) {
    options.config.worker_count = options.worker_count;
    options.config.command_count = options.command_count;
    const engine::MemorySizes sizes{64, 16, 2};
    auto* upcall_ring = reinterpret_cast<ring::UpcallRing*>(upcalls_.data());
    engine::EngineImage image = engine::prepare_engine(allocator_, options.config, sizes, upcall_ring);
    engine_ = engine::place_engine(allocator_, image);
    host_ = std::make_unique<engine::CpuEngine>(engine_, options.worker_count);
    if (options.start) host_->start();
  }

  engine::Engine& engine() { return *engine_; }
  engine::CpuEngine& host() { return *host_; }

 private:
  SharedMemory upcalls_;
  engine::HeapAllocator allocator_;
  engine::Engine* engine_ = nullptr;
  std::unique_ptr<engine::CpuEngine> host_;
};

struct ClientOptions {
  u32 depth_log2 = 5;
  u64 data_length = 1 << 20;
  bool trusted = true;
  bool internal = false;
};

// One session and its producer.
class Client {
 public:
  explicit Client(engine::CpuEngine& host, ClientOptions options = {})
      : host_(host),
        layout_(ring::SessionLayout::make(options.depth_log2, options.data_length)),
        memory_(layout_.total_length) {
    engine::SessionRequest request{};
    request.memory = memory_.data();
    request.layout = layout_;
    request.trusted = options.trusted;
    request.internal = options.internal;
    session_ = host.open_session(request);
    if (session_ == engine::session_max) throw std::runtime_error("no session left");
    producer_ = ring::RingProducer::attach(memory_.data(), layout_);
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { host_.close_session(session_); }

  ring::RingProducer& producer() { return producer_; }
  u8* data() { return producer_.data; }
  u32 session() const { return session_; }

  u64 publish(const format::Command& command) {
    u64 position = 0;
    while (producer_.publish(command, &position) != Status::ok) wait_oldest();
    return position;
  }
  void doorbell() { host_.port(session_).doorbell(); }
  ring::Completion wait(u64 position) {
    ring::Completion completion{Status::engine_died, 0};
    host_.port(session_).wait(position + 1, [&] { return producer_.poll(position, &completion); });
    return completion;
  }
  ring::Completion call(const format::Command& command) { return wait(publish(command)); }

 private:
  void wait_oldest() { wait(producer_.next_position - producer_.depth()); }

  engine::CpuEngine& host_;
  ring::SessionLayout layout_;
  SharedMemory memory_;
  u32 session_ = 0;
  ring::RingProducer producer_{};
};

inline format::Command make_command(format::Opcode opcode) {
  format::Command command{};
  command.opcode = opcode;
  return command;
}

}  // namespace gpu4fs::test
