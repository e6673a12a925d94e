#include "base/host/json_value.hpp"

#include <fmt/format.h>

#include <charconv>
#include <stdexcept>

namespace gpu4fs {

namespace {

constexpr u32 depth_max = 64;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  JsonValue parse() {
    JsonValue value = parse_value(0);
    skip_space();
    if (at_ != text_.size()) fail("text behind the document");
    return value;
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw std::runtime_error(fmt::format("not JSON at byte {}: {}", at_, what));
  }
  void skip_space() {
    while (at_ < text_.size() &&
           std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos)
      ++at_;
  }
  bool take(char character) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != character) return false;
    ++at_;
    return true;
  }
  bool take_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  JsonValue parse_value(u32 depth) {
    if (depth > depth_max) fail("nested too deeply");
    JsonValue value;
    skip_space();
    if (take('{')) {
      value.kind = JsonValue::Kind::object;
      parse_members(value, depth);
    } else if (take('[')) {
      value.kind = JsonValue::Kind::array;
      if (take(']')) return value;
      do {
        value.elements.push_back(parse_value(depth + 1));
      } while (take(','));
      if (!take(']')) fail("an array without end");
    } else if (at_ < text_.size() && text_[at_] == '"') {
      value.kind = JsonValue::Kind::text;
      value.text = parse_text();
    } else if (take_word("true") || take_word("false")) {
      value.kind = JsonValue::Kind::boolean;
      value.boolean = text_[at_ - 2] == 'u';
    } else if (!take_word("null")) {
      value.kind = JsonValue::Kind::number;
      const char* begin = text_.data() + at_;
      const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value.number);
      if (error != std::errc()) fail("no value");
      at_ += static_cast<std::size_t>(end - begin);
    }
    return value;
  }

  void parse_members(JsonValue& value, u32 depth) {
    if (take('}')) return;
    do {
      skip_space();
      std::string key = parse_text();
      if (!take(':')) fail("a member without a value");
      value.members[std::move(key)] = parse_value(depth + 1);
    } while (take(','));
    if (!take('}')) fail("an object without end");
  }

  std::string parse_text() {
    if (!take('"')) fail("no text");
    std::string result;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] != '\\') {
        result += text_[at_++];
        continue;
      }
      ++at_;
      if (at_ >= text_.size()) break;
      const char escaped = text_[at_++];
      if (escaped == 'u') {
        append_code_point(result);
      } else {
        constexpr std::string_view names = "nrtbf";
        constexpr std::string_view values = "\n\r\t\b\f";
        const std::size_t found = names.find(escaped);
        result += found == std::string_view::npos ? escaped : values[found];
      }
    }
    if (!take('"')) fail("a text without end");
    return result;
  }

  void append_code_point(std::string& result) {
    u32 code = 0;
    if (at_ + 4 > text_.size()) fail("a cut escape");
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + at_ + 4, code, 16);
    if (error != std::errc() || end != text_.data() + at_ + 4) fail("no hexadecimal number");
    at_ += 4;
    if (code < 0x80) {
      result += static_cast<char>(code);
    } else if (code < 0x800) {
      result += static_cast<char>(0xc0 | (code >> 6));
      result += static_cast<char>(0x80 | (code & 0x3f));
    } else {
      result += static_cast<char>(0xe0 | (code >> 12));
      result += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
      result += static_cast<char>(0x80 | (code & 0x3f));
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

const JsonValue& JsonValue::operator[](const std::string& key) const {
  static const JsonValue nothing;
  const auto found = members.find(key);
  return found == members.end() ? nothing : found->second;
}

JsonValue parse_json(std::string_view text) {
  return Parser(text).parse();
}

}  // namespace gpu4fs
