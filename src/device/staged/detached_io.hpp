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

GPU4FS_FN constexpr u64 link_of(u32 slot, u32 generation) {
  return u64{generation} << 32 | (u64{slot} + 1);
}

GPU4FS_FN inline void note_flush_status(const StagedDevices& staged, u32 device, Status status) {
  if (GPU4FS_MUTANT(detached_flush_error_lost, status != Status::ok, false)) note_write_error(staged, device, status);
}

// The caller publishes a request in it. no_io_slot: there is none, or there are `count_max` requests already.
GPU4FS_FN inline u32 take_detached_slot(const StagedDevices& staged, u32 count_max) {
  u32* const count = &staged.detached_state->count;
  if (fetch_add<Order::relaxed, Scope::engine>(count, 1u) < count_max) {
    const u32 slot = take_slot(*staged.queue);
    if (slot != no_io_slot) {
      fetch_add<Order::relaxed, Scope::engine>(&staged.detached_state->in_flight, 1u);
      return slot;
    }
  }
  fetch_sub<Order::relaxed, Scope::engine>(count, 1u);
  return no_io_slot;
}

// Begins the transfer of a line that the caller has for it: loading, or being written. False: there is no room.
GPU4FS_FN GPU4FS_NOINLINE inline bool detach(const StagedDevices& staged, const Device& device, cache::PageKey key,
                                             u32 line, IoOperation operation, u32 owner) {
  const u32 slot = take_detached_slot(staged, staged.detached_max);
  if (slot == no_io_slot) return false;
  DetachedRequest& request = staged.detached[slot];
  request.line = line;
  request.owner = owner;
  request.is_flush = 0;
  store<Order::release, Scope::engine>(&cache::line_at(staged.cache, line).link, link_of(slot, request.generation));
  IoRequest published = page_request(device, operation, key.page, 1, cache::frame_of(staged.cache, line));
  published.reports = 1;
  publish(*staged.queue, slot, published);
  return true;
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
    if (GPU4FS_MUTANT(detached_error_lost, status != Status::ok, false)) note_write_error(staged, device, status);
    cache::finish_write_back(staged.cache, index, true);
    return;
  }
  GPU4FS_CHECK(word.is_loading());
  // The medium may lack what was stored last.
  const bool is_good =
      GPU4FS_MUTANT(failed_load_kept, status == Status::ok, true) && (undecided_errors(staged) >> device & 1) == 0;
  cache::finish_load(staged.cache, index, is_good);
  if (is_good) cache::unpin(staged.cache, index);
}

}  // namespace detail

// If the line's transfer is detached and its request has completed, the transfer has ended afterwards. One lane.
GPU4FS_FN GPU4FS_NOINLINE inline void help_line(const StagedDevices& staged, u32 index) {
  if (staged.queue == nullptr) return;
  const u64 link = load<Order::acquire, Scope::engine>(&cache::line_at(staged.cache, index).link);
  if (link == 0) return;
  const IoProgress progress = poll(*staged.queue, static_cast<u32>(link) - 1);
  if (!progress.is_pending) detail::end_transfer(staged, index, link, progress.status);
}

// Begins to load a page that is in no frame. One lane. `owner` is told when the load has ended, by take_completions().
// False: nothing was begun, because the page is there or on its way, or because there is no room.
GPU4FS_FN GPU4FS_NOINLINE inline bool begin_detached_load(const Device& device, u64 page, u32 owner) {
  const StagedDevices& staged = *device.staged;
  if (detail::has_mapping(device) || !is_readable(device)) return false;
  const cache::PageKey key{device.index, page};
  if (cache::find(Lane{}, staged.cache, key).line != cache::no_line) return false;
  const cache::PinResult pinned = cache::pin(Lane{}, staged.cache, key, cache::PinMode::read);
  if (pinned.outcome == cache::PinOutcome::hit) cache::unpin(staged.cache, pinned.line);
  if (pinned.outcome != cache::PinOutcome::must_load) return false;
  if (detail::detach(staged, device, key, pinned.line, IoOperation::read, owner)) return true;
  cache::finish_load(staged.cache, pinned.line, false);
  return false;
}

