// How far the jobs of a mounted pool are, for people: lines from members of the server's answers. Host only.
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

// Of a job's object: it runs, or is paused.
bool is_busy(const JsonValue& job);

// "3:07 min", "12 s": how long something takes.
std::string duration_text(double seconds);

// Of a number that is none, or negative: 0.
u64 count_of(const JsonValue& value);

}  // namespace gpu4fs::tools
