// Requests that no lane waits for: loads of pages that will be needed soon, write-backs of pages that were stored, and
// flushes of media.
//
// A load or a write-back owns its line while it is in flight: a line that is loading has its pin, and a line that is
// being written has its count. The line's link names the slot of the request and the slot's generation. Whoever needs
// the line looks at the slot, and may end the transfer of the line himself once the request has completed
// (help_line()). The slot itself is released by whoever takes its report (take_completions()), after he has ended the
// transfer if nobody else has. So a link never names a slot that has another request, and the exchange of the link by
// zero decides who ends the transfer.
//
// Whoever needs a page that somebody else loads may join the load (staged/joined_loads.hpp): one is told beside its
// owner. The word of that waiter has the generation too. So nobody joins a load whose report is being taken, or another
// one that uses the slot next.
//
// A flush belongs to a device. Whoever needs it has an owner told, and looks for errors then.
//
// Nothing here waits. A load that fails frees its line; whoever comes for the page loads it and gets the error. Errors
// of write-backs are kept as those of others are (staged/late_errors.hpp).
#pragma once

#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "base/status.hpp"
#include "cache/pin.hpp"
#include "cache/write_back.hpp"
#include "device/device_state.hpp"
#include "device/queue/io_queue.hpp"
#include "device/staged/late_errors.hpp"
#include "device/staged/queued_medium.hpp"
#include "device/staged/staged_types.hpp"

