// Which chunks of a mounted pool the engine can reach, and how their memory is made reachable.
//
//   ChunkMapper mapper(mounted, purpose);
//   mapper.map_chunk(chunk, session);              // for the engine's request: in the thread that answers upcalls
//   mapper.prepare_memory(device, file, usage);    // of a file that becomes a device, before it is filled
//   mapper.map_device(device, file, part);         // areas of it that the engine may already access
//   mapper.reach_regions(chunk, allocated);        // for a check
//
// A chunk is mapped once the engine can reach all of it. It is thin if memory of its free regions was returned to the
// system since then, or was missing at the mount (session/thin_files.hpp); the engine then requests it again. A chunk
// that found no room on a medium is tried again when the medium has more.
//
// Order of the locks: the pool's `tables`, that of the reach, that of allocating memory, that of the marks. Only
// map_chunk() waits for the engine, for a command in the session of its caller: the management session may be waiting
// for the very upcall that is being answered.
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
  // The pool's files exist, and it is known whether the engine runs on a GPU.
  ChunkMapper(MountedPool& mounted, session::ServerPurpose purpose);
  ChunkMapper(const ChunkMapper&) = delete;
  ChunkMapper& operator=(const ChunkMapper&) = delete;

  // Makes all of the chunk reachable. stale: there is no such chunk. busy: free space of it is being discarded; that
  // ends soon, and the caller comes again. A device that is being filled and has no room for its column is given up, by
  // a command in `session`.
  Status map_chunk(u64 chunk, session::ServerSession& session);

  // Under `tables`: makes areas of a device that the engine may already access reachable; `file` is, or becomes, the
  // device. A repetition for the same file costs little. PoolError.
  void map_device(u32 device, const device::MappedFile& file, const format::DevicePart& part);

  // Allocates the memory of the file that becomes the device as far as its rebuild fills it, and makes everything that
  // the rebuild reads reachable. So neither has to be waited for later. `usage` is that of all chunks. PoolError:
  // no_space.
  void prepare_memory(u32 device, const device::MappedFile& file, const std::vector<ChunkUsage>& usage);

  // For a check: makes memory of the chunk reachable, of regions with a page in `allocated` or, if that is empty, of
  // all. If this fails, the engine requests the memory itself.
  void reach_regions(u32 chunk, const std::vector<u64>& allocated);

  // While the result exists, memory of chunks is neither made reachable, except by map_device(), nor returned to the
  // system. It is locked after `tables`.
  [[nodiscard]] std::unique_lock<std::mutex> hold_reach() { return std::unique_lock(reach_mutex_); }
  // While the reach is held: some memory of the chunk is missing.
  void mark_thin(u64 chunk) { set_thin(chunk, true); }

  // While the reach is held: free space of the chunk will be discarded without it, until end_discards(). One chunk at a
  // time.
  void begin_discards(u64 chunk);
  void end_discards();
  // Under `tables`: whether this goes on, and the chunk is the same.
  [[nodiscard]] bool discards(u64 chunk) const;
  // Whether somebody needs the chunk whose space is being discarded.
  [[nodiscard]] bool is_wanted(u64 chunk) const;

  // Another chunk, or none, gets the number.
  void forget_chunk(u32 chunk);

  [[nodiscard]] bool is_mapped(u64 chunk) const;
  [[nodiscard]] bool is_thin(u64 chunk) const;
  // The number of chunks that were made reachable one by one, with those that lacked nothing but blocks.
  [[nodiscard]] u64 mapped_count() const;

 private:
  static constexpr u64 no_chunk = ~u64{0};

  bool puts_off(u64 chunk);
  Status map_column(u64 chunk, format::ColumnAddress column, const device::MappedFile& file);
  bool map_members(u64 chunk);
  Status reach_allocated(const pool::OpenedChunk& chunk, const std::vector<u64>& allocated);
  void set_mapped(u64 chunk);
  void set_thin(u64 chunk, bool is_thin);

  MountedPool& mounted_;
  const bool is_check_;
  const bool all_accessible_;  // the engine reaches every chunk from the start
  std::mutex reach_mutex_;     // while memory of chunks is made reachable or is returned
  std::mutex taking_mutex_;    // while a chunk's memory is allocated: if one of two callers returned its memory, the
                               // other could be using it
  mutable std::mutex marks_mutex_;
  std::vector<bool> chunks_mapped_;               // under marks_mutex_: by chunk
  std::vector<bool> chunks_thin_;                 // under marks_mutex_: by chunk, memory of free regions was returned
  u64 discarded_chunk_ = no_chunk;                // under marks_mutex_
  bool is_wanted_ = false;                        // under marks_mutex_: that chunk, by map_chunk()
  std::unordered_map<u64, u64> room_at_refusal_;  // under marks_mutex_: by chunk, free bytes of its medium at the time
};

}  // namespace gpu4fs::maintenance
