// The session socket of a mounted pool, through which other processes get sessions with its engine (docs/wire.md).
//
// A UNIX socket of records, 0600, `<folder>/<pool uuid>.session`. A client sends a hello and gets a welcome, with its
// session's memory and doorbell. The connection stays open as long as the session: if either side ends, the other one
// sees it. A client must be the superuser or the user of the server: commands name files by inode number, so a client
// reaches files whose folders would not let it pass.
//
// One thread serves all connections and doorbells, and sleeps when nothing happens. Another one closes sessions,
// because a session ends when its commands have ended. All input is untrusted. Host only.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/types.hpp"
#include "base/uuid.hpp"
#include "engine/engine_host.hpp"
#include "session/processes/peer.hpp"
#include "session/processes/process_session.hpp"
#include "session/processes/session_budget.hpp"
#include "wire/session_format.hpp"

namespace gpu4fs::session {

// Connections that have not sent their hello.
inline constexpr u32 session_hello_pending_max = 16;
inline constexpr std::chrono::seconds session_hello_time_max{10};

class SessionSocket {
 public:
  // Makes the folder if it is missing, and takes over a socket that a dead server left. The engine outlives the
  // object. PoolError.
  SessionSocket(engine::EngineHost& host, const std::string& folder, const std::string& name, const Uuid& pool,
                const SessionLimits& limits = {});
  // Ends all connections, and waits until the commands of their sessions have ended.
  ~SessionSocket();
  SessionSocket(const SessionSocket&) = delete;
  SessionSocket& operator=(const SessionSocket&) = delete;

  // Ends all connections and accepts no more: the engine has died. Any thread; does not wait.
  void hang_up();

  [[nodiscard]] const std::string& path() const { return path_; }
  // Sessions that are open or being closed.
  [[nodiscard]] u32 session_count() const { return budget_.session_count(); }

 private:
  using Clock = std::chrono::steady_clock;

  struct Connection {
    int fd = -1;
    Peer peer;
    Clock::time_point hello_until;
    std::unique_ptr<ProcessSession> session;  // null: the hello has not come yet
  };
  using Connections = std::map<u64, Connection>;

  void serve();
  void accept_client();
  void turn_away();
  void handle(u64 key);
  void take_hello(u64 id, Connection& connection);
  wire::SessionWelcome open(Connection& connection, const wire::SessionHello& hello);
  void welcome(u64 id, Connection& connection, const wire::SessionWelcome& answer);
  void end(u64 id);
  void end_late_hellos();
  [[nodiscard]] int wait_limit_ms() const;
  [[nodiscard]] u32 pending_count() const;
  void close_sessions();

  engine::EngineHost& host_;
  std::string path_;
  Uuid pool_;
  SessionBudget budget_;
  int listener_ = -1;  // closed by the serving thread
  int poller_ = -1;    // epoll
  int wake_ = -1;      // eventfd: look at is_ending_
  int reserve_ = -1;   // a descriptor to give up for a client that is turned away
  std::atomic<bool> is_ending_{false};
  // Of the serving thread.
  Connections connections_;
  u64 next_id_ = 1;
  // Of the closing thread.
  std::mutex closing_mutex_;
  std::condition_variable closing_changed_;
  std::deque<std::unique_ptr<ProcessSession>> closing_;  // under closing_mutex_
  bool closes_no_more_ = false;                          // under closing_mutex_
  std::thread server_;
  std::thread closer_;
};

}  // namespace gpu4fs::session
