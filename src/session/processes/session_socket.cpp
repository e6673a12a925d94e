#include "session/processes/session_socket.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "base/host/log.hpp"
#include "base/mutant.hpp"
#include "fmt/format.h"
#include "pool/pool_error.hpp"
#include "ring/ring_layout.hpp"
#include "session/local_listener.hpp"

namespace gpu4fs::session {
namespace {

// Keys of events: a connection's number with what happened, or one of the socket's own descriptors.
enum : u64 { key_listener = 0, key_wake = 1, key_message = 2, key_doorbell = 3 };
constexpr u64 key_of(u64 id, u64 what) {
  return id << 2 | what;
}

[[noreturn]] void fail_to_serve(const std::string& what) {
  throw pool::PoolError(Status::io_error, fmt::format("{}: {}", what, std::strerror(errno)));
}

bool watch(int poller, int fd, u64 key, u32 events = EPOLLIN) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  return ::epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) == 0;
}

bool may_open_sessions(const Peer& peer) {
  return GPU4FS_MUTANT(session_peer_unchecked, peer.uid == 0 || peer.uid == ::geteuid(), true);
}

mode_t session_socket_mode() {
  return GPU4FS_MUTANT(session_socket_open, S_IRUSR | S_IWUSR, 0666);
}

wire::SessionWelcome refusal(Status status, const std::string& text) {
  wire::SessionWelcome answer{};
  answer.magic = wire::session_welcome_magic;
  answer.version = wire::session_protocol_version;
  answer.error = static_cast<u32>(to_errno(status));
  answer.status = static_cast<u32>(status);
  const std::size_t length = std::min(text.size(), sizeof(answer.text) - 1);
  std::memcpy(answer.text, text.data(), length);
  return answer;
}

// What is wrong with a hello; empty: nothing.
std::string fault_of(const wire::SessionHello& hello, const SessionLimits& limits) {
  if (hello.magic != wire::session_hello_magic) return "this is no hello of a gpu4fs client";
  if (hello.version != wire::session_protocol_version || hello.ring_version != ring::ring_version) {
    return fmt::format("the client speaks version {}.{}, the server {}.{}", hello.version, hello.ring_version,
                       wire::session_protocol_version, ring::ring_version);
  }
  if (hello.depth_log2 < 1 || hello.depth_log2 > ring::ring_depth_log2_max) {
    return fmt::format("the depth of the ring, 2^{}, is not 2^1 to 2^{}", hello.depth_log2, ring::ring_depth_log2_max);
  }
  if (hello.data_length == 0 || hello.data_length > limits.session_data_bytes_max) {
    return fmt::format("the data area of {} bytes is not 1 to {} bytes", hello.data_length,
                       limits.session_data_bytes_max);
  }
  const bool is_zero = hello.reserved0 == 0 && std::all_of(std::begin(hello.reserved), std::end(hello.reserved),
                                                           [](u64 word) { return word == 0; });
  return is_zero ? "" : "a reserved field of the hello is not zero";
}

// The record is sent whole or not at all. `fds` are copied to the receiver.
bool send_record(int fd, const wire::SessionWelcome& answer, const int* fds, u32 fd_count) {
  iovec bytes{const_cast<wire::SessionWelcome*>(&answer), sizeof(answer)};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (fd_count != 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds, fd_count * sizeof(int));
  }
  return ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(sizeof(answer));
}

}  // namespace

SessionSocket::SessionSocket(engine::EngineHost& host, const std::string& folder, const std::string& name,
                             const Uuid& pool, const SessionLimits& limits)
    : host_(host), path_(folder + "/" + name + ".session"), pool_(pool), budget_(limits) {
  poller_ = ::epoll_create1(EPOLL_CLOEXEC);
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  reserve_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  try {
    if (poller_ < 0 || wake_ < 0 || reserve_ < 0) fail_to_serve("the session socket");
    listener_ = open_local_listener(folder, path_, SOCK_SEQPACKET | SOCK_NONBLOCK, session_socket_mode());
    if (!watch(poller_, listener_, key_listener) || !watch(poller_, wake_, key_wake)) fail_to_serve(path_);
  } catch (...) {
    for (const int fd : {poller_, wake_, reserve_, listener_}) {
      if (fd >= 0) ::close(fd);
    }
    throw;
  }
  closer_ = std::thread([this] { close_sessions(); });
  server_ = std::thread([this] { serve(); });
}

