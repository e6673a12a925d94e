#include <charconv>
#include <string>
#include <string_view>

#include "device/memory/mapped_file.hpp"
#include "device/stack/fault_layer.hpp"

namespace gpu4fs::device {

namespace {

struct KindName {
  std::string_view name;
  FaultKind kind;
};

constexpr KindName kind_names[] = {
    {"read-error", FaultKind::read_error},
    {"write-error", FaultKind::write_error},
    {"flush-error", FaultKind::flush_error},
    {"decay", FaultKind::decay},
    {"flip", FaultKind::flip},
    {"lost", FaultKind::lost},
    {"torn", FaultKind::torn},
    {"misdirect", FaultKind::misdirect},
    {"delay", FaultKind::delay},
    {"gone", FaultKind::gone},
};

[[noreturn]] void fail_rule(std::string_view rule, const std::string& what) {
  throw DeviceError("fault rule '" + std::string(rule) + "': " + what, 0);
}

// Reads a number from the beginning of `text` and removes it.
u64 take_number(std::string_view rule, std::string_view& text, const char* what) {
  int base = 10;
  if (text.starts_with("0x")) {
    base = 16;
    text.remove_prefix(2);
  }
  u64 number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc{}) fail_rule(rule, std::string(what) + " is no number");
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

u64 whole_number(std::string_view rule, std::string_view text, const char* what) {
  const u64 number = take_number(rule, text, what);
  if (!text.empty()) fail_rule(rule, "'" + std::string(text) + "' behind " + what);
  return number;
}

FaultRule parse_rule(std::string_view rule) {
  const std::size_t name_end = rule.find_first_of("@#=");
  const std::string_view name = rule.substr(0, name_end);
  std::string_view rest = name_end == std::string_view::npos ? std::string_view{} : rule.substr(name_end);
  FaultRule parsed{};
  const KindName* found = nullptr;
  for (const KindName& known : kind_names) {
    if (known.name == name) found = &known;
  }
  if (found == nullptr) fail_rule(rule, "unknown kind of fault '" + std::string(name) + "'");
  if (rest.empty()) fail_rule(rule, "says nowhere when: =PROBABILITY, @OFFSET+LENGTH or #NUMBER");
  parsed.kind = found->kind;
  if (rest.starts_with('@')) {
    rest.remove_prefix(1);
    parsed.begin = take_number(rule, rest, "the offset");
    if (!rest.starts_with('+')) fail_rule(rule, "a range is OFFSET+LENGTH");
    rest.remove_prefix(1);
    const u64 length = take_number(rule, rest, "the length");
    if (length == 0 || parsed.begin + length < parsed.begin) fail_rule(rule, "an impossible range");
    parsed.end = parsed.begin + length;
    if (parsed.kind == FaultKind::flush_error) fail_rule(rule, "a flush has no range");
  }
  if (rest.starts_with('#')) {
    rest.remove_prefix(1);
    parsed.nth = take_number(rule, rest, "the number");
    if (parsed.nth == 0) fail_rule(rule, "accesses are counted from 1");
  }
  if (rest.starts_with('=')) {
    rest.remove_prefix(1);
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), parsed.probability);
    const bool whole = end == rest.data() + rest.size();
    if (error != std::errc{} || !whole || !(parsed.probability >= 0 && parsed.probability <= 1)) {
      fail_rule(rule, "a probability is a number from 0 to 1");
    }
    rest = {};
  }
  if (!rest.empty()) fail_rule(rule, "'" + std::string(rest) + "' is not understood");
  return parsed;
}

}  // namespace

FaultRules parse_fault_rules(std::string_view text) {
  FaultRules rules;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view rule = text.substr(begin, end - begin);
    begin = end + 1;
    if (rule.empty()) fail_rule(text, "an empty rule");
    if (rule.starts_with("seed=")) {
      rules.seed = whole_number(rule, rule.substr(5), "the seed");
    } else if (rule.starts_with("delay-us=")) {
      rules.delay_us = whole_number(rule, rule.substr(9), "the delay");
    } else {
      rules.rules.push_back(parse_rule(rule));
    }
  }
  return rules;
}

}  // namespace gpu4fs::device
