// Engine memory of tests: blocks of ended engines are reused for the next ones. Tests make thousands of engines, and a
// page fault costs several times as much as clearing a page.
//
// A large unused block cannot be accessed, so an engine that outlives its memory still ends the process.
#pragma once

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <vector>

#include "base/bits.hpp"
#include "base/host/engine_allocator.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"

namespace gpu4fs::test {

// Of the process; any thread. Blocks are whole pages and zero.
class RecycledMemory {
 public:
  static RecycledMemory& instance() {
    static RecycledMemory memory;
    return memory;
  }

  void* take(u64 length) {
    {
      const std::lock_guard guard(mutex_);
      const auto found = waiting_.find(length);
      if (found != waiting_.end()) {
        const Block block = found->second;
        waiting_.erase(found);
        resident_bytes_ -= block.resident_bytes;
        if (is_protected(length) && ::mprotect(block.memory, length, PROT_READ | PROT_WRITE) != 0)
          throw std::bad_alloc();
        return block.memory;
      }
    }
    void* memory = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return memory;
  }

  void give(void* memory, u64 length) {
    const u64 resident_bytes = clear(memory, length);
    const std::lock_guard guard(mutex_);
    if (resident_bytes_ + resident_bytes > resident_bytes_max || waiting_.size() >= block_count_max ||
        (is_protected(length) && ::mprotect(memory, length, PROT_NONE) != 0)) {
      ::munmap(memory, length);
      return;
    }
    resident_bytes_ += resident_bytes;
    waiting_.emplace(length, Block{memory, resident_bytes});
  }

 private:
  static constexpr u64 resident_bytes_max = u64{256} << 20;
  static constexpr u64 block_count_max = 4096;

  // For small blocks, protection takes longer than clearing.
  static bool is_protected(u64 length) { return length >= u64{128} << 10; }

  struct Block {
    void* memory;
    u64 resident_bytes;
  };

  // Zeroes the touched pages; the others are zero. Returns their size in bytes.
  static u64 clear(void* memory, u64 length) {
    std::vector<unsigned char> touched(length / page_size);
    if (::mincore(memory, length, touched.data()) != 0) throw std::runtime_error("mincore");
    u64 bytes = 0;
    for (u64 page = 0; page < touched.size(); ++page) {
      if ((touched[page] & 1) == 0) continue;
      std::memset(static_cast<u8*>(memory) + page * page_size, 0, page_size);
      bytes += page_size;
    }
    return bytes;
  }

  std::mutex mutex_;
  std::multimap<u64, Block> waiting_;  // by length
  u64 resident_bytes_ = 0;             // of the unused ones
};

// For engine_build.hpp, instead of engine::HeapAllocator.
class RecyclingAllocator final : public EngineAllocator {
 public:
  RecyclingAllocator() = default;
  RecyclingAllocator(const RecyclingAllocator&) = delete;
  RecyclingAllocator& operator=(const RecyclingAllocator&) = delete;
  ~RecyclingAllocator() override {
    for (const auto& [memory, length] : blocks_) RecycledMemory::instance().give(memory, length);
  }

  void* allocate(u64 bytes, u64 alignment) override {
    if (alignment > page_size) throw std::invalid_argument("alignment");
    const u64 length = align_up(bytes == 0 ? u64{1} : bytes, page_size);
    void* memory = RecycledMemory::instance().take(length);
    blocks_.emplace(memory, length);
    return memory;
  }
  void copy_in(void* engine_destination, const void* host_source, u64 bytes) override {
    if (bytes != 0) std::memcpy(engine_destination, host_source, bytes);
  }
  void zero(void* engine_destination, u64 bytes) override {
    const auto block = blocks_.find(engine_destination);
    if (block == blocks_.end() || bytes > block->second) std::memset(engine_destination, 0, bytes);
  }

 private:
  std::map<void*, u64> blocks_;  // length by address
};

}  // namespace gpu4fs::test
