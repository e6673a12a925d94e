// Builds an engine in engine memory. Host only.
//
// Arrays that are not all zero are built as host images and copied in.
//
//   EngineImage image = prepare_engine(allocator, config, sizes);   // everything but the file system's root
//   image->fs.space = pool::build_logical_space(...); image->fs.epoch_open = ...; ...
//   Engine* engine = place_engine(allocator, image);                // the address for the workers
#pragma once

#include <memory>
#include <vector>

#include "base/host/engine_allocator.hpp"
#include "engine/engine_types.hpp"

namespace gpu4fs::engine {

// Sizes of the file system's state in engine memory.
struct MemorySizes {
  u32 frame_count = 16384;   // metadata pages in memory, 4 KiB each; a multiple of 64
  u32 staging_count = 8192;  // maximum number of dirty ones; a checkpoint copies them aside
  u32 shard_count = 8;       // allocation shards
};

using EngineImage = std::unique_ptr<Engine>;

// Returns the engine's root as a host image. `upcalls` is shared memory, zeroed. The caller sets only `fs.space` and
// the numbers from the superblock (inode_file, epochs, seeds, options, counters).
EngineImage prepare_engine(EngineAllocator& allocator, const EngineConfig& config, const MemorySizes& sizes,
                           ring::UpcallRing* upcalls);

// Builds the operation log of the pool with this superblock, empty, from the superblock's log_start on. `records`: it
// accepts records, and their checksums use `seed`. Its memory is as large as the smallest log area.
void build_log(EngineAllocator& allocator, fs::FileSystem& fs, const format::Superblock& superblock,
               const std::vector<format::DevicePart>& parts, u64 seed, bool records);

// For a check of a pool whose inode numbers are below `inode_count`.
void build_check(EngineAllocator& allocator, Engine& engine, u64 inode_count);

// Copies the root into engine memory. The image is not needed afterwards.
Engine* place_engine(EngineAllocator& allocator, const EngineImage& image);

}  // namespace gpu4fs::engine
