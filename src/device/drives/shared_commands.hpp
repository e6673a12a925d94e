// Requests of several ranks as one command of a drive.
//
// Ranks of a group that publish transfers of pages which follow each other on the same medium share a command. It is
// that of the first page, and its list names the pages of all. Each request keeps its slot. The slots of a command form
// a chain in engine memory, and all of them complete together (drives/drive_requests.hpp).
//
// A command that fails does not say which of its pages is to blame. So its requests end as `again`, and for a while the
// drive gets a command for each page of the neighbourhood. Loads that end so are repeated by whoever needs the page,
// and pages that were not written stay dirty. The second attempt has a status of its own. Other pages of the drive go
// on sharing commands, except for the neighbourhoods that have the same word.
//
// Collective, unless something else is said.
#pragma once

#include "base/access.hpp"
#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/group.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"
#include "device/drives/drive_commands.hpp"
#include "device/drives/drive_types.hpp"
#include "device/queue/io_queue.hpp"

namespace gpu4fs::device::detail {

// Longer than the system may refuse to write a page, so that a page that is refused is told from its neighbours.
inline constexpr u64 single_pages_ns = 10000000000;

// A rank's place in a command.
struct CommandShare {
  u32 head;      // rank of the first page: whose slot and command it is
  u32 next;      // rank of the page behind; no_rank: this is the last one
  u32 position;  // pages in front
  u32 count;     // of the head: pages of the command
};
inline constexpr u32 no_rank = ~u32{0};

GPU4FS_FN constexpr u32 neighbourhood_of(u64 page) {
  return static_cast<u32>(page / neighbourhood_pages % neighbourhood_count);
}

// Whether a shared command of the page's neighbourhood has failed not long ago.
GPU4FS_FN inline bool takes_single_pages(const Drive& drive, u64 page) {
  const u32 place = GPU4FS_MUTANT(neighbourhoods_confused, neighbourhood_of(page), neighbourhood_of(page) ^ 1u);
  const u64 until_ns = load<Order::relaxed, Scope::engine>(&drive.single_until_ns[place]);
  return until_ns != 0 && now_monotonic_ns() < until_ns;
}

// A command of `count` pages from `first` on has failed.
GPU4FS_FN inline void take_single_pages(Drive& drive, u64 first, u32 count) {
  const u64 until_ns = now_monotonic_ns() + single_pages_ns;
  store<Order::relaxed, Scope::engine>(&drive.single_until_ns[neighbourhood_of(first)], until_ns);
  store<Order::relaxed, Scope::engine>(&drive.single_until_ns[neighbourhood_of(first + count - 1)], until_ns);
}

// Whether a request may share a command: nobody waits for it in a lane. One rank.
GPU4FS_FN inline bool is_shareable(const Drive& drive, const IoRequest& request) {
  return moves_bytes(request.operation) && request.reports != 0 && request.length == page_size &&
         drive.transfer_page_max > 1 && !takes_single_pages(drive, request.offset / page_size);
}

// Equal for neighbours, up to the page, which is in the lowest bits.
GPU4FS_FN inline u64 place_key(const IoRequest& request) {
  const u64 medium = u64{request.device} << 1 | (request.operation == IoOperation::write ? 1 : 0);
  return medium << 52 | request.offset / page_size;
}

// The ranks of the chain's first page and of the pages in front, given those directly in front (no_rank: none).
template <class Group>
GPU4FS_FN void find_heads(Group g, u32 previous, CommandShare* share) {
  share->head = previous != no_rank ? previous : g.rank();
  share->position = previous != no_rank ? 1 : 0;
  for (u32 length = 1; length < Group::size(); length *= 2) {
    share->position += g.shuffle(share->position, share->head);
    share->head = g.shuffle(share->head, share->head);
  }
}

// Which ranks share commands. `is_shared`: the rank's request may; `page_max`: pages of a command of its drive.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE CommandShare share_commands(Group g, bool is_shared, u64 key, u32 page_max) {
  CommandShare share{g.rank(), no_rank, 0, 1};
  if constexpr (Group::size() > 1) {
    const u32 sharing = g.ballot(is_shared);
    u32 previous = no_rank;
    for (u32 left = sharing; left != 0; left &= left - 1) {
      const u32 rank = count_trailing_zeros(left);
      const u64 other = g.shuffle(key, rank);
      if (is_shared && other + 1 == key) previous = rank;
      if (is_shared && other == key + 1) share.next = rank;
    }
    find_heads(g, previous, &share);
    const bool is_first =
        GPU4FS_MUTANT(command_page_limit_ignored, share.position % page_max == 0, share.position == 0);
    if (g.any(is_first && previous != no_rank)) {
      const u32 firsts = g.ballot(is_first);
      if (share.next != no_rank && (firsts >> share.next & 1) != 0) share.next = no_rank;
      find_heads(g, is_first ? no_rank : previous, &share);
    }
    for (u32 left = g.ballot(share.next == no_rank && share.position != 0); left != 0; left &= left - 1) {
      const u32 last = count_trailing_zeros(left);
      const u32 head = g.shuffle(share.head, last);
      const u32 count = g.shuffle(share.position, last) + 1;
      if (head == g.rank()) share.count = count;
    }
  }
  return share;
}

// Makes the chain of a command's slots, and its command from that of its first page, whose rank keeps it. `slot`:
// no_io_slot: the rank has none. `block_shift`: of its drive. True: the rank's request is in another rank's command.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool join_requests(Group g, IoQueue& queue, u32 slot, const CommandShare& share,
                                             u32 block_shift, nvme::SubmissionEntry* entry) {
  const u32 head_slot = g.shuffle(slot, share.head);
  const u32 next_slot = g.shuffle(slot, share.next != no_rank ? share.next : g.rank());
  const u64 address = entry->data.prp.first;
  const u64 second = g.shuffle(address, share.next != no_rank ? share.next : g.rank());
  if (slot == no_io_slot) return false;
  IoSlot& own = io_slot(queue, slot);
  own.next_slot = share.next != no_rank ? next_slot : no_io_slot;
  own.chain_count = share.count;
  if (share.position != 0) {
    const DriveSet& set = *queue.drives;
    const u64 at = u64{head_slot} * drive_list_bytes +
                   GPU4FS_MUTANT(shared_pages_exchanged, share.position - 1, (share.position - 1) ^ 1u) * sizeof(u64);
    store<Order::relaxed, Scope::system>(reinterpret_cast<u64*>(set.lists + at), address);
    return true;
  }
  if (share.count == 1) return false;
  entry->dword12 = static_cast<u32>((u64{share.count} * page_size >> block_shift) - 1);
  entry->data.prp.second = share.count == 2 ? second : queue.drives->lists_bus_address + slot * drive_list_bytes;
  return false;
}

// The status of the requests of a command that has ended. One rank.
GPU4FS_FN inline Status status_of_requests(const IoQueue& queue, const IoSlot& head, const nvme::Outcome& outcome) {
  const Status status = status_of(outcome, head.request.operation);
  if (head.chain_count == 1 || status == Status::ok || outcome.end != nvme::CommandEnd::answered) return status;
  Drive* const drive = load<Order::acquire, Scope::engine>(&queue.drives->drives[head.request.device]);
  if (drive != nullptr) take_single_pages(*drive, head.request.offset / page_size, head.chain_count);
  return GPU4FS_MUTANT(shared_error_blames_all, Status::again, status);
}

}  // namespace gpu4fs::device::detail
