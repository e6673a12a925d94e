#include "maintenance/growth/chunk_blocks.hpp"

#include <cstddef>

#include "base/check.hpp"
#include "pool/logical_space/chunk_memory.hpp"

namespace gpu4fs::maintenance {

// For one chunk, which allocates once.
class ChunkBlocks::ReusingAllocator final : public EngineAllocator {
 public:
  ReusingAllocator(EngineAllocator& inner, std::vector<Block>& free) : inner_(inner), free_(free) {}

  void* allocate(u64 bytes, u64 alignment) override {
    taken_.bytes = bytes;
    for (std::size_t i = 0; i < free_.size(); ++i) {
      if (free_[i].bytes != bytes) continue;
      taken_ = free_[i];
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
      return taken_.memory;
    }
    taken_.memory = inner_.allocate(bytes, alignment);
    return taken_.memory;
  }
  void copy_in(void* to, const void* from, u64 bytes) override { inner_.copy_in(to, from, bytes); }
  void zero(void* to, u64 bytes) override { inner_.zero(to, bytes); }

  const Block& taken() const { return taken_; }

 private:
  EngineAllocator& inner_;
  std::vector<Block>& free_;
  Block taken_{};
};

raid::ChunkState ChunkBlocks::build(EngineAllocator& allocator, const pool::OpenedChunk& chunk, bool accessible) {
  ReusingAllocator reusing(allocator, free_);
  const raid::ChunkState state = pool::build_chunk(reusing, chunk, accessible);
  new_.push_back(reusing.taken());
  return state;
}

void ChunkBlocks::keep_new(const std::vector<u32>& numbers) {
  GPU4FS_CHECK_EQ(numbers.size(), new_.size());
  for (std::size_t i = 0; i < new_.size(); ++i) blocks_[numbers[i]] = new_[i];
  new_.clear();
}

void ChunkBlocks::forget_new() {
  free_.insert(free_.end(), new_.begin(), new_.end());
  new_.clear();
}

void ChunkBlocks::forget(u32 number) {
  const auto block = blocks_.find(number);
  if (block == blocks_.end()) return;
  free_.push_back(block->second);
  blocks_.erase(block);
}

}  // namespace gpu4fs::maintenance
