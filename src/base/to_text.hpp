// Text for users: overloads of to_text, hexadecimal, UUIDs. Host only.
//
// A structure that is printed has `std::string to_text(const T&)` in its own namespace, in a header of its layer. The
// overloads here are for the types of base. Parsers return a value only for a complete match.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/check.hpp"
#include "base/status.hpp"
#include "base/types.hpp"
#include "base/uuid.hpp"

namespace gpu4fs {

std::string to_text(Status status);

// "0x" and at least one digit, without leading zeros.
std::string hex_text(u64 value);

// Two digits a byte, lower case, no separators.
std::string hex_text(const void* data, u64 length);

// The 8-4-4-4-12 form of RFC 9562, lower case.
std::string to_text(const Uuid& uuid);

std::optional<Uuid> parse_uuid(std::string_view text);

// The record of a failed check of a kernel.
std::string to_text(const FaultRecord& record);

}  // namespace gpu4fs
