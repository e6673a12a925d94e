// Who makes a request. With idmapped mounts the kernel does not say it, unless a file is made, and what only file
// systems ask for cannot be decided from a user's number. Private to this folder.
#pragma once

#include "base/types.hpp"

namespace gpu4fs::frontend {

inline constexpr u32 unknown_user = ~u32{0};

// Whether a thread that waits for its answer has CAP_SYS_ADMIN where this process has it; false also where the system
// does not show the thread.
[[nodiscard]] bool is_administrator(u32 thread);

// The superuser's number for an administrator that the kernel does not name; else `user`.
[[nodiscard]] u32 known_user(u32 user, u32 thread);

}  // namespace gpu4fs::frontend
