// Publication of requests of an I/O queue to drives, and completions of drives as completions of the requests.
//
// A request lies in its slot as always. Its command has the slot as its cookie, and whoever polls completes the slot:
// he stores the status, and puts the slot into the list of reports if it reports. Polling waits for nobody.
//
// A virtual queue may have fewer places than there are slots. Whoever finds it full waits for room in the order of
// tickets. Meanwhile he polls all drives, so those who hold places get on, and a silent drive fails.
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
#include "device/drives/shared_commands.hpp"
#include "device/nvme/completions.hpp"
#include "device/nvme/submit.hpp"
#include "device/queue/io_consumer.hpp"
#include "device/queue/io_queue.hpp"
#include "device/queue/io_wait.hpp"

namespace gpu4fs::device {

namespace detail {

// Who takes reports is on the processor that puts them.
GPU4FS_FN inline FreeCells own_reports(const IoQueue& queue) {
  return {queue.report_words, queue.slot_count};
}

// Of one rank.
struct CompletedSlots {
  u32 count = 0;
  u32 reported = 0;
};

// Completes the requests of a command, whose first slot this is. A slot may be another request's as soon as its status
// is stored, if its owner waits for it, or it was reported. In a kernel fences come before all statuses and before all
// reports, because a release for each would wait for all stores on their way. Any rank.
GPU4FS_FN GPU4FS_NOINLINE inline void complete_slots(IoQueue& queue, u32 first, Status status,
                                                     CompletedSlots* completed) {
  constexpr Order order = GPU4FS_DEVICE_CODE ? Order::relaxed : Order::release;
  const IoSlot& head = io_slot(queue, first);
  const u32 count = GPU4FS_MUTANT(shared_slots_forgotten, head.chain_count, 1u);
  const bool reports = head.request.reports != 0;
  GPU4FS_CHECK(count > 0 && count <= warp_size && (count == 1 || reports));
  if (GPU4FS_DEVICE_CODE) fence<Order::acq_rel, Scope::engine>();
  for (u32 i = 0, slot = first; i < count; ++i) {
    IoSlot& place = io_slot(queue, slot);
    if (reports) slot = place.next_slot;
    GPU4FS_CHECK_EQ((load<Order::relaxed, Scope::system>(&place.status)), io_pending);
    store<order, Scope::engine>(&place.status, static_cast<u32>(status));
  }
  completed->count += count;
  if (!GPU4FS_MUTANT(drive_report_lost, reports, false)) return;
  completed->reported += count;
  if (GPU4FS_DEVICE_CODE) fence<Order::acq_rel, Scope::engine>();
  const u64 position = fetch_add<Order::relaxed, Scope::engine>(&queue.report_tail, u64{count});
  for (u32 i = 0, slot = first; i < count; ++i) {
    const u32 next = io_slot(queue, slot).next_slot;
    own_reports(queue).put_behind_fence(position + i, slot);
    slot = next;
  }
}

GPU4FS_FN inline void end_command(IoQueue& queue, const nvme::Outcome& outcome, CompletedSlots* completed) {
  const u32 slot = static_cast<u32>(outcome.cookie);
  const IoSlot& head = io_slot(queue, slot);
  complete_slots(queue, slot, status_of_requests(queue, head, outcome), completed);
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

// The queues of a drive with loads of pages: [first, first + count).
struct LoadQueues {
  u32 first;
  u32 count;
};
GPU4FS_FN constexpr LoadQueues load_queues(u32 queue_count) {
  return queue_count >= 3 ? LoadQueues{1, queue_count - 2} : LoadQueues{0, maximum(queue_count - 1, 1u)};
}

// Requests of different classes have different queues, as far as there are some: nobody waits behind others that are
// less urgent. Loads spread by `turn`.
GPU4FS_FN inline nvme::VirtualQueue* queue_for(const Drive& drive, const IoRequest& request, u32 turn) {
  const LoadQueues loads = load_queues(drive.queue_count);
  if (request.reports == 0 || !moves_bytes(request.operation)) return drive.queues[urgent_queue];
  if (request.operation == IoOperation::write) return drive.queues[drive.queue_count - 1];
  return drive.queues[GPU4FS_MUTANT(loads_in_urgent_queue, loads.first, 0u) + turn % loads.count];
}

// Of a request whose command was not submitted, because the controller has failed.
GPU4FS_FN inline Status status_of_refused(const nvme::ControllerState& controller, IoOperation operation) {
  const bool is_quiet = load<Order::acquire, Scope::engine>(&controller.is_quiet) != 0;
  const bool is_renewed = load<Order::relaxed, Scope::engine>(&controller.is_renewed) != 0;
  const bool may_return = !is_quiet && load<Order::relaxed, Scope::engine>(&controller.may_return) != 0;
  return is_renewed || may_return ? status_of_unanswered(operation) : Status::device_failed;
}

struct PreparedCommand {
  nvme::VirtualQueue* queue;  // null: there is none; the request ends with `status`
  Status status;
  u64 key;       // place_key()
  u32 page_max;  // of a command that it may share; 0: it may not
  u32 block_shift;
  nvme::SubmissionEntry entry;
};

GPU4FS_FN inline PreparedCommand prepare_command(const IoQueue& queue, u32 slot, u32 turn) {
  PreparedCommand prepared{nullptr, Status::device_failed, 0, 0, 0, {}};
  const DriveSet& set = *queue.drives;
  const IoRequest& request = io_slot(queue, slot).request;
  Drive* const drive = drive_of(set, request.device);
  if (drive == nullptr) return prepared;
  if (request.operation == IoOperation::flush && load<Order::relaxed, Scope::engine>(&drive->loses_next_flush) != 0 &&
      exchange<Order::relaxed, Scope::engine>(&drive->loses_next_flush, 0u) != 0) {
    return prepared;
  }
  prepared.status = make_command(set, *drive, request, slot, &prepared.entry);
  if (prepared.status != Status::ok) return prepared;
  prepared.queue = queue_for(*drive, request, turn);
  prepared.key = place_key(request);
  prepared.block_shift = drive->block_shift;
  if (is_shareable(*drive, request)) prepared.page_max = drive->transfer_page_max;
  return prepared;
}

}  // namespace detail

namespace detail {

// A failure becomes known to the host, whose answer becomes known to those who poll. True: the drive is quiet.
GPU4FS_FN inline bool exchange_signals(Drive& drive) {
  if (load<Order::relaxed, Scope::engine>(&drive.controller->is_quiet) != 0) return true;
  const nvme::Failure failure = nvme::failure_of(*drive.controller);
  store<Order::relaxed, Scope::system>(&drive.signal->failure, static_cast<u32>(failure));
  if (load<Order::acquire, Scope::system>(&drive.signal->is_quiet) == 0) return false;
  store<Order::release, Scope::engine>(&drive.controller->is_quiet, 1u);
  return true;
}

// How often somebody looks for commands that a failed drive has left: not at every poll, since it takes a look at all
// their places.
inline constexpr u64 clean_interval_ns = 1000000;

// Whether somebody has to look at the drive. One rank.
GPU4FS_FN inline bool is_look_due(const Drive& drive, u64 now_ns) {
  const u64* const due_ns = nvme::has_failed(*drive.controller) ? &drive.next_clean_ns : &drive.next_look_ns;
  return now_ns >= load<Order::relaxed, Scope::engine>(due_ns);
}

struct DriveLook {
  bool is_mine;  // the caller has the token of the watch
  bool has_failed;
  bool was_watched;  // somebody has polled since the look before
};

// One rank.
GPU4FS_FN inline DriveLook claim_look(Drive& drive, u64 now_ns) {
  constexpr u64 looks_per_timeout = 8;
  constexpr u64 pause_ns_max = 1000000000;
  if (exchange<Order::acquire, Scope::engine>(&drive.watch.token, 1u) != 0) return {};
  if (!is_look_due(drive, now_ns)) {
    store<Order::release, Scope::engine>(&drive.watch.token, 0u);
    return {};
  }
  if (nvme::has_failed(*drive.controller)) {
    store<Order::relaxed, Scope::engine>(&drive.next_clean_ns, now_ns + clean_interval_ns);
    return {true, true, false};
  }
  const u64 due_ns = load<Order::relaxed, Scope::engine>(&drive.next_look_ns);
  store<Order::relaxed, Scope::engine>(&drive.next_look_ns, now_ns + drive.command_timeout_ns / looks_per_timeout);
  return {true, false, now_ns - due_ns < pause_ns_max};
}

// How long a drive has for an Abort, as a part of the time-out.
inline constexpr u64 abort_time_share = 4;
// Commands of a drive that may be late before it has kept its time again for some time-outs.
inline constexpr u32 late_command_max = 8;
inline constexpr u32 kept_time_outs = 10;

// The watch is of `oldest`, which is late. One rank, with the token.
GPU4FS_FN inline void answer_silence(Drive& drive, const nvme::OldestCommand& oldest, u64 now_ns) {
  DriveWatch& watch = drive.watch;
  if (now_ns - watch.last_told_ns > kept_time_outs * drive.command_timeout_ns) watch.told_count = 0;
  if (drive.can_abort != 0 && watch.told_ns == 0 && watch.told_count < late_command_max) {
    watch.told_ns = watch.last_told_ns = now_ns;
    ++watch.told_count;
    const LateCommand late{watch.queue, static_cast<u16>(oldest.command_id), ++watch.told_number};
    return store<Order::release, Scope::system>(&drive.signal->late, late.word());
  }
  if (watch.told_ns != 0 && now_ns - watch.told_ns <= drive.command_timeout_ns / abort_time_share) return;
  nvme::fail(*drive.controller,
             GPU4FS_MUTANT(drive_late_command_ignored, nvme::Failure::timed_out, nvme::Failure::none));
  (void)exchange_signals(drive);
}

// Makes a drive failed that is silent. After a pause of the whole engine the time begins anew: the answer may have been
// there all the time. If a late command was aborted, others that are as old are late at once. Collective, with the
// token.
template <class Group>
GPU4FS_FN void look_for_silence(Group g, Drive& drive, bool was_watched, u64 now_ns) {
  nvme::OldestCommand oldest{~u64{0}, 0, 0};
  u32 queue = 0;
  for (u32 i = 0; i < drive.queue_count; ++i) {
    const nvme::OldestCommand found = nvme::find_oldest(g, *drive.queues[i]);
    if (found.submitted_ns >= oldest.submitted_ns) continue;
    oldest = found;
    queue = i;
  }
  on_leader(g, [&] {
    DriveWatch& watch = drive.watch;
    const bool is_found =
        watch.submitted_ns == oldest.submitted_ns && watch.queue == queue && watch.ticket == oldest.ticket;
    const bool is_same = GPU4FS_MUTANT(drive_answers_ignored, is_found, watch.submitted_ns != 0);
    const bool is_none = oldest.submitted_ns == ~u64{0};
    const bool is_next = !is_same && !is_none && watch.told_ns != 0 &&
                         now_ns - minimum(oldest.submitted_ns, now_ns) > drive.command_timeout_ns;
    if (is_none || !is_same || !was_watched) watch.since_ns = is_next ? oldest.submitted_ns : now_ns;
    if (!is_same) watch.told_ns = 0;
    watch.queue = queue;
    watch.ticket = oldest.ticket;
    watch.submitted_ns = oldest.submitted_ns;
    if (now_ns - watch.since_ns > drive.command_timeout_ns) answer_silence(drive, oldest, now_ns);
  });
}

// Looks whether a drive is silent, and ends the commands that a failed one has left. Collective. Returns how many.
template <class Group, class Visit>
GPU4FS_FN GPU4FS_NOINLINE u32 look_at_drive(Group g, Drive& drive, u64 now_ns, Visit&& visit) {
  const DriveLook look = on_leader(g, [&] { return claim_look(drive, now_ns); });
  if (!look.is_mine) return 0;
  u32 count = 0;
  if (!look.has_failed) {
    look_for_silence(g, drive, look.was_watched, now_ns);
  } else if (on_leader(g, [&] { return exchange_signals(drive); })) {
    for (u32 i = 0; i < drive.queue_count; ++i) count += nvme::poll(g, *drive.queues[i], visit);
  }
  g.sync();
  on_leader(g, [&] { store<Order::release, Scope::engine>(&drive.watch.token, 0u); });
  return count;
}

// The queue that rank r looks at is number r / drive_queue_max of the connected drives.
GPU4FS_FN inline nvme::VirtualQueue* queue_at(const DriveSet& set, u32 number) {
  const Drive* const drive = drive_of(set, number / drive_queue_max);
  const u32 index = number % drive_queue_max;
  return drive != nullptr && index < drive->queue_count ? drive->queues[index] : nullptr;
}

// Looks at the drives of devices below `device_end` for which it is time. Collective. Returns how many commands ended.
template <class Group, class Visit>
GPU4FS_FN u32 look_at_drives(Group g, const DriveSet& set, u32 device_end, Visit&& visit) {
  const u64 now_ns = g.broadcast(now_monotonic_ns());
  u32 count = 0;
  for (u32 base = 0; base < device_end; base += Group::size()) {
    Drive* const mine = base + g.rank() < device_end ? drive_of(set, base + g.rank()) : nullptr;
    for (u32 left = g.ballot(mine != nullptr && is_look_due(*mine, now_ns)); left != 0; left &= left - 1) {
      const u64 chosen = g.shuffle(reinterpret_cast<u64>(mine), count_trailing_zeros(left));
      count += look_at_drive(g, *reinterpret_cast<Drive*>(chosen), now_ns, visit);
    }
  }
  return count;
}

}  // namespace detail

// Takes completions of all drives, and completes their requests. Collective. Returns how many. `tells`: reports are for
// others than the caller. A drive that has failed or is silent is noticed here.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 poll_drives(Group g, IoQueue& queue, bool tells) {
  DriveSet& set = *queue.drives;
  const u64 connected = on_leader(g, [&] { return load<Order::acquire, Scope::engine>(&set.connected); });
  if (connected == 0) return 0;
  detail::CompletedSlots completed;
  const auto visit = [&](const nvme::Outcome& outcome) { detail::end_command(queue, outcome, &completed); };
  const u32 device_end = 64 - count_leading_zeros(connected);
  const u32 number_end = device_end * drive_queue_max;
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
  count += detail::look_at_drives(g, set, device_end, visit);
  g.sync();
  detail::announce_completed(g, queue, completed, tells);
  return count;
}

// Publishes the requests of the ranks that have a slot, as publish_slots() does; the others pass no_io_slot.
// Collective. Returns how many there are.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 submit_to_drives(Group g, IoQueue& queue, u32 slot) {
  const u32 having = g.ballot(slot != no_io_slot);
  if (having == 0) return 0;
  // The ranks' commands for a drive go to one queue, because each queue takes a submission of its own.
  const u32 turn = g.shuffle(slot, count_trailing_zeros(having));
  detail::PreparedCommand prepared{nullptr, Status::ok, 0, 0, 0, {}};
  detail::CompletedSlots completed;
  if (slot != no_io_slot) prepared = detail::prepare_command(queue, slot, turn);
  const detail::CommandShare share =
      detail::share_commands(g, prepared.page_max != 0, prepared.key, maximum(prepared.page_max, 1u));
  if (detail::join_requests(g, queue, slot, share, prepared.block_shift, &prepared.entry)) prepared.queue = nullptr;
  if (slot != no_io_slot && prepared.status != Status::ok) {
    detail::complete_slots(queue, slot, prepared.status, &completed);
  }
  g.sync();
  const auto visit = [&](const nvme::Outcome& outcome) { detail::end_command(queue, outcome, &completed); };
  for (u32 left = g.ballot(prepared.queue != nullptr); left != 0;) {
    const u64 chosen = g.shuffle(reinterpret_cast<u64>(prepared.queue), count_trailing_zeros(left));
    const bool is_in = reinterpret_cast<u64>(prepared.queue) == chosen;
    const nvme::RankCommand command{prepared.entry, slot, is_in};
    const nvme::SubmitResult result =
        nvme::submit(g, *reinterpret_cast<nvme::VirtualQueue*>(chosen), command, visit, [&] {
          detail::announce_completed(g, queue, completed, true);
          completed = {};
          ring(queue);
          // All drives: this one may be silent, and nobody else may have time for the others.
          if (GPU4FS_MUTANT(drive_full_queue_trusted, poll_drives(g, queue, true), 0u) == 0) backoff(1000);
        });
    if (result == nvme::SubmitResult::failed) {
      const nvme::ControllerState& controller = *prepared.queue->controller;
      const IoOperation operation = detail::io_slot(queue, slot).request.operation;
      detail::complete_slots(queue, slot, detail::status_of_refused(controller, operation), &completed);
    }
    left &= ~g.ballot(is_in);
  }
  detail::announce_completed(g, queue, completed, true);
  return popcount(having);
}

