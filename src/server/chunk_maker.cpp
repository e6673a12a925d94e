#include "server/chunk_maker.hpp"

#include <algorithm>
#include <utility>

#include "base/host/log.hpp"
#include "engine/engine_host.hpp"
#include "fmt/format.h"
#include "pool/pool_error.hpp"

namespace gpu4fs::server {

void ChunkMaker::start(std::unique_ptr<session::ServerSession> session) {
  session_ = std::move(session);
  const std::lock_guard guard(mutex_);
  thread_ = std::thread([this] { run(); });
}

bool ChunkMaker::take(const ring::Upcall& upcall) {
  const std::lock_guard guard(mutex_);
  if (ends_ || !thread_.joinable()) return false;
  wanted_.push_back(upcall);
  changed_.notify_all();
  return true;
}

// Creates one chunk of a class for all commands that have requested it. Commands that request it at the end get none.
void ChunkMaker::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !wanted_.empty(); });
    if (wanted_.empty()) return;
    const u64 page_class = wanted_.front().argument;
    const auto others = std::stable_partition(wanted_.begin(), wanted_.end(), [page_class](const ring::Upcall& upcall) {
      return upcall.argument == page_class;
    });
    const std::vector<ring::Upcall> asking(wanted_.begin(), others);
    wanted_.erase(wanted_.begin(), others);
    const bool ends = ends_;
    lock.unlock();
    const Status result = ends ? Status::no_space : make_chunk(static_cast<u32>(page_class));
    for (const ring::Upcall& upcall : asking) {
      (void)session_->call(engine::answer_upcall_command(upcall, result));
    }
    lock.lock();
  }
}

Status ChunkMaker::make_chunk(u32 page_class) {
  try {
    return grower_.add_chunks(1, page_class) != 0 ? Status::ok : Status::no_space;
  } catch (const pool::PoolError& error) {
    log(LogLevel::error, error.what());
    const bool is_refused = error.status() == Status::no_space || error.status() == Status::busy;
    grower_.tell_engine();
    return is_refused ? Status::no_space : Status::io_error;
  } catch (const std::exception& error) {
    // There is no memory for the chunk's state, in the engine's part or here.
    log(LogLevel::error, fmt::format("no chunk could be made: {}", error.what()));
    return Status::no_space;
  }
}

void ChunkMaker::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard guard(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

}  // namespace gpu4fs::server
