// The I/O queue: how code of the engine, on a GPU or on CPU threads, asks threads of the host for I/O.
//
// A request lies in a slot. The producer takes a free slot, fills it, and puts its number into the cell of the next
// position. Consumers, which are threads of a controller, pop the numbers. They complete the slots in any order: each
// has a word for its status. The producer that has seen the status releases the slot. So a slow request holds up no
// other one, and there is room for exactly slot_count requests between submit() and release().
//
// A GPU has no native read-modify-write for host memory. So the queue has two parts: IoQueue in engine memory, where
// the producers compete for slots and positions, and IoQueueShared in host memory, where each word has one writer or is
// accessed by threads of the host alone. All producers run on one processor.
//
// Requests that nobody waits for report their completion: the number of the slot gets into a second list of cells, from
// which any producer takes it (take_reports()).
//
// If all requests become commands of drives, nobody consumes. Then slots and reports lie in engine memory, where a GPU
// reaches them in a fraction of the time (keep_slots_private()).
//
// Memory order. The consumer that has popped a slot sees what its producer stored before submit(), also in the memory
// of the request. Whoever sees that a slot has completed, by poll(), sees what the controller stored into this memory.
// The scope of these two steps is the system. What only producers share has the scope of the engine.
#pragma once

#include <type_traits>

#include "base/bits.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/positioned_cells.hpp"
#include "base/status.hpp"
#include "base/types.hpp"
#include "device/queue/io_request.hpp"

namespace gpu4fs::device {

struct DriveSet;  // device/drives/drive_types.hpp

inline constexpr u32 io_slot_max = 1u << 16;
inline constexpr u32 no_io_slot = ~u32{0};
inline constexpr u32 io_consumer_max = 64;  // bits of IoQueueShared::sleeping

// The status word of a slot that has not completed.
inline constexpr u32 io_pending = ~u32{0};
static_assert(status_count < io_pending);

struct alignas(64) IoSlot {
  IoRequest request;  // of the producer until it is published
  u32 status;         // atomic: io_pending of the producer before it is published, then a Status of the consumer
  // Of requests to drives (drives/shared_commands.hpp): the slot of the next page of the same command, and of the first
  // one how many there are.
  u32 next_slot;
  u32 chain_count;
};

// Zeroed memory with slot_count is an empty queue without consumers. The cells of requests, those of reports, and the
// slots follow it.
struct IoQueueShared {
  alignas(cache_line) u64 head;  // atomic, of consumers: position of the first request that was not taken
  u64 report_tail;               // atomic, of consumers: the next position of a report

  // Atomic; of consumers, and of producers on the host. Bit i: consumer i sleeps or is about to, and nobody has begun
  // to wake it.
  alignas(cache_line) u64 sleeping;

  alignas(cache_line) u32 completion_count;  // atomic, of consumers; a futex word
  u32 waiter_count;                          // atomic: threads of the host that wait for a completion

  // Atomic, of the host: 1 while there may be producers that cannot wake, so consumers must not sleep.
  alignas(cache_line) u32 must_poll;
  u32 slot_count;                  // a power of two
  i32 doorbells[io_consumer_max];  // by consumer: an eventfd of this process
};

struct IoQueue {
  alignas(cache_line) u64 free_head;    // atomic: position of the slot that is taken next
  alignas(cache_line) u64 free_tail;    // atomic: position of the slot that is released next
  alignas(cache_line) u64 tail;         // atomic: the next position of a request
  alignas(cache_line) u64 report_head;  // atomic: position of the first report that was not taken
  alignas(cache_line) u64 report_tail;  // atomic: with drives, the next position of a report
  IoQueueShared* shared;                // as producers address it
  IoSlot* slots;                        // slot_count of them, behind `shared` or in engine memory
  u64* report_words;                    // slot_count cells of reports, beside the slots
  u64* free_cells;                      // slot_count words in engine memory (detail::free_cells())
  u32 slot_count;                       // as in `shared`
  u32 producer_can_wake;  // 1: producers are threads of this process, and ring() wakes a sleeping consumer

  // Of producers that are threads of this process: carries out a request without a slot, in the calling thread. Null:
  // they submit all requests. Not for kernels, where the pointers mean nothing (queue/io_direct.hpp).
  Status (*carry_out)(void* controller, const IoRequest& request);
  void* controller;

  // Not null: all requests are commands of drives, and nobody consumes the cells (drives/drive_requests.hpp).
  DriveSet* drives;
};

static_assert(std::is_trivially_copyable_v<IoQueue> && std::is_trivially_copyable_v<IoQueueShared>);
static_assert(sizeof(IoQueueShared) % alignof(IoSlot) == 0);

// `slot_count`: a power of two from 8 on.
GPU4FS_FN constexpr u64 io_queue_shared_bytes(u32 slot_count) {
  return sizeof(IoQueueShared) + u64{slot_count} * (2 * sizeof(u64) + sizeof(IoSlot));
}

namespace detail {

using IoCells = PositionedCells<Scope::system>;
using FreeCells = PositionedCells<Scope::engine>;

// A slot is in at most one cell, so there is a cell for each.
GPU4FS_FN inline IoCells io_cells(IoQueueShared* shared, u32 slot_count) {
  return {reinterpret_cast<u64*>(shared + 1), slot_count};
}
GPU4FS_FN inline u64* report_words_behind(IoQueueShared* shared, u32 slot_count) {
  return reinterpret_cast<u64*>(shared + 1) + slot_count;
}
GPU4FS_FN inline IoSlot* io_slots(IoQueueShared* shared, u32 slot_count) {
  return reinterpret_cast<IoSlot*>(reinterpret_cast<u64*>(shared + 1) + 2 * u64{slot_count});
}

// The free slots, the one that was released first at the head. A slot is in at most one cell.
GPU4FS_FN inline FreeCells free_cells(const IoQueue& queue) {
  return {queue.free_cells, queue.slot_count};
}

}  // namespace detail

}  // namespace gpu4fs::device
