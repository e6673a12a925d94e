#include "session/processes/process_session.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/mutant.hpp"
#include "fmt/format.h"
#include "pool/pool_error.hpp"

namespace gpu4fs::session {

ProcessSession::ProcessSession(engine::EngineHost& host, const Peer& peer, const ring::SessionLayout& layout)
    : host_(host), layout_(layout), memory_(layout.total_length), uid_(peer.uid) {
  doorbell_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (doorbell_fd_ < 0) {
    throw pool::PoolError(Status::no_memory, fmt::format("no doorbell for a session: {}", std::strerror(errno)));
  }
  engine::SessionRequest request;
  request.memory = memory_.begin();
  request.layout = layout_;
  request.uid = peer.uid;
  request.gid = peer.gid;
  request.groups = peer.groups;
  request.trusted = GPU4FS_MUTANT(processes_trusted, false, true);
  request.has_doorbell = true;
  index_ = host_.open_session(request);
  if (index_ >= engine::session_max) {
    ::close(doorbell_fd_);
    throw pool::PoolError(Status::too_many_sessions, "the engine's table of sessions is full");
  }
}

ProcessSession::~ProcessSession() {
  host_.close_session(index_);
  ::close(doorbell_fd_);
}

void ProcessSession::answer_doorbell() {
  host_.port(index_).doorbell();
}

}  // namespace gpu4fs::session
