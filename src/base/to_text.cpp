#include "base/to_text.hpp"

#include <fmt/format.h>

namespace gpu4fs {

std::string to_text(Status status) {
  return fmt::format("{}: {}", status_name(status), status_text(status));
}

std::string hex_text(u64 value) {
  return fmt::format("{:#x}", value);
}

std::string hex_text(const void* data, u64 length) {
  std::string text;
  text.reserve(2 * length);
  for (u64 i = 0; i < length; ++i) text += fmt::format("{:02x}", static_cast<const u8*>(data)[i]);
  return text;
}

std::string to_text(const Uuid& uuid) {
  const std::string hex = hex_text(uuid.bytes, sizeof(uuid.bytes));
  return fmt::format("{}-{}-{}-{}-{}", hex.substr(0, 8), hex.substr(8, 4), hex.substr(12, 4), hex.substr(16, 4),
                     hex.substr(20));
}

std::optional<Uuid> parse_uuid(std::string_view text) {
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

std::string to_text(const FaultRecord& record) {
  if (record.state == 0) return "no fault recorded";
  return fmt::format("{}:{}: check failed: {} ({} = {:#x}, {} = {:#x}) in block {}, thread {}", record.file,
                     record.line, record.expression, record.left, record.left, record.right, record.right, record.block,
                     record.thread);
}

}  // namespace gpu4fs
