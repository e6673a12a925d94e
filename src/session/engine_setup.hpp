// Builds the engine of an opened pool: selects its kind, its memory and its mappings. Host only.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/limits.hpp"
#include "device/memory/mapped_file.hpp"
#include "device/staged/staged_types.hpp"
#include "engine/engine_cpu.hpp"
#include "engine/engine_cuda.hpp"
#include "engine/engine_host.hpp"
#include "pool/pool_open.hpp"
#include "session/direct_media.hpp"
#include "session/drive_reach.hpp"
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
  std::unique_ptr<DriveReach> reached;  // null: no device is a drive on the bus
  std::unique_ptr<DirectMedia> direct;  // null: all devices are mapped
  bool is_direct_everywhere = false;    // DeviceAccess
  std::unique_ptr<engine::EngineHost> host;
  std::string reason;  // why this engine was selected, a clause
  // Engine memory; nullptr: all devices are mapped.
  device::StagedDevices* staged = nullptr;
  device::StagedDevices staged_image{};  // a copy, as of the mount
  // By chunk: what find_unbacked_regions() has found at the mount.
  std::vector<std::vector<u64>> unbacked;
  device::PageTier* tier = nullptr;      // engine memory; nullptr: there is none
  std::string tier_text;                 // a clause about the tier; empty: none was asked for
  // Whether such a file is not mapped.
  bool accesses_directly(const device::MappedFile& file) const;
  // Before the engine knows the file as this device: unmaps it if such files are accessed directly. DeviceError.
  void prepare_access(u32 index, device::MappedFile& file);
  // Makes a range of a mapped file accessible to the engine; there is nothing to do for others.
  Status reach(const device::MappedFile& file, u64 offset, u64 length) const;
  // How the devices are accessed: a clause.
  std::string access_text() const;
  // The engine's view of a device; changes if the file is exchanged.
  device::Device device(u32 index) const;
  // Engine memory that changes when the pool grows (space/growth.hpp): addresses and capacities as of the mount.
  raid::LogicalSpace space{};
  format::Superblock* superblocks = nullptr;
  space::PoolGrowth* growth = nullptr;  // null: this pool does not grow
};

// What `automatic` means here: not automatic. PoolError: the environment asks for something else.
DeviceAccess resolve_access(DeviceAccess access);

// The default number of bytes for metadata pages, and for the page cache of devices that are not mapped, given the
// memory of the engine's processor.
u64 default_cache_bytes(u64 memory_bytes);
u64 default_page_cache_bytes(u64 memory_bytes);

// Of each present device that cannot be told of free space: a sentence with its path and the reason. Any thread, while
// the table of devices stays as it is.
std::vector<std::string> discard_obstacles(const EngineSetup& setup);

// Maps the devices and builds the engine; the pool's state is not loaded yet. PoolError.
EngineSetup set_up_engine(const ServerOptions& options, pool::OpenedPool& pool);

}  // namespace gpu4fs::session
