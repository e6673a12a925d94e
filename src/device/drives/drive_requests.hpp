// Publication of requests of an I/O queue to drives, and completions of drives as completions of the requests.
//
// A request lies in its slot as always. Its command has the slot as its cookie, and whoever polls completes the slot:
// he stores the status, and puts the slot into the list of reports if it reports. Polling waits for nobody.
//
// A virtual queue may have fewer places than there are slots. Whoever finds it full waits for room in the order of
// tickets and polls meanwhile. He holds no place there, so those who do get on, and a drive that does not answer fails.
#pragma once

#include "base/atomics.hpp"
#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "base/status.hpp"
#include "device/drives/drive_commands.hpp"
#include "device/drives/drive_types.hpp"
#include "device/nvme/completions.hpp"
#include "device/nvme/submit.hpp"
#include "device/queue/io_consumer.hpp"
#include "device/queue/io_queue.hpp"
#include "device/queue/io_wait.hpp"

namespace gpu4fs::device {

namespace detail {

// Of one rank.
struct CompletedSlots {
  u32 count = 0;
  u32 reported = 0;
};

// Any rank. The slot may be another request's as soon as its status is stored or it was reported.
GPU4FS_FN inline void complete_slot(IoQueue& queue, u32 slot, Status status, CompletedSlots* completed) {
  IoSlot& place = io_slot(queue, slot);
  const bool reports = place.request.reports != 0;
  GPU4FS_CHECK_EQ((load<Order::relaxed, Scope::system>(&place.status)), io_pending);
  store<Order::release, Scope::system>(&place.status, static_cast<u32>(status));
  ++completed->count;
  if (!GPU4FS_MUTANT(drive_report_lost, reports, false)) return;
  ++completed->reported;
  const u64 position = fetch_add<Order::relaxed, Scope::engine>(&queue.report_tail, u64{1});
  report_cells(queue.shared, queue.slot_count).put(position, slot);
}

GPU4FS_FN inline void end_command(IoQueue& queue, const nvme::Outcome& outcome, CompletedSlots* completed) {
  const u32 slot = static_cast<u32>(outcome.cookie);
  complete_slot(queue, slot, status_of(outcome, io_slot(queue, slot).request.operation), completed);
}

// Wakes threads of the host that sleep until something completes. `tells`: the caller takes no reports himself.
template <class Group>
GPU4FS_FN void announce_completed(Group g, const IoQueue& queue, const CompletedSlots& completed, bool tells) {
#if !GPU4FS_DEVICE_CODE
  const bool has_any = g.any(completed.count != 0);
  const bool has_reports = g.any(completed.reported != 0);
  if (!has_any) return;
  on_leader(g, [&] {
    announce_completions(*queue.shared);
    const DriveSet& set = *queue.drives;
    if (tells && has_reports && set.on_reports != nullptr) set.on_reports(set.context);
  });
#else
  (void)g, (void)queue, (void)completed, (void)tells;
#endif
}

GPU4FS_FN inline Drive* drive_of(const DriveSet& set, u32 device) {
  GPU4FS_CHECK_LT(device, device_count_max);
  return load<Order::acquire, Scope::engine>(&set.drives[device]);
}

// Pages that are written behind have a queue of their own, so nobody waits behind them. The others spread.
GPU4FS_FN inline nvme::VirtualQueue* queue_for(const Drive& drive, const IoRequest& request, u32 slot) {
  const u32 last = drive.queue_count - 1;
  const bool is_behind = request.operation == IoOperation::write && request.reports != 0;
  return drive.queues[is_behind || last == 0 ? last : slot % last];
}

struct PreparedCommand {
  nvme::VirtualQueue* queue;  // null: there is none; the request ends with `status`
  Status status;
  nvme::SubmissionEntry entry;
};

GPU4FS_FN inline PreparedCommand prepare_command(const IoQueue& queue, u32 slot) {
  PreparedCommand prepared{nullptr, Status::device_failed, {}};
  const DriveSet& set = *queue.drives;
  const IoRequest& request = io_slot(queue, slot).request;
  const Drive* const drive = drive_of(set, request.device);
  if (drive == nullptr) return prepared;
  prepared.status = make_command(set, *drive, request, slot, &prepared.entry);
  if (prepared.status == Status::ok) prepared.queue = queue_for(*drive, request, slot);
  return prepared;
}

}  // namespace detail

// Publishes the requests of the ranks that have a slot, as publish_slots() does; the others pass no_io_slot.
// Collective. Returns how many there are.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 submit_to_drives(Group g, IoQueue& queue, u32 slot) {
  const u32 having = g.ballot(slot != no_io_slot);
  detail::PreparedCommand prepared{nullptr, Status::ok, {}};
  detail::CompletedSlots completed;
  if (slot != no_io_slot) {
    prepared = detail::prepare_command(queue, slot);
    if (prepared.status != Status::ok) detail::complete_slot(queue, slot, prepared.status, &completed);
  }
  g.sync();
  const auto visit = [&](const nvme::Outcome& outcome) { detail::end_command(queue, outcome, &completed); };
  for (u32 left = g.ballot(prepared.queue != nullptr); left != 0;) {
    const u64 chosen = g.shuffle(reinterpret_cast<u64>(prepared.queue), count_trailing_zeros(left));
    const bool is_in = reinterpret_cast<u64>(prepared.queue) == chosen;
    const nvme::RankCommand command{prepared.entry, slot, is_in};
    const nvme::SubmitResult result =
        nvme::submit(g, *reinterpret_cast<nvme::VirtualQueue*>(chosen), command, visit, [&] {
          ring(queue);
          backoff(1000);
        });
    if (result == nvme::SubmitResult::failed) {
      detail::complete_slot(queue, slot, Status::device_failed, &completed);
    }
    left &= ~g.ballot(is_in);
  }
  detail::announce_completed(g, queue, completed, true);
  return popcount(having);
}

