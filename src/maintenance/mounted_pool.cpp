#include "maintenance/mounted_pool.hpp"

#include <utility>

#include "base/limits.hpp"

namespace gpu4fs::maintenance {

// Before there are pointers into the tables.
MountedPool::MountedPool(pool::OpenedPool opened, const session::ServerOptions& options)
    : pool(std::move(opened)), setup(session::set_up_engine(options, pool)) {
  pool.devices.reserve(device_count_max);
  setup.files.reserve(device_count_max);
  pool.chunks.reserve(setup.space.chunk_capacity);
}

std::vector<session::ChunkRange> MountedPool::chunk_ranges() const {
  std::vector<session::ChunkRange> chunks;
  const std::shared_lock lock(tables);
  for (const pool::OpenedChunk& chunk : pool.chunks) {
    chunks.push_back({chunk.descriptor.base_address, chunk.descriptor.size_bytes / page_size});
  }
  return chunks;
}

u64 MountedPool::lost_devices() {
  return session::PoolInspector(*setup.host, open_close).lost_devices();
}

}  // namespace gpu4fs::maintenance
