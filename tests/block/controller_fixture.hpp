// A medium with a queue and a controller, and requests that a test waits for.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/limits.hpp"
#include "block/block_medium.hpp"
#include "block/controller.hpp"
#include "block/disk_file.hpp"
#include "device/queue/io_consumer.hpp"
#include "device/queue/io_queue_build.hpp"
#include "device/queue/io_wait.hpp"
#include "support/heap_allocator.hpp"

namespace gpu4fs::test {

inline constexpr u32 test_device = 3;

class ControllerFixture {
 public:
  static constexpr u32 slot_count = 512;

  // `pages`: of the test's memory.
  ControllerFixture(const std::string& path, u64 pages, block::ControllerOptions options,
                    block::MediumOptions medium_options = {})
      : medium_(block::BlockMedium::open(path, medium_options)) {
    void* const shared = allocator_.allocate(device::io_queue_shared_bytes(slot_count), cache_line);
    queue_ = device::build_io_queue(allocator_, slot_count, {shared, shared}, true);
    memory_ = static_cast<u8*>(allocator_.allocate(pages * page_size, page_size));
    std::memset(memory_, 0, pages * page_size);
    std::vector<const block::BlockMedium*> mediums(test_device + 1, nullptr);
    mediums[test_device] = &medium_;
    controller_ = block::start_controller(*queue_->shared, mediums, std::move(options));
  }

  device::IoQueue& queue() { return *queue_; }
  block::Controller& controller() { return *controller_; }
  const block::BlockMedium& medium() const { return medium_; }
  u8* page(u64 number) { return memory_ + number * page_size; }
  void fill(u64 number, u8 byte) { std::memset(page(number), byte, page_size); }
  bool has(u64 number, u8 byte) {
    const std::vector<u8> expected(page_size, byte);
    return std::memcmp(page(number), expected.data(), page_size) == 0;
  }
  void stop() { controller_.reset(); }
  void close_medium() {
    controller_->forget_medium(test_device);
    medium_.close();
  }

  // `page`: of the memory. Not rung.
  u32 submit(device::IoOperation operation, u64 medium_page, u64 page_number, u64 pages = 1) {
    const bool is_flush = operation == device::IoOperation::flush;
    void* const memory = device::moves_bytes(operation) ? page(page_number) : nullptr;
    const u32 slot = device::submit(queue(), {operation, test_device, is_flush ? 0 : medium_page * page_size,
                                              is_flush ? 0 : static_cast<u32>(pages * page_size), 0, memory});
    EXPECT_NE(slot, device::no_io_slot);
    return slot;
  }
  // A write of one page that nobody waits for alone. Not rung.
  u32 submit_background(u64 medium_page, u64 page_number) {
    const u32 slot = device::submit(queue(), {device::IoOperation::write, test_device, medium_page * page_size,
                                              u32{page_size}, 1, page(page_number)});
    EXPECT_NE(slot, device::no_io_slot);
    return slot;
  }
  // In this thread, past the queue.
  Status carry_out_now(device::IoOperation operation, u64 medium_page, u64 page_number, u64 pages = 1) {
    const bool is_flush = operation == device::IoOperation::flush;
    void* const memory = device::moves_bytes(operation) ? page(page_number) : nullptr;
    return controller().carry_out_now({operation, test_device, is_flush ? 0 : medium_page * page_size,
                                       is_flush ? 0 : static_cast<u32>(pages * page_size), 0, memory});
  }
  void ring() { device::ring(queue()); }
  Status wait(u32 slot) { return device::wait_for(queue(), slot); }
  Status carry_out(device::IoOperation operation, u64 medium_page, u64 page_number, u64 pages = 1) {
    const u32 slot = submit(operation, medium_page, page_number, pages);
    ring();
    return wait(slot);
  }

 private:
  HeapAllocator allocator_;
  block::BlockMedium medium_;
  device::IoQueue* queue_;
  u8* memory_;
  std::unique_ptr<block::Controller> controller_;
};

}  // namespace gpu4fs::test
