// A table with frames for tests.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/bits.hpp"
#include "cache/cache_build.hpp"

namespace gpu4fs::test {

class CacheMemory {
 public:
  explicit CacheMemory(u32 frame_count, u32 set_size = cache::set_line_max)
      : table_bytes_(cache::table_bytes(frame_count, set_size)),
        table_(allocate(table_bytes_)),
        frames_(allocate(u64{frame_count} * page_size)),
        cache_(cache::place_cache(table_.get(), frames_.get(), frame_count, set_size)) {
    clear();
  }

  const cache::Cache& cache() const { return cache_; }
  void clear() { std::memset(table_.get(), 0, table_bytes_); }
  cache::LineWord word(u32 line) const { return cache::peek(cache_.lines[line]); }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  using Memory = std::unique_ptr<void, Free>;

  static Memory allocate(u64 bytes) {
    void* const memory = std::aligned_alloc(page_size, align_up(bytes, page_size));
    if (memory == nullptr) std::abort();
    return Memory(memory);
  }

  u64 table_bytes_;
  Memory table_;
  Memory frames_;
  cache::Cache cache_;
};

}  // namespace gpu4fs::test
