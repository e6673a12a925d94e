#include "pool/mount_table.hpp"

#include <sys/sysmacros.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>

namespace gpu4fs::pool {
namespace {

// /proc writes spaces and backslashes of paths as \ooo.
std::string unescape(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      result += static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8));
      i += 3;
    } else {
      result += text[i];
    }
  }
  return result;
}

// The user in the options of a file system, which are separated by commas. The kernel shows the value that root or
// fusermount3(1) gave.
u32 user_of(const std::string& options) {
  constexpr std::string_view name = "user_id=";
  for (std::size_t at = options.find(name); at != std::string::npos; at = options.find(name, at + 1)) {
    if (at != 0 && options[at - 1] != ',') continue;
    u32 user = 0;
    const char* const end = options.data() + options.size();
    const auto [stop, error] = std::from_chars(options.data() + at + name.size(), end, user);
    if (error == std::errc{} && (stop == end || *stop == ',')) return user;
  }
  return ~u32{0};
}

}  // namespace

std::vector<MountEntry> read_mount_table() {
  std::ifstream file("/proc/self/mountinfo");
  std::vector<MountEntry> entries;
  std::string text;
  while (std::getline(file, text)) {
    std::istringstream fields(text);
    std::string word;
    std::string numbers;
    MountEntry entry{};
    fields >> entry.id >> word >> numbers >> word >> entry.directory;
    while (fields >> word && word != "-") {
    }
    fields >> entry.type >> entry.source >> word;
    entry.user = user_of(word);
    unsigned major = 0;
    unsigned minor = 0;
    if (std::sscanf(numbers.c_str(), "%u:%u", &major, &minor) != 2) continue;
    entry.device_number = makedev(major, minor);
    entry.directory = unescape(entry.directory);
    entry.source = unescape(entry.source);
    entries.push_back(entry);
  }
  return entries;
}

bool is_trusted(const MountEntry& entry) {
  return entry.user == 0 || entry.user == ::geteuid();
}

bool names_device(const MountEntry& entry, const std::string& device) {
  if (entry.type != mount_type) return false;
  return entry.source == device || (":" + entry.source + ":").find(":" + device + ":") != std::string::npos;
}

}  // namespace gpu4fs::pool
