// What code of the engine asks a controller to do with a medium.
#pragma once

#include <type_traits>

#include "base/config.hpp"
#include "base/types.hpp"

namespace gpu4fs::device {

enum class IoOperation : u32 {
  read,          // medium to memory
  write,         // memory to medium
  flush,         // what was completed before the request was submitted is durable when it completes
  discard,       // nobody needs the range; later reads of it give anything, of a file zeros
  write_zeroes,  // later reads of the range give zeros
};
inline constexpr u32 io_operation_count = 5;

// "read", "write", ... Static.
GPU4FS_FN constexpr const char* io_operation_name(IoOperation operation) {
  switch (operation) {
    case IoOperation::read:
      return "read";
    case IoOperation::write:
      return "write";
    case IoOperation::flush:
      return "flush";
    case IoOperation::discard:
      return "discard";
    case IoOperation::write_zeroes:
      return "write of zeros";
  }
  return "unknown";
}

// Requests that are in flight at the same time are not ordered.
struct IoRequest {
  IoOperation operation;
  u32 device;    // index in the pool
  u64 offset;    // on the medium, a multiple of page_size; flush: 0
  u32 length;    // a multiple of page_size, not 0; flush: 0
  u32 reports;   // 1: the completion is put into the queue's list of reports, and its slot is released from there
  void* memory;  // read and write: aligned to page_size, and the host can access it; others: null
};

static_assert(sizeof(IoRequest) == 32 && std::is_trivially_copyable_v<IoRequest>);

// Whether a controller moves bytes between the medium and the memory of the request.
GPU4FS_FN constexpr bool moves_bytes(IoOperation operation) {
  return operation == IoOperation::read || operation == IoOperation::write;
}

}  // namespace gpu4fs::device
