// The progress of a mounted pool's jobs as text for users, from members of the server's answers. Host only.
#pragma once

#include <string>

#include "base/host/json_value.hpp"
#include "base/types.hpp"

namespace gpu4fs::tools {

// The member "scrub".
std::string scrub_text(const JsonValue& scrub);
// "rebuild"; "" if there was none since the mount.
std::string rebuild_text(const JsonValue& rebuild);
// "relocation"; "" if there was none since the mount.
std::string relocation_text(const JsonValue& relocation);
// "reshape".
std::string reshape_text(const JsonValue& reshape);

// For a job's object: whether the job is running or paused.
bool is_busy(const JsonValue& job);

// A duration: "3:07 min", "12 s".
std::string duration_text(double seconds);

// 0 for a value that is not a number or is negative.
u64 count_of(const JsonValue& value);

}  // namespace gpu4fs::tools
