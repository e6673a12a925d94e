// Reports once that a mount's engine has died, from the thread that sees it first. Host only.
#pragma once

#include <atomic>
#include <functional>
#include <utility>

#include "engine/engine_host.hpp"

namespace gpu4fs::server {

class EngineDeath {
 public:
  explicit EngineDeath(const engine::EngineHost& host) : host_(host) {}
  EngineDeath(const EngineDeath&) = delete;
  EngineDeath& operator=(const EngineDeath&) = delete;

  // Called once, by the reporting thread. Set before any thread reports.
  void on_death(std::function<void()> handler) { handler_ = std::move(handler); }

  // The first call that finds the engine dead writes it to the log and calls the handler. Any thread.
  void report();
  [[nodiscard]] bool is_reported() const { return reported_; }

 private:
  const engine::EngineHost& host_;
  std::function<void()> handler_;
  std::atomic<bool> reported_{false};
};

}  // namespace gpu4fs::server
