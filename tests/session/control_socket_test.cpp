// The control socket: its answers, and its reaction to misbehaving clients.
#include "session/control_socket.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "pool/pool_error.hpp"
#include "support/pool_test_support.hpp"

namespace gpu4fs::session {
namespace {

using gpu4fs::test::contains;
using gpu4fs::test::error_of;
using gpu4fs::test::TemporaryFolder;

class Connection {
 public:
  explicit Connection(const std::string& path) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    is_connected_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Connection() { ::close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool is_connected() const { return is_connected_; }
  bool send(const std::string& text) {
    return ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  // The received bytes, at most `most` of them; 0: the server has closed the connection.
  std::size_t take(std::size_t most) {
    std::string bytes(most, 0);
    const ssize_t count = ::recv(fd_, bytes.data(), most, 0);
    return count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  void end_of_requests() { ::shutdown(fd_, SHUT_WR); }
  // A line without its end; "" if the server has closed the connection.
  std::string line() {
    for (;;) {
      const std::size_t newline = text_.find('\n');
      if (newline != std::string::npos) {
        const std::string found = text_.substr(0, newline);
        text_.erase(0, newline + 1);
        return found;
      }
      char buffer[4096];
      const ssize_t count = ::recv(fd_, buffer, sizeof(buffer), 0);
      if (count <= 0) return {};
      text_.append(buffer, static_cast<std::size_t>(count));
    }
  }

 private:
  int fd_;
  bool is_connected_ = false;
  std::string text_;
};

class ControlSocketTest : public ::testing::Test {
 protected:
  ControlSocketTest()
      : socket_(folder_ / "run", "pool", [this](const JsonValue& request) -> std::string {
          ++handled_;
          if (request["request"].text == "throw") throw std::runtime_error("it is \"broken\"");
          return "{\"ok\": true, \"echo\": \"" + request["request"].text + "\"}";
        }) {}

  TemporaryFolder folder_;
  std::atomic<u32> handled_{0};
  ControlSocket socket_;
};

TEST_F(ControlSocketTest, AnswersEachLineInOrder) {
  Connection connection(socket_.path());
  ASSERT_TRUE(connection.is_connected());
  ASSERT_TRUE(connection.send("{\"request\": \"a\"}\n{\"request\": \"b\"}\n{\"req"));
  EXPECT_EQ(parse_json(connection.line())["echo"].text, "a");
  EXPECT_EQ(parse_json(connection.line())["echo"].text, "b");
  ASSERT_TRUE(connection.send("uest\": \"c\"}\n"));
  EXPECT_EQ(parse_json(connection.line())["echo"].text, "c");
  struct stat attributes {};
  ASSERT_EQ(::stat(socket_.path().c_str(), &attributes), 0);
  EXPECT_EQ(attributes.st_mode & 0777, 0600u);
}

TEST_F(ControlSocketTest, HostileLinesGetErrorAnswers) {
  const std::string deep(2000, '[');
  for (const std::string& text :
       {std::string(""), std::string("nonsense"), std::string("[]"), std::string("null"), deep,
        std::string("{\"request\": }"), std::string("{\"request\": \"throw\"}"), std::string("\0\xff\x01", 3),
        std::string("{} trailing"), std::string("{\"a\": \"\\u12\"}")}) {
    Connection connection(socket_.path());
    ASSERT_TRUE(connection.send(text + "\n"));
    const JsonValue answer = parse_json(connection.line());
    EXPECT_EQ(answer["ok"].kind, JsonValue::Kind::boolean) << text;
    EXPECT_FALSE(answer["ok"].boolean) << text;
    EXPECT_FALSE(answer["error"].text.empty()) << text;
    // The next one is served as usual.
    ASSERT_TRUE(connection.send("{\"request\": \"x\"}\n"));
    EXPECT_EQ(parse_json(connection.line())["echo"].text, "x");
  }
}

TEST_F(ControlSocketTest, RandomBytesNeverReachTheHandlerAsAnythingButObjects) {
  std::mt19937_64 random(5);
  Connection connection(socket_.path());
  for (u32 round = 0; round < 500; ++round) {
    std::string text = "{\"request\": \"x\", \"rate\": 12}";
    for (u32 i = 0; i <= random() % 4; ++i) text[random() % text.size()] = static_cast<char>(random());
    std::erase(text, '\n');
    ASSERT_TRUE(connection.send(text + "\n"));
    ASSERT_FALSE(connection.line().empty());
  }
}

TEST_F(ControlSocketTest, EndlessLinesArePutOut) {
  Connection connection(socket_.path());
  const std::string block(1024, 'x');
  for (u32 i = 0; i < 100 && connection.send(block); ++i) {
  }
  EXPECT_TRUE(contains(connection.line(), "too long"));
  EXPECT_EQ(connection.line(), "");
  EXPECT_EQ(handled_, 0u);
}

TEST_F(ControlSocketTest, ServesABoundedNumberAtATime) {
  std::vector<std::unique_ptr<Connection>> connections;
  for (unsigned i = 0; i < control_client_max; ++i) {
    connections.push_back(std::make_unique<Connection>(socket_.path()));
    ASSERT_TRUE(connections.back()->send("{\"request\": \"x\"}\n"));
    ASSERT_FALSE(connections.back()->line().empty());
  }
  Connection one_more(socket_.path());
  EXPECT_TRUE(contains(one_more.line(), "too many clients"));
  // When one leaves, another may come; the server notices this a moment later.
  connections[3]->end_of_requests();
  EXPECT_EQ(connections[3]->line(), "");
  std::string answer;
  for (u32 attempt = 0; attempt < 10000 && !contains(answer, "echo"); ++attempt) {
    Connection next(socket_.path());
    if (next.send("{\"request\": \"y\"}\n")) answer = next.line();
  }
  EXPECT_TRUE(contains(answer, "echo")) << answer;
}

// The line that another user gets, who may not be able to reach the folders above the socket.
std::string answer_to_user(const std::string& path, uid_t user) {
  int answers[2];
  EXPECT_EQ(::pipe(answers), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::filesystem::path place(path);
    if (::chdir(place.parent_path().c_str()) != 0 || ::setgid(user) != 0 || ::setuid(user) != 0) ::_exit(1);
    Connection connection(place.filename());
    (void)connection.send("{\"request\": \"x\"}\n");  // fails if the server has closed the connection
    const std::string line = connection.is_connected() ? connection.line() : "not connected";
    const bool is_told = ::write(answers[1], line.data(), line.size()) == static_cast<ssize_t>(line.size());
    ::_exit(is_told ? 0 : 1);
  }
  ::close(answers[1]);
  std::string line;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::read(answers[0], buffer, sizeof(buffer))) > 0;) {
    line.append(buffer, static_cast<std::size_t>(count));
  }
  ::close(answers[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return line;
}

// The kernel says which users may command the server, whatever the mode of the socket is.
TEST(ControlSocketRights, OthersAreRefusedWhoeverMayConnect) {
  if (::geteuid() != 0) GTEST_SKIP() << "becoming other users needs the superuser";
  constexpr uid_t nobody = 65534;
  TemporaryFolder folder;
  std::atomic<u32> handled{0};
  ControlSocket socket(folder / "run", "pool", [&](const JsonValue&) {
    ++handled;
    return std::string("{\"ok\": true}");
  });
  std::filesystem::permissions(folder / "run", std::filesystem::perms(0755));
  EXPECT_EQ(answer_to_user(socket.path(), nobody), "not connected");
  std::filesystem::permissions(socket.path(), std::filesystem::perms(0666));
  const std::string refused = answer_to_user(socket.path(), nobody);
  EXPECT_TRUE(contains(refused, "permission denied")) << refused;
  EXPECT_EQ(handled, 0u);
  EXPECT_EQ(answer_to_user(socket.path(), 0), "{\"ok\": true}");
  EXPECT_EQ(handled, 1u);
}

TEST(ControlSocketPath, TakesOverWhatADeadServerLeftAndNothingElse) {
  TemporaryFolder folder;
  const auto handler = [](const JsonValue&) { return std::string("{}"); };
  const std::string run = folder / "run";
  {
    ControlSocket first(run, "pool", handler);
    EXPECT_TRUE(contains(error_of([&] { ControlSocket second(run, "pool", handler); }), "in use"));
    Connection still(first.path());
    EXPECT_TRUE(still.is_connected());
  }
  EXPECT_FALSE(std::filesystem::exists(run + "/pool.sock"));
  // A name without a listener, as after SIGKILL.
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (run + "/pool.sock").c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ::close(fd);
  ControlSocket again(run, "pool", handler);
  Connection connection(again.path());
  ASSERT_TRUE(connection.send("{}\n"));
  EXPECT_EQ(connection.line(), "{}");
  EXPECT_NE(error_of([&] { ControlSocket far(run, std::string(200, 'x'), handler); }), "");
}

TEST(ControlSocketEnd, DoesNotWaitForSilentClients) {
  TemporaryFolder folder;
  auto socket =
      std::make_unique<ControlSocket>(folder / "run", "pool", [](const JsonValue&) { return std::string("{}"); });
  Connection silent(socket->path());
  Connection halfway(socket->path());
  ASSERT_TRUE(halfway.send("{\"request"));
  Connection served(socket->path());
  ASSERT_TRUE(served.send("{}\n"));
  EXPECT_EQ(served.line(), "{}");
  socket.reset();
  EXPECT_EQ(silent.line(), "");
  EXPECT_EQ(halfway.line(), "");
}

// A client that keeps reading, but slowly, has not got its answer when the socket ends: the end does not wait for it.
TEST(ControlSocketEnd, DoesNotWaitForSlowClients) {
  constexpr std::size_t answer_bytes = std::size_t{16} << 20;
  TemporaryFolder folder;
  auto socket = std::make_unique<ControlSocket>(folder / "run", "pool",
                                                [](const JsonValue&) { return std::string(answer_bytes, 'x'); });
  Connection slow(socket->path());
  ASSERT_TRUE(slow.send("{}\n"));
  ASSERT_GT(slow.take(1), 0u);
  std::atomic<bool> has_ended{false};
  std::thread end([&] {
    socket.reset();
    has_ended = true;
  });
  std::size_t taken = 1;
  while (!has_ended && taken < answer_bytes) {
    const std::size_t count = slow.take(4096);
    if (count == 0) break;
    taken += count;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  end.join();
  // The socket contains some of it in any case.
  EXPECT_LT(taken, answer_bytes / 2);
}

}  // namespace
}  // namespace gpu4fs::session