// Publishes requests, whoever carries them out. Collective; whoever waits for them calls ring() before.
template <class Group>
GPU4FS_FN u32 publish_requests(Group g, IoQueue& queue, u32 slot) {
  return queue.drives != nullptr ? submit_to_drives(g, queue, slot) : publish_slots(g, queue, slot);
}

namespace detail {

// A failure becomes known to the host, whose answer becomes known to those who poll. One rank.
GPU4FS_FN inline bool exchange_signals(Drive& drive) {
  const nvme::Failure failure = nvme::failure_of(*drive.controller);
  if (failure == nvme::Failure::none) return false;
  store<Order::relaxed, Scope::system>(&drive.signal->failure, static_cast<u32>(failure));
  if (load<Order::acquire, Scope::system>(&drive.signal->is_quiet) != 0) {
    store<Order::release, Scope::engine>(&drive.controller->is_quiet, 1u);
  }
  return true;
}

struct LateLook {
  u64 before_ns;     // a command that was submitted before is late; 0: this is not the time to look
  bool was_watched;  // somebody has polled since the look before
};

// One rank.
GPU4FS_FN inline LateLook claim_late_look(Drive& drive) {
  constexpr u64 looks_per_timeout = 8;
  constexpr u64 pause_ns_max = 1000000000;
  const u64 now_ns = now_monotonic_ns();
  u64 due_ns = load<Order::relaxed, Scope::engine>(&drive.next_look_ns);
  if (exchange_signals(drive) || now_ns < due_ns || now_ns <= drive.command_timeout_ns) return {0, false};
  const u64 next_ns = now_ns + drive.command_timeout_ns / looks_per_timeout;
  if (!compare_exchange<Order::relaxed, Scope::engine>(&drive.next_look_ns, due_ns, next_ns)) return {0, false};
  return {now_ns - drive.command_timeout_ns, now_ns - due_ns < pause_ns_max};
}

// Makes a drive failed that has not answered a command in time. Two looks in turn have to see late commands: after a
// pause of the whole engine the answer may have been there all the time. Collective.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void look_for_late_commands(Group g, Drive& drive) {
  const LateLook look = on_leader(g, [&] { return claim_late_look(drive); });
  if (look.before_ns == 0) return;
  bool is_late = false;
  for (u32 i = 0; i < drive.queue_count; ++i) is_late |= nvme::expired(g, *drive.queues[i], look.before_ns);
  on_leader(g, [&] {
    const u32 before = look.was_watched ? load<Order::relaxed, Scope::engine>(&drive.late_looks) : 0;
    store<Order::relaxed, Scope::engine>(&drive.late_looks, is_late ? before + 1 : 0);
    if (!is_late || before == 0) return;
    nvme::fail(*drive.controller,
               GPU4FS_MUTANT(drive_late_command_ignored, nvme::Failure::timed_out, nvme::Failure::none));
    (void)exchange_signals(drive);
  });
}

