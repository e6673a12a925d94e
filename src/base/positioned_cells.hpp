// The cells of a bounded queue of 32-bit items. Producers take positions, and put an item into the cell of each.
// Consumers take the items in the order of their positions.
//
// A cell is one 8-byte word {position + 1, item}, so a consumer sees item and position in one load. It then advances
// `head` by a compare-exchange. A consumer that stops in the middle blocks no other, and an empty queue costs two
// loads. The users keep the number of positions that were taken and not popped at most at the capacity.
//
// Who pops an item sees what its producer stored before put().
#pragma once

#include "base/atomics.hpp"
#include "base/config.hpp"
#include "base/types.hpp"

namespace gpu4fs {

// `scope` includes producers and consumers.
template <Scope scope>
struct PositionedCells {
  u64* cells;    // capacity words, zero at first
  u32 capacity;  // a power of two

  GPU4FS_FN static constexpr u64 cell_of(u64 position, u32 item) {
    return (((position + 1) & 0xffffffffu) << 32) | item;
  }

  GPU4FS_FN void put(u64 position, u32 item) const {
    store<Order::release, scope>(&cells[position & (capacity - 1)], cell_of(position, item));
  }

  // Of a producer that has passed a releasing fence of the scope since the stores that the consumer has to see. Several
  // items need one fence. In a kernel a release of its own would wait for all stores on their way, once an item.
  GPU4FS_FN void put_behind_fence(u64 position, u32 item) const {
    constexpr Order order = GPU4FS_DEVICE_CODE ? Order::relaxed : Order::release;
    store<order, scope>(&cells[position & (capacity - 1)], cell_of(position, item));
  }

  // A look at an empty queue acquires nothing. On a GPU an acquire would empty the first-level cache of the whole
  // multiprocessor each time. `head`: the position of the first item; atomic, of the consumers.
  GPU4FS_FN bool pop(u64* head, u32* item) const {
    u64 position = load<Order::relaxed, scope>(head);
    for (;;) {
      u64* const place = &cells[position & (capacity - 1)];
      u64 cell = load<Order::relaxed, scope>(place);
      if ((cell >> 32) == ((position + 1) & 0xffffffffu)) cell = load<Order::acquire, scope>(place);
      if ((cell >> 32) != ((position + 1) & 0xffffffffu)) {
        // The queue is empty, or another consumer was here between the two loads.
        const u64 now = load<Order::relaxed, scope>(head);
        if (now == position) return false;
        position = now;
        continue;
      }
      if (compare_exchange<Order::relaxed, scope>(head, position, position + 1)) {
        *item = static_cast<u32>(cell);
        return true;
      }
    }
  }

  // The item at this position, if it was put there. Who sees it sees what its producer stored before.
  GPU4FS_FN bool look(u64 position, u32* item) const {
    const u64* const place = &cells[position & (capacity - 1)];
    const u64 wanted = (position + 1) & 0xffffffffu;
    if (load<Order::relaxed, scope>(place) >> 32 != wanted) return false;
    const u64 cell = load<Order::acquire, scope>(place);
    *item = static_cast<u32>(cell);
    return cell >> 32 == wanted;
  }

  // Takes `count` items from `position` on, which the caller has seen. False: another consumer was here.
  GPU4FS_FN bool advance(u64* head, u64 position, u32 count) const {
    return compare_exchange<Order::relaxed, scope>(head, position, position + count);
  }

  // Racy: for idle tests that are repeated after the consumer has announced that it will sleep.
  GPU4FS_FN bool looks_empty(const u64* head) const {
    const u64 position = load<Order::acquire, scope>(head);
    const u64 cell = load<Order::acquire, scope>(&cells[position & (capacity - 1)]);
    return (cell >> 32) != ((position + 1) & 0xffffffffu);
  }
};

}  // namespace gpu4fs
