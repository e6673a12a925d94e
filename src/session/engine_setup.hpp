// Builds the engine of an opened pool: selects its kind, its memory and its mappings. Host only.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/limits.hpp"
#include "device/memory/mapped_file.hpp"
#include "engine/engine_cpu.hpp"
#include "engine/engine_cuda.hpp"
#include "engine/engine_host.hpp"
#include "pool/pool_open.hpp"
#include "session/server_options.hpp"
#include "space/growth.hpp"

namespace gpu4fs::session {

// Everything that must outlive the engine, and the engine; destroyed in reverse order.
struct EngineSetup {
  std::vector<device::MappedFile> files;  // by device index
  // Identifies the file for the engine: 0, or a number that no other file had (wire::RebuildTarget).
  std::array<u32, device_count_max> file_numbers{};
  u32 last_file_number = 0;
  // Files of devices that were replaced.
  std::vector<device::MappedFile> retired_files;
  std::vector<pool::DeviceFile> retired_devices;
  // Engine memory: one of the two.
  std::unique_ptr<engine::HeapAllocator> heap;
  std::unique_ptr<engine::CudaAllocator> gpu;
  EngineAllocator& allocator() const {
    if (heap) return *heap;
    return *gpu;
  }
  ring::UpcallRing* upcalls = nullptr;  // in memory of the allocator
  std::unique_ptr<engine::EngineHost> host;
  std::string reason;  // why this engine was selected, a clause
  // Engine memory; nullptr: the devices are mapped.
  device::StagedDevices* staged = nullptr;
  // The engine's view of a device; changes if the file is exchanged.
  device::Device device(u32 index) const;
  // Engine memory that changes when the pool grows (space/growth.hpp): addresses and capacities as of the mount.
  raid::LogicalSpace space{};
  format::Superblock* superblocks = nullptr;
  space::PoolGrowth* growth = nullptr;  // null: this pool does not grow
};

// Whether devices are staged with this choice. PoolError: the environment asks for something else.
bool stages_devices(DeviceAccess access);

// The default number of bytes for metadata pages, given the memory of the engine's processor.
u64 default_cache_bytes(u64 memory_bytes);

// Maps the devices and builds the engine; the pool's state is not loaded yet. PoolError.
EngineSetup set_up_engine(const ServerOptions& options, pool::OpenedPool& pool);

}  // namespace gpu4fs::session
