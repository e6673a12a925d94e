// How groups execute the controller of a MemoryDrive.
//
// A group takes up to as many commands of a queue as it has ranks. It holds the queue's token meanwhile, so one group
// at a time looks at the doorbell. Then it reads the entries, moves the data of all its commands at once, and writes
// their completions at the places that belong to them. Several groups work on a queue at the same time; the host sees
// completions in the order of their places, so those of a faster group wait for those of a slower one.
//
// Nothing here waits for the host, and run_drive() ends at its deadline at the latest.
#pragma once

#include "base/access.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "device/nvme/drive/copy_jobs.hpp"
#include "device/nvme/drive/memory_drive.hpp"

namespace gpu4fs::nvme {

namespace detail {

struct ClaimedCommands {
  u32 first;
  u32 count;
};

// Notes when the commands up to `shown` have arrived, and returns how many from `position` on are due. The token is
// held.
template <class Group>
GPU4FS_FN u32 count_due(Group g, const MemoryDrive& drive, DriveQueue& queue, u32 position, u32 shown) {
  const u64 now_ns = g.broadcast(now_monotonic_ns());
  const u32 seen = g.broadcast(load<Order::relaxed, Scope::engine>(&queue.seen));
  const u32 arrived = position + shown - seen;
  for (u32 i = g.rank(); i < arrived; i += Group::size()) {
    store<Order::relaxed, Scope::engine>(&queue.arrivals_ns[(seen + i) & (queue.depth - 1)], now_ns);
  }
  on_leader(g, [&] { store<Order::relaxed, Scope::engine>(&queue.seen, seen + arrived); });
  const u64* const arrival_ns = &queue.arrivals_ns[(position + g.rank()) & (queue.depth - 1)];
  const bool is_due = g.rank() < shown && load<Order::relaxed, Scope::engine>(arrival_ns) + drive.latency_ns <= now_ns;
  return leading_ranks(g, is_due);
}

// Places of the completion queue that the host has freed. ~0: its head is not in the queue.
GPU4FS_FN inline u32 count_room(const DriveQueue& queue, u32 position) {
  const u32 head = load<Order::acquire, Scope::system>(queue.completion_doorbell);
  if (head >= queue.depth) return ~0u;
  return queue.depth - 1 - ((position - head) & (queue.depth - 1));
}

// Takes commands that are due and whose completions have room. Collective.
template <class Group>
GPU4FS_FN ClaimedCommands claim_commands(Group g, MemoryDrive& drive, DriveQueue& queue) {
  struct Look {
    u32 position;
    u32 tail;
    u32 room;
    bool has_token;
  };
  const Look look = on_leader(g, [&]() -> Look {
    const u32 idle_tail = load<Order::relaxed, Scope::system>(queue.submission_doorbell);
    const u32 idle_position = load<Order::relaxed, Scope::engine>(&queue.position);
    if (idle_tail == (idle_position & (queue.depth - 1))) return {};
    if (load<Order::relaxed, Scope::engine>(&queue.token) != 0) return {};
    const bool is_taken = exchange<Order::acquire, Scope::engine>(&queue.token, 1) != 0;
    if (GPU4FS_MUTANT(nvme_drive_token_ignored, is_taken, false)) return {};
    const u32 position = load<Order::relaxed, Scope::engine>(&queue.position);
    const u32 tail = load<Order::acquire, Scope::system>(queue.submission_doorbell);
    return {position, tail, count_room(queue, position), true};
  });
  if (!look.has_token) return {0, 0};
  u32 count = 0;
  if (look.tail >= queue.depth || look.room == ~0u) {
    on_leader(g, [&] { drive.complain(DriveComplaint::impossible_doorbell); });
  } else {
    const u32 shown = (look.tail - look.position) & (queue.depth - 1);
    const u32 due = drive.latency_ns == 0 ? shown : count_due(g, drive, queue, look.position, shown);
    const u32 most = drive.batch_max != 0 ? minimum(drive.batch_max, Group::size()) : Group::size();
    count = minimum(minimum(due, most), look.room);
  }
  on_leader(g, [&] {
    store<Order::relaxed, Scope::engine>(&queue.position, look.position + count);
    store<Order::release, Scope::engine>(&queue.token, 0);
  });
  return {look.position, count};
}

GPU4FS_FN inline SubmissionEntry load_entry(const DriveQueue& queue, u32 number) {
  const u8* const place = reinterpret_cast<const u8*>(&queue.submissions[number & (queue.depth - 1)]);
  SubmissionEntry entry;
  GPU4FS_UNROLL
  for (u32 at = 0; at < sizeof(entry); at += 16) {
    const Vector16 part = load_shared_16(place + at);
    __builtin_memcpy(reinterpret_cast<u8*>(&entry) + at, &part, sizeof(part));
  }
  return entry;
}

// The entry of rank `source`, for all.
template <class Group>
GPU4FS_FN SubmissionEntry shuffle_entry(Group g, const SubmissionEntry& entry, u32 source) {
  SubmissionEntry result;
  GPU4FS_UNROLL
  for (u32 at = 0; at < sizeof(entry); at += 16) {
    Vector16 part;
    __builtin_memcpy(&part, reinterpret_cast<const u8*>(&entry) + at, sizeof(part));
    part = g.shuffle(part, source);
    __builtin_memcpy(reinterpret_cast<u8*>(&result) + at, &part, sizeof(part));
  }
  return result;
}

// Reads and writes of whole rows in one piece of memory are the usual case, and are moved together. False: the command
// is another one, or something is wrong with it; then it is carried out on its own. One rank.
GPU4FS_FN inline bool plan_copy(const MemoryDrive& drive, const SubmissionEntry& entry, CopyJob& job) {
  const bool is_read = entry.opcode == static_cast<u8>(IoOpcode::read);
  if (!is_read && entry.opcode != static_cast<u8>(IoOpcode::write)) return false;
  const MemoryNamespace* const found = drive.find(entry.namespace_id);
  const bool is_prp = (entry.flags & 0xc0u) == static_cast<u32>(DataPointerKind::prp);
  if (found == nullptr || !is_prp || entry.data.prp.first % 16 != 0) return false;
  const BlockRange range = block_range_of(entry);
  if (check_transfer(drive.limits(), found->space, range) != StatusCode::success) return false;
  const u64 bytes = range.count * found->space.block_bytes;
  if (bytes > page_size - entry.data.prp.first % page_size) return false;
  u8* const host = drive.bus().at(entry.data.prp.first, bytes);
  if (host == nullptr) return false;
  u8* const medium = found->memory + range.first * found->space.block_bytes;
  job = {is_read ? host : medium, is_read ? medium : host, static_cast<u32>(bytes)};
  return true;
}

// The word with the phase comes last.
GPU4FS_FN inline void post_completion(DriveQueue& queue, u32 number, u32 head, u32 command_id, StatusCode status) {
  const u32 phase = (number / queue.depth & 1) ^ 1;
  u8* const place = reinterpret_cast<u8*>(&queue.completions[number & (queue.depth - 1)]);
  store<Order::relaxed, Scope::system>(reinterpret_cast<u64*>(place), u64{0});
  store<Order::relaxed, Scope::system>(reinterpret_cast<u32*>(place + 8),
                                       u32{queue.id} << 16 | (head & (queue.depth - 1)));
  store<Order::release, Scope::system>(reinterpret_cast<u32*>(place + 12),
                                       (static_cast<u32>(status) << 1 | phase) << 16 | command_id);
}

}  // namespace detail

// Collective. Takes commands of the queue, carries them out and completes them. Returns how many.
template <class Group>
GPU4FS_FN u32 serve_queue(Group g, MemoryDrive& drive, DriveQueue& queue) {
  const detail::ClaimedCommands claim = detail::claim_commands(g, drive, queue);
  if (claim.count == 0) return 0;
  const bool has_command = g.rank() < claim.count;
  SubmissionEntry entry{};
  CopyJob job{};
  StatusCode status = StatusCode::success;
  bool is_alone = false;
  if (has_command) {
    entry = detail::load_entry(queue, claim.first + g.rank());
    is_alone = !detail::plan_copy(drive, entry, job);
  }
  copy_jobs(g, job);
  for (u32 left = g.ballot(is_alone); left != 0; left &= left - 1) {
    const u32 rank = count_trailing_zeros(left);
    const StatusCode found = carry_out(g, drive, detail::shuffle_entry(g, entry, rank));
    if (g.rank() == rank) status = found;
  }
  g.sync();
  if (has_command) {
    const u32 place = drive.reverses_batches ? claim.count - 1 - g.rank() : g.rank();
    detail::post_completion(queue, claim.first + place, claim.first + claim.count, entry.command_id, status);
  }
  on_leader(g, [&] { add<Scope::engine>(&drive.completed_count, u64{claim.count}); });
  return claim.count;
}

// Collective. Serves queues until drive.is_stopping is set, or now_monotonic_ns() has reached `end_ns`. Workers share
// the queues: with more workers than queues several serve the same one.
template <class Group>
GPU4FS_FN void run_drive(Group g, MemoryDrive& drive, u32 worker, u32 worker_count, u64 end_ns) {
  const u32 step = worker_count < drive.queue_count ? worker_count : drive.queue_count;
  for (;;) {
    u32 count = 0;
    for (u32 i = worker % step; i < drive.queue_count; i += step) count += serve_queue(g, drive, drive.queues[i]);
    const bool is_over = on_leader(g, [&] {
      return load<Order::acquire, Scope::engine>(&drive.is_stopping) != 0 || now_monotonic_ns() >= end_ns;
    });
    if (is_over) return;
    // A thread gives others the core; a warp looks again soon.
    if (count == 0) backoff(GPU4FS_DEVICE_CODE != 0 ? 20 : 1000);
  }
}

}  // namespace gpu4fs::nvme
