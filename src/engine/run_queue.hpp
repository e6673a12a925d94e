// The run queue: a bounded queue of 32-bit items for any number of producers and consumers.
//
// push takes positions by one fetch_add and stores the items. It never waits, because the users of the queue keep the
// number of items below the capacity. In an engine, every command is in it at most once as itself and once for tasks
// that were held back. A worker that leaves a kernel may add one more item for tasks, which may be done before the item
// is popped. The capacity is doubled for these items.
//
// Only a producer between its fetch_add and its store can delay others. Then pop returns "empty" and does not wait. No
// item is lost, because producers wake workers after the store.
#pragma once

#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/positioned_cells.hpp"
#include "base/types.hpp"

namespace gpu4fs::engine {

struct RunQueue {
  alignas(cache_line) u64 head;
  alignas(cache_line) u64 tail;
  alignas(cache_line) u64* cells;  // capacity words, zero at first
  u32 capacity;                    // a power of two

  using Cells = PositionedCells<Scope::engine>;

  GPU4FS_FN static constexpr u64 cell_of(u64 position, u32 item) { return Cells::cell_of(position, item); }

  // Takes `count` consecutive positions. The caller then fills each by put().
  GPU4FS_FN u64 claim(u32 count) {
    const u64 position = fetch_add<Order::relaxed, Scope::engine>(&tail, u64{count});
    const u64 first = load<Order::acquire, Scope::engine>(&head);
    GPU4FS_CHECK_LE(position + count - first, u64{capacity});
    return position;
  }
  GPU4FS_FN void put(u64 position, u32 item) { positions().put(position, item); }
  GPU4FS_FN void push(u32 item) { put(claim(1), item); }

  GPU4FS_FN bool pop(u32* item) { return positions().pop(&head, item); }

  // Racy: for idle tests that are repeated after the worker has announced that it will sleep.
  GPU4FS_FN bool looks_empty() const { return positions().looks_empty(&head); }

 private:
  GPU4FS_FN Cells positions() const { return {cells, capacity}; }
};

}  // namespace gpu4fs::engine
