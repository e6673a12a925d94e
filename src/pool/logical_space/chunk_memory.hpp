// What the engine keeps of a chunk: its state, and the arrays that the state points to. Host only.
#pragma once

#include "base/bits.hpp"
#include "base/host/engine_allocator.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"
#include "pool/chunk_tree/tree_node.hpp"
#include "raid/raid_types.hpp"

namespace gpu4fs::pool {

// Hands out offsets of one block of engine memory, later pointers.
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

// Where the arrays of a chunk lie in the block.
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

// The state as an image; its columns are in engine memory afterwards, all other arrays are taken as they are.
raid::ChunkState make_chunk_state(EngineAllocator& allocator, const OpenedChunk& chunk, const ChunkPlaces& places,
                                  void* block);

// For a chunk that comes after the mount (space/growth.hpp): its state as an image, and everything that it points to in
// a block of its own. What the chunk says of itself and its columns is true; not loaded.
raid::ChunkState build_chunk(EngineAllocator& allocator, const OpenedChunk& chunk, bool accessible);

}  // namespace gpu4fs::pool
