// What the driver is compared with: queues that one group uses alone, without tickets, marks, identifiers or checks,
// and bare copies of the blocks without any queue.
#pragma once

#include "bench/nvme_load.hpp"

namespace gpu4fs::bench {

namespace detail {

// The state of a queue that one group has alone. Completions come in the order of the commands.
struct RawQueue {
  u32 submitted;
  u32 completed;
  u32 batches;       // of completions
  u64 submitted_ns;  // when the last commands were ready to be set up
  u64 ended_ns;      // when the last completions were seen
};

// One command of each rank, whose buffers and entries are free.
template <class Group>
GPU4FS_FN void submit_raw(Group g, const NvmeLoad& load, const nvme::VirtualQueue& queue, u32 index, RawQueue& raw) {
  const u32 number = raw.submitted + g.rank();
  const u32 lane = index * load.window + number % load.window;
  const u64 block = choose_block(load, lane, number / load.window);
  u8* const buffer = load.buffers + u64{lane} * load.block_bytes;
  if (load.writes) fill_blocks(g, buffer, block, load.versions[block] + 1, load.block_bytes);
  raw.submitted_ns = now_monotonic_ns();
  nvme::SubmissionEntry entry = block_command(load, lane, block);
  entry.command_id = static_cast<u16>(number & (queue.depth - 1));
  u8* const place = reinterpret_cast<u8*>(&queue.submissions[number & (queue.depth - 1)]);
  GPU4FS_UNROLL
  for (u32 at = 0; at < sizeof(entry); at += 16) {
    Vector16 part;
    __builtin_memcpy(&part, reinterpret_cast<const u8*>(&entry) + at, sizeof(part));
    store_shared_16(place + at, part);
  }
  raw.submitted += Group::size();
  on_leader(g, [&] { nvme::ring_doorbell(queue.submission_doorbell, raw.submitted & (queue.depth - 1)); });
}

// Takes what is complete. Returns how many; ~0: something is wrong.
template <class Group>
GPU4FS_FN u32 take_raw(Group g, const NvmeLoad& load, const nvme::VirtualQueue& queue, u32 index, RawQueue& raw) {
  const u32 number = raw.completed + g.rank();
  const u32 word = nvme::detail::last_word(queue, number);
  const bool is_ready = raw.submitted - raw.completed > g.rank() &&
                        nvme::detail::has_phase(word, nvme::detail::expected_phase(queue, number));
  const u32 count = leading_ranks(g, is_ready);
  if (count == 0) return 0;
  raw.ended_ns = now_monotonic_ns();
  g.sync();
  const bool is_mine = g.rank() < count;
  const u32 wanted = number & (queue.depth - 1);
  const bool is_good = !is_mine || ((word & 0xffff) == wanted && word >> 17 == 0);
  // Ranks without a command compare that of rank 0 once more.
  const u32 used = is_mine ? number : raw.completed;
  const u32 lane = index * load.window + used % load.window;
  const u64 block = choose_block(load, lane, used / load.window);
  const u32 version = load.versions[block] + (load.writes ? 1 : 0);
  g.sync();
  if (is_mine && load.writes) load.versions[block] = version;
  u32 wrong = is_good ? 0 : 1;
  if (!load.writes && raw.batches++ % load.compare_every == 0) {
    wrong += compare_blocks(g, load.buffers + u64{lane} * load.block_bytes, block, version, load.block_bytes);
  }
  if (wrong != 0) add<Scope::engine>(&load.counts->faults, 1u);
  raw.completed += count;
  on_leader(g, [&] { nvme::ring_doorbell(queue.completion_doorbell, raw.completed & (queue.depth - 1)); });
  return g.all(is_good) ? count : ~0u;
}

}  // namespace detail

// Collective. Worker `index` has queue `index` to itself and keeps up to `window` commands under way. Latencies are
// noted if the window is one batch.
template <class Group>
GPU4FS_FN void run_raw(Group g, const NvmeLoad& load, u32 index) {
  const nvme::VirtualQueue& queue = load.queues[index];
  const u64 begin_ns = g.broadcast(now_monotonic_ns());
  detail::RawQueue raw{};
  for (;;) {
    const u64 passed_ns = g.broadcast(now_monotonic_ns()) - begin_ns;
    const bool has_room = raw.submitted + Group::size() - raw.completed <= load.window;
    if (passed_ns < load.run_ns && has_room) detail::submit_raw(g, load, queue, index, raw);
    const u32 before = raw.completed;
    const u32 count = detail::take_raw(g, load, queue, index, raw);
    const u32 lane = index * load.window + before % load.window + g.rank();
    const bool is_batch = load.window == Group::size() && count != 0 && raw.completed == raw.submitted;
    if (is_batch) detail::note_latency(load, lane, before / load.window, raw.ended_ns - raw.submitted_ns);
    if (raw.completed == raw.submitted && passed_ns >= load.run_ns) break;
    const bool is_late = passed_ns > load.limit_ns;
    if (is_late) on_leader(g, [&] { add<Scope::engine>(&load.counts->faults, 1u); });
    if (count == ~0u || is_late) break;
    if (count == 0) backoff(GPU4FS_DEVICE_CODE != 0 ? 20 : 1000);
  }
  detail::finish_worker(g, load, raw.completed);
}

// Collective. Copies random blocks between medium and buffers, as many at once as a group of the drive, for run_ns. The
// first ones are compared. Writes leave the content of later blocks wrong: fill_medium() comes next.
template <class Group>
GPU4FS_FN void run_bare(Group g, const NvmeLoad& load, u32 worker) {
  const u32 lane = worker * Group::size() + g.rank();
  u8* const buffer = load.buffers + u64{lane} * load.block_bytes;
  const u64 begin_ns = g.broadcast(now_monotonic_ns());
  u64 commands = 0;
  u32 wrong = 0;
  for (u32 round = 0; g.broadcast(now_monotonic_ns()) - begin_ns < load.run_ns; ++round) {
    const u64 block = choose_block(load, lane, round);
    const u32 version = load.versions[block];
    u8* const place = load.medium + block * load.block_bytes;
    if (load.writes && round == 0) fill_blocks(g, buffer, block, version, load.block_bytes);
    g.sync();
    copy_jobs(g, load.writes ? nvme::CopyJob{place, buffer, load.block_bytes}
                             : nvme::CopyJob{buffer, place, load.block_bytes});
    g.sync();
    if (round == 0) wrong += compare_blocks(g, load.writes ? place : buffer, block, version, load.block_bytes);
    commands += Group::size();
  }
  if (wrong != 0) add<Scope::engine>(&load.counts->faults, 1u);
  detail::finish_worker(g, load, commands);
}

}  // namespace gpu4fs::bench
