// The accesses to devices in the order in which they happened, as text: what `gpu4fs trace replay` reads. Host only.
//
// The first line is "# gpu4fs trace 1"; 1 is the version. Other lines that begin with '#' and empty lines mean nothing.
// Each remaining line is an access:
//
//   TIME OPERATION OFFSET LENGTH DEVICE
//
//   TIME       nanoseconds of the system's monotonic clock
//   OPERATION  R read, W write, F flush, D discard
//   OFFSET     in bytes from the beginning of the device; 0 for a flush
//   LENGTH     in bytes; 0 for a flush
//   DEVICE     its name, up to the end of the line. A backslash and control characters in it are written as a backslash
//              and three octal digits
//
// Every access names its device, so traces can be joined with cat, cut with head and sorted with sort -n.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/types.hpp"

namespace gpu4fs::device {

enum class AccessKind : u8 { read, write, flush, discard };

struct TracedAccess {
  u64 time_ns;
  AccessKind kind;
  u64 offset;  // in bytes
  u64 length;  // in bytes
  std::string device;
};

inline constexpr std::string_view access_trace_header = "# gpu4fs trace 1";
// Begins the first line of every version.
inline constexpr std::string_view access_trace_mark = "# gpu4fs trace ";

// Without the end of the line.
std::string access_line(const TracedAccess& access);

// The line of an access, without its end. std::invalid_argument: says what is wrong with it.
TracedAccess parse_access_line(std::string_view line);

// Appends accesses to a file. A file that exists is continued, so the programs that open a pool one after the other do
// not remove each other's accesses. Any thread.
//
// Lines are written when there are many of them, with write_out(), and at the end. A trace only observes: if the file
// cannot be written, a warning is logged once, and later accesses are not entered.
class AccessTrace {
 public:
  // DeviceError if the file cannot be opened, or is neither empty nor a trace of this version.
  explicit AccessTrace(const std::string& path);
  ~AccessTrace();
  AccessTrace(const AccessTrace&) = delete;
  AccessTrace& operator=(const AccessTrace&) = delete;

  // At the current time.
  void add(AccessKind kind, u64 offset, u64 length, const std::string& device);
  void write_out();

 private:
  void write_out_locked();

  std::string path_;
  int fd_ = -1;
  std::mutex mutex_;
  std::string lines_;  // not yet written; under mutex_
  bool failed_ = false;
};

// The trace at `path`: one object in this process for each file, so devices that name the same file have one order.
// DeviceError as by the constructor.
std::shared_ptr<AccessTrace> open_access_trace(const std::string& path);

}  // namespace gpu4fs::device
