// Writes JSON, with two spaces of indentation or in one line. Host only.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <string>
#include <string_view>

#include "base/types.hpp"

namespace gpu4fs {

// Members need a key, elements of arrays none (""). Every begin needs its end.
enum class JsonLayout { indented, one_line };

class JsonWriter {
 public:
  explicit JsonWriter(JsonLayout layout = JsonLayout::indented) : layout_(layout) {}

  void begin_object(std::string_view key = "") { begin(key, '{'); }
  void begin_array(std::string_view key = "") { begin(key, '['); }
  void end();

  void add(std::string_view key, std::string_view text) { put(key, quote(text)); }
  void add(std::string_view key, const char* text) { put(key, quote(text)); }
  void add(std::string_view key, bool value) { put(key, value ? "true" : "false"); }
  template <std::integral T>
  void add(std::string_view key, T value) {
    put(key, fmt::format("{}", value));
  }
  // Not a number becomes null.
  void add(std::string_view key, double value);

  // The document so far, with a newline at the end.
  std::string text() const { return text_ + "\n"; }

  // Quoted; bytes that are not UTF-8 appear as the code point of their value.
  static std::string quote(std::string_view text);

 private:
  void begin(std::string_view key, char bracket);
  void put(std::string_view key, std::string_view value);
  void start_item(std::string_view key);
  void start_line();

  JsonLayout layout_;
  std::string text_;
  std::string closers_;  // of the open brackets, innermost last
  bool is_first_ = true;
};

}  // namespace gpu4fs
