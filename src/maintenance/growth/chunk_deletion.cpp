// Deletes chunks for the grower.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "format/format_text.hpp"
#include "maintenance/growth/pool_grower.hpp"
#include "pool/chunk_shape.hpp"
#include "pool/pool_error.hpp"

namespace gpu4fs::maintenance {

namespace {

constexpr u32 freeze_attempts_max = 8;

}  // namespace

void PoolGrower::thaw_all(const std::vector<u32>& chunks) {
  for (const u32 chunk : chunks) (void)host_.command(wire::Opcode::grow, wire::grow_thaw, chunk);
}

// All are frozen and empty, and no checkpoint has to write anything of them.
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

}  // namespace gpu4fs::maintenance
