#include "session/processes/session_budget.hpp"

#include "base/check.hpp"
#include "base/mutant.hpp"
#include "fmt/format.h"

namespace gpu4fs::session {

std::string SessionBudget::take(u32 uid, u64 memory_bytes, u32 commands) {
  const std::lock_guard guard(mutex_);
  const auto found = users_.find(uid);
  const Use used = found == users_.end() ? Use{} : found->second;
  if (session_count_ >= limits_.session_max) {
    return fmt::format("the server has {} sessions of processes, which is its limit", session_count_);
  }
  if (GPU4FS_MUTANT(process_commands_unbounded, commands > limits_.command_max - command_count_, false)) {
    return fmt::format("processes have {} commands in flight and {} more are asked for, and the limit is {}",
                       command_count_, commands, limits_.command_max);
  }
  if (GPU4FS_MUTANT(user_sessions_unbounded, used.session_count >= limits_.user_session_max, false)) {
    return fmt::format("user {} has {} sessions, which is the limit", uid, used.session_count);
  }
  if (memory_bytes > limits_.user_memory_bytes_max - used.memory_bytes) {
    return fmt::format("user {} has {} bytes in sessions and asks for {} more, and the limit is {}", uid,
                       used.memory_bytes, memory_bytes, limits_.user_memory_bytes_max);
  }
  users_[uid] = {used.session_count + 1, used.memory_bytes + memory_bytes};
  ++session_count_;
  command_count_ += commands;
  return {};
}

void SessionBudget::give_back(u32 uid, u64 memory_bytes, u32 commands) {
  const std::lock_guard guard(mutex_);
  const auto found = users_.find(uid);
  GPU4FS_CHECK(found != users_.end());
  Use& use = found->second;
  GPU4FS_CHECK(use.session_count != 0 && use.memory_bytes >= memory_bytes);
  --session_count_;
  command_count_ -= commands;
  use.memory_bytes -= memory_bytes;
  if (--use.session_count == 0) users_.erase(found);
}

u32 SessionBudget::session_count() const {
  const std::lock_guard guard(mutex_);
  return session_count_;
}

}  // namespace gpu4fs::session
