// The driver's virtual queues and the queues of a MemoryDrive, connected, in one piece of engine memory.
//
// In a kernel the piece is GPU memory: then entries and doorbells never leave it.
#pragma once

#include "base/bits.hpp"
#include "device/nvme/drive/memory_drive.hpp"
#include "device/nvme/queue_build.hpp"

namespace gpu4fs::nvme {

// Plain data: where everything lies.
struct ConnectedQueues {
  MemoryDrive* drive;
  ControllerState* controller;
  VirtualQueue* queues;
  DriveQueue* drive_queues;
  u8* pairs;  // `pair_bytes` for each queue
  u64 pair_bytes;
  u64 bytes;  // of all
  u32 queue_count;
  u32 depth;
};

// Of the piece that begins at `memory`, which is aligned to a page; null asks for the size.
GPU4FS_FN inline ConnectedQueues lay_out_queues(u8* memory, u32 queue_count, u32 depth) {
  const u64 drive_end = align_up(sizeof(MemoryDrive), cache_line);
  const u64 controller_end = drive_end + align_up(sizeof(ControllerState), cache_line);
  const u64 queues_end = controller_end + u64{queue_count} * sizeof(VirtualQueue);
  const u64 drive_queues_end = align_up(queues_end + u64{queue_count} * sizeof(DriveQueue), page_size);
  ConnectedQueues set{};
  set.queue_count = queue_count;
  set.depth = depth;
  // Two doorbells, both kinds of entries, the driver's table, the drive's times.
  const u64 entry_bytes = sizeof(SubmissionEntry) + sizeof(CompletionEntry) + sizeof(u64);
  set.pair_bytes = 2 * cache_line + depth * entry_bytes + align_up(queue_table_bytes(depth), cache_line);
  set.pair_bytes = align_up(set.pair_bytes, page_size);
  set.bytes = drive_queues_end + queue_count * set.pair_bytes;
  set.drive = reinterpret_cast<MemoryDrive*>(memory);
  set.controller = reinterpret_cast<ControllerState*>(memory + drive_end);
  set.queues = reinterpret_cast<VirtualQueue*>(memory + controller_end);
  set.drive_queues = reinterpret_cast<DriveQueue*>(memory + queues_end);
  set.pairs = memory + drive_queues_end;
  return set;
}

// One queue of `set`, whose piece is zeroed. Queues are numbered from 1 for the controller.
GPU4FS_FN inline void connect_queue(const ConnectedQueues& set, u32 index) {
  u8* const pair = set.pairs + index * set.pair_bytes;
  u32* const submission_doorbell = reinterpret_cast<u32*>(pair);
  u32* const completion_doorbell = reinterpret_cast<u32*>(pair + cache_line);
  SubmissionEntry* const submissions = reinterpret_cast<SubmissionEntry*>(pair + 2 * cache_line);
  CompletionEntry* const completions = reinterpret_cast<CompletionEntry*>(submissions + set.depth);
  u64* const arrivals_ns = reinterpret_cast<u64*>(completions + set.depth);
  u8* const table = reinterpret_cast<u8*>(arrivals_ns + set.depth);
  const u16 id = static_cast<u16>(index + 1);
  place_queue(set.queues[index], {submissions, completions, submission_doorbell, completion_doorbell}, table, set.depth,
              id, set.controller);
  place_drive_queue(set.drive_queues[index],
                    {submissions, completions, submission_doorbell, completion_doorbell, arrivals_ns}, set.depth, id);
}

// The drive of `set` as `drive` describes it, but with the queues of the set. One rank; its stores come before anybody
// uses the drive.
GPU4FS_FN inline void place_drive(const ConnectedQueues& set, const MemoryDrive& drive) {
  *set.drive = drive;
  set.drive->queues = set.drive_queues;
  set.drive->queue_count = set.queue_count;
}

}  // namespace gpu4fs::nvme
