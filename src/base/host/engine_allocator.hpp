// Where an engine's memory comes from: the heap, or a GPU. Host only.
//
// Engine memory may be VRAM: its addresses are computed on the host and never followed there.
#pragma once

#include "base/types.hpp"

namespace gpu4fs {

class EngineAllocator {
 public:
  virtual ~EngineAllocator() = default;

  // Engine memory, or an exception.
  virtual void* allocate(u64 bytes, u64 alignment) = 0;
  virtual void copy_in(void* engine_destination, const void* host_source, u64 bytes) = 0;
  virtual void zero(void* engine_destination, u64 bytes) = 0;
};

}  // namespace gpu4fs
