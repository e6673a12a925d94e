// A staged device whose medium is an NVMe drive, which a thread of the test serves.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cache/line_lookup.hpp"
#include "device/device_access.hpp"
#include "device/drives/drive_build.hpp"
#include "device/drives/drive_requests.hpp"
#include "device/nvme/drive/memory_drive.hpp"
#include "device/queue/io_queue_build.hpp"
#include "device/staged/pins.hpp"
#include "device/staged/staged_build.hpp"
#include "device/staged/write_back.hpp"
#include "device/transfer.hpp"
#include "emulated_drive.hpp"
#include "nvme/emulated/served_drive.hpp"
#include "support/heap_allocator.hpp"

namespace gpu4fs::nvme::test {

using device::Device;
using device::IoOperation;
inline constexpr u32 slot_count = 64;
inline constexpr u64 device_pages = 512;

inline u8 first_byte(u64 page) {
  return static_cast<u8>(page % 251 + 1);
}
inline bool has(const u8* page, u8 byte) {
  return std::all_of(page, page + page_size, [byte](u8 found) { return found == byte; });
}

// A staged device with an I/O queue of drives. The test connects a drive.
class DriveWorld {
 public:
  // `shared`: memory that the drive reaches; `bus_offset`: from its addresses to those of the bus.
  DriveWorld(EngineAllocator& shared, u64 bus_offset) {
    void* const memory = heap_.allocate(device::io_queue_shared_bytes(slot_count), cache_line);
    queue_ = device::build_io_queue(heap_, slot_count, {memory, memory}, true);
    set_ = device::drive_set_image(shared, slot_count, {{nullptr, ~u64{0}, bus_offset}});
    set_.lists_bus_address += bus_offset;
    queue_->drives = &set_;
    device_.kind = device::DeviceKind::staged;
    device_.size_bytes = device_pages * page_size;
    device_.needs_flush = 1;
    staged =
        device::build_staged_devices(heap_, &device_, device::staged_frames_min(1), 1, {queue_, slot_count, &shared});
    device_.staged = staged;
  }

  void connect(device::Drive* drive) {
    set_.drives[0] = drive;
    set_.connected = 1;
  }

  gpu4fs::test::HeapAllocator& heap() { return heap_; }
  device::IoQueue& queue() { return *queue_; }
  Device& device() { return device_; }
  u8* lists() { return set_.lists; }
  // Memory that drives reach.
  u8* own_pages() { return staged->pages; }

  std::vector<u32> take_all() {
    std::vector<u32> told;
    while (device::take_completions(Lane{}, *staged, [&](u32 owner) { told.push_back(owner); }) != 0) {
    }
    return told;
  }
  u32 in_flight() const { return load<Order::acquire, Scope::engine>(&staged->detached_state->in_flight); }
  // Takes completions until nothing is in flight.
  std::vector<u32> take_until_quiet() {
    std::vector<u32> told;
    while (in_flight() != 0) {
      for (const u32 owner : take_all()) told.push_back(owner);
      std::this_thread::yield();
    }
    return told;
  }
  Status read(u64 page, u8 byte) {
    const u32 first = device::begin_pins(Lane{}, *staged);
    const Status status = device::begin_read(device_, page * page_size, page_size);
    if (status == Status::ok) {
      EXPECT_TRUE(has(device::memory_at(device_, page * page_size, page_size), byte)) << page;
    }
    device::end_pins(Lane{}, *staged, first);
    return status;
  }
  void store(u64 page, u8 byte) {
    const u32 first = device::begin_pins(Lane{}, *staged);
    ASSERT_EQ(device::begin_write(device_, page * page_size, page_size), Status::ok);
    std::memset(device::memory_at(device_, page * page_size, page_size), byte, page_size);
    device::end_write(device_, page * page_size, page_size);
    device::end_pins(Lane{}, *staged, first);
  }
  // No frame has the page afterwards, if it is clean.
  void drop(u64 page) { device::look_at_medium(*staged, 0, page); }

  device::StagedDevices* staged = nullptr;

