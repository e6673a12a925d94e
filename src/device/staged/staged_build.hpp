// Allocates what staged devices need. Host only.
#pragma once

#include "base/check.hpp"
#include "base/host/engine_allocator.hpp"
#include "base/limits.hpp"
#include "cache/cache_build.hpp"
#include "device/staged/staged_types.hpp"

namespace gpu4fs::device {

// The least number of frames for this number of workers.
inline u32 staged_frames_min(u32 worker_count) {
  const u64 pins = u64{worker_count} * pin_list_capacity * frames_for_each_pin;
  const u64 frames = align_up(pins, u64{cache::set_line_max});
  GPU4FS_CHECK_LE(frames, u64{1} << 31);
  return static_cast<u32>(frames);
}

// `devices`: the pool's, by index. The answer is engine memory, for Device::staged and LogicalSpace::staged.
inline StagedDevices* build_staged_devices(EngineAllocator& allocator, const Device* devices, u32 frame_count,
                                           u32 worker_count) {
  GPU4FS_CHECK_GT(worker_count, 0u);
  GPU4FS_CHECK_GE(frame_count, staged_frames_min(worker_count));
  const u64 pin_bytes = u64{worker_count} * sizeof(PinList);
  const u64 error_bytes = device_count_max * sizeof(u32);
  StagedDevices staged{};
  staged.cache = cache::build_cache(allocator, frame_count);
  staged.devices = devices;
  staged.pins = static_cast<PinList*>(allocator.allocate(pin_bytes, alignof(PinList)));
  allocator.zero(staged.pins, pin_bytes);
  staged.pages = static_cast<u8*>(allocator.allocate(u64{worker_count} * page_size, page_size));
  staged.write_errors = static_cast<u32*>(allocator.allocate(error_bytes, cache_line));
  allocator.zero(staged.write_errors, error_bytes);
  staged.worker_count = worker_count;
  void* const memory = allocator.allocate(sizeof(StagedDevices), cache_line);
  allocator.copy_in(memory, &staged, sizeof(staged));
  return static_cast<StagedDevices*>(memory);
}

}  // namespace gpu4fs::device
