#include "pool/lock_holder.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <fstream>
#include <sstream>
#include <string>

namespace gpu4fs::pool {

namespace {

// A process that is releasing its memory and devices counts as ended. This takes a second with a GPU, and the process
// has its locks until then.
bool process_has_ended(long process) {
  constexpr unsigned long is_exiting = 0x4;  // PF_EXITING of the kernel, in proc_pid_stat(5) under "flags"
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text;
  if (!std::getline(file, text)) return true;
  // The state follows the name, which is in parentheses and may contain parentheses itself.
  const std::size_t name_end = text.rfind(") ");
  if (name_end == std::string::npos) return false;
  std::istringstream words(text.substr(name_end + 2));
  char state = 0;
  long parent = 0, group = 0, session = 0, terminal = 0, foreground = 0;
  unsigned long flags = 0;
  words >> state >> parent >> group >> session >> terminal >> foreground >> flags;
  return state == 'Z' || state == 'X' || (words && (flags & is_exiting) != 0);
}

// udev locks a block device while it looks at its content, for example after a program has written to it.
bool looks_at_devices(long process) {
  std::ifstream file(fmt::format("/proc/{}/comm", process));
  std::string name;
  std::getline(file, name);
  return name == "(udev-worker)" || name == "systemd-udevd" || name == "udevd";
}

bool lets_go(long process) {
  return process > 0 && (process_has_ended(process) || looks_at_devices(process));
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
    if (kind == "FLOCK" && place == wanted && !lets_go(process)) return false;
  }
  return true;
}

}  // namespace gpu4fs::pool
