// The source of an engine's memory: the heap, or a GPU. Host only.
//
// Engine memory may be VRAM: the host computes its addresses and never dereferences them.
#pragma once

#include <cstring>

#include "base/types.hpp"

namespace gpu4fs {

class EngineAllocator {
 public:
  virtual ~EngineAllocator() = default;

  // Returns engine memory or throws.
  virtual void* allocate(u64 bytes, u64 alignment) = 0;
  virtual void copy_in(void* engine_destination, const void* host_source, u64 bytes) = 0;
  virtual void zero(void* engine_destination, u64 bytes) = 0;
  // The engine may be storing into it meanwhile. False: it cannot be read any more. Here: of the host's memory.
  virtual bool copy_out(void* host_destination, const void* engine_source, u64 bytes) {
    std::memcpy(host_destination, engine_source, bytes);
    return true;
  }
};

}  // namespace gpu4fs