SessionSocket::~SessionSocket() {
  ::unlink(path_.c_str());
  hang_up();
  server_.join();
  {
    const std::lock_guard guard(closing_mutex_);
    closes_no_more_ = true;
  }
  closing_changed_.notify_all();
  closer_.join();
  ::close(poller_);
  ::close(wake_);
  if (reserve_ >= 0) ::close(reserve_);
}

void SessionSocket::hang_up() {
  is_ending_ = true;
  const u64 one = 1;
  if (::write(wake_, &one, sizeof(one)) < 0) log(LogLevel::warning, "the session socket could not be woken");
}

void SessionSocket::serve() {
  while (!is_ending_) {
    epoll_event events[64];
    const int count = ::epoll_wait(poller_, events, 64, wait_limit_ms());
    if (count < 0 && errno != EINTR) {
      log(LogLevel::error, fmt::format("{}: {}; no more sessions", path_, std::strerror(errno)));
      break;
    }
    for (int i = 0; i < count && !is_ending_; ++i) handle(events[i].data.u64);
    end_late_hellos();
  }
  // Who connects from now on is refused by the system.
  ::close(listener_);
  while (!connections_.empty()) end(connections_.begin()->first);
}

// Events of a connection that an earlier one of the same round has ended find nothing.
void SessionSocket::handle(u64 key) {
  if (key == key_listener) return accept_client();
  const u64 id = key >> 2;
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  if ((key & 3) == key_doorbell) {
    connection.session->answer_doorbell();
  } else if (connection.session == nullptr) {
    take_hello(id, connection);
  } else {
    // The end of the connection, or a message that no client sends.
    end(id);
  }
}

void SessionSocket::accept_client() {
  const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    if (errno == EMFILE || errno == ENFILE) turn_away();
    return;
  }
  std::optional<Peer> peer = peer_of(fd);
  if (!peer || !may_open_sessions(*peer)) {
    send_record(fd, refusal(Status::access, "only the server's user and the superuser may open sessions"), nullptr, 0);
    ::close(fd);
    return;
  }
  if (pending_count() >= session_hello_pending_max) {
    send_record(fd, refusal(Status::too_many_sessions, "too many clients connect at this time"), nullptr, 0);
    ::close(fd);
    return;
  }
  const u64 id = next_id_++;
  if (!watch(poller_, fd, key_of(id, key_message))) {
    ::close(fd);
    return;
  }
  connections_[id] = Connection{fd, std::move(*peer), Clock::now() + session_hello_time_max, nullptr};
}

// Without a free descriptor a waiting client would wake this thread again and again.
void SessionSocket::turn_away() {
  ::close(reserve_);
  const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) ::close(fd);
  reserve_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void SessionSocket::take_hello(u64 id, Connection& connection) {
  wire::SessionHello hello{};
  const ssize_t count = ::recv(connection.fd, &hello, sizeof(hello), MSG_TRUNC);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return end(id);
  if (count != static_cast<ssize_t>(sizeof(hello))) {
    return welcome(id, connection,
                   refusal(Status::bad_descriptor, fmt::format("a hello has {} bytes, not {}", sizeof(hello), count)));
  }
  welcome(id, connection, open(connection, hello));
}