namespace gpu4fs::device {

namespace detail {

inline constexpr u32 ahead_link_bit = 1u << 31;

GPU4FS_FN constexpr u64 link_of(u32 slot, const DetachedRequest& request) {
  const u32 bit = request.owner == ahead_io_owner ? ahead_link_bit : 0;
  return u64{request.generation} << 32 | bit | (u64{slot} + 1);
}
GPU4FS_FN constexpr u32 slot_of_link(u64 link) {
  return (static_cast<u32>(link) & ~ahead_link_bit) - 1;
}
GPU4FS_FN constexpr u32 generation_of_link(u64 link) {
  return static_cast<u32>(link >> 32);
}
GPU4FS_FN constexpr bool is_ahead_link(u64 link) {
  return (link & ahead_link_bit) != 0;
}

// A load in flight that somebody has joined; no_io_owner: nobody has, and somebody may. Never 0.
GPU4FS_FN constexpr u64 waiter_word(u32 generation, u32 waiter) {
  return u64{generation} << 32 | (waiter == no_io_owner ? u64{1} : u64{waiter} + 2);
}
// no_io_owner: nobody waits.
GPU4FS_FN constexpr u32 waiter_of(u64 word) {
  const u32 low = static_cast<u32>(word);
  return low < 2 ? no_io_owner : low - 2;
}

GPU4FS_FN inline void note_flush_status(const StagedDevices& staged, u32 device, Status status) {
  if (GPU4FS_MUTANT(detached_flush_error_lost, status != Status::ok, false)) note_write_error(staged, device, status);
}

// A line that the caller has for a transfer: loading, or being written.
struct LineTransfer {
  cache::PageKey key;
  u32 line;  // no_line: there is none
  u32 owner;
};

// What the slot's request is for. Its publication follows.
GPU4FS_FN inline void prepare_transfer(const StagedDevices& staged, u32 slot, const LineTransfer& transfer,
                                       IoOperation operation) {
  DetachedRequest& request = staged.detached[slot];
  request.line = transfer.line;
  request.owner = transfer.owner;
  request.operation = operation;
  const bool is_load = operation == IoOperation::read;
  store<Order::relaxed, Scope::engine>(&request.waiter, is_load ? waiter_word(request.generation, no_io_owner) : 0);
  // Who follows the link finds the word of the waiter.
  store<Order::release, Scope::engine>(&cache::line_at(staged.cache, transfer.line).link, link_of(slot, request));
  IoRequest published = page_request(staged.devices[transfer.key.device], operation, transfer.key.page, 1,
                                     cache::frame_of(staged.cache, transfer.line));
  published.reports = 1;
  set_request(*staged.queue, slot, published);
}

// Begins the transfers of the ranks that have a line. Their requests are published together. Collective. False: the
// rank has none, or there was no room for it.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool detach(Group g, const StagedDevices& staged, const LineTransfer& transfer,
                                      IoOperation operation) {
  u32* const count = &staged.detached_state->count;
  bool wants = transfer.line != cache::no_line;
  if (wants && fetch_add<Order::relaxed, Scope::engine>(count, 1u) >= staged.detached_max) {
    fetch_sub<Order::relaxed, Scope::engine>(count, 1u);
    wants = false;
  }
  const u32 slot = take_slots(g, *staged.queue, wants);
  if (wants && slot == no_io_slot) fetch_sub<Order::relaxed, Scope::engine>(count, 1u);
  if (slot != no_io_slot) prepare_transfer(staged, slot, transfer, operation);
  const u32 begun = popcount(g.ballot(slot != no_io_slot));
  if (begun == 0) return false;
  on_leader(g, [&] {
    DetachedState& state = *staged.detached_state;
    // Before one of them can complete.
    fetch_add<Order::relaxed, Scope::engine>(&state.in_flight, begun);
    if (operation == IoOperation::write) fetch_add<Order::relaxed, Scope::engine>(&state.write_count, begun);
  });
  publish_requests(g, *staged.queue, slot);
  return slot != no_io_slot;
}

// Ends the transfer of a line whose request has completed, once.
GPU4FS_FN GPU4FS_NOINLINE inline void end_transfer(const StagedDevices& staged, u32 index, u64 link, Status status) {
  cache::Line& line = cache::line_at(staged.cache, index);
  u64 expected = link;
  const bool is_callers = compare_exchange<Order::acq_rel, Scope::engine>(&line.link, expected, u64{0});
  if (!is_callers) return;
  // The transfer is the caller's: the word keeps its state and its page until it ends.
  const cache::LineWord word = cache::peek(line);
  const u32 device = word.key().device;
  if (word.is_writing()) {
    return end_write_back(staged, index, device, GPU4FS_MUTANT(detached_error_lost, status, Status::ok));
  }
  GPU4FS_CHECK(word.is_loading());
  const bool is_good =
      GPU4FS_MUTANT(failed_load_kept, status == Status::ok, true) && !may_be_outdated(staged.devices[device]);
  if (is_good) return cache::finish_unwaited_load(staged.cache, index, is_ahead_link(link));
  cache::finish_load(staged.cache, index, false);
  if (is_ahead_link(link)) cache::count_ahead(staged.cache, &cache::AheadCounts::dropped);
}

}  // namespace detail

// If the line's transfer is detached and its request has completed, the transfer has ended afterwards. One lane.
GPU4FS_FN GPU4FS_NOINLINE inline void help_line(const StagedDevices& staged, u32 index) {
  if (staged.queue == nullptr) return;
  const u64 link = load<Order::acquire, Scope::engine>(&cache::line_at(staged.cache, index).link);
  if (link == 0) return;
  const IoProgress progress = poll(*staged.queue, detail::slot_of_link(link));
  if (!progress.is_pending) detail::end_transfer(staged, index, link, progress.status);
}

