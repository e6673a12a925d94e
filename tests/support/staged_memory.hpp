// The devices of a space in the form of staged ones, with as few frames as possible (device/staged/staged_types.hpp).
//
// The medium of a device is the memory that it had before, so code may access the medium between two calls into raid,
// after what it accesses has been written there and has left its frame.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "cache/cache_statistics.hpp"
#include "device/stack/device_stack.hpp"
#include "device/staged/staged_build.hpp"
#include "device/staged/write_back.hpp"
#include "raid/raid_types.hpp"
#include "support/heap_allocator.hpp"

namespace gpu4fs::test {

// Refuses accesses of the medium.
class RefusedPages : public device::StackLayer {
 public:
  Status may_read(u64 offset, u64) override { return reads.count(offset) != 0 ? Status::medium_error : Status::ok; }
  Status may_write(u64 offset, u64) override { return writes.count(offset) != 0 ? Status::device_failed : Status::ok; }

  std::set<u64> reads;  // offsets
  std::set<u64> writes;
};

class StagedMemory {
 public:
  // The devices of the space, which are memory devices, get this form. A device without memory stays without.
  explicit StagedMemory(raid::LogicalSpace& space, u32 worker_count) : space_(space) {
    staged_ = device::build_staged_devices(allocator_, space.devices, device::staged_frames_min(worker_count) / 2,
                                           worker_count);
    for (u32 d = 0; d < space.device_count; ++d) {
      device::Device& device = space.devices[d];
      auto layer = std::make_unique<RefusedPages>();
      refused_.push_back(layer.get());
      std::vector<std::unique_ptr<device::StackLayer>> layers;
      layers.push_back(std::move(layer));
      stacks_.push_back(std::make_unique<device::DeviceStack>(std::move(layers)));
      stacks_.back()->attach(device.size_bytes);
      stacks_.back()->map(device.base, true);
      device.kind = device::DeviceKind::staged;
      device.staged = staged_;
      device.stack = stacks_.back().get();
    }
    space.pages_apart = 1;
    space.staged = staged_;
  }

  StagedMemory(const StagedMemory&) = delete;
  StagedMemory& operator=(const StagedMemory&) = delete;
  ~StagedMemory() { finish_call(); }

  // The end of a call into raid: pins that are left end the program. Kernel tests have no gtest.
  void finish_call() const {
    u32 pins = 0;
    for (u32 w = 0; w < staged_->worker_count; ++w) pins += staged_->pins[w].count + staged_->pins[w].scope_count;
    for (u32 line = 0; line < staged_->cache.line_count; ++line) {
      pins += cache::peek(staged_->cache.lines[line]).pins();
    }
    if (pins == 0) return;
    std::fprintf(stderr, "pins are left after a call\n");
    std::abort();
  }
  // The medium has all bytes. Returns the first error.
  Status write_back() const {
    Status first = Status::ok;
    for (u32 d = 0; d < space_.device_count; ++d) {
      const Status status = device::write_back_all(Lane{}, *staged_, d);
      if (first == Status::ok) first = status;
    }
    return first;
  }
  // The same for one device. Its pages have no frames afterwards, or only the page at `offset` has none.
  void discard(u32 device) const { discard_pages(device, 0, space_.devices[device].size_bytes / page_size); }
  void discard(u32 device, u64 offset) const { discard_pages(device, offset / page_size, 1); }

  const device::StagedDevices& devices() const { return *staged_; }
  RefusedPages& refused(u32 device) { return *refused_[device]; }
  cache::CacheStatistics statistics() const { return cache::read_statistics(Lane{}, staged_->cache); }

 private:
  void discard_pages(u32 device, u64 first, u64 count) const {
    (void)device::write_back_all(Lane{}, *staged_, device);
    if (device::discard(Lane{}, *staged_, device, first, count) != 0) std::abort();
  }

  raid::LogicalSpace& space_;
  device::SingleWorkerGuard worker_;
  HeapAllocator allocator_;
  device::StagedDevices* staged_ = nullptr;
  std::vector<RefusedPages*> refused_;
  std::vector<std::unique_ptr<device::DeviceStack>> stacks_;
};

}  // namespace gpu4fs::test