 private:
  device::SingleWorkerGuard worker_;
  gpu4fs::test::HeapAllocator heap_;
  device::IoQueue* queue_ = nullptr;
  device::DriveSet set_{};
  Device device_{};
};

// The drive is served by a thread of the test.
class ServedWorld {
 public:
  using Judge = std::function<std::optional<StatusCode>(const SubmissionEntry&)>;
  static constexpr u64 bus_offset = u64{0x7500} << 32;

  // `judge`: success: the command is carried out; nothing: it is not answered.
  explicit ServedWorld(u32 depth, u32 queue_count = 2, u32 order_seed = 0, Judge judge = nullptr,
                       u64 timeout_ns = patient_ns, u64 transfer_bytes_max = 0)
      : world(heap_, bus_offset), judge_(std::move(judge)), medium_(device_pages * page_size) {
    for (u64 page = 0; page < device_pages; ++page) std::memset(at(page), first_byte(page), page_size);
    device::DriveSetup setup;
    setup.block_count = device_pages;
    setup.has_zeroes = true;
    setup.has_deallocate = true;
    setup.command_timeout_ns = timeout_ns;
    setup.transfer_bytes_max = transfer_bytes_max;
    built_ = device::build_drive(world.heap(), heap_, setup, queue_count, depth);
    std::vector<ServedQueue> queues;
    for (const device::DriveQueueEntries& entries : built_.entries) {
      queues.push_back({entries.submissions, entries.completions, entries.submission_doorbell,
                        entries.completion_doorbell, depth, static_cast<u16>(queues.size() + 1)});
    }
    describe_memory();
    drive_ = std::make_unique<ServedDrive>(
        queues, profile_unlimited, [this](const SubmissionEntry& entry) { return carry_out(entry); }, order_seed);
    world.connect(built_.drive);
    thread_ = std::thread([this] {
      while (!is_stopping_) {
        const ServedDrive::Step step = drive_->step();
        if (step.completed != 0) device::announce_completions(*world.queue().shared);
        if (step.taken + step.completed == 0) std::this_thread::yield();
      }
    });
  }
  ~ServedWorld() {
    is_stopping_ = true;
    thread_.join();
  }

  u8* at(u64 page) { return medium_.data() + page * page_size; }
  device::DriveSignal& signal() { return *built_.signal; }
  Failure failure() { return static_cast<Failure>(load<Order::acquire, Scope::system>(&built_.signal->failure)); }
  ServedDrive& drive() { return *drive_; }
  bool has_complaint() const { return memory_.complaint != 0; }

 private:
  gpu4fs::test::HeapAllocator heap_;

 public:
  DriveWorld world;

 private:
  // The drive reaches frames, pages of workers and lists, and nothing else.
  void describe_memory() {
    const auto window = [](u8* memory, u64 bytes) {
      return BusWindow{reinterpret_cast<u64>(memory) + bus_offset, bytes, memory};
    };
    const device::StagedDevices& staged = *world.staged;
    memory_.memory.windows[0] = window(staged.cache.frames, u64{staged.cache.line_count} * page_size);
    memory_.memory.windows[1] = window(staged.pages, u64{staged.own_page_count} * page_size);
    memory_.memory.windows[2] = window(world.lists(), slot_count * device::drive_list_bytes);
    memory_.memory.window_count = 3;
    memory_.namespaces[0] = {{1, 4096, device_pages}, medium_.data()};
    memory_.namespace_count = 1;
    memory_.io_limits = {0, true, true};
  }
  std::optional<StatusCode> carry_out(const SubmissionEntry& entry) {
    const std::optional<StatusCode> verdict = judge_ ? judge_(entry) : StatusCode::success;
    if (verdict != StatusCode::success) return verdict;
    return nvme::carry_out(Lane{}, memory_, entry);
  }

  Judge judge_;
  std::vector<u8> medium_;
  MemoryDrive memory_{};
  device::BuiltDrive built_;
  std::unique_ptr<ServedDrive> drive_;
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace gpu4fs::nvme::test
