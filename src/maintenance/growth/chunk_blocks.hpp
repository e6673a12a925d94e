// Engine memory of the chunks that were made since the mount: a block each. Host only.
//
// An engine's allocator takes nothing back, so the blocks of chunks that are deleted, or that came to nothing, are used
// again for new ones of the same size.
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

  // The new chunks, in the order in which they were built, get these numbers; or they come to nothing.
  void keep_new(const std::vector<u32>& numbers);
  void forget_new();

  // The chunk is deleted. Those of the mount have no block.
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
