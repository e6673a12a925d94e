// An emulated drive whose medium is memory, and whose controller is executed by groups: by warps of a kernel, or by
// threads. It has I/O queues and no registers; the host places its queues.
//
// Any number of groups serve the queues (drive/service.hpp). The medium is durable at once. The host is not trusted
// with addresses: what is not in a window of the bus is refused.
#pragma once

#include <type_traits>

#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/copy.hpp"
#include "base/limits.hpp"
#include "device/nvme/drive/io_commands.hpp"

namespace gpu4fs::nvme {

// Memory that the drive reaches, under bus addresses of its own.
struct BusWindow {
  u64 bus_address;
  u64 bytes;
  u8* memory;
};

struct MemoryBus {
  static constexpr u32 windows_max = 4;

  BusWindow windows[windows_max];
  u32 window_count;

  GPU4FS_FN u8* at(u64 bus_address, u64 bytes) const {
    for (u32 i = 0; i < window_count; ++i) {
      const u64 offset = bus_address - windows[i].bus_address;
      if (offset <= windows[i].bytes && bytes <= windows[i].bytes - offset) return windows[i].memory + offset;
    }
    return nullptr;
  }
};

struct MemoryNamespace {
  DriveNamespace space;
  u8* memory;  // aligned to 16
};

// One pair of queues of equal depth, a power of two. Completion n is that of submission n or of another one of the same
// batch, so one counter serves both queues.
struct DriveQueue {
  const SubmissionEntry* submissions;
  CompletionEntry* completions;
  const u32* submission_doorbell;
  const u32* completion_doorbell;
  u64* arrivals_ns;  // by place: atomic; when the command was first seen
  u32 depth;
  u16 id;
  u16 reserved;

  alignas(cache_line) u32 token;  // atomic: 1: a group takes commands
  u32 position;                   // atomic: commands that were taken
  u32 seen;                       // atomic: commands that have arrived
};
static_assert(std::is_trivially_copyable_v<DriveQueue>);

// Plain data.
struct MemoryDrive {
  static constexpr u32 namespaces_max = 4;

  MemoryBus memory;
  MemoryNamespace namespaces[namespaces_max];
  u32 namespace_count;
  IoLimits io_limits;
  u64 latency_ns;         // from the doorbell to the completion at least; 0: none
  u32 batch_max;          // commands that a group takes at once; 0: as many as it has ranks
  bool reverses_batches;  // completes a batch from its end
  DriveQueue* queues;
  u32 queue_count;

  alignas(cache_line) u32 is_stopping;  // atomic
  u32 complaint;                        // atomic: the first DriveComplaint
  u64 completed_count;                  // atomic

  GPU4FS_FN const MemoryBus& bus() const { return memory; }
  GPU4FS_FN const IoLimits& limits() const { return io_limits; }
  GPU4FS_FN const MemoryNamespace* find(u32 id) const {
    for (u32 i = 0; i < namespace_count; ++i) {
      if (namespaces[i].space.id == id) return &namespaces[i];
    }
    return nullptr;
  }
  GPU4FS_FN bool find(u32 id, DriveNamespace& space) const {
    const MemoryNamespace* const found = find(id);
    if (found != nullptr) space = found->space;
    return found != nullptr;
  }
  template <class Group>
  GPU4FS_FN void read(Group g, u32 id, u64 offset, u8* to, u64 bytes) const {
    copy_bytes(g, to, find(id)->memory + offset, bytes);
  }
  template <class Group>
  GPU4FS_FN void write(Group g, u32 id, u64 offset, const u8* from, u64 bytes, bool /*is_durable*/) const {
    copy_bytes(g, find(id)->memory + offset, from, bytes);
  }
  template <class Group>
  GPU4FS_FN void write_zeroes(Group g, u32 id, u64 offset, u64 bytes) const {
    fill_bytes(g, find(id)->memory + offset, 0, bytes);
  }
  template <class Group>
  GPU4FS_FN void flush(Group /*g*/, u32 /*id*/) const {}
  GPU4FS_FN void complain(DriveComplaint what) {
    u32 none = 0;
    compare_exchange<Order::relaxed, Scope::engine>(&complaint, none, static_cast<u32>(what));
  }
};
static_assert(std::is_trivially_copyable_v<MemoryDrive>);

// What the drive shares with the host. Entries are zeroed, or the phase of what is left in them is 0.
struct DriveQueueMemory {
  const SubmissionEntry* submissions;
  CompletionEntry* completions;
  const u32* submission_doorbell;
  const u32* completion_doorbell;
  u64* arrivals_ns;  // `depth` of them
};

GPU4FS_FN inline void place_drive_queue(DriveQueue& queue, const DriveQueueMemory& memory, u32 depth, u16 id) {
  GPU4FS_CHECK(is_power_of_two(depth) && depth >= 2);
  queue = {};
  queue.submissions = memory.submissions;
  queue.completions = memory.completions;
  queue.submission_doorbell = memory.submission_doorbell;
  queue.completion_doorbell = memory.completion_doorbell;
  queue.arrivals_ns = memory.arrivals_ns;
  queue.depth = depth;
  queue.id = id;
}

}  // namespace gpu4fs::nvme
