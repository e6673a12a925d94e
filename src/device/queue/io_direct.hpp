// Requests that a thread of the host carries out itself, because it would only wait for them. This saves the two
// switches to the thread of a controller and back. In kernels there are none.
#pragma once

#include "base/check.hpp"
#include "base/config.hpp"
#include "base/status.hpp"
#include "device/queue/io_queue_types.hpp"

namespace gpu4fs::device {

// Whether carry_out_here() may be called.
GPU4FS_FN inline bool carries_out_here(const IoQueue& queue) {
#if GPU4FS_DEVICE_CODE
  (void)queue;
  return false;
#else
  return queue.carry_out != nullptr;
#endif
}

// Returns what the completion of the request would have as its status. Waits for the medium.
GPU4FS_FN inline Status carry_out_here(const IoQueue& queue, const IoRequest& request) {
#if GPU4FS_DEVICE_CODE
  (void)queue, (void)request;
  GPU4FS_UNREACHABLE("a kernel submits its requests");
#else
  GPU4FS_CHECK(queue.carry_out != nullptr);
  return queue.carry_out(queue.controller, request);
#endif
}

}  // namespace gpu4fs::device
