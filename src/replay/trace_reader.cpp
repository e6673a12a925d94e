#include "replay/trace_reader.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string_view>

#include "base/limits.hpp"
#include "cache/line_word.hpp"
#include "replay/kernel_text.hpp"

namespace gpu4fs::replay {

namespace {

constexpr u64 device_bytes_max = page_size << cache::page_bits;  // what the cache's table can name

// Faults quote the line, which may have anything in it.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, '?');
  return text;
}

class TraceReader {
 public:
  TraceReader(const std::string& path, TraceFormat format, BlockTrace& trace)
      : path_(path), format_(format), trace_(trace) {
    for (u32 i = 0; i < trace.devices.size(); ++i) numbers_[trace.devices[i]] = i;
  }

  void read() {
    std::ifstream file(path_);
    if (!file) fail(std::string("cannot be opened: ") + std::strerror(errno));
    const u64 bad_before = trace_.bad_line_count;
    for (std::string line; !ended_ && std::getline(file, line);) {
      ++line_number_;
      if (!line.empty() && line.back() == '\r') line.pop_back();
      read_line(line);
    }
    if (file.bad() || (file.fail() && !file.eof())) fail(std::string("cannot be read: ") + std::strerror(errno));
    const auto used = std::find_if(requests_.begin(), requests_.end(), [](const auto& list) { return !list.empty(); });
    if (used == requests_.end()) {
      const u64 bad = trace_.bad_line_count - bad_before;
      fail("there is no request in " + std::to_string(line_number_) + " lines" + first_fault(bad));
    }
    trace_.requests.insert(trace_.requests.end(), used->begin(), used->end());
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw TraceError(path_ + ": " + what); }

  // Why a file with bad lines only has no request.
  std::string first_fault(u64 bad) const {
    if (bad == 0) return "";
    const auto first = std::find_if(trace_.bad_lines.begin(), trace_.bad_lines.end(),
                                    [this](const BadLine& line) { return line.file == path_; });
    std::string text = ", " + std::to_string(bad) + " of them are not understood";
    if (first != trace_.bad_lines.end()) text += "; line " + std::to_string(first->line) + ": " + first->fault;
    return text;
  }

  void read_line(std::string_view line) {
    if (line.starts_with(device::access_trace_mark)) return read_header(line);
    if (line.starts_with('#') || line.find_first_not_of(" \t") == std::string_view::npos) return;
    if (format_ == TraceFormat::automatic) {
      format_ = looks_like_blkparse(line) ? TraceFormat::blkparse : TraceFormat::ftrace;
    }
    if (format_ == TraceFormat::gpu4fs && !has_header_) fail("is no gpu4fs trace: the header is missing");
    try {
      if (format_ == TraceFormat::gpu4fs) {
        add_access(device::parse_access_line(line));
      } else {
        add_kernel_line(format_ == TraceFormat::blkparse ? parse_blkparse_line(line) : parse_ftrace_line(line));
      }
    } catch (const std::invalid_argument& error) {
      ++trace_.bad_line_count;
      if (trace_.bad_lines.size() < named_bad_lines_max) {
        trace_.bad_lines.push_back({path_, line_number_, printable(error.what())});
      }
    }
  }

  // Also between other lines, if traces were joined.
  void read_header(std::string_view line) {
    if (format_ == TraceFormat::automatic) format_ = TraceFormat::gpu4fs;
    if (format_ != TraceFormat::gpu4fs) return;
    if (line != device::access_trace_header) {
      fail("line " + std::to_string(line_number_) + ": version '" +
           std::string(line.substr(device::access_trace_mark.size())) + "' of gpu4fs traces is not known");
    }
    has_header_ = true;
  }

  u32 device_number(const std::string& name) {
    const auto found = numbers_.find(name);
    if (found != numbers_.end()) return found->second;
    if (trace_.devices.size() == device_count_max) {
      fail("line " + std::to_string(line_number_) + ": more than " + std::to_string(device_count_max) + " devices");
    }
    const u32 number = static_cast<u32>(trace_.devices.size());
    trace_.devices.push_back(name);
    return numbers_[name] = number;
  }

  void add(RequestEvent event, AccessKind kind, u64 offset, u64 length, const std::string& device) {
    if (offset > device_bytes_max || length > device_bytes_max - offset) {
      throw std::invalid_argument("the request ends behind 1 PiB");
    }
    if (kind != AccessKind::discard && length > request_bytes_max) {
      throw std::invalid_argument("a request of " + std::to_string(length) + " bytes is too long");
    }
    if (kind != AccessKind::flush && length == 0) {
      ++trace_.ignored_line_count;
      return;
    }
    requests_[static_cast<u32>(event)].push_back({offset, length, device_number(device), kind});
  }

  void add_access(const device::TracedAccess& access) {
    const bool is_flush = access.kind == AccessKind::flush;
    add(RequestEvent::issued, access.kind, is_flush ? 0 : access.offset, is_flush ? 0 : access.length, access.device);
  }

  void add_kernel_line(const KernelLine& line) {
    switch (line.kind) {
      case KernelLineKind::ignored:
        ++trace_.ignored_line_count;
        return;
      case KernelLineKind::lost_events:
        ++trace_.lost_note_count;
        return;
      case KernelLineKind::end_of_trace:
        ended_ = true;
        return;
      case KernelLineKind::request:
        break;
    }
    const KernelRequest& request = line.request;
    const std::string device(request.device);
    if (request.flushes_before) add(line.event, AccessKind::flush, 0, 0, device);
    if (request.moves_data) add(line.event, request.kind, request.offset, request.length, device);
  }

  std::string path_;
  TraceFormat format_;
  BlockTrace& trace_;
  bool has_header_ = false;
  bool ended_ = false;
  u64 line_number_ = 0;
  std::map<std::string, u32> numbers_;
  std::array<std::vector<Request>, request_event_count> requests_;
};

}  // namespace

void read_trace(const std::string& path, TraceFormat format, BlockTrace& trace) {
  TraceReader(path, format, trace).read();
}

}  // namespace gpu4fs::replay
