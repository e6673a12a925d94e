// Which chunks of a mounted pool are within the engine's reach, and what brings their memory there.
//
//   ChunkMapper mapper(mounted, purpose);
//   mapper.map_chunk(chunk, session);              // the engine asks for a chunk: in the thread that answers upcalls
//   mapper.prepare_memory(device, file, usage);    // of a file that becomes a device, before it is filled
//   mapper.map_device(device, file, part);         // what the engine may touch of it already
//   mapper.reach_regions(chunk, allocated);        // for a check
//
// A chunk is mapped once all of it has come within reach. It is thin when memory of its free regions was given back
// since; then the engine asks for it again. A chunk that found no room on a medium is tried again when the medium has
// more.
//
// Locks come in this order: the pool's `tables`, that of what comes within reach, that of taking memory, that of the
// marks. Only map_chunk() waits for the engine, for a command in the session that its caller hands it: the management
// session may wait for the very upcall that is being answered.
//
// All functions are for any thread. Host only.
#pragma once

#include <mutex>
#include <unordered_map>
#include <vector>

#include "maintenance/growth/chunk_usage.hpp"
#include "maintenance/mounted_pool.hpp"
#include "session/server_options.hpp"
#include "session/server_session.hpp"

namespace gpu4fs::maintenance {

class ChunkMapper {
 public:
  // The pool's files are there, and it is known whether the engine is a GPU's.
  ChunkMapper(MountedPool& mounted, session::ServerPurpose purpose);
  ChunkMapper(const ChunkMapper&) = delete;
  ChunkMapper& operator=(const ChunkMapper&) = delete;

  // All of the chunk comes within reach. stale: there is no such chunk. A device that is being filled and has no room
  // for its column is given up, by a command in `session`.
  Status map_chunk(u64 chunk, session::ServerSession& session);

  // Under `tables`: areas of a device that the engine may touch already come within its reach, of the file that is, or
  // becomes, the device. Again for the same one costs little. PoolError.
  void map_device(u32 device, const device::MappedFile& file, const format::DevicePart& part);

  // Of the file that becomes the device the memory is got that its rebuild fills, and what it reads comes within the
  // engine's reach, so that neither is waited for later. `usage` is that of all chunks. PoolError: no_space.
  void prepare_memory(u32 device, const device::MappedFile& file, const std::vector<ChunkUsage>& usage);

  // For a check: memory of the chunk comes within the engine's reach, of regions with a page in `allocated`, or, where
  // that has no words, of all. What fails here the engine asks for itself.
  void reach_regions(u32 chunk, const std::vector<u64>& allocated);

  // While the result lives, no memory of chunks comes within reach, but by map_device(), or is given back. It is locked
  // after `tables`.
  [[nodiscard]] std::unique_lock<std::mutex> hold_reach() { return std::unique_lock(reach_mutex_); }
  // While the reach is held: not all memory of the chunk is there any more.
  void mark_thin(u64 chunk) { set_thin(chunk, true); }

  // Another chunk, or none, has the number.
  void forget_chunk(u32 chunk);

  [[nodiscard]] bool is_mapped(u64 chunk) const;
  [[nodiscard]] bool is_thin(u64 chunk) const;
  // Chunks that came within the engine's reach since the start, one by one.
  [[nodiscard]] u64 mapped_count() const;

 private:
  Status map_column(u64 chunk, format::ColumnAddress column, const device::MappedFile& file);
  bool map_members(u64 chunk);
  Status reach_allocated(const pool::OpenedChunk& chunk, const std::vector<u64>& allocated);
  void set_mapped(u64 chunk);
  void set_thin(u64 chunk, bool is_thin);

  MountedPool& mounted_;
  const bool is_check_;
  const bool all_accessible_;  // the engine reaches every chunk from the start
  std::mutex reach_mutex_;     // while memory of chunks comes within the engine's reach or is given back
  std::mutex taking_mutex_;    // while a chunk's memory is taken: what two take could be in use when one gives it back
  mutable std::mutex marks_mutex_;
  std::vector<bool> chunks_mapped_;               // under marks_mutex_: by chunk
  std::vector<bool> chunks_thin_;                 // under marks_mutex_: by chunk, free regions were given back
  std::unordered_map<u64, u64> room_at_refusal_;  // under marks_mutex_: by chunk, bytes its medium had left
};

}  // namespace gpu4fs::maintenance
