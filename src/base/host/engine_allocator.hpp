// The source of an engine's memory: the heap, or a GPU. Host only.
//
// Engine memory may be VRAM: the host computes its addresses and never dereferences them.
#pragma once

#include "base/types.hpp"

namespace gpu4fs {

class EngineAllocator {
 public:
  virtual ~EngineAllocator() = default;

  // Returns engine memory or throws.
  virtual void* allocate(u64 bytes, u64 alignment) = 0;
  virtual void copy_in(void* engine_destination, const void* host_source, u64 bytes) = 0;
  virtual void zero(void* engine_destination, u64 bytes) = 0;
};

}  // namespace gpu4fs
