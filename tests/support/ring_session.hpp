// A session of an engine in this process, opened through its host, with commands that are put into its ring one by one.
#pragma once

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <stdexcept>
#include <vector>

#include "engine/engine_host.hpp"
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

struct ClientOptions {
  u32 depth_log2 = 5;
  u64 data_length = 1 << 20;
  bool trusted = true;
  bool internal = false;
  u32 uid = 0;  // of an untrusted session
  u32 gid = 0;
  std::vector<u32> groups = {};
};

// One session and its producer. Sessions of an engine are opened and closed by one thread at a time.
class Client {
 public:
  explicit Client(engine::EngineHost& host, ClientOptions options = {})
      : host_(host),
        layout_(ring::SessionLayout::make(options.depth_log2, options.data_length)),
        memory_(layout_.total_length) {
    engine::SessionRequest request{};
    request.memory = memory_.data();
    request.layout = layout_;
    request.trusted = options.trusted;
    request.internal = options.internal;
    request.uid = options.uid;
    request.gid = options.gid;
    request.groups = options.groups;
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

  u64 publish(const wire::Command& command) {
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
  ring::Completion call(const wire::Command& command) { return wait(publish(command)); }

 private:
  void wait_oldest() { wait(producer_.next_position - producer_.depth()); }

  engine::EngineHost& host_;
  ring::SessionLayout layout_;
  SharedMemory memory_;
  u32 session_ = 0;
  ring::RingProducer producer_{};
};

inline wire::Command make_command(wire::Opcode opcode) {
  wire::Command command{};
  command.opcode = opcode;
  return command;
}

}  // namespace gpu4fs::test