// Whether the drive of a device has room for commands that may as well not be sent: its queues for loads are less than
// half full. True if it has no drive. One rank.
GPU4FS_FN inline bool has_room_for_hints(const IoQueue& queue, u32 device) {
  if (queue.drives == nullptr) return true;
  const Drive* const drive = detail::drive_of(*queue.drives, device);
  if (drive == nullptr) return true;
  const detail::LoadQueues loads = detail::load_queues(drive->queue_count);
  bool has_room = true;
  for (u32 i = 0; i < loads.count; ++i) {
    const nvme::VirtualQueue& queued = *drive->queues[loads.first + i];
    const u32 completed = load<Order::relaxed, Scope::engine>(&queued.completed);
    const u32 unfinished = load<Order::relaxed, Scope::engine>(&queued.next_ticket) - completed;
    has_room &= unfinished < maximum(queued.depth / 2, 1u);
  }
  return has_room;
}

// Publishes requests, whoever carries them out. Collective; whoever waits for them calls ring() before.
template <class Group>
GPU4FS_FN u32 publish_requests(Group g, IoQueue& queue, u32 slot) {
  return queue.drives != nullptr ? submit_to_drives(g, queue, slot) : publish_slots(g, queue, slot);
}

// Ends what is left in a queue of a drive that is quiet, for good or because it works with other queues now. Returns
// how many commands. One lane.
GPU4FS_FN inline u32 end_left_commands(IoQueue& queue, nvme::VirtualQueue& left) {
  detail::CompletedSlots completed;
  const u32 count =
      nvme::poll(Lane{}, left, [&](const nvme::Outcome& outcome) { detail::end_command(queue, outcome, &completed); });
  detail::announce_completed(Lane{}, queue, completed, true);
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
