// Text for people: overloads of to_text, hexadecimal, UUIDs. Host only.
//
// Every structure worth naming has `std::string to_text(const T&)` in its own namespace, in a
// header of its layer; those here are for the types of base. Parsers return no value for anything
// but a complete match.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/status.hpp"
#include "base/types.hpp"
#include "base/uuid.hpp"

namespace gpu4fs {

inline std::string to_text(Status status) {
  return fmt::format("{}: {}", status_name(status), status_text(status));
}

// "0x" and at least one digit, without leading zeros.
inline std::string hex_text(u64 value) {
  return fmt::format("{:#x}", value);
}

// Two digits a byte, lower case, no separators.
inline std::string hex_text(const void* data, u64 length) {
  std::string text;
  text.reserve(2 * length);
  for (u64 i = 0; i < length; ++i) text += fmt::format("{:02x}", static_cast<const u8*>(data)[i]);
  return text;
}

// The 8-4-4-4-12 form of RFC 9562, lower case.
inline std::string to_text(const Uuid& uuid) {
  const std::string hex = hex_text(uuid.bytes, sizeof(uuid.bytes));
  return fmt::format("{}-{}-{}-{}-{}", hex.substr(0, 8), hex.substr(8, 4), hex.substr(12, 4), hex.substr(16, 4),
                     hex.substr(20));
}

inline std::optional<Uuid> parse_uuid(std::string_view text) {
  if (text.size() != 36) return std::nullopt;
  Uuid uuid{};
  u32 digit_count = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char letter = text[at];
    if (at == 8 || at == 13 || at == 18 || at == 23) {
      if (letter != '-') return std::nullopt;
      continue;
    }
    u32 digit = 0;
    if (letter >= '0' && letter <= '9') {
      digit = static_cast<u32>(letter - '0');
    } else if (letter >= 'a' && letter <= 'f') {
      digit = static_cast<u32>(letter - 'a' + 10);
    } else if (letter >= 'A' && letter <= 'F') {
      digit = static_cast<u32>(letter - 'A' + 10);
    } else {
      return std::nullopt;
    }
    u8& byte = uuid.bytes[digit_count / 2];
    byte = static_cast<u8>(byte * 16 + digit);
    ++digit_count;
  }
  return uuid;
}

// What a failed check of a kernel left behind.
inline std::string to_text(const FaultRecord& record) {
  if (record.state == 0) return "no fault recorded";
  return fmt::format("{}:{}: check failed: {} ({} = {:#x}, {} = {:#x}) in block {}, thread {}", record.file,
                     record.line, record.expression, record.left, record.left, record.right, record.right, record.block,
                     record.thread);
}

}  // namespace gpu4fs