// The queue that rank r looks at is number r / drive_queue_max of the connected drives.
GPU4FS_FN inline nvme::VirtualQueue* queue_at(const DriveSet& set, u32 number) {
  const Drive* const drive = drive_of(set, number / drive_queue_max);
  const u32 index = number % drive_queue_max;
  return drive != nullptr && index < drive->queue_count ? drive->queues[index] : nullptr;
}

}  // namespace detail

// Takes completions of all drives, and completes their requests. Collective. Returns how many. `tells`: reports are for
// others than the caller. A drive that has failed, or does not answer in time, is noticed here.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 poll_drives(Group g, IoQueue& queue, bool tells) {
  DriveSet& set = *queue.drives;
  const u64 connected = on_leader(g, [&] { return load<Order::acquire, Scope::engine>(&set.connected); });
  if (connected == 0) return 0;
  detail::CompletedSlots completed;
  const auto visit = [&](const nvme::Outcome& outcome) { detail::end_command(queue, outcome, &completed); };
  const u32 number_end = (64 - count_leading_zeros(connected)) * drive_queue_max;
  u32 count = 0;
  for (u32 base = 0; base < number_end; base += Group::size()) {
    // Each rank looks at a queue, because a look may be an access of the host's memory.
    nvme::VirtualQueue* const mine = base + g.rank() < number_end ? detail::queue_at(set, base + g.rank()) : nullptr;
    for (u32 left = g.ballot(mine != nullptr && nvme::looks_ready(*mine)); left != 0; left &= left - 1) {
      const u64 chosen = g.shuffle(reinterpret_cast<u64>(mine), count_trailing_zeros(left));
      count += nvme::poll(g, *reinterpret_cast<nvme::VirtualQueue*>(chosen), visit);
      // A poll may show the drive commands of lanes that found the tail taken, and that have rung already.
      on_leader(g, [&] { ring(queue); });
    }
  }
  if (count == 0) {
    for (u64 left = connected; left != 0; left &= left - 1) {
      Drive* const drive = detail::drive_of(set, static_cast<u32>(count_trailing_zeros(left)));
      if (drive != nullptr) detail::look_for_late_commands(g, *drive);
    }
  }
  g.sync();
  detail::announce_completed(g, queue, completed, tells);
  return count;
}

// The same if there are drives. For lanes that wait.
GPU4FS_FN inline u32 poll_any_drives(IoQueue& queue) {
  return queue.drives != nullptr ? poll_drives(Lane{}, queue, true) : 0;
}

// Bytes that one request moves at most.
GPU4FS_FN inline u64 transfer_pages_max(const IoQueue& queue, u32 device, u64 page_max) {
  if (queue.drives == nullptr) return page_max;
  const Drive* const drive = detail::drive_of(*queue.drives, device);
  return drive != nullptr ? minimum(page_max, u64{drive->transfer_page_max}) : page_max;
}

}  // namespace gpu4fs::device
