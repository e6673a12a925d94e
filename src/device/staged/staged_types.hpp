// Devices whose pages pass through frames of a page cache: DeviceKind::staged.
//
// Such a device has no address that code above may use. The announcement of an access brings the page into a frame
// (staged/bring_in.hpp), where it stays until the end of the call into raid (staged/pins.hpp). A controller moves pages
// between frames and the medium (staged/medium_io.hpp). What was stored is written when the frame is needed for
// another page, or by a flush (staged/write_back.hpp).
//
// All staged devices of a pool share one table and one StagedDevices. Plain data in engine memory; zeroed memory behind
// its pointers is the empty state. Nothing is allocated later.
#pragma once

#include <type_traits>

#include "base/check.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"
#include "cache/cache_types.hpp"
#include "device/device_types.hpp"
#include "device/queue/io_request.hpp"

namespace gpu4fs::device {

// Pins that a worker may hold. raid/pin_scope.hpp says how many its calls take.
inline constexpr u32 pin_list_capacity = 192;

// Above all page numbers of a device.
inline constexpr u64 device_page_max = u64{1} << cache::page_bits;

// There is room for the pins of all workers that hold some at the same time, this many times. Pages spread evenly over
// the sets. Even if all workers hold all the pins that they may hold, a set of 32 lines has 8 pinned ones on average,
// and only pinned ones with a probability below 1e-9.
inline constexpr u32 frames_for_each_pin = 4;

// The pins of a worker. Ranks of its group add to it at the same time. Zeroed memory is an empty list.
struct alignas(64) PinList {
  u32 count;                       // atomic
  u32 scope_count;                 // of those that have begun and not ended
  u32 entries[pin_list_capacity];  // atomic: a line + 1; 0: none
};

// A page of a device whose write-back the system has refused and not done since, one for all (staged/late_errors.hpp).
// Times are of now_monotonic_ns(). All members are atomic.
struct WriteRefusal {
  u64 since_ns;  // 0: no page
  u64 last_ns;   // of the page
  u64 retry_ns;  // no write-back of the device begins before
  u64 page;
  u32 status;  // a Status: what flushes answer, although nothing is lost; ok: they wait
  u32 reserved;
};

struct WriteErrors {
  u64 undecided;  // atomic, one bit a device: write-backs or flushes failed, and nobody has drawn consequences yet
  u32 first[device_count_max];  // atomic, a Status: of the first of them
  WriteRefusal refusals[device_count_max];
};

struct IoQueue;  // device/queue/io_queue_types.hpp

inline constexpr u32 no_io_owner = ~u32{0};
// Of loads of pages that nobody has asked for (staged/load_ahead.hpp). Nobody is told.
inline constexpr u32 ahead_io_owner = no_io_owner - 1;

// What all requests that nobody waits for share.
struct alignas(128) DetachedState {
  u32 count;          // atomic: requests whose reports were not taken, and for a moment attempts to begin one
  u32 in_flight;      // atomic: requests whose reports were not taken
  u32 write_count;    // atomic: those of them that write
  u32 ahead_count;    // atomic: those of them that belong to ahead_io_owner, and for a moment attempts
  u32 watcher_count;  // atomic: workers of a GPU that look for reports
  u32 next_told;      // atomic: 1 + the owner who is told of the next report that is taken; 0: nobody
  u32 flushes[device_count_max];  // atomic: requests among them that flush the device
};

// A request that nobody waits for, by slot of the queue (staged/detached_io.hpp).
struct DetachedRequest {
  u32 line;               // of a frame; flush: the device
  u32 generation;         // of the slot: it grows with each use
  u32 owner;              // who is told, a number of the code above; no_io_owner, ahead_io_owner: nobody
  IoOperation operation;  // flush: of the medium of a device; read, write: of a line
  u64 waiter;             // atomic, of a load: who else is told (detail::waiter_word()); 0: nobody can be any more
};

struct StagedDevices {
  cache::Cache cache;
  IoQueue* queue;             // of devices that are not mapped; null: there is none
  DetachedRequest* detached;  // by slot of the queue
  DetachedState* detached_state;
  const Device* devices;  // of the pool, by index
  PinList* pins;          // by worker
  u8* pages;              // by worker: own_page_count pages of memory for transfers, which the controller accesses
  WriteErrors* error_state;
  u32 detached_max;
  u32 ahead_max;         // of DetachedState::ahead_count
  u32 busy_write_count;  // detached writes from which on the media are busy (media_are_busy())
  u32 own_page_count;
  u32 is_bounced;   // 1: the controller accesses frames and `pages` alone; 0: all memory of the engine
  u32 watcher_max;  // workers of a GPU that look for reports at the same time
  u32 worker_count;
  u32 holder_max;       // workers that may hold pins at the same time
  u32 holders;          // atomic; only counted on the host (staged/worker.hpp)
  u32 holders_waiting;  // atomic: threads that wait until there are fewer
};

static_assert(std::is_trivially_copyable_v<StagedDevices>);

}  // namespace gpu4fs::device