wire::SessionWelcome SessionSocket::open(Connection& connection, const wire::SessionHello& hello) {
  const std::string fault = fault_of(hello, budget_.limits());
  if (!fault.empty()) return refusal(Status::bad_descriptor, fault);
  const ring::SessionLayout layout = ring::SessionLayout::make(hello.depth_log2, hello.data_length);
  const u32 uid = connection.peer.uid;
  const std::string excess = budget_.take(uid, layout.total_length, layout.depth());
  if (!excess.empty()) return refusal(Status::too_many_sessions, excess);
  try {
    connection.session = std::make_unique<ProcessSession>(host_, connection.peer, layout);
  } catch (const pool::PoolError& error) {
    budget_.give_back(uid, layout.total_length, layout.depth());
    return refusal(error.status(), error.what());
  }
  wire::SessionWelcome answer = refusal(Status::ok, "");
  answer.engine = host_.wakes_clients() ? wire::SessionEngine::wakes_clients : wire::SessionEngine::is_polled;
  answer.depth_log2 = layout.depth_log2;
  answer.data_length = layout.data_length;
  answer.total_length = layout.total_length;
  std::copy(std::begin(pool_.bytes), std::end(pool_.bytes), answer.pool_uuid);
  return answer;
}

// After a refusal, or if the client does not take the answer, the connection ends.
void SessionSocket::welcome(u64 id, Connection& connection, const wire::SessionWelcome& answer) {
  ProcessSession* const session = connection.session.get();
  if (session == nullptr) {
    send_record(connection.fd, answer, nullptr, 0);
    return end(id);
  }
  const int fds[2] = {session->memory_fd(), session->doorbell_fd()};
  // By edges, so each ring is one event, and the doorbell is never read: the client can make a read of it wait.
  if (!watch(poller_, session->doorbell_fd(), key_of(id, key_doorbell), EPOLLIN | EPOLLET) ||
      !send_record(connection.fd, answer, fds, 2)) {
    end(id);
  }
}

void SessionSocket::end(u64 id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  ::close(connection.fd);
  if (connection.session != nullptr) {
    // The client's copy of the descriptor keeps it in the poller.
    ::epoll_ctl(poller_, EPOLL_CTL_DEL, connection.session->doorbell_fd(), nullptr);
    const std::lock_guard guard(closing_mutex_);
    closing_.push_back(std::move(connection.session));
    closing_changed_.notify_all();
  }
  connections_.erase(found);
}

void SessionSocket::end_late_hellos() {
  const Clock::time_point now = Clock::now();
  for (auto at = connections_.begin(); at != connections_.end();) {
    const auto next = std::next(at);
    if (at->second.session == nullptr && at->second.hello_until <= now) {
      send_record(at->second.fd, refusal(Status::deadline_exceeded, "the hello did not come"), nullptr, 0);
      end(at->first);
    }
    at = next;
  }
}

// Until the first hello would be late; without one that is missing, without limit.
int SessionSocket::wait_limit_ms() const {
  std::optional<Clock::time_point> first;
  for (const auto& [id, connection] : connections_) {
    if (connection.session == nullptr && (!first || connection.hello_until < *first)) first = connection.hello_until;
  }
  if (!first) return -1;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*first - Clock::now()).count() + 1;
  return static_cast<int>(std::max<decltype(left)>(left, 0));
}

u32 SessionSocket::pending_count() const {
  return static_cast<u32>(std::count_if(connections_.begin(), connections_.end(),
                                        [](const auto& entry) { return entry.second.session == nullptr; }));
}

void SessionSocket::close_sessions() {
  for (;;) {
    std::unique_ptr<ProcessSession> session;
    {
      std::unique_lock guard(closing_mutex_);
      closing_changed_.wait(guard, [this] { return !closing_.empty() || closes_no_more_; });
      if (closing_.empty()) return;
      session = std::move(closing_.front());
      closing_.pop_front();
    }
    const u32 uid = session->uid();
    const ring::SessionLayout layout = session->layout();
    session.reset();
    budget_.give_back(uid, layout.total_length, layout.depth());
  }
}

}  // namespace gpu4fs::session
