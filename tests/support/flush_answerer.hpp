// Executes the flushes that an engine requests by upcalls, like the server of a mount.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "device/memory/mapped_file.hpp"
#include "engine/engine_host.hpp"
#include "engine/wake.hpp"
#include "session/server_session.hpp"

namespace gpu4fs::test {

class FlushAnswerer {
 public:
  // All outlive it; `files` by device index.
  FlushAnswerer(engine::EngineHost& host, ring::UpcallRing& upcalls, std::mutex& sessions_mutex,
                const std::vector<device::MappedFile>& files)
      : host_(host),
        upcalls_(upcalls),
        files_(files),
        session_(host, sessions_mutex, session::ServerSession::Kind::internal, 4, page_size),
        thread_([this] { answer(); }) {}
  ~FlushAnswerer() {
    end_ = true;
    // The thread may test for the end just before it sleeps.
    while (!ended_) {
      engine::wake_server(upcalls_);
      std::this_thread::yield();
    }
    thread_.join();
  }

 private:
  static constexpr u64 wait_ns = 100'000'000;

  void answer() {
    while (!end_) {
      ring::Upcall upcall{};
      if (!host_.wait_upcall(&upcall, wait_ns) || !ring::wants_answer(upcall.kind)) continue;
      u64 failed = 0;
      const Status result =
          upcall.kind == ring::UpcallKind::flush_device ? flush(upcall.argument, &failed) : Status::not_supported;
      (void)session_.call(engine::answer_upcall_command(upcall, result, failed));
    }
    ended_ = true;
  }

  Status flush(u64 which, u64* failed) {
    for (u64 i = 0; i < files_.size(); ++i) {
      if (which != ~u64{0} && which != i) continue;
      try {
        files_[i].flush();
      } catch (const device::DeviceError&) {
        *failed |= u64{1} << i;
      }
    }
    return *failed == 0 ? Status::ok : Status::device_failed;
  }

  engine::EngineHost& host_;
  ring::UpcallRing& upcalls_;
  const std::vector<device::MappedFile>& files_;
  session::ServerSession session_;
  std::atomic<bool> end_{false};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace gpu4fs::test
