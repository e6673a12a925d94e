// The grower's other half: chunks that are deleted, devices that leave.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/bits.hpp"
#include "base/host/log.hpp"
#include "base/limits.hpp"
#include "format/format_text.hpp"
#include "maintenance/growth/pool_grower.hpp"
#include "pool/chunk_shape.hpp"
#include "pool/pool_error.hpp"
#include "pool/pool_layout.hpp"
#include "raid/levels/levels.hpp"

namespace gpu4fs::maintenance {

namespace {

constexpr u32 freeze_attempts_max = 8;

// Devices that a chunk of its profile takes at least.
u32 devices_needed(const format::ChunkDescriptor& d) {
  const bool is_fixed = d.level == format::RaidLevel::single || d.level == format::RaidLevel::raid1;
  return is_fixed ? d.column_count : pool::column_count_least(d.level);
}

void clear_superblocks(pool::DeviceFile& file) {
  file.zero_range(format::superblock_offset_a, page_size);
  file.zero_range(format::superblock_offset_b, page_size);
  file.flush();
}

}  // namespace

void PoolGrower::thaw_all(const std::vector<u32>& chunks) {
  for (const u32 chunk : chunks) (void)host_.command(wire::Opcode::grow, wire::grow_thaw, chunk);
}

// All are frozen and empty, and no checkpoint has anything to write of them.
void PoolGrower::freeze_all(const std::vector<u32>& chunks) {
  for (u32 attempt = 0;; ++attempt) {
    Status status = Status::ok;
    u32 refused = 0;
    for (const u32 chunk : chunks) {
      const Status frozen = host_.command(wire::Opcode::grow, wire::grow_freeze, chunk).status;
      if (frozen == Status::ok) continue;
      refused = chunk;
      status = frozen;
      if (status != Status::retry_after_checkpoint) break;
    }
    if (status == Status::ok) return;
    if (status == Status::retry_after_checkpoint && attempt < freeze_attempts_max) {
      status = host_.checkpoint();
      if (status == Status::ok) continue;
    }
    thaw_all(chunks);
    const char* why = status == Status::busy       ? "it is not empty"
                      : status == Status::no_space ? "the others have no room for what it holds, or keep back"
                                                   : status_text(status);
    throw pool::PoolError(status, fmt::format("chunk {} cannot be deleted: {}", refused, why));
  }
}

void PoolGrower::require_one_of_each_class(const std::vector<u32>& erased) const {
  const std::vector<pool::OpenedChunk>& chunks = mounted_.pool.chunks;
  std::set<u32> left;
  for (u32 i = 0; i < chunks.size(); ++i) {
    const bool stays = std::find(erased.begin(), erased.end(), i) == erased.end();
    if (stays && !chunks[i].is_erased()) left.insert(pool::page_class_of(chunks[i].descriptor));
  }
  for (const u32 index : erased) {
    if (index >= chunks.size() || chunks[index].is_erased()) {
      throw pool::PoolError(Status::not_found, fmt::format("there is no chunk {}", index));
    }
    const u32 page_class = pool::page_class_of(chunks[index].descriptor);
    if (left.contains(page_class)) continue;
    throw pool::PoolError(Status::invalid_argument,
                          fmt::format("chunk {} is the last one of profile {}", index,
                                      format::profile_name(static_cast<format::Profile>(page_class + 1)).text));
  }
}

void PoolGrower::erase_chunks(const std::vector<u32>& chunks) {
  const std::lock_guard guard(one_at_a_time_);
  require_all_devices();
  open_tree();
  require_one_of_each_class(chunks);
  for (std::size_t first = 0; first < chunks.size(); first += space::growth_chunks_max) {
    const std::size_t count = std::min<std::size_t>(chunks.size() - first, space::growth_chunks_max);
    const auto begin = chunks.begin() + static_cast<std::ptrdiff_t>(first);
    Plan plan;
    plan.tree_replica_count = mounted_.pool.superblock.tree_replica_count;
    const std::vector<u32> batch(begin, begin + static_cast<std::ptrdiff_t>(count));
    freeze_all(batch);
    try {
      for (const u32 index : batch) {
        const pool::OpenedChunk& chunk = mounted_.pool.chunks[index];
        try {
          (void)tree_->erase(chunk.descriptor.base_address);
        } catch (const pool::PoolError&) {
          forget(plan);
          throw;
        }
        free_->mark(chunk, false);
        plan.erased.push_back(index);
        plan.maps_changed |= chunk.devices();
      }
      make_durable(std::move(plan));
    } catch (...) {
      thaw_all(batch);
      throw;
    }
  }
  tell_of_room();
}

void PoolGrower::thaw_chunks(const std::vector<u32>& chunks) {
  const std::lock_guard guard(one_at_a_time_);
  thaw_all(chunks);
}

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

std::string PoolGrower::removal_obstacle(u32 device) const {
  const std::shared_lock lock(mounted_.tables);
  const pool::OpenedPool& pool = mounted_.pool;
  if (device >= pool.devices.size() || !pool.devices[device].is_here()) {
    return fmt::format(
        "the pool has no device {} that works; 'device replace' puts another one in the place of one that does not",
        device);
  }
  u32 left = 0;
  for (u32 i = 0; i < pool.devices.size(); ++i) left += i != device && pool.devices[i].is_here() ? 1 : 0;
  for (const pool::OpenedChunk& chunk : pool.chunks) {
    if (chunk.is_erased()) continue;
    const u32 needed = devices_needed(chunk.descriptor);
    const format::Profile profile = format::profile_of(chunk.descriptor);
    if ((chunk.descriptor.flags & format::chunk_flag_physical) != 0 && chunk.descriptor.physical_device == device) {
      return fmt::format("profile {} lies on device {} only", format::profile_name(profile).text, device);
    }
    if (left >= needed) continue;
    return fmt::format("profile {} needs {} devices, without device {} the pool has {}",
                       format::profile_name(profile).text, needed, device, left);
  }
  if (device < pool.superblock.tree_replica_count) {
    return fmt::format(
        "device {} holds the chunk tree and the operation log, as devices 0 to {} do; 'device replace' puts "
        "another one in its place, or, without redundancy, a copy of it while the pool is not mounted",
        device, pool.superblock.tree_replica_count - 1);
  }
  return "";
}

// Pages that chunks in the place of these would have, one after the other, up to `page_count`.
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
    // Empty ones are deleted before anything else.
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

// How uneven the devices' free space would be: the sum of squares of the differences from the mean.
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
  std::set<std::tuple<u64, u64, u32>> seen;  // chunks of one shape on the same devices are alike
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

void PoolGrower::remove_device(u32 device) {
  const std::string obstacle = removal_obstacle(device);
  if (!obstacle.empty()) throw pool::PoolError(Status::invalid_argument, obstacle);
  const std::lock_guard guard(one_at_a_time_);
  require_all_devices();
  open_tree();
  if (!chunks_on(device).empty()) {
    throw pool::PoolError(Status::busy, fmt::format("device {} still has columns of chunks", device));
  }
  const std::string path = mounted_.pool.devices[device].file.path();
  Plan plan;
  plan.tree_replica_count = mounted_.pool.superblock.tree_replica_count;
  plan.leaving = u64{1} << device;
  make_durable(std::move(plan));
  try {
    clear_superblocks(mounted_.pool.devices[device].file);
  } catch (const pool::PoolError& error) {
    log(LogLevel::warning,
        fmt::format("{}: is no member of the pool any more, but looks like one: {}", path, error.what()));
  }
  {
    const std::unique_lock lock(mounted_.tables);
    close_removed(device);
    host_.device_left(path);
  }
  free_ = std::make_unique<pool::FreeGranules>(mounted_.pool);
  avoided_ &= ~(u64{1} << device);
  host_.forget_errors(device);
  log(LogLevel::info, fmt::format("device {} has left the pool: {}", device, path));
  tell_of_room();
}

}  // namespace gpu4fs::maintenance
