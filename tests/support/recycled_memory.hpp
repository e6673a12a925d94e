// Engine memory of tests: memory of ended engines is reused for the next ones. Tests make thousands of engines, and a
// page fault costs several times as much as clearing a page.
//
// Unused memory cannot be accessed, so an engine that outlives its memory still ends the process.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <vector>

#include "base/bits.hpp"
#include "base/host/engine_allocator.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"

namespace gpu4fs::test {

// Memory that an engine's blocks are taken from, one behind the other. Whole pages, zero behind `used_bytes`.
struct MemoryArena {
  u8* memory = nullptr;
  u64 size_bytes = 0;
  u64 used_bytes = 0;
};

// Of the process; any thread.
class RecycledMemory {
 public:
  static RecycledMemory& instance() {
    static RecycledMemory memory;
    return memory;
  }

  // An arena with room for a block of that many bytes, all zero.
  MemoryArena take(u64 block_bytes) {
    {
      const std::lock_guard guard(mutex_);
      const auto found = waiting_.lower_bound(std::max(block_bytes, arena_bytes_min));
      if (found != waiting_.end()) {
        const WaitingArena waiting = found->second;
        waiting_.erase(found);
        resident_bytes_ -= waiting.resident_bytes;
        MemoryArena arena = waiting.arena;
        if (::mprotect(arena.memory, arena.used_bytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
        arena.used_bytes = 0;
        return arena;
      }
    }
    const u64 size_bytes = std::max(block_bytes, arena_bytes_min);
    void* memory =
        ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return {static_cast<u8*>(memory), size_bytes, 0};
  }

  void give(const MemoryArena& arena) {
    const u64 resident_bytes = clear(arena.memory, arena.used_bytes);
    const std::lock_guard guard(mutex_);
    if (resident_bytes_ + resident_bytes > resident_bytes_max || waiting_.size() >= arena_count_max ||
        ::mprotect(arena.memory, arena.used_bytes, PROT_NONE) != 0) {
      ::munmap(arena.memory, arena.size_bytes);
      return;
    }
    resident_bytes_ += resident_bytes;
    waiting_.emplace(arena.size_bytes, WaitingArena{arena, resident_bytes});
  }

 private:
  static constexpr u64 arena_bytes_min = u64{64} << 20;  // of addresses: only what is used becomes memory
  static constexpr u64 resident_bytes_max = u64{256} << 20;
  static constexpr u64 arena_count_max = 64;

  struct WaitingArena {
    MemoryArena arena;
    u64 resident_bytes;
  };

  // Zeroes the touched pages; the others are zero. Returns their size in bytes.
  static u64 clear(u8* memory, u64 length) {
    const u64 count = length / page_size;
    const auto touched = std::make_unique_for_overwrite<unsigned char[]>(count);
    if (::mincore(memory, length, touched.get()) != 0) throw std::runtime_error("mincore");
    u64 bytes = 0;
    for (u64 page = 0; page < count; ++page) {
      if (page % 8 == 0 && page + 8 <= count) {
        u64 eight = 0;
        std::memcpy(&eight, &touched[page], sizeof(eight));
        if (eight == 0) {  // as most are
          page += 7;
          continue;
        }
      }
      if ((touched[page] & 1) == 0) continue;
      std::memset(memory + page * page_size, 0, page_size);
      bytes += page_size;
    }
    return bytes;
  }

  std::mutex mutex_;
  std::multimap<u64, WaitingArena> waiting_;  // by size
  u64 resident_bytes_ = 0;                    // of those that wait
};

// For engine_build.hpp, instead of engine::HeapAllocator.
class RecyclingAllocator final : public EngineAllocator {
 public:
  RecyclingAllocator() = default;
  RecyclingAllocator(const RecyclingAllocator&) = delete;
  RecyclingAllocator& operator=(const RecyclingAllocator&) = delete;
  ~RecyclingAllocator() override {
    for (const MemoryArena& arena : arenas_) RecycledMemory::instance().give(arena);
  }

  void* allocate(u64 bytes, u64 alignment) override {
    if (alignment > page_size) throw std::invalid_argument("alignment");
    const u64 length = align_up(bytes == 0 ? u64{1} : bytes, page_size);
    if (arenas_.empty() || arenas_.back().size_bytes - arenas_.back().used_bytes < length)
      arenas_.push_back(RecycledMemory::instance().take(length));
    MemoryArena& arena = arenas_.back();
    void* memory = arena.memory + arena.used_bytes;
    arena.used_bytes += length;
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
  std::vector<MemoryArena> arenas_;
  std::map<void*, u64> blocks_;  // length by address
};

}  // namespace gpu4fs::test
