// The run queue: a bounded queue of 32-bit items for any number of producers and consumers.
//
// push takes positions by one fetch_add and stores the items. It never waits, because the users of the queue keep the
// number of items below the capacity. In an engine, every command is in it at most once as itself and once for tasks
// that were held back. A worker that leaves a kernel may add one more item for tasks, which may be done before the item
// is popped. The capacity is doubled for these items.
//
// A cell is one 8-byte word {position + 1, item}, so a consumer sees item and position in one load. It then advances
// `head` by a compare-exchange. A consumer that stops in the middle blocks no other, and an empty queue costs two
// loads. Only a producer between its fetch_add and its store can delay others. Then pop returns "empty" and does not
// wait. No item is lost, because producers wake workers after the store.
#pragma once

#include "base/atomics.hpp"
#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"

namespace gpu4fs::engine {

struct RunQueue {
  alignas(cache_line) u64 head;
  alignas(cache_line) u64 tail;
  alignas(cache_line) u64* cells;  // capacity words, zero at first
  u32 capacity;                    // a power of two

  GPU4FS_FN static constexpr u64 cell_of(u64 position, u32 item) {
    return (((position + 1) & 0xffffffffu) << 32) | item;
  }

  // Takes `count` consecutive positions. The caller then fills each by put().
  GPU4FS_FN u64 claim(u32 count) {
    const u64 position = fetch_add<Order::relaxed, Scope::engine>(&tail, u64{count});
    const u64 first = load<Order::acquire, Scope::engine>(&head);
    GPU4FS_CHECK_LE(position + count - first, u64{capacity});
    return position;
  }
  GPU4FS_FN void put(u64 position, u32 item) {
    store<Order::release, Scope::engine>(&cells[position & (capacity - 1)], cell_of(position, item));
  }
  GPU4FS_FN void push(u32 item) { put(claim(1), item); }

  // A look at an empty queue acquires nothing. On a GPU an acquire would empty the first-level cache of the whole
  // multiprocessor each time.
  GPU4FS_FN bool pop(u32* item) {
    u64 position = load<Order::relaxed, Scope::engine>(&head);
    for (;;) {
      u64* const place = &cells[position & (capacity - 1)];
      u64 cell = load<Order::relaxed, Scope::engine>(place);
      if ((cell >> 32) == ((position + 1) & 0xffffffffu)) cell = load<Order::acquire, Scope::engine>(place);
      if ((cell >> 32) != ((position + 1) & 0xffffffffu)) {
        // The queue is empty, or another consumer was here between the two loads.
        const u64 now = load<Order::relaxed, Scope::engine>(&head);
        if (now == position) return false;
        position = now;
        continue;
      }
      if (compare_exchange<Order::relaxed, Scope::engine>(&head, position, position + 1)) {
        *item = static_cast<u32>(cell);
        return true;
      }
    }
  }

  // Racy: for idle tests that are repeated after the worker has announced that it will sleep.
  GPU4FS_FN bool looks_empty() const {
    const u64 position = load<Order::acquire, Scope::engine>(&head);
    const u64 cell = load<Order::acquire, Scope::engine>(&cells[position & (capacity - 1)]);
    return (cell >> 32) != ((position + 1) & 0xffffffffu);
  }
};

// Free command slots: a stack, so the warmest slot is reused first. `top` has a counter in its upper half. It detects
// that a slot was popped and pushed again between a load and its compare-exchange.
struct FreeList {
  alignas(cache_line) u64 top;    // lower half: index + 1, 0: empty
  u32* next;                      // by index: index + 1 of the slot below; atomic
  alignas(cache_line) u32 count;  // atomic, a hint

  GPU4FS_FN bool pop(u32* index) {
    u64 old = load<Order::acquire, Scope::engine>(&top);
    for (;;) {
      const u32 first = static_cast<u32>(old);
      if (first == 0) return false;
      const u32 below = load<Order::relaxed, Scope::engine>(&next[first - 1]);
      const u64 desired = (((old >> 32) + 1) << 32) | below;
      if (compare_exchange<Order::acq_rel, Scope::engine>(&top, old, desired)) {
        subtract<Scope::engine>(&count, 1u);
        *index = first - 1;
        return true;
      }
    }
  }

  GPU4FS_FN void push(u32 index) {
    u64 old = load<Order::relaxed, Scope::engine>(&top);
    for (;;) {
      store<Order::relaxed, Scope::engine>(&next[index], static_cast<u32>(old));
      const u64 desired = (((old >> 32) + 1) << 32) | (index + 1);
      if (compare_exchange<Order::acq_rel, Scope::engine>(&top, old, desired)) break;
    }
    add<Scope::engine>(&count, 1u);
  }
};

}  // namespace gpu4fs::engine
