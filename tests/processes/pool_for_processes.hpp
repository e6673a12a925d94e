// A pool with a server whose engine other processes reach, and such processes.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "processes/open_session.hpp"
#include "server/pool_server.hpp"
#include "support/file_client.hpp"
#include "support/test_pool.hpp"

extern char** environ;

namespace gpu4fs::test {

class PoolForProcesses {
 public:
  explicit PoolForProcesses(u32 worker_count = 2) {
    pool_.crash();
    session::ServerOptions options;
    options.device_paths = pool_.device_paths();
    options.engine = session::EngineChoice::cpu;
    options.worker_count = worker_count;
    options.commit_interval_s = 0;
    options.control_folder = folder_.device(0);
    options.has_process_sessions = true;
    server_ = std::make_unique<server::PoolServer>(options);
    server_->start();
    socket_path_ = server_->session_path();
    EXPECT_NE(socket_path_, "");
  }

  server::PoolServer& server() { return *server_; }
  const std::string& socket_path() const { return socket_path_; }
  std::string folder() const { return folder_.device(0); }

  client::Session local_session() {
    const server::LocalSession local = server_->open_session(u64{1} << 20);
    return client::Session({local.producer, local.port, local.owner});
  }

 private:
  DeviceFolder folder_;
  TestPool pool_;
  std::unique_ptr<server::PoolServer> server_;
  std::string socket_path_;
};

// True as soon as `is_so()`; false after a minute, which only a hang takes.
template <class IsSo>
bool comes_true(IsSo&& is_so) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// helper/client_main.cpp as a process. It is killed with the object.
class ClientProcess {
 public:
  explicit ClientProcess(std::vector<std::string> words) {
    const char* const build = std::getenv("GPU4FS_BUILD");
    const std::string program = std::string(build != nullptr ? build : ".") + "/gpu4fs_process_client";
    words.insert(words.begin(), program);
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    int out[2];
    if (::pipe(out) != 0) return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, out[0]);
    EXPECT_EQ(::posix_spawn(&pid_, program.c_str(), &actions, nullptr, pointers.data(), environ), 0) << program;
    posix_spawn_file_actions_destroy(&actions);
    ::close(out[1]);
    output_ = out[0];
  }
  ClientProcess(const ClientProcess&) = delete;
  ClientProcess& operator=(const ClientProcess&) = delete;
  ~ClientProcess() {
    if (pid_ > 0) {
      send(SIGKILL);
      exit_code();
    }
    if (output_ >= 0) ::close(output_);
  }

  void send(int signal) const { ::kill(pid_, signal); }
  // Blocks until it has written a line, or ended.
  bool says_something() const {
    char byte = 0;
    return ::read(output_, &byte, 1) == 1;
  }
  // Waits for the end. -1: by a signal.
  int exit_code() {
    int status = 0;
    if (::waitpid(pid_, &status, 0) != pid_) return -2;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
};

}  // namespace gpu4fs::test
