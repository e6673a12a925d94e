// Engine memory on the heap, filled with a pattern that reveals uninitialised data.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "base/bits.hpp"
#include "base/host/engine_allocator.hpp"

namespace gpu4fs::test {

class HeapAllocator : public EngineAllocator {
 public:
  void* allocate(u64 bytes, u64 alignment) override {
    void* memory = std::aligned_alloc(alignment, align_up(bytes, alignment));
    if (memory == nullptr) throw std::bad_alloc();
    std::memset(memory, 0xa5, bytes);
    blocks_.emplace_back(memory, &std::free);
    bytes_ += bytes;
    return memory;
  }
  void copy_in(void* destination, const void* source, u64 bytes) override { std::memcpy(destination, source, bytes); }
  void zero(void* destination, u64 bytes) override { std::memset(destination, 0, bytes); }
  // Allocated so far.
  u64 bytes() const { return bytes_; }

 private:
  std::vector<std::unique_ptr<void, void (*)(void*)>> blocks_;
  u64 bytes_ = 0;
};

}  // namespace gpu4fs::test
