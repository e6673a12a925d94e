#include "device/stack/stack_spec.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "device/memory/mapped_file.hpp"
#include "device/stack/fault_layer.hpp"
#include "device/stack/null_layer.hpp"
#include "device/stack/record_layer.hpp"
#include "device/stack/trace_layer.hpp"

namespace gpu4fs::device {

namespace {

constexpr std::string_view layer_names[] = {"record", "trace", "fault", "null"};
constexpr std::string_view null_name = "null";

[[noreturn]] void fail_spec(const std::string& text, const std::string& what) {
  throw DeviceError("device '" + text + "': " + what, 0);
}

// The name of the layer at the beginning of `text`; empty: it is a path.
std::string_view layer_at(std::string_view text) {
  for (const std::string_view name : layer_names) {
    if (text.size() > name.size() && text.starts_with(name) && text[name.size()] == '=') return name;
  }
  return {};
}

u64 parse_null_size(const std::string& text, std::string_view argument) {
  u64 size = 0;
  const char* end = argument.data() + argument.size();
  const auto [stop, error] = std::from_chars(argument.data(), end, size);
  if (error != std::errc{}) fail_spec(text, "the size of 'null' is a number with K, M or G behind it");
  const std::string_view unit(stop, static_cast<std::size_t>(end - stop));
  const std::string_view units = "KMG";
  const std::size_t at = unit.size() == 1 ? units.find(unit) : std::string_view::npos;
  if (!unit.empty() && at == std::string_view::npos) {
    fail_spec(text, "'" + std::string(unit) + "' is no unit of the size of 'null'");
  }
  const u32 shift = unit.empty() ? 0 : 10 * (static_cast<u32>(at) + 1);
  if (size == 0 || size > (u64{1} << 46) >> shift || !is_aligned(size << shift, page_size)) {
    fail_spec(text, "the size of 'null' is a multiple of 4096, at most 64 TiB");
  }
  return size << shift;
}

// The end of the hexadecimal digits at `at`, of which there are `least` to `most`; npos: there are not.
std::size_t end_of_hex(std::string_view text, std::size_t at, std::size_t least, std::size_t most) {
  if (at == std::string_view::npos) return at;
  std::size_t end = at;
  while (end < text.size() && end - at < most && std::isxdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
  return end - at >= least ? end : std::string_view::npos;
}
std::size_t end_of_sign(std::string_view text, std::size_t at, char sign) {
  return at < text.size() && text[at] == sign ? at + 1 : std::string_view::npos;
}

// The end of the PCI address at `at`, with its domain; npos: there is none.
std::size_t end_of_address(std::string_view text, std::size_t at) {
  at = end_of_sign(text, end_of_hex(text, at, 4, 8), ':');
  at = end_of_sign(text, end_of_hex(text, at, 2, 2), ':');
  at = end_of_sign(text, end_of_hex(text, at, 2, 2), '.');
  return at < text.size() && text[at] >= '0' && text[at] <= '7' ? at + 1 : std::string_view::npos;
}

// Finds the parts of a drive's name.
void parse_drive(const std::string& text, DeviceSpec& spec) {
  const std::string_view name = spec.path;
  const std::size_t begin = drive_prefix.size();
  const std::size_t end = end_of_address(name, begin);
  const auto fail = [&] {
    fail_spec(text,
              "an NVMe drive is named nvme:0000:01:00.0, or nvme:0000:01:00.0/2 for its namespace 2 ('gpu4fs "
              "nvme list' shows the addresses); write ./" +
                  spec.path + " for a path");
  };
  if (end == std::string_view::npos) fail();
  u32 number = 1;
  if (end != name.size()) {
    const char* const last = name.data() + name.size();
    const auto [stop, error] = std::from_chars(std::min(name.data() + end + 1, last), last, number);
    if (name[end] != '/' || error != std::errc{} || stop != last || number == 0) fail();
  }
  if (!spec.layers.empty()) {
    fail_spec(text, "'" + spec.layers.back().name + "' cannot be above an NVMe drive that gpu4fs drives itself");
  }
  spec.drive_address = name.substr(begin, end - begin);
  std::transform(spec.drive_address.begin(), spec.drive_address.end(), spec.drive_address.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  spec.drive_namespace = number;
  spec.path = std::string(drive_prefix) + spec.drive_address + (number != 1 ? "/" + std::to_string(number) : "");
}

}  // namespace

DeviceSpec parse_device_spec(const std::string& text) {
  DeviceSpec spec;
  std::string_view rest = text;
  for (std::string_view name = layer_at(rest); !name.empty(); name = layer_at(rest)) {
    const std::size_t colon = rest.find(':');
    if (colon == std::string_view::npos) {
      fail_spec(text,
                "a colon is missing behind '" + std::string(rest) + "' (write ./" + std::string(rest) + " for a path)");
    }
    const std::string_view argument = rest.substr(name.size() + 1, colon - name.size() - 1);
    if (argument.empty()) fail_spec(text, "'" + std::string(name) + "' needs something behind '='");
    rest.remove_prefix(colon + 1);
    if (name == null_name) {
      if (!rest.empty()) fail_spec(text, "nothing can be below 'null'");
      spec.null_bytes = parse_null_size(text, argument);
      spec.path = null_name;
      return spec;
    }
    spec.layers.push_back({std::string(name), std::string(argument)});
  }
  if (rest.empty() && !spec.layers.empty()) fail_spec(text, "no device below '" + spec.layers.back().name + "'");
  spec.path = rest;
  if (rest.starts_with(drive_prefix)) parse_drive(text, spec);
  return spec;
}

std::size_t end_of_device(std::string_view list, std::size_t begin) {
  for (;;) {
    const std::string_view name = layer_at(list.substr(begin));
    const bool is_drive = list.substr(begin).starts_with(drive_prefix);
    const std::size_t address_end = is_drive ? end_of_address(list, begin + drive_prefix.size()) : begin;
    // The rest is the fault that the message shows.
    if (address_end == std::string_view::npos) return list.size();
    const std::size_t end = std::min(list.find(':', address_end), list.size());
    if (name.empty() || end == list.size()) return end;
    begin = end + 1;
    // The colon after the size belongs to it; another one separates.
    if (name == null_name) return std::min(list.find(':', begin), list.size());
  }
}

std::string absolute_device(const std::string& text) {
  const DeviceSpec spec = parse_device_spec(text);
  std::string result;
  std::error_code error;
  for (const LayerSpec& layer : spec.layers) {
    const bool is_path = layer.name == "record" || layer.name == "trace";
    result +=
        layer.name + "=" + (is_path ? std::filesystem::absolute(layer.argument, error).string() : layer.argument) + ":";
  }
  if (spec.is_null()) return result + "null=" + std::to_string(spec.null_bytes) + ":";
  if (spec.is_drive()) return spec.path;
  const std::filesystem::path canonical =
      std::filesystem::weakly_canonical(std::filesystem::absolute(spec.path, error), error);
  if (error) throw DeviceError(spec.path + ": " + error.message(), error.value());
  return result + canonical.string();
}

std::shared_ptr<DeviceStack> make_stack(const DeviceSpec& spec) {
  if (!spec.has_stack()) return nullptr;
  std::vector<std::unique_ptr<StackLayer>> layers;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.name == "record") {
      layers.push_back(std::make_unique<RecordLayer>(open_write_log(layer.argument), spec.path));
    } else if (layer.name == "trace") {
      layers.push_back(std::make_unique<TraceLayer>(open_access_trace(layer.argument), spec.path));
    } else {
      layers.push_back(std::make_unique<FaultLayer>(parse_fault_rules(layer.argument)));
    }
  }
  if (spec.is_null()) layers.push_back(std::make_unique<NullLayer>());
  return std::make_shared<DeviceStack>(std::move(layers));
}

}  // namespace gpu4fs::device
