#include "device/stack/access_trace.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <map>
#include <stdexcept>

#include "base/host/log.hpp"
#include "device/medium_file.hpp"

namespace gpu4fs::device {

namespace {

constexpr std::string_view kind_letters = "RWFD";  // in the order of AccessKind
constexpr std::size_t lines_bytes_max = 64 << 10;

u64 now_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<u64>(time.tv_sec) * 1'000'000'000 + static_cast<u64>(time.tv_nsec);
}

// Takes the first word off the line; empty at its end.
std::string_view take_word(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(word.size());
  return word;
}

u64 take_number(std::string_view& line, const char* what) {
  const std::string_view word = take_word(line);
  u64 number = 0;
  const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (word.empty() || error != std::errc{} || stop != word.data() + word.size()) {
    throw std::invalid_argument("'" + std::string(word) + "' is no " + what);
  }
  return number;
}

bool needs_escape(char c) {
  return static_cast<unsigned char>(c) < ' ' || c == '\\' || c == 0x7f;
}

std::string unescaped(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      result += text[i];
      continue;
    }
    unsigned value = 0;
    const std::string_view digits = text.substr(i + 1, 3);
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 8);
    if (digits.size() != 3 || error != std::errc{} || stop != digits.data() + 3 || value > 255) {
      throw std::invalid_argument("the backslash in the device's name needs three octal digits");
    }
    result += static_cast<char>(value);
    i += 3;
  }
  return result;
}

}  // namespace

std::string access_line(const TracedAccess& access) {
  std::string line = std::to_string(access.time_ns) + ' ' + kind_letters[static_cast<std::size_t>(access.kind)] + ' ' +
                     std::to_string(access.offset) + ' ' + std::to_string(access.length) + ' ';
  for (const char c : access.device) {
    if (!needs_escape(c)) {
      line += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    line += {'\\', static_cast<char>('0' + (byte >> 6)), static_cast<char>('0' + (byte >> 3 & 7)),
             static_cast<char>('0' + (byte & 7))};
  }
  return line;
}

TracedAccess parse_access_line(std::string_view line) {
  TracedAccess access{};
  access.time_ns = take_number(line, "time in nanoseconds");
  const std::string_view letter = take_word(line);
  const std::size_t kind = letter.size() == 1 ? kind_letters.find(letter[0]) : std::string_view::npos;
  if (kind == std::string_view::npos) {
    throw std::invalid_argument("'" + std::string(letter) + "' is no operation: R, W, F or D");
  }
  access.kind = static_cast<AccessKind>(kind);
  access.offset = take_number(line, "offset in bytes");
  access.length = take_number(line, "length in bytes");
  if (line.size() < 2) throw std::invalid_argument("no device is named");
  access.device = unescaped(line.substr(1));
  return access;
}

AccessTrace::AccessTrace(const std::string& path) : path_(path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) fail_medium(path, "cannot be opened", errno);
  std::string begin(access_trace_header.size() + 1, '\0');
  const ssize_t count = ::pread(fd, begin.data(), begin.size(), 0);
  const std::string header = std::string(access_trace_header) + '\n';
  if (count != 0 && begin != header) {
    const int error_number = count < 0 ? errno : 0;
    ::close(fd);
    fail_medium(path, "is no trace of version 1", error_number);
  }
  fd_ = fd;
  // Two processes that begin at the same time leave two headers, which does no harm.
  if (count == 0) lines_ = header;
}

AccessTrace::~AccessTrace() {
  write_out();
  ::close(fd_);
}

void AccessTrace::add(AccessKind kind, u64 offset, u64 length, const std::string& device) {
  const std::lock_guard guard(mutex_);
  if (failed_) return;
  lines_ += access_line({now_ns(), kind, offset, length, device}) + '\n';
  if (lines_.size() >= lines_bytes_max) write_out_locked();
}

void AccessTrace::write_out() {
  const std::lock_guard guard(mutex_);
  write_out_locked();
}

// In one call if possible, so lines of several processes do not mix.
void AccessTrace::write_out_locked() {
  std::string_view rest = lines_;
  while (!failed_ && !rest.empty()) {
    const ssize_t written = ::write(fd_, rest.data(), rest.size());
    if (written > 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      failed_ = true;
      log(LogLevel::warning, path_ + ": the trace ends here, it cannot be written: " + std::strerror(errno));
    }
  }
  lines_.clear();
}

std::shared_ptr<AccessTrace> open_access_trace(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<AccessTrace>> open_traces;
  const std::lock_guard guard(mutex);
  std::weak_ptr<AccessTrace>& known = open_traces[path];
  std::shared_ptr<AccessTrace> trace = known.lock();
  if (!trace) {
    trace = std::make_shared<AccessTrace>(path);
    known = trace;
  }
  return trace;
}

}  // namespace gpu4fs::device
