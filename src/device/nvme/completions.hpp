// Taking completions from a virtual queue.
//
// Whoever has time polls. One group at a time looks at the entries behind the head, each rank at one. Everything in an
// entry is compared with what is known: the command is outstanding with just this generation, was shown to the
// controller, and belongs to this queue; the submission head lies behind the command and not beyond the tail. An entry
// that fails one of these makes the controller failed. The good entries in front of it still count. Phases that the
// controller inverts too early show stale entries, whose commands are not outstanding; phases that it never inverts
// show nothing, and the command times out (expired()).
#pragma once

#include "base/access.hpp"
#include "base/check.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "device/nvme/queue_types.hpp"
#include "device/nvme/tail.hpp"

namespace gpu4fs::nvme {

namespace detail {

GPU4FS_FN inline u32 expected_phase(const VirtualQueue& queue, u32 number) {
  return (number / queue.depth & 1) ^ GPU4FS_MUTANT(nvme_phase_inverted, 1u, 0u);
}

// The last four bytes of a completion entry: identifier and status with the phase. With the order `relaxed` it is a
// look, and the rest of the entry may not be used.
template <Order order = Order::acquire>
GPU4FS_FN inline u32 last_word(const VirtualQueue& queue, u32 number) {
  const u8* const entry = reinterpret_cast<const u8*>(&queue.completions[place_of(queue, number)]);
  return load<order, Scope::system>(reinterpret_cast<const u32*>(entry + 12));
}
GPU4FS_FN inline bool has_phase(u32 last_word, u32 phase) {
  return (last_word >> 16 & 1) == phase;
}

// The head that the controller reports is `ticket` + 1 at least, since it has fetched the command, and the tail at
// most.
GPU4FS_FN inline bool is_possible_head(const VirtualQueue& queue, u32 head, u32 ticket, u32 tail) {
  if (head >= queue.depth) return false;
  const u32 later = tail - (ticket + 1);
  return ((head - (ticket + 1)) & (queue.depth - 1)) <= later;
}

struct TakenEntry {
  Failure failure;
  u32 index;
  Outcome outcome;
};

// Judges completion `number`, whose phase is right, and ends its command. One rank.
GPU4FS_FN inline TakenEntry take_entry(VirtualQueue& queue, u32 number, u32 seen_last_word) {
  const Vector16 value = load_shared_16(&queue.completions[place_of(queue, number)]);
  CompletionEntry entry;
  __builtin_memcpy(&entry, &value, sizeof(entry));
  if (static_cast<u32>(value.high >> 32) != seen_last_word) return {Failure::torn_entry, 0, {}};
  if (entry.submission_queue != queue.queue_id) return {Failure::wrong_queue, 0, {}};
  const u32 index = entry.command_id & (queue.depth - 1);
  const u32 generation = entry.command_id / queue.depth;
  CommandSlot& slot = queue.slots[index];
  const u32 outstanding = generation << 1 | 1u;
  const u32 found = load<Order::acquire, Scope::engine>(&slot.state);
  // All of them are on their way at once.
  const u32 ticket = load<Order::relaxed, Scope::engine>(&slot.ticket);
  const u32 tail = load<Order::relaxed, Scope::engine>(&queue.tail);
  const u64 cookie = load<Order::relaxed, Scope::engine>(&slot.cookie);
  const u32 service_class = load<Order::relaxed, Scope::engine>(&slot.service_class);
  if (GPU4FS_MUTANT(nvme_generation_ignored, found != outstanding, (found & 1) == 0)) {
    return {Failure::unknown_command, 0, {}};
  }
  const u32 shown = tail - ticket;
  if (GPU4FS_MUTANT(nvme_early_completion_taken, shown == 0 || shown > 1u << 31, false)) {
    return {Failure::early_completion, 0, {}};
  }
  if (GPU4FS_MUTANT(nvme_head_ignored, !is_possible_head(queue, entry.submission_head, ticket, tail), false)) {
    return {Failure::impossible_head, 0, {}};
  }
  TakenEntry taken{Failure::none, index, {}};
  taken.outcome = {cookie,       CommandEnd::answered, status_code_of(entry),
                   entry.dword0, do_not_retry(entry),  service_class};
  // Another rank may hold a second entry of the same command. The next user of the slot comes behind the release of
  // `completed`, so this needs no order.
  u32 expected = found;
  if (!compare_exchange<Order::relaxed, Scope::engine>(&slot.state, expected, found & ~1u)) {
    return {Failure::unknown_command, 0, {}};
  }
  return taken;
}

// Takes completions from number `first` on, one for each rank. Returns how many were taken; less than the ranks: there
// are no more.
template <class Group, class Visit>
GPU4FS_FN u32 take_batch(Group g, VirtualQueue& queue, u32 first, Visit&& visit) {
  const u32 number = first + g.rank();
  const u32 word = last_word(queue, number);
  const bool is_ready = g.rank() < queue.depth && has_phase(word, expected_phase(queue, number));
  const u32 ready_count = leading_ranks(g, is_ready);
  TakenEntry taken{Failure::none, 0, {}};
  const bool has_entry = g.rank() < ready_count;
  if (has_entry) taken = take_entry(queue, number, word);
  if (taken.failure != Failure::none) fail(*queue.controller, taken.failure);
  const bool is_good = has_entry && taken.failure == Failure::none;
  if (is_good) {
    store<Order::relaxed, Scope::engine>(&queue.free_ids[place_of(queue, number)], taken.index);
    visit(taken.outcome);
  }
  return leading_ranks(g, is_good);
}

// Ends all outstanding commands of a controller that touches no memory any more.
template <class Group, class Visit>
GPU4FS_FN u32 stop_outstanding(Group g, VirtualQueue& queue, Visit&& visit) {
  const bool is_renewed = load<Order::relaxed, Scope::engine>(&queue.controller->is_renewed) != 0;
  const CommandEnd end = is_renewed ? CommandEnd::returned : CommandEnd::stopped;
  u32 count = 0;
  for (u32 i = g.rank(); i < queue.depth; i += Group::size()) {
    CommandSlot& slot = queue.slots[i];
    u32 state = load<Order::acquire, Scope::engine>(&slot.state);
    if ((state & 1) == 0) continue;
    const u64 cookie = load<Order::relaxed, Scope::engine>(&slot.cookie);
    const u32 service_class = load<Order::relaxed, Scope::engine>(&slot.service_class);
    if (!compare_exchange<Order::acq_rel, Scope::engine>(&slot.state, state, state & ~1u)) continue;
    visit(Outcome{cookie, end, 0, 0, false, service_class});
    ++count;
  }
  return g.reduce(count, [](u32 a, u32 b) { return a + b; });
}

enum class PollWork : u32 { nothing, take, stop };

struct FoundWork {
  PollWork work;
  bool has_marks;  // entries that nobody else will look at again (tail_rounds_max)
};

// One rank. A look takes two accesses one after the other, each of which is several loads at once. Whoever goes on
// acquires what he uses.
GPU4FS_FN inline FoundWork find_work(VirtualQueue& queue) {
  const bool is_failed = has_failed(*queue.controller);
  const u32 tail = load<Order::relaxed, Scope::engine>(&queue.tail);
  const u32 head = load<Order::relaxed, Scope::engine>(&queue.completed);
  const bool has_marks = is_marked<Order::relaxed>(queue, tail);
  const u32 word = last_word<Order::relaxed>(queue, head);
  if (is_failed) {
    const bool is_quiet = load<Order::acquire, Scope::engine>(&queue.controller->is_quiet) != 0;
    return {is_quiet ? PollWork::stop : PollWork::nothing, false};
  }
  if (!has_phase(word, expected_phase(queue, head))) return {PollWork::nothing, has_marks};
  const bool is_mine = exchange<Order::acquire, Scope::engine>(&queue.poll_token, 1) == 0;
  return {is_mine ? PollWork::take : PollWork::nothing, has_marks};
}

}  // namespace detail

// Whether poll() may find something to do. False if the controller has failed. Changes nothing. One rank.
GPU4FS_FN inline bool looks_ready(const VirtualQueue& queue) {
  if (failure_of(*queue.controller) != Failure::none) return false;
  if (detail::is_marked(queue, load<Order::relaxed, Scope::engine>(&queue.tail))) return true;
  const u32 head = load<Order::relaxed, Scope::engine>(&queue.completed);
  return detail::has_phase(detail::last_word(queue, head), detail::expected_phase(queue, head));
}

// Collective. Takes up to poll_batch_max completions and returns how many; 0 too while another group takes them. Each
// is given to visit(outcome) on one rank, and its command identifier is free when this returns. `visit` must not wait.
//
// If the controller has failed and is quiet, each command that was left is given out as `stopped`, once. A lane may
// submit its last command at that moment, so whoever waits for a command goes on polling until it has its outcome.
template <class Group, class Visit>
GPU4FS_FN u32 poll(Group g, VirtualQueue& queue, Visit&& visit) {
  const detail::FoundWork found = on_leader(g, [&] { return detail::find_work(queue); });
  if (found.has_marks) detail::move_tail(g, queue);
  if (found.work == detail::PollWork::nothing) return 0;
  if (found.work == detail::PollWork::stop) return detail::stop_outstanding(g, queue, visit);
  const u32 head = g.broadcast(load<Order::relaxed, Scope::engine>(&queue.completed));
  u32 count = 0;
  while (count < poll_batch_max) {
    const u32 taken = detail::take_batch(g, queue, head + count, visit);
    count += taken;
    if (taken < Group::size()) break;
  }
  on_leader(g, [&] {
    if (count > 0) {
      // The doorbell first: when the freed places are used again, the controller has room for their completions.
      ring_doorbell(queue.completion_doorbell, detail::place_of(queue, head + count));
      store<Order::release, Scope::engine>(&queue.completed, head + count);
    }
    if (GPU4FS_MUTANT(nvme_poll_token_kept, true, count > 0)) {
      store<Order::release, Scope::engine>(&queue.poll_token, 0);
    }
  });
  return count;
}

// Collective. Whether a command is outstanding that was submitted before `before_ns` (now_monotonic_ns()).
template <class Group>
GPU4FS_FN bool expired(Group g, const VirtualQueue& queue, u64 before_ns) {
  bool is_late = false;
  for (u32 i = g.rank(); i < queue.depth; i += Group::size()) {
    const CommandSlot& slot = queue.slots[i];
    const u32 state = load<Order::acquire, Scope::engine>(&slot.state);
    const u64 submitted_ns = load<Order::acquire, Scope::engine>(&slot.submitted_ns);
    const bool is_same = load<Order::relaxed, Scope::engine>(&slot.state) == state;
    if ((state & 1) != 0 && is_same && submitted_ns < before_ns) is_late = true;
  }
  return g.any(is_late);
}

// The outstanding command that the controller was shown first.
struct OldestCommand {
  u64 submitted_ns;  // now_monotonic_ns() of its lane; ~0: there is none
  u32 ticket;
  u32 command_id;
};

namespace detail {

GPU4FS_FN inline OldestCommand older_of(const OldestCommand& a, const OldestCommand& b) {
  if (a.submitted_ns == ~u64{0}) return b;
  if (b.submitted_ns == ~u64{0}) return a;
  // Tickets of outstanding commands are less than a depth apart.
  return static_cast<i32>(a.ticket - b.ticket) <= 0 ? a : b;
}

}  // namespace detail

// Collective. Commands that are submitted or taken at this moment may be missing.
template <class Group>
GPU4FS_FN OldestCommand find_oldest(Group g, const VirtualQueue& queue) {
  const u32 tail = g.broadcast(load<Order::relaxed, Scope::engine>(&queue.tail));
  OldestCommand oldest{~u64{0}, 0, 0};
  for (u32 i = g.rank(); i < queue.depth; i += Group::size()) {
    const CommandSlot& slot = queue.slots[i];
    const u32 state = load<Order::acquire, Scope::engine>(&slot.state);
    const u32 ticket = load<Order::acquire, Scope::engine>(&slot.ticket);
    const u64 submitted_ns = load<Order::acquire, Scope::engine>(&slot.submitted_ns);
    const bool is_same = load<Order::relaxed, Scope::engine>(&slot.state) == state;
    const u32 shown = tail - ticket;
    if ((state & 1) == 0 || !is_same || shown == 0 || shown > 1u << 31) continue;
    oldest = detail::older_of(oldest, {submitted_ns, ticket, detail::command_id_of(queue, i, state >> 1)});
  }
  return g.reduce(oldest, [](const OldestCommand& a, const OldestCommand& b) { return detail::older_of(a, b); });
}

struct LateCommand {
  bool is_found;
  u16 command_id;
};

// A command as expired() looks for, for which nobody has sent an Abort command yet: the caller does. It may be answered
// meanwhile, and its identifier be in use again only after all generations. One rank.
GPU4FS_FN inline LateCommand take_late_command(VirtualQueue& queue, u64 before_ns) {
  for (u32 i = 0; i < queue.depth; ++i) {
    CommandSlot& slot = queue.slots[i];
    const u32 state = load<Order::acquire, Scope::engine>(&slot.state);
    const u64 submitted_ns = load<Order::acquire, Scope::engine>(&slot.submitted_ns);
    const bool is_same = load<Order::relaxed, Scope::engine>(&slot.state) == state;
    if ((state & 1) == 0 || !is_same || submitted_ns >= before_ns) continue;
    if (exchange<Order::relaxed, Scope::engine>(&slot.has_abort, 1) != 0) continue;
    return {true, detail::command_id_of(queue, i, state >> 1)};
  }
  return {false, 0};
}

}  // namespace gpu4fs::nvme
