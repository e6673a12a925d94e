#include "base/host/json_value.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace gpu4fs {

namespace {

constexpr int depth_max = 64;

JsonValue value_of(nlohmann::json&& json) {
  JsonValue value;
  switch (json.type()) {
    case nlohmann::json::value_t::object:
      value.kind = JsonValue::Kind::object;
      for (auto& [key, member] : json.items()) value.members[key] = value_of(std::move(member));
      break;
    case nlohmann::json::value_t::array:
      value.kind = JsonValue::Kind::array;
      for (nlohmann::json& element : json) value.elements.push_back(value_of(std::move(element)));
      break;
    case nlohmann::json::value_t::string:
      value.kind = JsonValue::Kind::text;
      value.text = std::move(json.get_ref<std::string&>());
      break;
    case nlohmann::json::value_t::boolean:
      value.kind = JsonValue::Kind::boolean;
      value.boolean = json.get<bool>();
      break;
    case nlohmann::json::value_t::number_integer:
    case nlohmann::json::value_t::number_unsigned:
    case nlohmann::json::value_t::number_float:
      value.kind = JsonValue::Kind::number;
      value.number = json.get<double>();
      break;
    default:
      break;
  }
  return value;
}

}  // namespace

const JsonValue& JsonValue::operator[](const std::string& key) const {
  static const JsonValue nothing;
  const auto found = members.find(key);
  return found == members.end() ? nothing : found->second;
}

JsonValue parse_json(std::string_view text) {
  const auto check_depth = [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > depth_max) throw std::runtime_error("not JSON that is taken here: nested too deeply");
    return true;
  };
  try {
    return value_of(nlohmann::json::parse(text, check_depth));
  } catch (const nlohmann::json::parse_error& error) {
    throw std::runtime_error(fmt::format("not JSON at byte {}: {}", error.byte, error.what()));
  } catch (const nlohmann::json::exception& error) {  // a number without a value, for example
    throw std::runtime_error(fmt::format("not JSON that is taken here: {}", error.what()));
  }
}

}  // namespace gpu4fs
