// Allocates the producers' part of an I/O queue. Host only.
#pragma once

#include <cstring>
#include <vector>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/host/engine_allocator.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"
#include "device/queue/io_queue_types.hpp"

namespace gpu4fs::device {

struct IoQueueMemory {
  void* host;    // io_queue_shared_bytes(slot_count), aligned to cache_line; it outlives the queue
  void* engine;  // the same memory as the engine addresses it
};

// Makes `memory.host` an empty IoQueueShared. The answer is engine memory. `slot_count`: a power of two from 8 to
// io_slot_max. `producer_can_wake`: producers are threads of this process.
inline IoQueue* build_io_queue(EngineAllocator& allocator, u32 slot_count, IoQueueMemory memory,
                               bool producer_can_wake) {
  GPU4FS_CHECK(is_power_of_two(slot_count));
  GPU4FS_CHECK_GE(slot_count, 8u);
  GPU4FS_CHECK_LE(slot_count, io_slot_max);
  GPU4FS_CHECK(is_aligned(memory.host, cache_line));
  std::memset(memory.host, 0, io_queue_shared_bytes(slot_count));
  IoQueueShared* const shared = static_cast<IoQueueShared*>(memory.host);
  shared->slot_count = slot_count;
  for (i32& doorbell : shared->doorbells) doorbell = -1;

  std::vector<u64> cells(slot_count);
  for (u32 i = 0; i < slot_count; ++i) cells[i] = detail::FreeCells::cell_of(i, i);
  IoQueue queue{};
  queue.free_cells = static_cast<u64*>(allocator.allocate(slot_count * sizeof(u64), cache_line));
  allocator.copy_in(queue.free_cells, cells.data(), slot_count * sizeof(u64));
  queue.free_tail = slot_count;
  queue.shared = static_cast<IoQueueShared*>(memory.engine);
  queue.slots = detail::io_slots(queue.shared, slot_count);
  queue.report_words = detail::report_words_behind(queue.shared, slot_count);
  queue.slot_count = slot_count;
  queue.producer_can_wake = producer_can_wake ? 1 : 0;
  void* const place = allocator.allocate(sizeof(IoQueue), cache_line);
  allocator.copy_in(place, &queue, sizeof(queue));
  return static_cast<IoQueue*>(place);
}

// Moves slots and reports of a queue that nobody has used yet to engine memory: nobody will consume. Returns where the
// slots are.
inline const IoSlot* keep_slots_private(EngineAllocator& allocator, IoQueue* queue, u32 slot_count) {
  const u64 slot_bytes = u64{slot_count} * sizeof(IoSlot);
  const u64 word_bytes = u64{slot_count} * sizeof(u64);
  IoSlot* const slots = static_cast<IoSlot*>(allocator.allocate(slot_bytes, cache_line));
  u64* const report_words = static_cast<u64*>(allocator.allocate(word_bytes, cache_line));
  allocator.zero(slots, slot_bytes);
  allocator.zero(report_words, word_bytes);
  allocator.copy_in(&queue->slots, &slots, sizeof(slots));
  allocator.copy_in(&queue->report_words, &report_words, sizeof(report_words));
  return slots;
}

}  // namespace gpu4fs::device