namespace detail {

// A page that is to be loaded. Lines; no_line: there is none.
struct LineToLoad {
  u32 taken;      // the caller loads it: the page was in no frame, and a frame could be had
  u32 of_others;  // somebody else was loading the page into it
};

GPU4FS_FN GPU4FS_NOINLINE inline LineToLoad take_line_to_load(const Device& device, u64 page) {
  const StagedDevices& staged = *device.staged;
  if (has_mapping(device) || !is_readable(device)) return {cache::no_line, cache::no_line};
  const cache::PageKey key{device.index, page};
  const cache::FoundLine found = cache::find(Lane{}, staged.cache, key);
  if (found.line != cache::no_line) return {cache::no_line, found.word.is_loading() ? found.line : cache::no_line};
  const cache::PinResult pinned = cache::pin(Lane{}, staged.cache, key, cache::PinMode::read);
  if (pinned.outcome == cache::PinOutcome::hit) cache::unpin(staged.cache, pinned.line);
  return {pinned.outcome == cache::PinOutcome::must_load ? pinned.line : cache::no_line,
          pinned.outcome == cache::PinOutcome::loading ? pinned.line : cache::no_line};
}

// The page's line, which will be written, if the page is in a frame, dirty, and nobody else writes it.
GPU4FS_FN GPU4FS_NOINLINE inline cache::WriteBack take_line_to_write(const Device& device, u64 page) {
  const cache::Cache& cache = device.staged->cache;
  if (has_mapping(device) || has_failed(device)) return {cache::no_line, {}};
  if (paused_devices(*device.staged, u64{1} << device.index) != 0) return {cache::no_line, {}};
  const cache::FoundLine found = cache::find(Lane{}, cache, {device.index, page});
  return found.line != cache::no_line ? cache::begin_write_back(cache, found.line)
                                      : cache::WriteBack{cache::no_line, {}};
}

}  // namespace detail

// A page of a device that a rank names; null: none.
struct StagedPage {
  const Device* device;
  u64 page;
};

namespace detail {

struct BegunLoad {
  bool is_begun;
  u32 of_others;  // the line into which somebody else was loading the page, or no_line
};

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE BegunLoad begin_loads(Group g, const StagedDevices& staged, const StagedPage& wanted,
                                                u32 owner) {
  LineTransfer transfer{{}, cache::no_line, owner};
  u32 of_others = cache::no_line;
  if (wanted.device != nullptr) {
    const LineToLoad line = take_line_to_load(*wanted.device, wanted.page);
    transfer.line = line.taken;
    transfer.key = {wanted.device->index, wanted.page};
    of_others = line.of_others;
  }
  const bool is_begun = detach(g, staged, transfer, IoOperation::read);
  if (!is_begun && transfer.line != cache::no_line) cache::finish_load(staged.cache, transfer.line, false);
  return {is_begun, of_others};
}

}  // namespace detail

// Begins to load the ranks' pages that are in no frame. Collective; `owner`, which is a rank's own, is told when its
// load has ended, by take_completions(). False: nothing was begun for the rank, because its page is there or on its
// way, or because there is no room.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool begin_detached_loads(Group g, const StagedDevices& staged, const StagedPage& wanted,
                                                    u32 owner) {
  return detail::begin_loads(g, staged, wanted, owner).is_begun;
}

// Begins to write the ranks' pages that are dirty. Collective. False: nothing was begun for the rank, because its page
// is clean or in no frame, somebody else writes it, its device pauses, or there is no room.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool begin_detached_writes(Group g, const StagedDevices& staged, const StagedPage& wanted) {
  detail::LineTransfer transfer{{}, cache::no_line, no_io_owner};
  if (wanted.device != nullptr) {
    const cache::WriteBack taken = detail::take_line_to_write(*wanted.device, wanted.page);
    transfer.line = taken.line;
    transfer.key = taken.key;
  }
  const bool is_begun = detail::detach(g, staged, transfer, IoOperation::write);
  if (!is_begun && transfer.line != cache::no_line) cache::finish_write_back(staged.cache, transfer.line, false);
  return is_begun;
}

// The same for one page, by one lane.
GPU4FS_FN inline bool begin_detached_load(const Device& device, u64 page, u32 owner) {
  return begin_detached_loads(Lane{}, *device.staged, {&device, page}, owner);
}
GPU4FS_FN inline bool begin_detached_write(const Device& device, u64 page) {
  return begin_detached_writes(Lane{}, *device.staged, {&device, page});
}

// Whether the medium of the device is flushed by a request. Otherwise the server does it if that is needed.
GPU4FS_FN inline bool is_flushed_by_queue(const Device& device) {
  return device.needs_flush != 0 && device.kind == DeviceKind::staged && !detail::has_mapping(device);
}

