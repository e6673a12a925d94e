// The session socket and clients that do not behave.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>

#include "processes/pool_for_processes.hpp"
#include "session/processes/session_socket.hpp"

namespace gpu4fs::test::session_socket_test {
namespace {

// A connection without the client library.
class RawConnection {
 public:
  explicit RawConnection(const std::string& path) : fd_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    is_connected_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~RawConnection() {
    ::close(fd_);
    for (const int fd : fds_) {
      if (fd >= 0) ::close(fd);
    }
  }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  bool is_connected() const { return is_connected_; }
  bool send(const void* bytes, std::size_t length) const {
    return ::send(fd_, bytes, length, MSG_NOSIGNAL) == static_cast<ssize_t>(length);
  }
  bool send(const wire::SessionHello& hello) const { return send(&hello, sizeof(hello)); }

  // Whether an answer came before the end of the connection.
  bool receive(wire::SessionWelcome* welcome) {
    iovec bytes{welcome, sizeof(*welcome)};
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    ssize_t count = ::recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
    // The server has refused it without reading the hello.
    if (count < 0 && errno == ECONNRESET) count = ::recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
    if (count != static_cast<ssize_t>(sizeof(*welcome))) return false;
    if (const cmsghdr* header = CMSG_FIRSTHDR(&message)) std::memcpy(fds_, CMSG_DATA(header), sizeof(fds_));
    return true;
  }
  // Waits for the end of the connection, at most a minute.
  bool ends() const {
    char byte = 0;
    pollfd wanted{fd_, POLLIN, 0};
    return ::poll(&wanted, 1, 60'000) == 1 && ::recv(fd_, &byte, 1, MSG_DONTWAIT) <= 0;
  }
  int memory_fd() const { return fds_[0]; }
  int doorbell_fd() const { return fds_[1]; }

 private:
  int fd_;
  int fds_[2] = {-1, -1};
  bool is_connected_ = false;
};

wire::SessionHello good_hello() {
  wire::SessionHello hello{};
  hello.magic = wire::session_hello_magic;
  hello.version = wire::session_protocol_version;
  hello.ring_version = ring::ring_version;
  hello.depth_log2 = 4;
  hello.data_length = 65536;
  return hello;
}

void expect_service(const std::string& path) {
  client::OpenedSession opened = open_when_possible(path);
  wire::Command command{};
  command.opcode = wire::Opcode::noop;
  EXPECT_EQ(opened.session.call(command).status, Status::ok);
}

TEST(SessionSocket, MalformedHellosAreRefusedWithTheReason) {
  PoolForProcesses pool;
  struct Case {
    const char* text;
    void (*change)(wire::SessionHello&);
  };
  const Case cases[] = {
      {"no hello", [](wire::SessionHello& hello) { hello.magic ^= 1; }},
      {"version 2.1", [](wire::SessionHello& hello) { hello.version = 2; }},
      {"version 1.9", [](wire::SessionHello& hello) { hello.ring_version = 9; }},
      {"2^0", [](wire::SessionHello& hello) { hello.depth_log2 = 0; }},
      {"2^11", [](wire::SessionHello& hello) { hello.depth_log2 = 11; }},
      {"data area of 0", [](wire::SessionHello& hello) { hello.data_length = 0; }},
      {"data area of 18446744073709551615", [](wire::SessionHello& hello) { hello.data_length = ~u64{0}; }},
      {"reserved", [](wire::SessionHello& hello) { hello.reserved[3] = 1; }},
      {"reserved", [](wire::SessionHello& hello) { hello.reserved0 = 1; }},
  };
  for (const Case& change : cases) {
    wire::SessionHello hello = good_hello();
    change.change(hello);
    RawConnection connection(pool.socket_path());
    ASSERT_TRUE(connection.send(hello));
    wire::SessionWelcome welcome{};
    ASSERT_TRUE(connection.receive(&welcome)) << change.text;
    EXPECT_EQ(welcome.error, static_cast<u32>(EINVAL)) << change.text;
    EXPECT_NE(std::string(welcome.text).find(change.text), std::string::npos) << welcome.text;
    EXPECT_EQ(connection.memory_fd(), -1);
    EXPECT_TRUE(connection.ends());
  }
  expect_service(pool.socket_path());
}

TEST(SessionSocket, RandomHellosNeverEndTheServer) {
  PoolForProcesses pool;
  std::mt19937_64 random(7);
  for (u32 round = 0; round < 300; ++round) {
    std::vector<u8> bytes(random() % 200);
    const wire::SessionHello hello = good_hello();
    if (random() % 2 == 0) bytes.resize(sizeof(hello));
    for (u8& byte : bytes) byte = static_cast<u8>(random());
    if (bytes.size() >= sizeof(hello) && random() % 2 == 0) {
      std::memcpy(bytes.data(), &hello, sizeof(hello));
      bytes[random() % sizeof(hello)] = static_cast<u8>(random());
    }
    RawConnection connection(pool.socket_path());
    connection.send(bytes.data(), bytes.size());
    if (random() % 4 == 0) continue;
    wire::SessionWelcome welcome{};
    if (connection.receive(&welcome)) {
      EXPECT_EQ(welcome.magic, wire::session_welcome_magic);
    }
  }
  expect_service(pool.socket_path());
}

TEST(SessionSocket, TheLengthOfTheMemoryNeverChanges) {
  PoolForProcesses pool;
  RawConnection connection(pool.socket_path());
  ASSERT_TRUE(connection.send(good_hello()));
  wire::SessionWelcome welcome{};
  ASSERT_TRUE(connection.receive(&welcome));
  ASSERT_EQ(welcome.error, 0u);
  EXPECT_NE(::ftruncate(connection.memory_fd(), 4096), 0);
  EXPECT_NE(::ftruncate(connection.memory_fd(), static_cast<off_t>(welcome.total_length * 2)), 0);
  EXPECT_NE(::fcntl(connection.memory_fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  // Pages that a client takes away come back empty.
  EXPECT_EQ(::fallocate(connection.memory_fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                        static_cast<off_t>(welcome.total_length)),
            0);
  expect_service(pool.socket_path());
}

TEST(SessionSocket, AWildDoorbellHoldsNobodyUp) {
  PoolForProcesses pool;
  RawConnection connection(pool.socket_path());
  ASSERT_TRUE(connection.send(good_hello()));
  wire::SessionWelcome welcome{};
  ASSERT_TRUE(connection.receive(&welcome));
  // A read of it waits from now on, for whoever has it.
  ASSERT_EQ(::fcntl(connection.doorbell_fd(), F_SETFL, 0), 0);
  for (u32 i = 0; i < 1000; ++i) {
    u64 rings = 1;
    ASSERT_EQ(::write(connection.doorbell_fd(), &rings, sizeof(rings)), static_cast<ssize_t>(sizeof(rings)));
    ASSERT_EQ(::read(connection.doorbell_fd(), &rings, sizeof(rings)), static_cast<ssize_t>(sizeof(rings)));
  }
  expect_service(pool.socket_path());
  EXPECT_TRUE(connection.send("?", 1));
  EXPECT_TRUE(connection.ends()) << "a message after the hello ends the session";
  EXPECT_TRUE(pool.server().stop());
}

TEST(SessionSocket, SilentClientsAreBounded) {
  PoolForProcesses pool;
  std::vector<std::unique_ptr<RawConnection>> silent;
  for (u32 i = 0; i < session::session_hello_pending_max; ++i) {
    silent.push_back(std::make_unique<RawConnection>(pool.socket_path()));
    ASSERT_TRUE(silent.back()->is_connected());
  }
  RawConnection refused(pool.socket_path());
  wire::SessionWelcome welcome{};
  ASSERT_TRUE(refused.receive(&welcome));
  EXPECT_EQ(welcome.error, static_cast<u32>(EUSERS));
  silent.clear();
  EXPECT_TRUE(comes_true([&] {
    try {
      expect_service(pool.socket_path());
      return true;
    } catch (const client::ConnectError&) {
      return false;  // the server has not seen all of them leave
    }
  }));
}

TEST(SessionSocket, LimitsAreKeptAndNamed) {
  PoolForProcesses pool;
  session::SessionLimits limits;
  limits.session_max = 4;
  limits.user_session_max = 3;
  limits.user_memory_bytes_max = u64{1} << 20;
  limits.command_max = 16;
  session::SessionSocket socket(pool.server().engine(), pool.folder(), "limited", Uuid{}, limits);
  const auto open = [&](u64 data_bytes) {
    return client::open_process_session(socket.path(), {.depth_log2 = 2, .data_bytes = data_bytes});
  };
  const auto refusal = [&](u64 data_bytes, u32 depth_log2 = 2) -> std::string {
    try {
      client::open_process_session(socket.path(), {.depth_log2 = depth_log2, .data_bytes = data_bytes});
    } catch (const client::ConnectError& error) {
      EXPECT_EQ(error.error(), EUSERS);
      return error.what();
    }
    return "";
  };
  std::vector<client::OpenedSession> opened;
  opened.push_back(open(4096));
  EXPECT_NE(refusal(u64{1} << 20).find("the limit is 1048576"), std::string::npos);
  EXPECT_NE(refusal(4096, 4).find("4 commands in flight and 16 more are asked for, and the limit is 16"),
            std::string::npos);
  opened.push_back(open(4096));
  opened.push_back(open(4096));
  EXPECT_NE(refusal(4096).find("has 3 sessions"), std::string::npos);
  EXPECT_EQ(socket.session_count(), 3u);
  opened.clear();
  EXPECT_TRUE(comes_true([&] { return socket.session_count() == 0; }));
  opened.push_back(open(u64{900} << 10));
}

// Exit codes of a process of another user: 0 it got a session, 1 it was refused with EACCES, 2 it could not connect.
int answer_to_user(const std::string& path, uid_t user) {
  const pid_t child = ::fork();
  if (child == 0) {
    // The user may not be able to reach the folders above the socket.
    const std::filesystem::path place(path);
    if (::chdir(place.parent_path().c_str()) != 0 || ::setgid(user) != 0 || ::setuid(user) != 0) ::_exit(5);
    RawConnection connection(place.filename());
    if (!connection.is_connected()) ::_exit(2);
    connection.send(good_hello());
    wire::SessionWelcome welcome{};
    if (!connection.receive(&welcome)) ::_exit(4);
    ::_exit(welcome.error == 0 ? 0 : welcome.error == EACCES ? 1 : 3);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(SessionSocket, OtherUsersAreRefusedWhoeverMayConnect) {
  if (::geteuid() != 0) GTEST_SKIP() << "becoming other users needs the superuser";
  constexpr uid_t nobody = 65534;
  PoolForProcesses pool;
  std::filesystem::permissions(pool.folder(), std::filesystem::perms(0755));
  EXPECT_EQ(answer_to_user(pool.socket_path(), nobody), 2);
  std::filesystem::permissions(pool.socket_path(), std::filesystem::perms(0666));
  EXPECT_EQ(answer_to_user(pool.socket_path(), nobody), 1);
  EXPECT_EQ(answer_to_user(pool.socket_path(), 0), 0);
}

}  // namespace
}  // namespace gpu4fs::test::session_socket_test
