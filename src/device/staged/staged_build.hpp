// Allocates what staged devices need. Host only.
#pragma once

#include "base/check.hpp"
#include "base/host/engine_allocator.hpp"
#include "base/limits.hpp"
#include "cache/cache_build.hpp"
#include "device/staged/staged_types.hpp"

namespace gpu4fs::device {

// The least number of frames for this number of workers that hold pins at the same time.
constexpr u32 staged_frames_min(u32 worker_count) {
  const u64 pins = u64{worker_count} * pin_list_capacity * frames_for_each_pin;
  const u64 frames = align_up(pins, u64{cache::set_line_max});
  GPU4FS_CHECK_LE(frames, u64{1} << 31);
  return static_cast<u32>(frames);
}

// Pages of a worker for transfers between the medium and memory that the controller cannot access.
inline constexpr u32 bounce_page_count = 16;

namespace detail {

// Half of the slots are left to those who wait, and three quarters of the frames to those who hold pins.
inline void build_detached(EngineAllocator& allocator, StagedDevices& staged, u32 slot_count) {
  GPU4FS_CHECK_GT(slot_count, 0u);
  const u64 bytes = u64{slot_count} * sizeof(DetachedRequest);
  staged.detached = static_cast<DetachedRequest*>(allocator.allocate(bytes, cache_line));
  allocator.zero(staged.detached, bytes);
  staged.detached_state = static_cast<DetachedState*>(allocator.allocate(sizeof(DetachedState), cache_line));
  allocator.zero(staged.detached_state, sizeof(DetachedState));
  staged.detached_max = minimum(slot_count / 2, staged.cache.line_count / 4);
  staged.ahead_max = maximum(staged.detached_max / 2, 1u);
  // So there is room for those of the commands that saw that the media were not busy.
  staged.busy_write_count = maximum(staged.detached_max / 2, 1u);
}

}  // namespace detail

// For devices that are not mapped.
struct QueuedMedia {
  IoQueue* queue = nullptr;  // null: there are none
  u32 slot_count = 0;        // of the queue
  // Memory that the controller accesses as well as the engine; null: it accesses all memory of the engine.
  EngineAllocator* shared = nullptr;
  u32 watcher_max = 1;  // workers of a GPU that look for reports at the same time
};

// The answer is engine memory, for Device::staged and LogicalSpace::staged. Numbers of workers are below
// `worker_count`. On the host, at most as many of them work at the same time as there are frames for
// (staged_frames_min()), but one may. Kernels need frames for all.
// `devices`: the pool's, by index; set_staged_devices() may name them later.
// *image: a copy of the answer for the host.
inline StagedDevices* build_staged_devices(EngineAllocator& allocator, const Device* devices, u32 frame_count,
                                           u32 worker_count, const QueuedMedia& queued = {},
                                           StagedDevices* image = nullptr) {
  GPU4FS_CHECK_GT(worker_count, 0u);
  GPU4FS_CHECK_GE(frame_count, 2 * pin_list_capacity);
  const u64 pin_bytes = u64{worker_count} * sizeof(PinList);
  StagedDevices staged{};
  EngineAllocator& shared = queued.shared != nullptr ? *queued.shared : allocator;
  staged.cache = cache::build_cache(allocator, shared, frame_count);
  staged.devices = devices;
  staged.queue = queued.queue;
  if (staged.queue != nullptr) detail::build_detached(allocator, staged, queued.slot_count);
  staged.own_page_count = queued.shared != nullptr ? bounce_page_count : 1;
  staged.is_bounced = queued.shared != nullptr ? 1 : 0;
  staged.pins = static_cast<PinList*>(allocator.allocate(pin_bytes, alignof(PinList)));
  allocator.zero(staged.pins, pin_bytes);
  staged.pages = static_cast<u8*>(shared.allocate(u64{worker_count} * staged.own_page_count * page_size, page_size));
  staged.error_state = static_cast<WriteErrors*>(allocator.allocate(sizeof(WriteErrors), cache_line));
  allocator.zero(staged.error_state, sizeof(WriteErrors));
  staged.watcher_max = queued.watcher_max;
  staged.worker_count = worker_count;
  staged.holder_max = maximum(minimum(frame_count / staged_frames_min(1), worker_count), 1u);
  if (image != nullptr) *image = staged;
  void* const memory = allocator.allocate(sizeof(StagedDevices), cache_line);
  allocator.copy_in(memory, &staged, sizeof(staged));
  return static_cast<StagedDevices*>(memory);
}

// Before the first access.
inline void set_staged_devices(EngineAllocator& allocator, StagedDevices* staged, const Device* devices) {
  allocator.copy_in(&staged->devices, &devices, sizeof(devices));
}

}  // namespace gpu4fs::device
