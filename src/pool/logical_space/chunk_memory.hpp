// The engine's memory of a chunk: its state, and the arrays that the state points to. Host only.
#pragma once

#include "base/bits.hpp"
#include "base/host/engine_allocator.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"
#include "pool/chunk_tree/tree_node.hpp"
#include "raid/raid_types.hpp"

namespace gpu4fs::pool {

// Assigns offsets in one block of engine memory, which later become pointers.
class BlockLayout {
 public:
  u64 take(u64 bytes) {
    const u64 offset = used_;
    used_ = align_up(used_ + bytes, cache_line);
    return offset;
  }
  u64 take_pages(u64 bytes) {
    used_ = align_up(used_, page_size);
    return take(bytes);
  }
  u64 used() const { return used_; }

 private:
  u64 used_ = 0;
};

template <class T>
T* at_offset(void* block, u64 offset) {
  return reinterpret_cast<T*>(static_cast<u8*>(block) + offset);
}

// The places of a chunk's arrays in the block.
struct ChunkPlaces {
  u64 columns;
  u64 descriptors;
  u64 descriptor_dirty;
  u64 descriptor_tables[2];
  u64 work_pages[2];
  u64 bitmaps[6];
  u64 rebuild_todo;
  u64 region_free;
  u64 stripe_stranded;
  u64 unbacked;
};

ChunkPlaces place_chunk(BlockLayout& layout, const format::ChunkDescriptor& descriptor);

// Returns the state as an image. Its columns are in engine memory afterwards; all other arrays are used as they are.
raid::ChunkState make_chunk_state(EngineAllocator& allocator, const OpenedChunk& chunk, const ChunkPlaces& places,
                                  void* block);

// For a chunk that is added after the mount (space/growth.hpp): its state as an image, with everything that it points
// to in a block of its own. The descriptor and the columns are valid; the chunk is not loaded.
raid::ChunkState build_chunk(EngineAllocator& allocator, const OpenedChunk& chunk, bool accessible);

}  // namespace gpu4fs::pool
