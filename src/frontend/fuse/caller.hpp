// The caller of a request. With idmapped mounts the kernel names the caller only if the request creates a file, and
// some checks of file systems need more than a user's number. Private to this folder.
#pragma once

#include "base/types.hpp"

namespace gpu4fs::frontend {

inline constexpr u32 unknown_user = ~u32{0};

// Whether a thread that waits for its answer has CAP_SYS_ADMIN in the namespace of this process; false also if the
// system does not show the thread.
[[nodiscard]] bool is_administrator(u32 thread);

// The superuser's number for an administrator whom the kernel does not name; otherwise `user`.
[[nodiscard]] u32 known_user(u32 user, u32 thread);

}  // namespace gpu4fs::frontend