// Begins to flush the medium of such a device: what was written before is durable when `owner` is told, or
// write_error_of() answers an error. One lane. False: no slot of the queue is free. Write-backs in flight leave half of
// the slots.
GPU4FS_FN GPU4FS_NOINLINE inline bool begin_detached_flush(const Device& device, u32 owner) {
  GPU4FS_CHECK(is_flushed_by_queue(device));
  const StagedDevices& staged = *device.staged;
  const u32 slot = take_slot(*staged.queue);
  if (slot == no_io_slot) return false;
  fetch_add<Order::relaxed, Scope::engine>(&staged.detached_state->count, 1u);
  fetch_add<Order::relaxed, Scope::engine>(&staged.detached_state->in_flight, 1u);
  DetachedRequest& request = staged.detached[slot];
  request.line = device.index;
  request.owner = owner;
  request.operation = IoOperation::flush;
  fetch_add<Order::relaxed, Scope::engine>(&staged.detached_state->flushes[device.index], 1u);
  set_request(*staged.queue, slot, {IoOperation::flush, device.index, 0, 0, 1, nullptr});
  (void)publish_requests(Lane{}, *staged.queue, slot);
  return true;
}

// The same in the calling thread, which waits. Only if carries_out_here(). One lane.
GPU4FS_FN GPU4FS_NOINLINE inline void flush_here(const Device& device) {
  GPU4FS_CHECK(is_flushed_by_queue(device));
  const StagedDevices& staged = *device.staged;
  u32* const flushes = &staged.detached_state->flushes[device.index];
  fetch_add<Order::relaxed, Scope::engine>(flushes, 1u);
  const Status status = carry_out_here(*staged.queue, {IoOperation::flush, device.index, 0, 0, 0, nullptr});
  detail::note_flush_status(staged, device.index, status);
  fetch_sub<Order::release, Scope::engine>(flushes, 1u);
}

// Whether the medium of the device is being flushed, so that an error may follow.
GPU4FS_FN inline bool is_flush_in_flight(const StagedDevices& staged, u32 device) {
  GPU4FS_CHECK_LT(device, device_count_max);
  return staged.queue != nullptr && load<Order::acquire, Scope::engine>(&staged.detached_state->flushes[device]) != 0;
}

// Requests were begun. Wakes threads that carry them out.
GPU4FS_FN inline void ring_detached(const StagedDevices& staged) {
  ring(*staged.queue);
}

// Whether so many pages are being written that whoever would store long runs of pages should wait. The number becomes
// smaller with completions only, which take_completions() takes.
GPU4FS_FN inline bool media_are_busy(const StagedDevices& staged) {
  return staged.queue != nullptr &&
         load<Order::relaxed, Scope::engine>(&staged.detached_state->write_count) >= staged.busy_write_count;
}

// Whether there may be something to take.
GPU4FS_FN inline bool has_detached(const StagedDevices& staged) {
  return staged.queue != nullptr && load<Order::relaxed, Scope::engine>(&staged.detached_state->in_flight) != 0;
}

// `owner` is told once, when the next report has been taken. For whoever needs a transfer that somebody else has begun.
// One rank. False: nothing is in flight, or another owner is to be told already; nobody is told.
GPU4FS_FN GPU4FS_NOINLINE inline bool tell_of_next_report(const StagedDevices& staged, u32 owner) {
  if (staged.queue == nullptr) return false;
  DetachedState& state = *staged.detached_state;
  u32 expected = 0;
  if (!compare_exchange<Order::acq_rel, Scope::engine>(&state.next_told, expected, owner + 1)) return false;
  // Whoever takes a report counts it and then looks at next_told. So either he sees the owner, or this load sees what
  // he has counted.
  if (load<Order::acquire, Scope::engine>(&state.in_flight) != 0) return true;
  expected = owner + 1;
  return !compare_exchange<Order::acq_rel, Scope::engine>(&state.next_told, expected, 0u);
}

