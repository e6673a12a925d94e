// How much of the server the sessions of other processes may take, in all and for each user. Host only.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "base/types.hpp"

namespace gpu4fs::session {

struct SessionLimits {
  u32 session_max = 32;  // of all users; the engine's table has places for the server's own besides
  u32 user_session_max = 32;
  u64 user_memory_bytes_max = u64{1} << 30;
  u64 session_data_bytes_max = u64{256} << 20;
};

// Any thread.
class SessionBudget {
 public:
  explicit SessionBudget(const SessionLimits& limits) : limits_(limits) {}

  // Charges a session with `memory_bytes` to the user. Returns an empty text, or which limit it would exceed; then
  // nothing is charged.
  std::string take(u32 uid, u64 memory_bytes);
  // Reverses one take() with the same numbers.
  void give_back(u32 uid, u64 memory_bytes);

  [[nodiscard]] const SessionLimits& limits() const { return limits_; }
  [[nodiscard]] u32 session_count() const;

 private:
  struct Use {
    u32 session_count = 0;
    u64 memory_bytes = 0;
  };

  SessionLimits limits_;
  mutable std::mutex mutex_;
  u32 session_count_ = 0;
  std::map<u32, Use> users_;
};

}  // namespace gpu4fs::session
