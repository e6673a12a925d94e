#include "base/host/json.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/check.hpp"

namespace gpu4fs {

using Json = nlohmann::ordered_json;

struct JsonWriter::Document {
  JsonLayout layout;
  Json root = {};
  std::vector<Json*> open = {};  // objects and arrays without their end yet, innermost last

  Json& put(std::string_view key, Json value) {
    if (open.empty()) return root = std::move(value);
    Json& parent = *open.back();
    if (parent.is_object()) return parent[std::string(key)] = std::move(value);
    parent.push_back(std::move(value));
    return parent.back();
  }
};

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

std::string to_utf8(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) {
      const auto byte = static_cast<unsigned char>(text[0]);
      result += static_cast<char>(0xc0 | (byte >> 6));
      result += static_cast<char>(0x80 | (byte & 0x3f));
    } else {
      result += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return result;
}

}  // namespace

JsonWriter::JsonWriter(JsonLayout layout) : document_(new Document{layout}) {}
JsonWriter::JsonWriter(JsonWriter&& other) noexcept = default;
JsonWriter::~JsonWriter() = default;

void JsonWriter::begin_object(std::string_view key) {
  document_->open.push_back(&document_->put(key, Json::object()));
}
void JsonWriter::begin_array(std::string_view key) {
  document_->open.push_back(&document_->put(key, Json::array()));
}
void JsonWriter::end() {
  GPU4FS_CHECK(!document_->open.empty());
  document_->open.pop_back();
}

void JsonWriter::add(std::string_view key, std::string_view text) {
  document_->put(key, to_utf8(text));
}
void JsonWriter::add(std::string_view key, bool value) {
  document_->put(key, value);
}
void JsonWriter::add_signed(std::string_view key, i64 value) {
  document_->put(key, value);
}
void JsonWriter::add_unsigned(std::string_view key, u64 value) {
  document_->put(key, value);
}
void JsonWriter::add(std::string_view key, double value) {
  if (!std::isfinite(value)) {
    document_->put(key, nullptr);
  } else {
    document_->put(key, std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr));
  }
}

std::string JsonWriter::text() const {
  return document_->root.dump(document_->layout == JsonLayout::one_line ? -1 : 2) + "\n";
}

}  // namespace gpu4fs
