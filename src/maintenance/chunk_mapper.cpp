#include "maintenance/chunk_mapper.hpp"

#include <algorithm>
#include <cerrno>
#include <new>
#include <shared_mutex>
#include <thread>

#include "base/host/log.hpp"
#include "base/limits.hpp"
#include "fmt/format.h"
#include "pool/chunk_reach.hpp"
#include "pool/pool_error.hpp"
#include "pool/prefault.hpp"
#include "pool/region_ranges.hpp"
#include "raid/levels/levels.hpp"
#include "wire/rebuild_format.hpp"

namespace gpu4fs::maintenance {
namespace {

constexpr u32 memory_threads_max = 8;  // that allocate memory before it is used

u32 memory_threads() {
  return std::clamp(std::thread::hardware_concurrency(), 1u, memory_threads_max);
}

bool reaches_all(const session::EngineSetup& setup, session::ServerPurpose purpose) {
  return setup.gpu == nullptr && purpose != session::ServerPurpose::check &&
         std::none_of(setup.files.begin(), setup.files.end(), [](const auto& file) { return file.grows_with_use(); });
}

}  // namespace

ChunkMapper::ChunkMapper(MountedPool& mounted, session::ServerPurpose purpose)
    : mounted_(mounted),
      is_check_(purpose == session::ServerPurpose::check),
      all_accessible_(reaches_all(mounted.setup, purpose)) {
  const std::vector<std::vector<u64>>& unbacked = mounted.setup.unbacked;
  for (std::size_t chunk = 0; chunk < unbacked.size(); ++chunk) {
    if (unbacked[chunk].empty()) continue;
    set_mapped(chunk);
    set_thin(chunk, std::any_of(unbacked[chunk].begin(), unbacked[chunk].end(), [](u64 word) { return word != 0; }));
  }
}

Status ChunkMapper::map_chunk(u64 chunk, session::ServerSession& session) {
  const std::shared_lock lock(mounted_.tables);
  const pool::OpenedPool& pool = mounted_.pool;
  // The engine learns of added and deleted chunks shortly before the tables change: the command tries again.
  if (chunk >= pool.chunks.size() || pool.chunks[chunk].is_erased()) return Status::stale;
  const std::unique_lock reaching = hold_reach();
  if (puts_off(chunk)) return Status::busy;
  if (is_mapped(chunk) && !is_thin(chunk)) return Status::ok;
  for (const format::ColumnAddress column : pool.chunks[chunk].columns) {
    const u32 device = column.device_index();
    if (mounted_.setup.files[device].is_absent()) continue;
    const Status status = map_column(chunk, column, mounted_.setup.files[device]);
    if (status == Status::ok) continue;
    if (pool.devices[device].is_here()) return status;
    // A device that is being filled and has no room is given up, so that the others do not stop.
    wire::Command given_up{};
    given_up.opcode = wire::Opcode::rebuild;
    given_up.mode = static_cast<u32>(wire::RebuildStep::give_up);
    given_up.inode = device;
    GPU4FS_TRY(session.call(given_up).status);
  }
  set_mapped(chunk);
  set_thin(chunk, false);
  return Status::ok;
}

// Under tables, while no device is being filled: as map_chunk(), for the present devices. False: it has to wait for
// that.
bool ChunkMapper::map_members(u64 chunk) {
  const std::unique_lock reaching = hold_reach();
  if (all_accessible_ || is_mapped(chunk)) return true;
  for (const format::ColumnAddress column : mounted_.pool.chunks[chunk].columns) {
    const u32 device = column.device_index();
    if (!mounted_.pool.devices[device].is_here() || mounted_.setup.files[device].is_absent()) continue;
    if (map_column(chunk, column, mounted_.setup.files[device]) != Status::ok) return false;
  }
  set_mapped(chunk);
  return true;
}

// Filling a device needs its columns of chunks with content, and the other columns of these.
void ChunkMapper::prepare_memory(u32 device, const device::MappedFile& file, const std::vector<ChunkUsage>& usage) {
  const bool registers = mounted_.setup.gpu != nullptr && file.is_mapped();
  const std::shared_lock lock(mounted_.tables);
  std::vector<pool::FileRange> ranges;
  std::vector<u32> chunks;
  for (const ChunkUsage& chunk : usage) {
    if (chunk.pages_taken == 0) continue;
    const pool::OpenedChunk& opened = mounted_.pool.chunks[chunk.chunk];
    for (const format::ColumnAddress column : opened.columns) {
      if (column.device_index() != device) continue;
      ranges.push_back({column.offset_bytes(), raid::column_length(opened.descriptor)});
      chunks.push_back(chunk.chunk);
    }
  }
  try {
    if (registers || file.grows_with_use()) pool::prefault_ranges(file, ranges, registers, memory_threads());
  } catch (const device::DeviceError& error) {
    throw pool::PoolError(error.error_number() == ENOSPC ? Status::no_space : Status::io_error, error.what());
  }
  for (const u32 chunk : chunks) (void)map_members(chunk);
}

void ChunkMapper::map_device(u32 device, const device::MappedFile& file, const format::DevicePart& part) {
  const pool::OpenedPool& pool = mounted_.pool;
  const auto reach = [&](u64 offset, u64 length) {
    if (length == 0) return;
    if (file.grows_with_use()) file.reserve_range(offset, length);
    if (mounted_.setup.reach(file, offset, length) == Status::ok) return;
    throw pool::PoolError(Status::gpu_error, fmt::format("{}: {} KiB at {:#x} cannot be registered with the GPU",
                                                         file.path(), length >> 10, offset));
  };
  reach(0, format::layout_area_offset);
  if (device < pool.superblock.tree_replica_count) reach(part.log_offset, part.log_bytes);
  for (u32 chunk = 0; chunk < pool.chunks.size(); ++chunk) {
    for (const format::ColumnAddress column : pool.chunks[chunk].columns) {
      if (column.device_index() != device) continue;
      reach(column.offset_bytes(), pool::mounted_bytes(pool, pool.chunks[chunk]));
      if (!all_accessible_ && !is_mapped(chunk)) continue;
      const Status status = map_column(chunk, column, file);
      if (status != Status::ok) throw pool::PoolError(status, fmt::format("{}: {}", file.path(), status_text(status)));
    }
  }
}

// Maps the column's descriptors and data pages; the parts before them are mapped since the mount, except for a check.
// The blocks are allocated first: otherwise an access would end the process on a full medium. A command waits, so all
// processors help.
Status ChunkMapper::map_column(u64 chunk, format::ColumnAddress column, const device::MappedFile& file) {
  const format::ChunkDescriptor& descriptor = mounted_.pool.chunks[chunk].descriptor;
  const u64 skipped = is_check_ ? 0 : pool::header_front_bytes(descriptor);
  const u64 begin = column.offset_bytes() + skipped;
  const u64 length = raid::column_length(descriptor) - skipped;
  if (file.grows_with_use()) {
    // Failed attempts take time, so the next one waits until there is more room than at the last one.
    {
      const u64 room = file.room_bytes();
      const std::lock_guard guard(marks_mutex_);
      const auto refused = room_at_refusal_.find(chunk);
      if (refused != room_at_refusal_.end() && room <= refused->second) return Status::no_space;
    }
    try {
      const std::lock_guard taking(taking_mutex_);
      pool::take_range(file, {begin, length}, all_accessible_ || is_mapped(chunk), memory_threads());
    } catch (const device::DeviceError& error) {
      log(LogLevel::error, fmt::format("chunk {} cannot be used: {}", chunk, error.what()));
      if (error.error_number() != ENOSPC) return Status::device_failed;
      const u64 room_left = file.room_bytes();
      const std::lock_guard guard(marks_mutex_);
      room_at_refusal_[chunk] = room_left;
      return Status::no_space;
    } catch (const std::bad_alloc&) {
      log(LogLevel::error, fmt::format("chunk {} cannot be used: no memory is left for the server", chunk));
      return Status::no_space;
    }
    const std::lock_guard guard(marks_mutex_);
    room_at_refusal_.erase(chunk);
  }
  return mounted_.setup.reach(file, begin, length);
}

void ChunkMapper::reach_regions(u32 chunk, const std::vector<u64>& allocated) {
  const std::shared_lock lock(mounted_.tables);
  const std::unique_lock reaching = hold_reach();
  if (reach_allocated(mounted_.pool.chunks[chunk], allocated) == Status::ok) set_mapped(chunk);
}

Status ChunkMapper::reach_allocated(const pool::OpenedChunk& chunk, const std::vector<u64>& allocated) {
  Status status = Status::ok;
  const auto reach = [&](format::ColumnAddress column, u64 offset, u64 length) {
    const device::MappedFile& file = mounted_.setup.files[column.device_index()];
    if (status == Status::ok && !file.is_absent())
      status = mounted_.setup.reach(file, column.offset_bytes() + offset, length);
  };
  const u64 header = pool::header_area_bytes(chunk.descriptor);
  for (const format::ColumnAddress column : chunk.columns) {
    reach(column, 0, allocated.empty() ? raid::column_length(chunk.descriptor) : header);
  }
  constexpr u64 region_words = pages_per_block_2m / 64;
  const auto is_used = [&](u64 region) {
    const auto end = std::min(allocated.size(), (region + 1) * region_words);
    return std::any_of(&allocated[region * region_words], allocated.data() + end, [](u64 word) { return word != 0; });
  };
  const u64 region_count = divide_up(allocated.size(), region_words);
  for (u64 first = 0; first < region_count; ++first) {
    if (!is_used(first)) continue;
    u64 count = 1;
    while (first + count < region_count && is_used(first + count)) ++count;
    for (const pool::ColumnRange& range : pool::ranges_of_regions(chunk.descriptor, first, count)) {
      reach(chunk.columns[range.column], header + range.offset, range.length);
    }
    first += count;
  }
  return status;
}

void ChunkMapper::set_mapped(u64 chunk) {
  const std::lock_guard guard(marks_mutex_);
  chunks_mapped_.resize(std::max<std::size_t>(chunks_mapped_.size(), chunk + 1));
  chunks_mapped_[chunk] = true;
}

void ChunkMapper::set_thin(u64 chunk, bool is_thin) {
  const std::lock_guard guard(marks_mutex_);
  chunks_thin_.resize(std::max<std::size_t>(chunks_thin_.size(), chunk + 1));
  chunks_thin_[chunk] = is_thin;
}

void ChunkMapper::begin_discards(u64 chunk) {
  const std::lock_guard guard(marks_mutex_);
  discarded_chunk_ = chunk;
  is_wanted_ = false;
}

void ChunkMapper::end_discards() {
  const std::lock_guard guard(marks_mutex_);
  discarded_chunk_ = no_chunk;
}

bool ChunkMapper::discards(u64 chunk) const {
  const std::lock_guard guard(marks_mutex_);
  return discarded_chunk_ == chunk;
}

bool ChunkMapper::is_wanted(u64 chunk) const {
  const std::lock_guard guard(marks_mutex_);
  return discarded_chunk_ == chunk && is_wanted_;
}

bool ChunkMapper::puts_off(u64 chunk) {
  const std::lock_guard guard(marks_mutex_);
  if (discarded_chunk_ != chunk) return false;
  is_wanted_ = true;
  return true;
}

void ChunkMapper::forget_chunk(u32 chunk) {
  const std::lock_guard guard(marks_mutex_);
  if (discarded_chunk_ == chunk) discarded_chunk_ = no_chunk;
  if (chunk < chunks_mapped_.size()) chunks_mapped_[chunk] = false;
  if (chunk < chunks_thin_.size()) chunks_thin_[chunk] = false;
  room_at_refusal_.erase(chunk);
}

bool ChunkMapper::is_mapped(u64 chunk) const {
  const std::lock_guard guard(marks_mutex_);
  return chunk < chunks_mapped_.size() && chunks_mapped_[chunk];
}

bool ChunkMapper::is_thin(u64 chunk) const {
  const std::lock_guard guard(marks_mutex_);
  return chunk < chunks_thin_.size() && chunks_thin_[chunk];
}

u64 ChunkMapper::mapped_count() const {
  const std::lock_guard guard(marks_mutex_);
  return static_cast<u64>(std::count(chunks_mapped_.begin(), chunks_mapped_.end(), true));
}

}  // namespace gpu4fs::maintenance
