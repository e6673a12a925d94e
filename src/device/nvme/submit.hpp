// Submission of commands to a virtual queue.
//
// try_submit() never waits. submit() waits for room in the order of tickets: after a lane has its ticket, which takes
// one atomic addition, no command with a later ticket reaches the controller before its own. So a command is bypassed
// by no other, and it waits for at most the commands that were unfinished or had older tickets when it came.
// try_submit() takes no ticket while somebody waits: there is no room then.
//
// Commands of a group have neighbouring tickets. A group must not call submit() while it holds what other lanes need
// to poll or to finish their commands.
#pragma once

#include "base/access.hpp"
#include "base/check.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "device/nvme/completions.hpp"
#include "device/nvme/queue_types.hpp"
#include "device/nvme/tail.hpp"

namespace gpu4fs::nvme {

// The command of one rank.
struct RankCommand {
  const SubmissionEntry& entry;  // but its identifier
  u64 cookie;                    // comes back with the outcome
  bool is_present = true;        // false: the rank has none
  u32 service_class = 0;         // comes back too (device/nvme/classes.hpp)
};

namespace detail {

// Attempts to take tickets while others take them too.
inline constexpr u32 take_attempts_max = 8;

struct Tickets {
  u32 first;
  u32 count;
};

// Less than capacity commands are unfinished that are older than this ticket.
GPU4FS_FN inline bool is_turn(const VirtualQueue& queue, u32 ticket) {
  const u32 unfinished = ticket - load<Order::acquire, Scope::engine>(&queue.completed);
  return unfinished < GPU4FS_MUTANT(nvme_ring_overfilled, capacity_of(queue), capacity_of(queue) + 1);
}

// Up to `wanted` tickets whose turn it is, or none.
GPU4FS_FN inline Tickets try_take_tickets(VirtualQueue& queue, u32 wanted) {
  for (u32 attempt = 0; attempt < take_attempts_max; ++attempt) {
    // In this order: a ticket is never older than what it is compared with.
    const u32 completed = load<Order::acquire, Scope::engine>(&queue.completed);
    u32 first = load<Order::relaxed, Scope::engine>(&queue.next_ticket);
    const u32 unfinished = first - completed;
    if (unfinished >= capacity_of(queue)) return {first, 0};
    const u32 count = minimum(wanted, capacity_of(queue) - unfinished);
    if (compare_exchange<Order::relaxed, Scope::engine>(&queue.next_ticket, first, first + count)) {
      return {first, count};
    }
  }
  return {0, 0};
}

// Puts the command at the place of its ticket and marks it. With the mark's order `relaxed`, the caller holds the tail
// and shows the entry itself.
GPU4FS_FN inline void put_entry(VirtualQueue& queue, u32 ticket, const RankCommand& command, Order mark_order) {
  const u32 place = place_of(queue, ticket);
  const u32 index = load<Order::relaxed, Scope::engine>(&queue.free_ids[place]);
  GPU4FS_CHECK_LT(index, queue.depth);
  CommandSlot& slot = queue.slots[index];
  // The turn of the ticket has acquired what the poller has left here.
  const u32 state = load<Order::relaxed, Scope::engine>(&slot.state);
  GPU4FS_CHECK_EQ(state & 1, 0u);
  const u32 generation = ((state >> 1) + 1) % generation_count(queue);
  store<Order::relaxed, Scope::engine>(&slot.ticket, ticket);
  store<Order::relaxed, Scope::engine>(&slot.cookie, command.cookie);
  store<Order::relaxed, Scope::engine>(&slot.service_class, command.service_class);
  store<Order::relaxed, Scope::engine>(&slot.submitted_ns, now_monotonic_ns());
  store<Order::relaxed, Scope::engine>(&slot.has_abort, 0);
  store<Order::release, Scope::engine>(&slot.state, generation << 1 | 1u);
  SubmissionEntry entry = command.entry;
  entry.command_id = command_id_of(queue, index, generation);
  u8* const target = reinterpret_cast<u8*>(&queue.submissions[place]);
  GPU4FS_UNROLL
  for (u32 at = 0; at < sizeof(entry); at += 16) {
    Vector16 part;
    __builtin_memcpy(&part, reinterpret_cast<const u8*>(&entry) + at, sizeof(part));
    store_shared_16(target + at, part);
  }
  if (mark_order == Order::relaxed) {
    store<Order::relaxed, Scope::engine>(&queue.marks[place], ticket + 1);
  } else {
    store<Order::release, Scope::engine>(&queue.marks[place], ticket + 1);
  }
}

// Collective. Puts the commands of the ranks that have one (`is_mine`) at `ticket` of their own, all of [first,
// first + count), and shows them to the controller.
//
// A group that finds the tail free and no older entries in front of its own holds it while it writes them. Then the
// doorbell's fence is the only one that its entries need. Others that mark entries meanwhile leave them to the holder,
// who looks again behind his doorbell, as in move_tail().
template <class Group>
GPU4FS_FN void put_entries(Group g, VirtualQueue& queue, const Tickets& tickets, bool is_mine, u32 ticket,
                           const RankCommand& command) {
  const HeldTail held = on_leader(g, [&] { return try_hold_tail(queue); });
  const bool is_next = held.is_mine && GPU4FS_MUTANT(nvme_older_entries_overtaken, held.tail == tickets.first, true);
  if (is_mine) put_entry(queue, ticket, command, is_next ? Order::relaxed : Order::release);
  if (!held.is_mine) return move_tail(g, queue);
  g.sync();
  const u32 shown = is_next ? tickets.first + tickets.count : held.tail;
  if (!advance_tail(g, queue, held, shown)) move_tail(g, queue);
}

}  // namespace detail

enum class SubmitResult : u32 {
  submitted,
  no_room,  // comes again; the queue is full, or others were faster
  failed,   // the controller has failed; the command was not submitted
  idle,     // this rank had no command
};

namespace detail {
GPU4FS_FN constexpr SubmitResult submitted_or_idle(bool has_command) {
  return has_command ? SubmitResult::submitted : SubmitResult::idle;
}
}  // namespace detail

// Collective: each rank may have a command. Ranks get room in their order, so those without are the last ones. The
// outcome comes from poll(), perhaps before this returns.
template <class Group>
GPU4FS_FN SubmitResult try_submit(Group g, VirtualQueue& queue, const RankCommand& command) {
  const bool has_command = command.is_present;
  const u32 votes = g.ballot(has_command);
  if (votes == 0) return SubmitResult::idle;
  const detail::Tickets tickets = on_leader(g, [&] {
    if (has_failed(*queue.controller)) return detail::Tickets{0, ~0u};
    return detail::try_take_tickets(queue, popcount(votes));
  });
  if (tickets.count == ~0u) return has_command ? SubmitResult::failed : SubmitResult::idle;
  const u32 number = popcount(votes & static_cast<u32>(low_bits(g.rank())));
  const bool is_taken = has_command && number < tickets.count;
  if (tickets.count > 0) detail::put_entries(g, queue, tickets, is_taken, tickets.first + number, command);
  return is_taken ? SubmitResult::submitted : has_command ? SubmitResult::no_room : SubmitResult::idle;
}

// As try_submit(), but waits for room. Meanwhile the group polls the queue with `visit` (device/nvme/completions.hpp),
// and calls wait() if there was nothing to do. Returns `submitted`, `failed` or `idle`.
template <class Group, class Visit, class Wait>
GPU4FS_FN SubmitResult submit(Group g, VirtualQueue& queue, const RankCommand& command, Visit&& visit, Wait&& wait) {
  const bool has_command = command.is_present;
  const u32 votes = g.ballot(has_command);
  const u32 wanted = popcount(votes);
  const u32 number = popcount(votes & static_cast<u32>(low_bits(g.rank())));
  u32 done = 0;
  while (done < wanted) {
    // All of them fit at once when everything older is finished, so lanes with older tickets are never waited for in
    // vain.
    const u32 count = minimum(wanted - done, detail::capacity_of(queue));
    const u32 first = on_leader(g, [&] { return fetch_add<Order::relaxed, Scope::engine>(&queue.next_ticket, count); });
    for (;;) {
      // 0: waits, 1: room for all, 2: failed.
      const u32 turn = on_leader(g, [&] {
        // Both loads are on their way at once.
        const bool is_failed = has_failed(*queue.controller);
        const bool is_turn = detail::is_turn(queue, first + count - 1);
        return is_failed ? 2u : is_turn ? 1u : 0u;
      });
      if (turn == 2)
        return has_command && number >= done ? SubmitResult::failed : detail::submitted_or_idle(has_command);
      if (turn == 1) break;
      if (poll(g, queue, visit) == 0) wait();
    }
    const bool is_part = has_command && number >= done && number < done + count;
    detail::put_entries(g, queue, {first, count}, is_part, first + number - done, command);
    done += count;
  }
  return detail::submitted_or_idle(has_command);
}

}  // namespace gpu4fs::nvme
