#include "session/control_socket.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "base/host/json.hpp"
#include "base/host/log.hpp"
#include "base/mutant.hpp"
#include "fmt/format.h"
#include "pool/pool_error.hpp"
#include "session/local_listener.hpp"

namespace gpu4fs::session {
namespace {

constexpr int line_seconds_max = 10;  // from the first byte of a line to its end, and for receiving an answer
constexpr int idle_seconds_max = 600;

[[noreturn]] void fail(const std::string& what) {
  throw pool::PoolError(Status::io_error, fmt::format("{}: {}", what, std::strerror(errno)));
}

// False: the client does not receive all of it in time, or `wake` can be read: the end does not wait for slow clients.
bool send_all(int fd, int wake, const std::string& text) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(line_seconds_max);
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t count = ::send(fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      sent += static_cast<std::size_t>(count);
      continue;
    }
    if (count == 0 || (errno != EINTR && errno != EAGAIN)) return false;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd wanted[2] = {{fd, POLLOUT, 0}, {wake, POLLIN, 0}};
    if (::poll(wanted, 2, static_cast<int>(left.count())) < 0 && errno != EINTR) return false;
    if (wanted[1].revents != 0) return false;
  }
  return true;
}

bool may_connect(int fd) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return false;
  return GPU4FS_MUTANT(control_peer_unchecked, peer.uid == 0 || peer.uid == ::geteuid(), true);
}

// Only the server's own user may connect.
mode_t socket_mode() {
  return GPU4FS_MUTANT(control_socket_open, S_IRUSR | S_IWUSR, 0666);
}

}  // namespace

std::string default_control_folder() {
  const char* named = std::getenv("GPU4FS_CONTROL_FOLDER");
  if (named != nullptr) return named;
  if (::geteuid() == 0) return "/run/gpu4fs";
  const char* own = std::getenv("XDG_RUNTIME_DIR");
  return own != nullptr && own[0] == '/' ? std::string(own) + "/gpu4fs" : std::string();
}

std::string control_error(const std::string& text) {
  JsonWriter json(JsonLayout::one_line);
  json.begin_object();
  json.add("ok", false);
  json.add("error", text);
  json.end();
  std::string line = json.text();
  line.pop_back();
  return line;
}

ControlSocket::ControlSocket(const std::string& folder, const std::string& name, Handler handler)
    : path_(folder + "/" + name + ".sock"), handler_(std::move(handler)) {
  if (::pipe2(wake_, O_CLOEXEC) != 0) fail("a pipe");
  try {
    listener_ = open_local_listener(folder, path_, SOCK_STREAM, socket_mode());
  } catch (...) {
    ::close(wake_[0]);
    ::close(wake_[1]);
    throw;
  }
  thread_ = std::thread([this] { accept_clients(); });
}

ControlSocket::~ControlSocket() {
  ::unlink(path_.c_str());
  // One byte for all threads that may wait in poll(2): it is never read, so all see it.
  if (::write(wake_[1], "", 1) != 1) log(LogLevel::warning, "the control socket could not be woken");
  thread_.join();
  for (Client& client : clients_) client.thread.join();
  ::close(listener_);
  ::close(wake_[0]);
  ::close(wake_[1]);
}

void ControlSocket::accept_clients() {
  for (;;) {
    pollfd wanted[2] = {{listener_, POLLIN, 0}, {wake_[0], POLLIN, 0}};
    if (::poll(wanted, 2, -1) < 0 && errno != EINTR) return;
    if (wanted[1].revents != 0) return;
    if ((wanted[0].revents & POLLIN) == 0) continue;
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) admit(fd);
  }
}

void ControlSocket::admit(int fd) {
  join_ended();
  const std::lock_guard guard(mutex_);
  const bool is_allowed = may_connect(fd);
  if (!is_allowed || GPU4FS_MUTANT(control_clients_unbounded, clients_.size() >= control_client_max, false)) {
    send_all(fd, wake_[0], control_error(is_allowed ? "too many clients" : "permission denied") + "\n");
    ::close(fd);
    return;
  }
  Client& client = clients_.emplace_back();
  client.fd = fd;
  try {
    client.thread = std::thread([this, &client] { serve(client); });
  } catch (const std::system_error&) {
    // There is no memory for a thread, or the process is just executing another program; then no thread can be started.
    clients_.pop_back();
    ::close(fd);
  }
}

void ControlSocket::join_ended() {
  std::list<Client> ended;
  {
    const std::lock_guard guard(mutex_);
    for (auto at = clients_.begin(); at != clients_.end();) {
      const auto next = std::next(at);
      if (at->is_done) ended.splice(ended.end(), clients_, at);
      at = next;
    }
  }
  for (Client& client : ended) client.thread.join();
}

void ControlSocket::serve(Client& client) {
  std::string text;
  for (;;) {
    const std::size_t newline = text.find('\n');
    if (newline != std::string::npos) {
      const std::string line = text.substr(0, newline);
      text.erase(0, newline + 1);
      if (!send_all(client.fd, wake_[0], answer(line) + "\n")) break;
      continue;
    }
    if (text.size() > control_request_bytes_max) {
      send_all(client.fd, wake_[0], control_error("the request is too long") + "\n");
      break;
    }
    pollfd wanted[2] = {{client.fd, POLLIN, 0}, {wake_[0], POLLIN, 0}};
    const int ready = ::poll(wanted, 2, (text.empty() ? idle_seconds_max : line_seconds_max) * 1000);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0 && !text.empty()) send_all(client.fd, wake_[0], control_error("the request has no end") + "\n");
    if (ready <= 0 || wanted[1].revents != 0) break;
    char buffer[1024];
    const ssize_t count = ::recv(client.fd, buffer, sizeof(buffer), 0);
    if (count <= 0) break;
    text.append(buffer, static_cast<std::size_t>(count));
  }
  ::close(client.fd);
  const std::lock_guard guard(mutex_);
  client.is_done = true;
}

std::string ControlSocket::answer(const std::string& line) const {
  if (line.size() > control_request_bytes_max) return control_error("the request is too long");
  try {
    const JsonValue request = parse_json(line);
    if (request.kind != JsonValue::Kind::object) return control_error("the request is no JSON object");
    return handler_(request);
  } catch (const std::exception& error) {
    return control_error(error.what());
  }
}

}  // namespace gpu4fs::session
