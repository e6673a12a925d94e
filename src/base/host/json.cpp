#include "base/host/json.hpp"

#include <cmath>

#include "base/check.hpp"

namespace gpu4fs {

namespace {

// Length of the well-formed UTF-8 sequence at the front, 0 if there is none.
std::size_t utf8_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t length = lead < 0x80                    ? 1
                             : lead >= 0xc2 && lead <= 0xdf ? 2
                             : (lead & 0xf0) == 0xe0        ? 3
                             : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                            : 0;
  if (length == 0 || text.size() < length) return 0;
  u32 code = length == 1 ? lead : lead & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0) != 0x80) return 0;
    code = (code << 6) | (next & 0x3f);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return overlong || surrogate || code > 0x10ffff ? 0 : length;
}

}  // namespace

std::string JsonWriter::quote(std::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    if (byte == '"' || byte == '\\') {
      quoted += '\\';
      quoted += static_cast<char>(byte);
    } else if (byte < 0x20 || length == 0) {
      quoted += fmt::format("\\u{:04x}", byte);
    } else {
      quoted += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return quoted + "\"";
}

void JsonWriter::start_line() {
  if (layout_ == JsonLayout::one_line) return;
  text_ += '\n';
  text_.append(2 * closers_.size(), ' ');
}

void JsonWriter::start_item(std::string_view key) {
  if (!is_first_) text_ += ',';
  if (!closers_.empty()) start_line();
  if (!key.empty()) text_ += quote(key) + ": ";
  is_first_ = false;
}

void JsonWriter::begin(std::string_view key, char bracket) {
  start_item(key);
  text_ += bracket;
  closers_ += bracket == '{' ? '}' : ']';
  is_first_ = true;
}

void JsonWriter::end() {
  GPU4FS_CHECK(!closers_.empty());
  const char closer = closers_.back();
  closers_.pop_back();
  if (!is_first_) start_line();
  text_ += closer;
  is_first_ = false;
}

void JsonWriter::put(std::string_view key, std::string_view value) {
  start_item(key);
  text_ += value;
}

void JsonWriter::add(std::string_view key, double value) {
  put(key, std::isfinite(value) ? fmt::format("{:.6g}", value) : "null");
}

}  // namespace gpu4fs
