// Memory and beginning of a virtual queue.
#pragma once

#include "base/check.hpp"
#include "device/nvme/queue_types.hpp"

namespace gpu4fs::nvme {

// What the controller shares with the engine.
struct QueueEntries {
  SubmissionEntry* submissions;
  CompletionEntry* completions;
  u32* submission_doorbell;
  u32* completion_doorbell;
};

GPU4FS_FN constexpr bool is_queue_depth(u32 depth) {
  return is_power_of_two(depth) && depth >= queue_depth_min && depth <= queue_depth_max;
}

// Engine memory besides the VirtualQueue itself; aligned to cache_line.
GPU4FS_FN constexpr u64 queue_table_bytes(u32 depth) {
  return u64{depth} * (sizeof(CommandSlot) + 2 * sizeof(u32));
}

// The empty queue. The controller has none of its commands and its entries are not in use. `first_ticket` is a multiple
// of 2 * depth, so places begin at 0 and the phase at 1; tests begin near the wrap of the counters. Identifiers of the
// queue before stay unknown if `slots` keeps its content.
GPU4FS_FN inline void reset_queue(VirtualQueue& queue, u32 first_ticket = 0) {
  GPU4FS_CHECK(is_queue_depth(queue.depth));
  GPU4FS_CHECK_EQ(first_ticket % (2 * queue.depth), 0u);
  for (u32 i = 0; i < queue.depth; ++i) {
    queue.marks[i] = first_ticket + i + 1 - queue.depth;
    queue.free_ids[i] = i;
    queue.slots[i].state &= ~1u;
    queue.completions[i] = {};
  }
  queue.next_ticket = first_ticket;
  queue.completed = first_ticket;
  queue.tail = first_ticket;
  queue.tail_lock = 0;
  queue.poll_token = 0;
}

// `table` has queue_table_bytes(depth) zeroed bytes.
GPU4FS_FN inline void place_queue(VirtualQueue& queue, const QueueEntries& entries, u8* table, u32 depth, u16 queue_id,
                                  ControllerState* controller) {
  GPU4FS_CHECK(is_queue_depth(depth));
  queue = {};
  queue.submissions = entries.submissions;
  queue.completions = entries.completions;
  queue.submission_doorbell = entries.submission_doorbell;
  queue.completion_doorbell = entries.completion_doorbell;
  queue.marks = reinterpret_cast<u32*>(table);
  queue.free_ids = queue.marks + depth;
  queue.slots = reinterpret_cast<CommandSlot*>(queue.free_ids + depth);
  queue.controller = controller;
  queue.depth = depth;
  queue.queue_id = queue_id;
  reset_queue(queue);
}

}  // namespace gpu4fs::nvme
