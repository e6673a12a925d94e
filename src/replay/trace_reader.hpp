// Reads block traces from files. Host only.
#pragma once

#include <string>

#include "replay/block_trace.hpp"

namespace gpu4fs::replay {

enum class TraceFormat {
  automatic,  // by the first line that is neither empty nor a comment, or by the header of a gpu4fs trace
  gpu4fs,     // device/stack/access_trace.hpp
  ftrace,     // replay/kernel_text.hpp
  blkparse,   // the same
};

// Appends the requests of the file to `trace`. Devices with equal names are the same device, in several files too.
// Lines that are not understood are counted and skipped.
//
// A kernel's trace may have each request several times. Of the events in the file only those are used that come first
// in this order: issued, completed, queued.
//
// TraceError: the file cannot be read, has no request, is a gpu4fs trace of another version, or has more devices than a
// pool.
void read_trace(const std::string& path, TraceFormat format, BlockTrace& trace);

}  // namespace gpu4fs::replay
