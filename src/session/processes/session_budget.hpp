// How much of the server the sessions of other processes may take, in all and for each user. Host only.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "base/types.hpp"

namespace gpu4fs::session {

struct SessionLimits {
  u32 session_max = 16;   // of all users; a mount needs up to 48 places of the engine's table
  u32 command_max = 512;  // in flight, of all users: half of the engine's places, so that its own commands find some
  u32 user_session_max = 16;
  u64 user_memory_bytes_max = u64{1} << 30;
  u64 session_data_bytes_max = u64{256} << 20;
};

// Any thread.
class SessionBudget {
 public:
  explicit SessionBudget(const SessionLimits& limits) : limits_(limits) {}

  // Charges a session with `memory_bytes` and room for `commands` to the user. Returns an empty text, or which limit it
  // would exceed; then nothing is charged.
  std::string take(u32 uid, u64 memory_bytes, u32 commands);
  // Reverses one take() with the same numbers.
  void give_back(u32 uid, u64 memory_bytes, u32 commands);

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
  u32 command_count_ = 0;
  std::map<u32, Use> users_;
};

}  // namespace gpu4fs::session
