#include "daemon/mount_service.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <ctime>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/host/log.hpp"
#include "daemon/mount_wait.hpp"
#include "frontend/dead_session.hpp"
#include "frontend/fuse/fuse_mount.hpp"
#include "frontend/local_session.hpp"
#include "pool/pool_error.hpp"
#include "server/pool_server.hpp"
#include "session/control_socket.hpp"

namespace gpu4fs::daemon {
namespace {

using frontend::FuseMount;
using server::PoolServer;

sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, number);
  return set;
}

// Unmounts when a signal requests it.
class SignalWatch {
 public:
  SignalWatch(FuseMount& mount, bool ignores_hangup)
      : thread_([this, &mount, ignores_hangup] {
          const sigset_t signals = ending_signals();
          int number = 0;
          while (::sigwait(&signals, &number) == 0 && !ended_) {
            if (number == SIGHUP && ignores_hangup) continue;
            mount.stop();
            return;
          }
        }) {}
  ~SignalWatch() {
    ended_ = true;
    ::pthread_kill(thread_.native_handle(), SIGTERM);
    thread_.join();
  }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

// Suspends the mount when its engine dies, unless this happens too often.
class DeathWatch {
 public:
  explicit DeathWatch(RestartState& state) : state_(state) {}

  void watch(FuseMount& mount) {
    const std::lock_guard guard(mutex_);
    mount_ = &mount;
    if (is_to_go_on_) mount.suspend();
  }
  // The mount ends; a later death, while the server stops, has nothing to suspend.
  void forget() {
    const std::lock_guard guard(mutex_);
    mount_ = nullptr;
  }
  void died(const std::string& reason) {
    const std::lock_guard guard(mutex_);
    is_to_go_on_ = note_death(state_, reason, std::time(nullptr));
    if (!is_to_go_on_) {
      log(LogLevel::error, deaths_text(state_) + "; it is not started again: unmount and look for the cause");
    } else if (mount_ != nullptr) {
      mount_->suspend();
    }
  }

 private:
  RestartState& state_;
  std::mutex mutex_;
  FuseMount* mount_ = nullptr;
  bool is_to_go_on_ = false;
};

session::ServerOptions resumed_options(const MountService& service) {
  const RestartState& state = *service.resumed;
  session::ServerOptions options = service.options.server;
  // Another kind of engine is never used silently.
  options.engine = state.engine == "cuda" ? session::EngineChoice::cuda : session::EngineChoice::cpu;
  options.history = {static_cast<u32>(state.restart_count), state.reasons.back(), state.times_s.back()};
  options.write_errors_before = state.mount.write_errors + 1;
  options.keep_orphans = true;
  return options;
}

std::string name_of_control(const std::string& path) {
  const std::size_t slash = path.rfind('/') + 1;
  const std::size_t end = path.rfind(".sock");
  return end == std::string::npos ? std::string() : path.substr(slash, end - slash);
}

// The words with which the mount continues, with the current devices of the pool.
std::vector<std::string> words_to_go_on(const MountService& service, PoolServer& server) {
  std::vector<std::string> words = service.words;
  const auto count = static_cast<std::ptrdiff_t>(service.options.server.device_paths.size());
  words.erase(words.end() - 1 - count, words.end() - 1);
  const std::vector<std::string> paths = server.device_paths();
  words.insert(words.end() - 1, paths.begin(), paths.end());
  if (server.has_thin_files()) words.insert(words.begin() + 2, {"-o", "discard"});
  if (server.has_lost_devices()) words.insert(words.begin() + 2, {"-o", "degraded"});
  return words;
}

// Serves with an engine. False: the end of the mount was not clean.
bool serve_alive(const MountService& service, PoolServer& server, RestartState& state, DeathWatch& deaths) {
  frontend::LocalSessions sessions(server);
  {
    FuseMount mount(service.options.fuse, sessions);
    if (service.resumed) {
      mount.resume(state.device, state.mount);
    } else {
      mount.mount();
    }
    const struct Watched {
      DeathWatch& deaths;
      ~Watched() { deaths.forget(); }
    } watched{deaths};
    deaths.watch(mount);
    FuseMount::RunEnd end{};
    {
      const SignalWatch signals(mount, service.is_background);
      std::string text;
      if (service.is_verbose || server.recovery().records_replayed != 0) text += server.recovery().text();
      for (const std::string& warning : server.warnings()) text += warning + "\n";
      // If the engine was selected by name, nothing is printed: mount(8) prints all output of its helper. In the
      // foreground a line says that the directory can be used.
      const bool is_asked_for = service.options.server.engine != session::EngineChoice::automatic;
      if (service.is_verbose || !service.is_background || !is_asked_for) text += server.engine_text();
      service.announce(text);
      state.mount = {};
      end = mount.run();
    }
    if (end == FuseMount::RunEnd::suspended) {
      state.mount = mount.save();
      state.device = mount.device();
      state.pool_name = name_of_control(server.control_path());
      ++state.restart_count;
      log(LogLevel::error, "the pool is recovered and the engine started again");
      log(LogLevel::error,
          fmt::format("that was not possible: {}", execute_again(state, words_to_go_on(service, server),
                                                                 {.end_requests = [&] { server.end_requests(); }})));
      return false;
    }
  }
  return server.stop();
}

// Every operation fails until the directory is unmounted, and the log and the status say why.
void serve_dead(const MountService& service, const std::string& reason) {
  const RestartState& state = *service.resumed;
  const std::string text =
      fmt::format("{}; it could not be started again: {}; unmount and mount again", deaths_text(state), reason);
  log(LogLevel::error, text);
  std::unique_ptr<session::ControlSocket> socket;
  const std::string& folder = service.options.server.control_folder;
  try {
    if (!state.pool_name.empty()) {
      socket = std::make_unique<session::ControlSocket>(
          folder, state.pool_name, [text](const JsonValue&) { return session::control_error(text); });
    }
  } catch (const pool::PoolError& error) {
    log(LogLevel::warning, error.what());
  }
  frontend::DeadSessions sessions(text, socket ? socket->path() : "", state.mount.write_errors + 1);
  FuseMount mount(service.options.fuse, sessions);
  mount.resume(state.device, state.mount);
  const SignalWatch signals(mount, service.is_background);
  mount.run();
}

}  // namespace

bool serve(MountService service) {
  const sigset_t signals = ending_signals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  RestartState state;
  state.is_background = service.is_background;
  DeathWatch deaths(state);
  std::unique_ptr<PoolServer> server;
  const auto start = [&] {
    // Not through `server`: it is already empty while its object is destroyed.
    server->on_death([&deaths, alive = server.get()] { deaths.died(alive->engine().fault_text()); });
    server->start();
    state.engine = server->uses_gpu() ? "cuda" : "cpu";
  };
  if (!service.resumed) {
    server = open_when_free(service.options.server, Holder::unknown, signals);
    start();
    return serve_alive(service, *server, state, deaths);
  }
  state = *service.resumed;
  try {
    server = open_when_free(resumed_options(service), Holder::ends, signals);
    start();
  } catch (const std::exception& error) {
    server.reset();
    serve_dead(service, error.what());
    return false;
  }
  return serve_alive(service, *server, state, deaths);
}

}  // namespace gpu4fs::daemon