namespace detail {

// Reports that are there come first: a poll of all drives takes longer than to take the reports of a warp, and one
// poll may bring more of them than that. Collective.
template <class Group>
GPU4FS_FN u32 poll_for_reports(Group g, IoQueue& queue, u32* slot) {
  const u32 count = take_reports(g, queue, slot);
  if (queue.drives == nullptr || count == Group::size()) return count;
  (void)poll_drives(g, queue, false);
  return count != 0 ? count : take_reports(g, queue, slot);
}

// In a kernel few workers look at a time: a look at host memory takes long, and many at once take longer. Workers of
// the host may sleep, so each of them looks. Collective.
template <class Group>
GPU4FS_FN u32 watch_reports(Group g, const StagedDevices& staged, u32* slot) {
#if GPU4FS_DEVICE_CODE
  u32* const watchers = &staged.detached_state->watcher_count;
  const bool is_mine = on_leader(g, [&] {
    if (load<Order::relaxed, Scope::engine>(watchers) >= staged.watcher_max) return false;
    if (fetch_add<Order::relaxed, Scope::engine>(watchers, 1u) < staged.watcher_max) return true;
    fetch_sub<Order::relaxed, Scope::engine>(watchers, 1u);
    return false;
  });
  if (!is_mine) return 0;
  const u32 count = poll_for_reports(g, *staged.queue, slot);
  g.sync();
  on_leader(g, [&] { fetch_sub<Order::relaxed, Scope::engine>(watchers, 1u); });
  return count;
#else
  return poll_for_reports(g, *staged.queue, slot);
#endif
}

// Ends what the request of a report was for.
GPU4FS_FN inline void end_detached(const StagedDevices& staged, u32 slot) {
  DetachedRequest& request = staged.detached[slot];
  const IoProgress progress = poll(*staged.queue, slot);
  GPU4FS_CHECK(!progress.is_pending);
  if (request.operation != IoOperation::flush) {
    return end_transfer(staged, request.line, link_of(slot, request), progress.status);
  }
  note_flush_status(staged, request.line, progress.status);
  fetch_sub<Order::release, Scope::engine>(&staged.detached_state->flushes[request.line], 1u);
}

}  // namespace detail

// Ends what requests were for that have completed, one for each rank at most, and calls tell(owner), on some rank, for
// those that have an owner or a waiter, and for who is to be told of the next report. Collective. Returns how many
// ended.
template <class Group, class Tell>
GPU4FS_FN GPU4FS_NOINLINE u32 take_completions(Group g, const StagedDevices& staged, Tell&& tell) {
  u32 slot = 0;
  const u32 count = detail::watch_reports(g, staged, &slot);
  if (g.rank() < count) {
    DetachedRequest& request = staged.detached[slot];
    detail::end_detached(staged, slot);
    const u32 owner = request.owner;
    const u32 waiter = detail::waiter_of(exchange<Order::acq_rel, Scope::engine>(&request.waiter, u64{0}));
    request.generation += GPU4FS_MUTANT(detached_generation_kept, 1u, 0u);
    if (request.operation == IoOperation::write)
      fetch_sub<Order::relaxed, Scope::engine>(&staged.detached_state->write_count, 1u);
    release(*staged.queue, slot);
    fetch_sub<Order::relaxed, Scope::engine>(&staged.detached_state->count, 1u);
    fetch_sub<Order::acq_rel, Scope::engine>(&staged.detached_state->in_flight, 1u);
    if (GPU4FS_MUTANT(ahead_owner_told, owner == ahead_io_owner, false)) {
      fetch_sub<Order::relaxed, Scope::engine>(&staged.detached_state->ahead_count, 1u);
    } else if (GPU4FS_MUTANT(detached_owner_not_told, owner != no_io_owner, false)) {
      tell(owner);
    }
    if (GPU4FS_MUTANT(load_waiter_not_told, waiter != no_io_owner, false)) tell(waiter);
    const u32 told = exchange<Order::acq_rel, Scope::engine>(&staged.detached_state->next_told, 0u);
    if (GPU4FS_MUTANT(next_report_not_told, told != 0, false)) tell(told - 1);
  }
  g.sync();
  return count;
}

}  // namespace gpu4fs::device