// Begins to write a dirty page. One lane. False: it is clean, somebody else writes it, or there is no room.
GPU4FS_FN GPU4FS_NOINLINE inline bool begin_detached_write(const StagedDevices& staged, u32 line, u32 owner) {
  const cache::WriteBack taken = cache::begin_write_back(staged.cache, line);
  if (taken.line == cache::no_line) return false;
  const Device& device = staged.devices[taken.key.device];
  if (!has_failed(device) && !detail::has_mapping(device) &&
      detail::detach(staged, device, taken.key, line, IoOperation::write, owner)) {
    return true;
  }
  cache::finish_write_back(staged.cache, line, false);
  return false;
}

// The same for a page, if it is in a frame.
GPU4FS_FN inline bool begin_detached_write(const Device& device, u64 page) {
  if (detail::has_mapping(device)) return false;
  const cache::FoundLine found = cache::find(Lane{}, device.staged->cache, {device.index, page});
  return found.line != cache::no_line && begin_detached_write(*device.staged, found.line, no_io_owner);
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
  const u32 slot = detail::take_detached_slot(staged, ~u32{0});
  if (slot == no_io_slot) return false;
  DetachedRequest& request = staged.detached[slot];
  request.line = device.index;
  request.owner = owner;
  request.is_flush = 1;
  fetch_add<Order::relaxed, Scope::engine>(&staged.detached_state->flushes[device.index], 1u);
  publish(*staged.queue, slot, {IoOperation::flush, device.index, 0, 0, 1, nullptr});
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

// In a kernel one worker looks at a time: a look at host memory takes long, and many at once take longer. Workers of
// the host may sleep, so each of them looks. Collective.
template <class Group>
GPU4FS_FN u32 watch_reports(Group g, const StagedDevices& staged, u32* slot) {
#if GPU4FS_DEVICE_CODE
  u32* const is_watched = &staged.detached_state->is_watched;
  const bool is_mine = on_leader(g, [&] {
    return load<Order::relaxed, Scope::engine>(is_watched) == 0 &&
           exchange<Order::acquire, Scope::engine>(is_watched, 1u) == 0;
  });
  if (!is_mine) return 0;
  const u32 count = take_reports(g, *staged.queue, slot);
  g.sync();
  on_leader(g, [&] { store<Order::release, Scope::engine>(is_watched, 0u); });
  return count;
#else
  return take_reports(g, *staged.queue, slot);
#endif
}

// Ends what the request of a report was for.
GPU4FS_FN inline void end_detached(const StagedDevices& staged, u32 slot) {
  DetachedRequest& request = staged.detached[slot];
  const IoProgress progress = poll(*staged.queue, slot);
  GPU4FS_CHECK(!progress.is_pending);
  if (request.is_flush == 0) {
    return end_transfer(staged, request.line, link_of(slot, request.generation), progress.status);
  }
  note_flush_status(staged, request.line, progress.status);
  fetch_sub<Order::release, Scope::engine>(&staged.detached_state->flushes[request.line], 1u);
}

}  // namespace detail

// Ends what requests were for that have completed, one for each rank at most, and calls tell(owner), on some rank, for
// those that have an owner, and for who is to be told of the next report. Collective. Returns how many ended.
template <class Group, class Tell>
GPU4FS_FN GPU4FS_NOINLINE u32 take_completions(Group g, const StagedDevices& staged, Tell&& tell) {
  u32 slot = 0;
  const u32 count = detail::watch_reports(g, staged, &slot);
  if (g.rank() < count) {
    DetachedRequest& request = staged.detached[slot];
    detail::end_detached(staged, slot);
    const u32 owner = request.owner;
    request.generation += GPU4FS_MUTANT(detached_generation_kept, 1u, 0u);
    release(*staged.queue, slot);
    fetch_sub<Order::relaxed, Scope::engine>(&staged.detached_state->count, 1u);
    fetch_sub<Order::acq_rel, Scope::engine>(&staged.detached_state->in_flight, 1u);
    if (GPU4FS_MUTANT(detached_owner_not_told, owner != no_io_owner, false)) tell(owner);
    const u32 told = exchange<Order::acq_rel, Scope::engine>(&staged.detached_state->next_told, 0u);
    if (GPU4FS_MUTANT(next_report_not_told, told != 0, false)) tell(told - 1);
  }
  g.sync();
  return count;
}

}  // namespace gpu4fs::device
