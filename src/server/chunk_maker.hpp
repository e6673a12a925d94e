// The thread that creates chunks when the engine runs out of room in the existing ones.
//
//   ChunkMaker maker(grower);
//   maker.start(session);        // of its own, for the answers
//   maker.take(upcall);          // by the thread that answers upcalls; false: that thread answers
//   maker.stop();                // accepted upcalls are answered; the engine and the upcall thread still run
//   maker.close_session();       // before the engine stops
//
// A chunk takes a checkpoint, and the upcall thread flushes for it, so the upcall thread must not wait for a chunk.
// Host only.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "maintenance/growth/pool_grower.hpp"
#include "ring/upcall_ring.hpp"
#include "session/server_session.hpp"

namespace gpu4fs::server {

class ChunkMaker {
 public:
  explicit ChunkMaker(maintenance::PoolGrower& grower) : grower_(grower) {}
  ChunkMaker(const ChunkMaker&) = delete;
  ChunkMaker& operator=(const ChunkMaker&) = delete;

  void start(std::unique_ptr<session::ServerSession> session);
  // An upcall `make_chunk`. False: this thread does not run.
  bool take(const ring::Upcall& upcall);
  // Does nothing if it was not started.
  void stop();
  void close_session() { session_.reset(); }

 private:
  void run();
  Status make_chunk(u32 page_class);

  maintenance::PoolGrower& grower_;
  std::unique_ptr<session::ServerSession> session_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ring::Upcall> wanted_;  // under mutex_: not answered yet
  bool ends_ = false;                 // under mutex_
  std::thread thread_;                // under mutex_ when it begins
};

}  // namespace gpu4fs::server
