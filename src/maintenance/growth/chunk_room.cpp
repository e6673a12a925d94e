// The content of chunks, and the room for other chunks in their place.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "format/format_text.hpp"
#include "maintenance/growth/pool_grower.hpp"
#include "pool/chunk_shape.hpp"
#include "pool/pool_error.hpp"
#include "raid/levels/levels.hpp"

namespace gpu4fs::maintenance {
namespace {

constexpr u32 room_looks_max = 4;  // two checkpoints and one for what was freed meanwhile

}  // namespace

std::vector<ChunkUsage> PoolGrower::usage() {
  const std::lock_guard guard(one_at_a_time_);
  return list_usage();
}

std::vector<ChunkUsage> PoolGrower::list_usage() {
  std::vector<ChunkUsage> usage;
  for (u32 i = 0; i < mounted_.pool.chunks.size(); ++i) {
    const pool::OpenedChunk& chunk = mounted_.pool.chunks[i];
    if (chunk.is_erased()) continue;
    const ring::Completion asked = host_.command(wire::Opcode::grow, wire::grow_usage, i);
    if (asked.status != Status::ok) throw pool::PoolError(asked.status, status_text(asked.status));
    usage.push_back({i, pool::page_class_of(chunk.descriptor), chunk.descriptor.size_bytes / page_size, asked.result});
  }
  return usage;
}

std::vector<u32> PoolGrower::chunks_on(u32 device) const {
  const std::shared_lock lock(mounted_.tables);
  std::vector<u32> found;
  for (u32 i = 0; i < mounted_.pool.chunks.size(); ++i) {
    if ((mounted_.pool.chunks[i].devices() >> device & 1) != 0) found.push_back(i);
  }
  return found;
}

// The number of pages of chunks that replace these one after the other, up to `page_count`.
u64 PoolGrower::room_by_replacing(const std::vector<u32>& chunks, u64 page_count) {
  const pool::FreeGranules before = *free_;
  u64 room = 0;
  for (const u32 index : chunks) {
    if (room >= page_count) break;
    const pool::OpenedChunk& old = mounted_.pool.chunks[index];
    const std::optional<pool::OpenedChunk> replacement = plan_chunk(form_like(old), 0);
    if (!replacement) break;
    room += replacement->descriptor.size_bytes / page_size;
    free_->mark(*replacement, true);
    free_->mark(old, false);
  }
  *free_ = before;
  return room;
}

std::string PoolGrower::room_problem(u32 device) {
  std::string problem = look_at_room(device);
  // Freed pages count as taken until the second checkpoint after them.
  for (u32 looks = 1; !problem.empty() && looks < room_looks_max; ++looks) {
    if (host_.checkpoint() != Status::ok) break;
    problem = look_at_room(device);
  }
  return problem;
}

std::string PoolGrower::look_at_room(u32 device) {
  const std::lock_guard guard(one_at_a_time_);
  require_all_devices();
  open_tree();
  struct ClassNeed {
    u64 taken = 0;  // in chunks with a column on the device
    u64 free = 0;   // in others
    std::vector<u32> chunks;
  };
  std::vector<ClassNeed> needs(format::profile_max);
  std::vector<u32> empty;
  for (const ChunkUsage& chunk : list_usage()) {
    ClassNeed& need = needs[chunk.page_class];
    if ((mounted_.pool.chunks[chunk.chunk].devices() >> device & 1) == 0) {
      need.free += chunk.page_count - std::min(chunk.page_count, chunk.pages_taken);
      continue;
    }
    // Empty chunks are deleted before anything else.
    if (chunk.pages_taken == 0) {
      empty.push_back(chunk.chunk);
      continue;
    }
    need.taken += chunk.pages_taken;
    need.chunks.push_back(chunk.chunk);
  }
  const pool::FreeGranules before = *free_;
  for (const u32 index : empty) free_->mark(mounted_.pool.chunks[index], false);
  const u64 avoided = avoided_;
  avoided_ |= u64{1} << device;
  std::string problem;
  for (u32 i = 0; i < needs.size() && problem.empty(); ++i) {
    const ClassNeed& need = needs[i];
    if (need.taken <= need.free) continue;
    const u64 missing = need.taken - need.free;
    const u64 room = room_by_replacing(need.chunks, missing);
    if (room >= missing) continue;
    problem = fmt::format("device {} holds {} MiB of profile {} that the other devices have no room for", device,
                          ((missing - room) * page_size >> 20) + 1,
                          format::profile_name(static_cast<format::Profile>(i + 1)).text);
  }
  avoided_ = avoided;
  *free_ = before;
  return problem;
}

// A measure of how uneven the devices' free space would be: the sum of squares of the differences from the mean.
double PoolGrower::spread_after(const pool::OpenedChunk& old, const pool::OpenedChunk& replacement) const {
  std::vector<double> free;
  double sum = 0;
  for (u32 i = 0; i < mounted_.pool.devices.size(); ++i) {
    if (!mounted_.pool.devices[i].is_here()) continue;
    double count = static_cast<double>(free_->free_count(i));
    const auto granules = [](const pool::OpenedChunk& chunk) {
      return static_cast<double>(divide_up(raid::column_length(chunk.descriptor), format::physical_granule_bytes));
    };
    if ((old.devices() >> i & 1) != 0) count += granules(old);
    if ((replacement.devices() >> i & 1) != 0) count -= granules(replacement);
    free.push_back(count);
    sum += count;
  }
  const double mean = sum / static_cast<double>(free.size());
  double spread = 0;
  for (const double count : free) spread += (count - mean) * (count - mean);
  return spread;
}

std::optional<ChunkUsage> PoolGrower::find_unbalanced() {
  const std::lock_guard guard(one_at_a_time_);
  require_all_devices();
  open_tree();
  const pool::OpenedPool& pool = mounted_.pool;
  std::optional<u32> fullest;
  for (u32 i = 0; i < pool.devices.size(); ++i) {
    if (pool.devices[i].is_here() && (!fullest || free_->free_count(i) < free_->free_count(*fullest))) fullest = i;
  }
  if (!fullest) return std::nullopt;
  std::optional<u32> best;
  double best_spread = 0;
  std::set<std::tuple<u64, u64, u32>> seen;  // chunks of one shape on the same devices are equivalent
  for (u32 i = 0; i < pool.chunks.size(); ++i) {
    const pool::OpenedChunk& old = pool.chunks[i];
    if ((old.devices() >> *fullest & 1) == 0) continue;
    const u64 length = raid::column_length(old.descriptor);
    if (!seen.insert({old.devices(), length, pool::page_class_of(old.descriptor)}).second) continue;
    const std::optional<pool::OpenedChunk> replacement = plan_chunk(form_like(old), 0);
    if (!replacement) continue;
    const double now = spread_after(old, old);
    const double spread = spread_after(old, *replacement);
    if (spread + 0.5 >= (best ? best_spread : now)) continue;
    best = i;
    best_spread = spread;
  }
  if (!best) return std::nullopt;
  const ring::Completion asked = host_.command(wire::Opcode::grow, wire::grow_usage, *best);
  if (asked.status != Status::ok) throw pool::PoolError(asked.status, status_text(asked.status));
  const format::ChunkDescriptor& descriptor = pool.chunks[*best].descriptor;
  return ChunkUsage{*best, pool::page_class_of(descriptor), descriptor.size_bytes / page_size, asked.result};
}

}  // namespace gpu4fs::maintenance
