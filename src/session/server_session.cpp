#include "session/server_session.hpp"

#include <sys/mman.h>

#include "base/check.hpp"
#include "pool/pool_error.hpp"

namespace gpu4fs::session {

ServerSession::ServerSession(engine::EngineHost& host, std::mutex& open_close, Kind kind, u32 depth_log2,
                             u64 data_bytes)
    : host_(host), open_close_(open_close), layout_(ring::SessionLayout::make(depth_log2, data_bytes)) {
  void* memory = ::mmap(nullptr, layout_.total_length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw pool::PoolError(Status::no_memory, "no memory for a session");
  memory_ = static_cast<u8*>(memory);
  engine::SessionRequest request;
  request.memory = memory_;
  request.layout = layout_;
  request.trusted = true;
  request.internal = kind == Kind::internal;
  const std::lock_guard guard(open_close_);
  index_ = host_.open_session(request);
  if (index_ >= engine::session_max) {
    ::munmap(memory_, layout_.total_length);
    throw pool::PoolError(Status::too_many_sessions, "the engine's table of sessions is full");
  }
  producer_ = ring::RingProducer::attach(memory_, layout_);
}

ServerSession::~ServerSession() {
  {
    const std::lock_guard guard(open_close_);
    host_.close_session(index_);
  }
  ::munmap(memory_, layout_.total_length);
}

ring::Completion ServerSession::call(const wire::Command& command) {
  u64 position = 0;
  // The ring is full only if the engine has died, because every call waits.
  if (producer_.publish(command, &position) != Status::ok) return {Status::engine_died, 0};
  ring::Completion completion{};
  const auto done = [&] { return producer_.poll(position, &completion); };
  if (!port().wait(position + 1, done)) return {Status::engine_died, 0};
  return completion;
}

}  // namespace gpu4fs::session
