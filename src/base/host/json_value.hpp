// Reads JSON: results of benchmarks, requests and answers of the control socket. Host only.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.hpp"

namespace gpu4fs {

// A parsed document. A request for another kind than that of the value returns an empty value, so optional members need
// no tests.
struct JsonValue {
  enum class Kind { null, boolean, number, text, array, object };

  Kind kind = Kind::null;
  bool boolean = false;
  double number = 0;
  std::string text;
  std::vector<JsonValue> elements;
  std::map<std::string, JsonValue> members;

  const JsonValue& operator[](const std::string& key) const;
};

// Throws std::runtime_error with the byte offset of the fault. Depth is limited to 64.
JsonValue parse_json(std::string_view text);

}  // namespace gpu4fs
