#include "pool/lock_holder.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <fstream>
#include <sstream>
#include <string>

namespace gpu4fs::pool {

namespace {

bool process_has_ended(long process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text;
  if (!std::getline(file, text)) return true;
  // The state follows the name, which is in parentheses and may have some of its own.
  const std::size_t name_end = text.rfind(") ");
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return false;
  const char state = text[name_end + 2];
  return state == 'Z' || state == 'X';
}

}  // namespace

bool lock_is_being_released(int descriptor) {
  struct stat state {};
  if (::fstat(descriptor, &state) != 0) return false;
  const std::string wanted = fmt::format("{:02x}:{:02x}:{}", major(state.st_dev), minor(state.st_dev), state.st_ino);
  std::ifstream locks("/proc/locks");
  if (!locks) return false;
  for (std::string line; std::getline(locks, line);) {
    // 1: FLOCK ADVISORY WRITE 1234 00:1f:5678 0 EOF
    std::istringstream words(line);
    std::string number, kind, mode, access, place;
    long process = 0;
    if (!(words >> number >> kind >> mode >> access >> process >> place)) continue;
    if (kind == "FLOCK" && place == wanted && (process <= 0 || !process_has_ended(process))) return false;
  }
  return true;
}

}  // namespace gpu4fs::pool
