// Allocates drives and their queues. Host only.
#pragma once

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/host/engine_allocator.hpp"
#include "base/limits.hpp"
#include "device/drives/drive_types.hpp"
#include "device/nvme/queue_build.hpp"

namespace gpu4fs::device {

// What a drive can do, and how it is used.
struct DriveSetup {
  u64 block_count = 0;
  u32 namespace_id = 1;
  u32 block_bytes = 4096;      // 512 or 4096
  u64 transfer_bytes_max = 0;  // MDTS; 0: no limit
  bool has_zeroes = false;
  bool has_deallocate = false;
  bool read_only = false;
  bool can_abort = false;
  u64 command_timeout_ns = drive_timeout_ns;
};

// The parts of the engine's memory that a drive's controller accesses, and the host with it at the same addresses.
struct DriveQueueEntries {
  nvme::SubmissionEntry* submissions;
  nvme::CompletionEntry* completions;
  u32* submission_doorbell;
  u32* completion_doorbell;
};

// The image of a drive without queues.
inline Drive drive_image(const DriveSetup& setup) {
  GPU4FS_CHECK(is_power_of_two(setup.block_bytes) && setup.block_bytes <= page_size);
  Drive image{};
  image.command_timeout_ns = setup.command_timeout_ns;
  image.block_count = setup.block_count;
  image.namespace_id = setup.namespace_id;
  image.block_shift = count_trailing_zeros(setup.block_bytes);
  image.transfer_page_max = drive_transfer_page_max;
  if (setup.transfer_bytes_max != 0) {
    image.transfer_page_max =
        static_cast<u32>(minimum(setup.transfer_bytes_max / page_size, u64{drive_transfer_page_max}));
  }
  GPU4FS_CHECK_GT(image.transfer_page_max, 0u);
  image.has_zeroes = setup.has_zeroes ? 1 : 0;
  image.has_deallocate = setup.has_deallocate ? 1 : 0;
  image.read_only = setup.read_only ? 1 : 0;
  image.can_abort = setup.can_abort ? 1 : 0;
  return image;
}

// A drive with queues of its own.
struct BuiltDrive {
  Drive* drive = nullptr;         // engine memory
  DriveSignal* signal = nullptr;  // the host's too
  std::vector<DriveQueueEntries> entries;
};

namespace detail {

// Zeroed, and the host accesses it at the same address.
template <class T>
T* allocate_shared(EngineAllocator& shared, u64 count) {
  void* const memory = shared.allocate(count * sizeof(T), page_size);
  shared.zero(memory, count * sizeof(T));
  return static_cast<T*>(memory);
}

// The virtual queue is made here and copied: `allocator` may give memory that the host does not access.
inline nvme::VirtualQueue* build_virtual_queue(EngineAllocator& allocator, const DriveQueueEntries& entries, u32 depth,
                                               u16 queue_id, nvme::ControllerState* controller) {
  const u64 table_bytes = nvme::queue_table_bytes(depth);
  std::vector<u64> table(divide_up(table_bytes, sizeof(u64)));
  u8* const image_table = reinterpret_cast<u8*>(table.data());
  nvme::VirtualQueue image;
  nvme::place_queue(
      image, {entries.submissions, entries.completions, entries.submission_doorbell, entries.completion_doorbell},
      image_table, depth, queue_id, controller);
  u8* const place = static_cast<u8*>(allocator.allocate(table_bytes, cache_line));
  allocator.copy_in(place, image_table, table_bytes);
  image.marks = reinterpret_cast<u32*>(place);
  image.free_ids = image.marks + depth;
  image.slots = reinterpret_cast<nvme::CommandSlot*>(image.free_ids + depth);
  void* const queue = allocator.allocate(sizeof(nvme::VirtualQueue), cache_line);
  allocator.copy_in(queue, &image, sizeof(image));
  return static_cast<nvme::VirtualQueue*>(queue);
}

}  // namespace detail

// `shared`: memory that engine, host and controller access at the same addresses. Queues are numbered from 1.
inline BuiltDrive build_drive(EngineAllocator& allocator, EngineAllocator& shared, const DriveSetup& setup,
                              u32 queue_count, u32 depth) {
  GPU4FS_CHECK_GT(queue_count, 0u);
  GPU4FS_CHECK_LE(queue_count, drive_queue_max);
  BuiltDrive built;
  built.signal = detail::allocate_shared<DriveSignal>(shared, 1);
  Drive image = drive_image(setup);
  image.signal = built.signal;
  image.queue_count = queue_count;
  void* const state = allocator.allocate(sizeof(nvme::ControllerState), cache_line);
  allocator.zero(state, sizeof(nvme::ControllerState));
  image.controller = static_cast<nvme::ControllerState*>(state);
  constexpr u64 words_per_line = cache_line / sizeof(u32);
  for (u32 i = 0; i < queue_count; ++i) {
    u32* const doorbells = detail::allocate_shared<u32>(shared, 2 * words_per_line);
    const DriveQueueEntries entries{detail::allocate_shared<nvme::SubmissionEntry>(shared, depth),
                                    detail::allocate_shared<nvme::CompletionEntry>(shared, depth), doorbells,
                                    doorbells + words_per_line};
    image.queues[i] = detail::build_virtual_queue(allocator, entries, depth, static_cast<u16>(i + 1), image.controller);
    built.entries.push_back(entries);
  }
  built.drive = static_cast<Drive*>(allocator.allocate(sizeof(Drive), cache_line));
  allocator.copy_in(built.drive, &image, sizeof(image));
  return built;
}

// A set without drives. `memory`: what drives reach. The lists of commands lie in `shared`, under bus addresses that
// are equal to their addresses.
inline DriveSet drive_set_image(EngineAllocator& shared, u32 slot_count, const std::vector<DriveMemory>& memory) {
  GPU4FS_CHECK_LE(memory.size(), u64{drive_memory_max});
  DriveSet image{};
  for (const DriveMemory& range : memory) image.memory[image.memory_count++] = range;
  image.slot_count = slot_count;
  image.lists = static_cast<u8*>(shared.allocate(slot_count * drive_list_bytes, page_size));
  image.lists_bus_address = reinterpret_cast<u64>(image.lists);
  return image;
}

}  // namespace gpu4fs::device
