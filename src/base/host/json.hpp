// Writes JSON, with two spaces of indentation or in one line. Host only.
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <string_view>

#include "base/types.hpp"

namespace gpu4fs {

enum class JsonLayout { indented, one_line };

// Members need a key; elements of arrays have none (""). Every begin needs its end.
class JsonWriter {
 public:
  explicit JsonWriter(JsonLayout layout = JsonLayout::indented);
  JsonWriter(JsonWriter&& other) noexcept;
  ~JsonWriter();

  void begin_object(std::string_view key = "");
  void begin_array(std::string_view key = "");
  void end();

  // Bytes that are not UTF-8 appear as the code point of their value.
  void add(std::string_view key, std::string_view text);
  void add(std::string_view key, const char* text) { add(key, std::string_view(text)); }
  void add(std::string_view key, bool value);
  template <std::integral T>
  void add(std::string_view key, T value) {
    if constexpr (std::signed_integral<T>) {
      add_signed(key, value);
    } else {
      add_unsigned(key, value);
    }
  }
  // With six digits. A value that is not finite becomes null.
  void add(std::string_view key, double value);

  // The document, with a newline at the end.
  std::string text() const;

 private:
  struct Document;
  void add_signed(std::string_view key, i64 value);
  void add_unsigned(std::string_view key, u64 value);

  std::unique_ptr<Document> document_;
};

}  // namespace gpu4fs
