// An I/O queue on the heap, with helpers for both of its sides.
#pragma once

#include <gtest/gtest.h>

#include "base/limits.hpp"
#include "device/queue/io_consumer.hpp"
#include "device/queue/io_queue.hpp"
#include "device/queue/io_queue_build.hpp"
#include "support/heap_allocator.hpp"

namespace gpu4fs::test {

class IoQueueMemory {
 public:
  explicit IoQueueMemory(u32 slot_count, bool producer_can_wake = true) {
    void* const shared = allocator_.allocate(device::io_queue_shared_bytes(slot_count), cache_line);
    queue_ = device::build_io_queue(allocator_, slot_count, {shared, shared}, producer_can_wake);
    page_ = allocator_.allocate(page_size, page_size);
  }

  device::IoQueue& queue() { return *queue_; }
  device::IoQueueShared& shared() { return *queue_->shared; }

  device::IoRequest read_of(u64 page) {
    return {device::IoOperation::read, 0, page * page_size, u32{page_size}, 0, page_};
  }
  u32 submit_read(u64 page) { return device::submit(queue(), read_of(page)); }
  // Only this number of slots can be taken afterwards, so they are used again and again.
  void keep_slots(u32 count) {
    for (u32 left = queue_->slot_count; left > count; --left) ASSERT_NE(device::take_slot(queue()), device::no_io_slot);
  }
  u64 free_count() const { return queue_->free_tail - queue_->free_head; }
  // Takes the next request, whose page is returned, or ~0 if there is none.
  u64 take_page(u32* slot) {
    return device::take(shared(), slot) ? device::request_of(shared(), *slot).offset / page_size : ~u64{0};
  }

 private:
  HeapAllocator allocator_;
  device::IoQueue* queue_;
  void* page_;
};

}  // namespace gpu4fs::test
