// The one switch that runs tests on staged devices: GPU4FS_DEVICE_ACCESS=staged in the environment, as for pools of the
// server (session/server_options.hpp).
#pragma once

#include <vector>

#include "base/host/engine_allocator.hpp"
#include "device/device_types.hpp"
#include "device/staged/staged_build.hpp"
#include "device/tier/page_tier_build.hpp"
#include "session/engine_setup.hpp"
#include "session/page_tier_setup.hpp"
#include "support/queued_media.hpp"

namespace gpu4fs::test {

inline bool wants_staged_devices() {
  const session::DeviceAccess access = session::resolve_access(session::DeviceAccess::automatic);
  return access == session::DeviceAccess::staged || access == session::DeviceAccess::direct_everywhere ||
         access == session::DeviceAccess::emulated;
}

// Gives the devices this form, with as few frames as possible. `holders`: workers that use them at the same time.
// `media`: null: their memory stays mapped. The caller passes the answer on to set_staged_devices().
inline device::StagedDevices* stage_devices(EngineAllocator& allocator, std::vector<device::Device>& devices,
                                            u32 worker_count, u32 holders, QueuedMedia* media = nullptr) {
  const device::QueuedMedia queued = media != nullptr ? media->start(devices) : device::QueuedMedia{};
  device::StagedDevices* const staged =
      device::build_staged_devices(allocator, nullptr, device::staged_frames_min(holders), worker_count, queued);
  for (device::Device& device : devices) {
    device.kind = device::DeviceKind::staged;
    device.staged = staged;
  }
  return staged;
}

// Gives the devices a second tier of the page cache of this size, if that is not 0.
inline void add_tier(EngineAllocator& allocator, std::vector<device::Device>& devices, u64 bytes, bool has_checksums) {
  std::string text;
  std::vector<std::string> warnings;
  const u32 frames = session::page_tier_frames(bytes, has_checksums, &text, &warnings);
  if (frames == 0) return;
  device::PageTier* const tier = device::build_page_tier(allocator, frames);
  for (device::Device& device : devices) device.tier = tier;
}

}  // namespace gpu4fs::test
