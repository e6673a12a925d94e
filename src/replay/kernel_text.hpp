// Block events of the Linux kernel as text. Host only.
//
// ftrace text: what /sys/kernel/tracing/trace and trace_pipe show, and `trace-cmd report` and `perf script` print:
//
//   dd-1234  [001] d..1.  1234.567890: block_rq_issue: 8,0 R 4096 () 2048 + 8 [dd]
//
// The formats of the events are those of include/trace/events/block.h in the kernel's source. Newer kernels put the
// priority between the number of sectors and the bracket. Task names may contain spaces and brackets.
//
// blkparse text: the default output of blkparse(1):
//
//   8,0    3    1    0.000000000   697  D   W 223490 + 8 [kjournald]
//
// Both describe an operation by letters (blk_fill_rwbs in kernel/trace/blktrace.c): an F in front of the operation is a
// flush before it; R, W and D are reads, writes and discards; DE is a secure erase; letters behind it do not matter
// here. N is anything else.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/types.hpp"
#include "device/stack/access_trace.hpp"

namespace gpu4fs::replay {

// Where in its life a request was seen. A trace may have the same request at several of them.
enum class RequestEvent : u32 {
  issued,     // to the device's driver: block_rq_issue, D
  completed,  // by the device: block_rq_complete, C
  queued,     // by a file system, before requests are merged: block_bio_queue, Q
};
inline constexpr u32 request_event_count = 3;

struct KernelRequest {
  std::string_view device;  // "MAJOR,MINOR"
  bool flushes_before;
  bool moves_data;  // kind, offset and length are valid
  device::AccessKind kind;
  u64 offset;  // in bytes
  u64 length;  // in bytes
};

enum class KernelLineKind { request, ignored, lost_events, end_of_trace };

struct KernelLine {
  KernelLineKind kind;
  RequestEvent event;     // of a request
  KernelRequest request;  // points into the line
};

// The line, without its end. std::invalid_argument: says what is wrong with it.
KernelLine parse_ftrace_line(std::string_view line);
KernelLine parse_blkparse_line(std::string_view line);

// Whether a line that is neither empty nor a comment can be one of blkparse: it begins with a device.
bool looks_like_blkparse(std::string_view line);

}  // namespace gpu4fs::replay
