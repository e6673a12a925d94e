// Records the requests to a block device with the kernel's tracing (Documentation/trace/ftrace.rst). Host only; needs
// the superuser and a kernel with block events.
//
// The recorder has its own tracing instance, so it neither sees nor disturbs what others trace. Of the kernel's events
// it enables block_rq_issue: requests as they go to the device's driver, behind the page cache, and after the scheduler
// has merged them. Some drivers (device mapper, md, zram) have no such requests; for them it is block_bio_queue.
#pragma once

#include <cstdio>
#include <string>

#include "base/types.hpp"
#include "replay/block_trace.hpp"

namespace gpu4fs::replay {

// Where tracefs is mounted: /sys/kernel/tracing, or in /sys/kernel/debug. TraceError: nowhere.
std::string tracing_folder();

struct RequestSelection {
  std::string event;
  std::string filter;  // of the event
};

// Selects the requests to a disk or partition. TraceError: `path` is no block device.
RequestSelection requests_to(const std::string& path);

class KernelRecorder {
 public:
  // Begins to record. `name`: of the instance, which does not exist yet. TraceError: names the file that cannot be
  // used; nothing is left behind.
  KernelRecorder(const std::string& folder, const std::string& name, const RequestSelection& requests);
  // Removes the instance.
  ~KernelRecorder();
  KernelRecorder(const KernelRecorder&) = delete;
  KernelRecorder& operator=(const KernelRecorder&) = delete;

  // Appends the text of what was recorded since the last call. Does not wait. Returns its number of bytes. TraceError.
  u64 copy_to(std::FILE* file);
  // Ends recording; what was recorded before can still be copied. TraceError.
  void stop();

 private:
  void prepare(const std::string& filter);

  std::string instance_;
  std::string event_;  // its folder
  int pipe_ = -1;
};

}  // namespace gpu4fs::replay
