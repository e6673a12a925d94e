// The control socket of a mounted pool, through which tools talk to its server.
//
// A UNIX stream socket, 0600, `<folder>/<pool uuid>.sock`. A client sends requests, each a JSON object in one line, and
// gets an answer in one line for each: {"ok": true, ...} or {"ok": false, "error": "..."}. A client must be the
// superuser or the user of the server (SO_PEERCRED). All input is untrusted: a line has at most request_bytes_max
// bytes. A client that sends more, or pauses in the middle of a line, gets an error and is disconnected. At most
// client_max are served at a time. Host only.
#pragma once

#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "base/host/json_value.hpp"

namespace gpu4fs::session {

inline constexpr u64 control_request_bytes_max = 4096;
inline constexpr unsigned control_client_max = 16;

// GPU4FS_CONTROL_FOLDER, otherwise /run/gpu4fs for the superuser and a folder of the user's own for others; "" if there
// is none.
std::string default_control_folder();

// {"ok": false, "error": `text`}.
std::string control_error(const std::string& text);

class ControlSocket {
 public:
  // Returns an answer without its newline; an exception becomes an error answer. Called by several threads.
  using Handler = std::function<std::string(const JsonValue&)>;

  // Creates the folder if necessary and takes over a socket that a dead server left. PoolError.
  ControlSocket(const std::string& folder, const std::string& name, Handler handler);
  // Ends all connections. A request that is being answered is completed first; its client gets the answer if it
  // receives it at once.
  ~ControlSocket();
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  struct Client {
    std::thread thread;
    int fd = -1;
    bool is_done = false;  // under mutex_
  };

  void accept_clients();
  void admit(int fd);
  void serve(Client& client);
  std::string answer(const std::string& line) const;
  void join_ended();

  std::string path_;
  Handler handler_;
  int listener_ = -1;
  int wake_[2] = {-1, -1};
  std::mutex mutex_;
  std::list<Client> clients_;  // under mutex_, except for each client's own thread
  std::thread thread_;
};

}  // namespace gpu4fs::session
