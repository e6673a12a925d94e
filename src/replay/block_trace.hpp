// Block traces: the requests to devices in the order in which they were made. Host only.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "device/stack/access_trace.hpp"

namespace gpu4fs::replay {

using device::AccessKind;

// A trace that cannot be read or replayed at all; names the file.
class TraceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Request {
  u64 offset;  // in bytes
  u64 length;  // in bytes; 0 for a flush
  u32 device;  // index of BlockTrace::devices
  AccessKind kind;
};

// Longest read or write; a longer one is a bad line. Discards may cover a whole device.
inline constexpr u64 request_bytes_max = u64{1} << 32;

struct BadLine {
  std::string file;
  u64 line;  // from 1
  std::string fault;
};

inline constexpr std::size_t named_bad_lines_max = 10;

struct BlockTrace {
  std::vector<std::string> devices;
  std::vector<Request> requests;

  u64 bad_line_count = 0;
  std::vector<BadLine> bad_lines;  // the first named_bad_lines_max
  u64 ignored_line_count = 0;      // well-formed, but of other events, or of requests that move no data
  u64 lost_note_count = 0;         // lines by which the kernel says that it has lost events
};

}  // namespace gpu4fs::replay
