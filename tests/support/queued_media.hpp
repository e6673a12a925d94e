// Media behind an I/O queue for pools of tests (TestPoolOptions::has_queue). A thread is their controller: it copies
// between frames and the memory of the devices, and a test decides how requests end.
#pragma once

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "base/limits.hpp"
#include "device/device_types.hpp"
#include "device/queue/io_consumer.hpp"
#include "device/queue/io_queue_build.hpp"
#include "device/staged/staged_build.hpp"
#include "support/heap_allocator.hpp"

namespace gpu4fs::test {

class QueuedMedia {
 public:
  static constexpr u32 slot_count = 256;

  // Called by the controller. They are set while no request is in flight.
  std::function<Status(const device::IoRequest&)> before;  // ok, or the status with which the request ends at once
  std::function<void(const device::IoRequest&)> after;     // it was carried out and has not ended
  std::function<void()> on_report;                         // somebody has to look for reports

  QueuedMedia() = default;
  QueuedMedia(const QueuedMedia&) = delete;
  QueuedMedia& operator=(const QueuedMedia&) = delete;
  ~QueuedMedia() { stop(); }

  // Takes the memory of the devices as their media, and begins to serve.
  device::QueuedMedia start(std::vector<device::Device>& devices) {
    stop();
    void* const shared = allocator_.allocate(device::io_queue_shared_bytes(slot_count), cache_line);
    queue_ = device::build_io_queue(allocator_, slot_count, {shared, shared}, true);
    memory_.clear();
    for (device::Device& device : devices) {
      memory_.push_back(device.base);
      device.base = nullptr;
    }
    stopping_ = false;
    thread_ = std::thread([this] { serve(); });
    return {queue_, slot_count, nullptr};
  }
  // All requests have ended. The engine does not run.
  void stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  void serve() {
    for (;;) {
      const bool is_last = stopping_;
      u32 slot = 0;
      while (device::take(*queue_->shared, &slot)) {
        const Status status = carry_out(device::request_of(*queue_->shared, slot));
        const bool is_reported = device::complete(*queue_->shared, slot, status);
        device::announce_completions(*queue_->shared);
        if (is_reported && on_report) on_report();
      }
      if (is_last) return;
      std::this_thread::sleep_for(std::chrono::microseconds(10));
    }
  }
  Status carry_out(const device::IoRequest& request) {
    const Status status = before ? before(request) : Status::ok;
    if (status != Status::ok) return status;
    u8* const place = memory_.at(request.device) + request.offset;
    if (request.operation == device::IoOperation::read) {
      std::memcpy(request.memory, place, request.length);
    } else if (request.operation == device::IoOperation::write) {
      std::memcpy(place, request.memory, request.length);
    }
    if (after) after(request);
    return Status::ok;
  }

  HeapAllocator allocator_;
  device::IoQueue* queue_ = nullptr;
  std::vector<u8*> memory_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace gpu4fs::test
