// Continues a mount after its engine has died: in the same process by execve(2), because a process whose GPU kernel
// failed cannot use the GPU again. The channel to the kernel stays open, the pool is recovered from its medium as after
// a crash, and the same kind of engine is started. Host only.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "frontend/fuse/saved_mount.hpp"

namespace gpu4fs::daemon {

// The state that one program image passes to the next.
struct RestartState {
  frontend::SavedMount mount;
  std::string pool_name;              // that of its control socket
  std::string engine;                 // "cpu" or "cuda": the next engine is of the same kind
  std::vector<std::string> reasons;   // of each death, the last few
  std::vector<std::int64_t> times_s;  // of each death, since 1970; same count
  u64 restart_count = 0;
  int device = -1;  // channel to the kernel
  bool is_background = true;
};

// More than this number of deaths in this number of seconds is not an accident.
inline constexpr unsigned restart_max = 5;
inline constexpr std::int64_t restart_window_s = 600;

// Adds a death. False: there were too many recently, and the mount stays dead.
[[nodiscard]] bool note_death(RestartState& state, const std::string& reason, std::int64_t now_s);

// "3 times in 600 s, the last time: ...".
std::string deaths_text(const RestartState& state);

std::string to_bytes(const RestartState& state);
RestartState restart_state_from(const std::string& bytes);

// How an image of the program gives way to the next.
struct ImageEnd {
  // Returns when no request of this image to a medium is in flight. The system does not wait for those of an io_uring,
  // and they would overwrite what the next image writes.
  std::function<void()> end_requests;
  std::function<int(const char*, char* const*)> execute = ::execv;
};

// Executes this program again with `words` and "--resume N". Returns, with the reason, only if this failed.
std::string execute_again(const RestartState& state, const std::vector<std::string>& words, const ImageEnd& end);
// Reads the state that execute_again() stored behind descriptor `number`, and closes it. std::runtime_error.
RestartState read_restart_state(int number);

}  // namespace gpu4fs::daemon
