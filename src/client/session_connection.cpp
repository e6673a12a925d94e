#include "client/session_connection.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/mutant.hpp"
#include "fmt/format.h"

namespace gpu4fs::client {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  const int error = errno;
  throw ConnectError(error, fmt::format("{}: {}: {}", path, what, std::strerror(error)));
}

[[noreturn]] void refuse(const std::string& path, const char* what) {
  throw ConnectError(EPROTO, fmt::format("{}: {}", path, what));
}

// Repeats a call that a signal interrupts.
template <class Call>
auto uninterrupted(Call&& call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

int connect_to(const std::string& path, u64 time_max_ms) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    throw ConnectError(ENAMETOOLONG, fmt::format("{}: too long for a socket's path", path));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) fail(path, "no socket");
  // A server that accepts nobody any more lets connect(2) wait.
  const timeval time_max{static_cast<time_t>(time_max_ms / 1000), static_cast<suseconds_t>(time_max_ms % 1000 * 1000)};
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time_max, sizeof(time_max));
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  if (uninterrupted([&] { return ::connect(fd, to, sizeof(address)); }) != 0) {
    const int error = errno;
    ::close(fd);
    errno = error;
    fail(path, "no connection");
  }
  return fd;
}

}  // namespace

SessionConnection::SessionConnection(const std::string& path, const ProcessSessionOptions& options)
    : path_(path), socket_(connect_to(path, options.answer_time_max_ms)) {
  try {
    exchange(options);
    map_memory();
  } catch (...) {
    release();
    throw;
  }
}

SessionConnection::~SessionConnection() {
  release();
}

void SessionConnection::release() noexcept {
  if (memory_ != nullptr) ::munmap(memory_, layout_.total_length);
  for (const int fd : {memory_fd_, doorbell_, socket_}) {
    if (fd >= 0) ::close(fd);
  }
}

void SessionConnection::exchange(const ProcessSessionOptions& options) {
  wire::SessionHello hello{};
  hello.magic = wire::session_hello_magic;
  hello.version = wire::session_protocol_version;
  hello.ring_version = ring::ring_version;
  hello.depth_log2 = options.depth_log2;
  hello.data_length = options.data_bytes;
  // A server that refuses the client may have closed the connection already. Then its reason can still be read.
  if (uninterrupted([&] { return ::send(socket_, &hello, sizeof(hello), MSG_NOSIGNAL); }) < 0 && errno != EPIPE) {
    fail(path_, "the hello");
  }
  pollfd wanted{socket_, POLLIN, 0};
  const int ready = uninterrupted([&] { return ::poll(&wanted, 1, static_cast<int>(options.answer_time_max_ms)); });
  if (ready < 0) fail(path_, "the answer");
  if (ready == 0) throw ConnectError(ETIMEDOUT, fmt::format("{}: the server does not answer", path_));
  receive_welcome();
}

void SessionConnection::receive_welcome() {
  iovec bytes{&welcome_, sizeof(welcome_)};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const auto receive = [&] { return uninterrupted([&] { return ::recvmsg(socket_, &message, MSG_CMSG_CLOEXEC); }); };
  ssize_t count = receive();
  // A server that refuses a client without having read its hello: the reason follows the error.
  if (count < 0 && errno == ECONNRESET) count = receive();
  if (count < 0) fail(path_, "the answer");
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(2 * sizeof(int))) {
    int fds[2];
    std::memcpy(fds, CMSG_DATA(header), sizeof(fds));
    memory_fd_ = fds[0];
    doorbell_ = fds[1];
  }
  if (count == 0) refuse(path_, "the server ended the connection without an answer");
  if (count != static_cast<ssize_t>(sizeof(welcome_)) || welcome_.magic != wire::session_welcome_magic) {
    refuse(path_, "this is no session socket of gpu4fs");
  }
  if (welcome_.error != 0) {
    welcome_.text[sizeof(welcome_.text) - 1] = 0;
    throw ConnectError(static_cast<int>(welcome_.error), fmt::format("{}: {}", path_, welcome_.text));
  }
  if (welcome_.version != wire::session_protocol_version || memory_fd_ < 0) refuse(path_, "the answer is malformed");
}

// The length is sealed, so no access to the memory can fail later.
void SessionConnection::map_memory() {
  if (welcome_.depth_log2 < 1 || welcome_.depth_log2 > ring::ring_depth_log2_max ||
      welcome_.data_length > welcome_.total_length) {
    refuse(path_, "the answer is malformed");
  }
  layout_ = ring::SessionLayout::make(welcome_.depth_log2, welcome_.data_length);
  struct stat attributes {};
  const int seals = ::fcntl(memory_fd_, F_GET_SEALS);
  if (::fstat(memory_fd_, &attributes) != 0 || seals < 0) fail(path_, "the session's memory");
  if (layout_.total_length != welcome_.total_length || (seals & F_SEAL_SHRINK) == 0 ||
      static_cast<u64>(attributes.st_size) != layout_.total_length) {
    refuse(path_, "the session's memory is not as the answer says");
  }
  void* const memory = ::mmap(nullptr, layout_.total_length, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd_, 0);
  if (memory == MAP_FAILED) fail(path_, "the session's memory");
  memory_ = static_cast<u8*>(memory);
  // Two processes would publish at the same positions.
  ::madvise(memory_, layout_.total_length, MADV_DONTFORK);
}

bool SessionConnection::has_ended() const {
  pollfd wanted{socket_, POLLIN, 0};
  return GPU4FS_MUTANT(signal_is_an_end, ::poll(&wanted, 1, 0) > 0, ::poll(&wanted, 1, 0) != 0);
}

void SessionConnection::ring() const {
  const u64 one = 1;
  // It cannot fail: the server never lets the sum grow that far, and a client that was ended is told by has_ended().
  [[maybe_unused]] const ssize_t count = ::write(doorbell_, &one, sizeof(one));
}

}  // namespace gpu4fs::client
