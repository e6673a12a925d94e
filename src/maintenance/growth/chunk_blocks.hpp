// Engine memory of the chunks that were created after the mount: one block for each. Host only.
//
// An engine's allocator does not take memory back. So the blocks of chunks that are deleted, or whose creation failed,
// are reused for new chunks of the same size.
#pragma once

#include <map>
#include <vector>

#include "base/host/engine_allocator.hpp"
#include "base/types.hpp"
#include "pool/chunk_tree/tree_node.hpp"
#include "raid/raid_types.hpp"

namespace gpu4fs::maintenance {

class ChunkBlocks {
 public:
  // The state of a new chunk, which has no number yet (pool/logical_space/chunk_memory.hpp).
  raid::ChunkState build(EngineAllocator& allocator, const pool::OpenedChunk& chunk, bool accessible);

  // Assigns these numbers to the new chunks, in the order in which they were built; without numbers their creation
  // failed.
  void keep_new(const std::vector<u32>& numbers);
  void forget_new();

  // The chunk is deleted. Chunks of the mount have no block.
  void forget(u32 number);

 private:
  struct Block {
    void* memory = nullptr;
    u64 bytes = 0;
  };
  class ReusingAllocator;

  std::map<u32, Block> blocks_;  // by the chunk's number
  std::vector<Block> new_;
  std::vector<Block> free_;
};

}  // namespace gpu4fs::maintenance
