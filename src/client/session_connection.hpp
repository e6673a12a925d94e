// What a client holds of a session with another process: connection, memory and doorbell. Host only.
#pragma once

#include <string>

#include "base/types.hpp"
#include "client/process_session.hpp"
#include "ring/ring_layout.hpp"
#include "wire/session_format.hpp"

namespace gpu4fs::client {

class SessionConnection {
 public:
  // Connects, sends the hello, and checks the answer. Throws ConnectError.
  SessionConnection(const std::string& path, const ProcessSessionOptions& options);
  ~SessionConnection();
  SessionConnection(const SessionConnection&) = delete;
  SessionConnection& operator=(const SessionConnection&) = delete;

  [[nodiscard]] u8* memory() const { return memory_; }
  [[nodiscard]] const ring::SessionLayout& layout() const { return layout_; }
  [[nodiscard]] const wire::SessionWelcome& welcome() const { return welcome_; }
  // Whether the server has ended the connection; once true, it stays true.
  [[nodiscard]] bool has_ended() const;
  void ring() const;

 private:
  void exchange(const ProcessSessionOptions& options);
  void receive_welcome();
  void map_memory();
  void release() noexcept;

  std::string path_;
  int socket_ = -1;
  int memory_fd_ = -1;
  int doorbell_ = -1;
  u8* memory_ = nullptr;
  ring::SessionLayout layout_{};
  wire::SessionWelcome welcome_{};
};

}  // namespace gpu4fs::client
