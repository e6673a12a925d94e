// Free slots: a stack for any number of threads, so the warmest slot is reused first. `top` has a counter in its upper
// half. It detects that a slot was popped and pushed again between a load and its compare-exchange.
//
// Engine memory only.
#pragma once

#include "base/atomics.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"

namespace gpu4fs {

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

}  // namespace gpu4fs
