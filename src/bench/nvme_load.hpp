// The load of `gpu4fs bench nvme`: random blocks or blocks in a row, written and read by lanes that share virtual
// queues, or by groups that have a queue of the controller to themselves and use no part of the driver
// (bench/nvme_raw.hpp). A block is what one command moves: one logical block of the namespace or several.
//
// Content tells block and version in each 16 bytes. What is read is compared, all of it or every n-th batch, and what
// was written is compared at the end (check_medium). Each lane has a buffer of one block and one command at a time.
// Lanes write blocks of their own, spread over the medium, and read any block. All runs end by time.
#pragma once

#include "base/access.hpp"
#include "base/bits.hpp"
#include "base/group.hpp"
#include "device/nvme/classes.hpp"
#include "device/nvme/drive/copy_jobs.hpp"
#include "device/nvme/mapper.hpp"
#include "device/nvme/prp.hpp"
#include "device/nvme/spec/commands.hpp"
#include "device/nvme/submit.hpp"

namespace gpu4fs::bench {

struct NvmeCounts {
  u64 commands;  // all: atomic
  u32 faults;    // wrong bytes, wrong status, no answer in time
  u32 finished;  // workers
};

// Plain data in engine memory. Counts of blocks are powers of two.
struct NvmeLoad {
  nvme::VirtualQueue* queues;
  u32 queue_count;
  u32 worker_count;     // groups
  u32 lane_count;       // buffers
  u32 window;           // of a queue without the driver: commands at once, a multiple of the group's size
  u32* outcomes;        // by lane: atomic
  u8* buffers;          // by lane, block_bytes each
  u64 buffers_address;  // on the bus
  u8* lists;            // by lane, a page of PRP entries each; null: a block has two pages at most
  u64 lists_address;    // on the bus
  u8* medium;           // for bare copies and checks
  u32* versions;        // by block: what was written last
  u32 block_bytes;
  u32 logical_block_bytes;  // of the namespace
  u32 namespace_id;
  u64 block_count;
  bool writes;
  bool is_sequential;
  u32 compare_every;  // batches of a worker's reads; 1: all are compared
  u64 run_ns;
  u64 limit_ns;               // then the run has failed
  nvme::QueueMapper* mapper;  // of the use `mapped`
  nvme::ClassQueue* classes;  // by queue, of the use `log_classes`
  u32 log_workers;            // the first workers write the log, and all others are background; 0: no such difference
  u32* latencies_ns;          // null: not wanted; that of round r of lane i is at r * lane_count + i
  u32 latencies_max;          // of a lane
  NvmeCounts* counts;
  u32* stop;  // set by the last worker: atomic
};

GPU4FS_FN inline Vector16 block_chunk(u64 block, u32 version, u32 chunk) {
  const u64 mixed = (block << 24 ^ u64{version} << 8 ^ chunk) * 0x9e3779b97f4a7c15u;
  return {block << 32 | version, mixed ^ mixed >> 29};
}

// Odd multiples modulo a power of two are a permutation.
GPU4FS_FN constexpr u64 spread_number(u64 number, u64 count) {
  return number * 0x9e3779b1u & (count - 1);
}
GPU4FS_FN inline u64 spread_block(const NvmeLoad& load, u64 number) {
  return spread_number(number, load.block_count);
}

// The block of a lane's command. In a row: the lanes of a round are neighbours, and behind a round comes the next.
GPU4FS_FN inline u64 choose_block(const NvmeLoad& load, u32 lane, u32 round) {
  if (load.is_sequential) return lane + load.lane_count * (round % (load.block_count / load.lane_count));
  u64 random = (u64{round} << 32 | lane) + 0x9e3779b97f4a7c15u;
  random = (random ^ random >> 30) * 0xbf58476d1ce4e5b9u;
  random = (random ^ random >> 27) * 0x94d049bb133111ebu;
  random ^= random >> 31;
  if (!load.writes) return random & (load.block_count - 1);
  const u64 own_blocks = load.block_count / load.lane_count;
  return spread_block(load, lane + load.lane_count * (random % own_blocks));
}

// Collective. Each rank has a block of its own with a buffer or a place; all ranks fill all of them.
template <class Group>
GPU4FS_FN void fill_blocks(Group g, u8* memory, u64 block, u32 version, u32 block_bytes) {
  for (u32 rank = 0; rank < Group::size(); ++rank) {
    u8* const to = reinterpret_cast<u8*>(g.shuffle(reinterpret_cast<u64>(memory), rank));
    const u64 its_block = g.shuffle(block, rank);
    const u32 its_version = g.shuffle(version, rank);
    for (u32 chunk = g.rank(); chunk < block_bytes / 16; chunk += Group::size()) {
      store_stream_16(to + 16 * chunk, block_chunk(its_block, its_version, chunk));
    }
  }
}

// The number of wrong 16 bytes that this rank has seen. Several accesses are on their way at once, as in a copy.
template <class Group>
GPU4FS_FN u32 compare_blocks(Group g, const u8* memory, u64 block, u32 version, u32 block_bytes) {
  constexpr u32 at_once = 8;
  const u32 rows_per_block = block_bytes / (16 * Group::size());
  u32 wrong = 0;
  for (u32 base = 0; base < rows_per_block * Group::size(); base += at_once) {
    Vector16 found[at_once];
    GPU4FS_UNROLL
    for (u32 i = 0; i < at_once; ++i) {
      const u64 from = g.shuffle(reinterpret_cast<u64>(memory), (base + i) / rows_per_block);
      const u32 chunk = (base + i) % rows_per_block * Group::size() + g.rank();
      found[i] = load_stream_16(reinterpret_cast<const u8*>(from + 16 * chunk));
    }
    GPU4FS_UNROLL
    for (u32 i = 0; i < at_once; ++i) {
      const u32 rank = (base + i) / rows_per_block;
      const u32 chunk = (base + i) % rows_per_block * Group::size() + g.rank();
      if (!(found[i] == block_chunk(g.shuffle(block, rank), g.shuffle(version, rank), chunk))) ++wrong;
    }
  }
  return wrong;
}

// Blocks worker * size(), ... of the medium get version 0, or are compared with their versions.
template <class Group>
GPU4FS_FN void fill_medium(Group g, const NvmeLoad& load, u32 worker, u32 worker_count) {
  for (u64 base = u64{worker} * Group::size(); base < load.block_count; base += u64{worker_count} * Group::size()) {
    const u64 block = base + g.rank();
    fill_blocks(g, load.medium + block * load.block_bytes, block, 0, load.block_bytes);
    load.versions[block] = 0;
  }
}
template <class Group>
GPU4FS_FN void check_medium(Group g, const NvmeLoad& load, u32 worker, u32 worker_count) {
  u32 wrong = 0;
  for (u64 base = u64{worker} * Group::size(); base < load.block_count; base += u64{worker_count} * Group::size()) {
    const u64 block = base + g.rank();
    wrong += compare_blocks(g, load.medium + block * load.block_bytes, block, load.versions[block], load.block_bytes);
  }
  if (wrong != 0) add<Scope::engine>(&load.counts->faults, 1u);
}

// Whether the data pointer of a block needs a list.
GPU4FS_FN constexpr bool needs_list(u32 block_bytes) {
  return nvme::prp_list_pages(nvme::frames_of(0, block_bytes)) != 0;
}

// A lane writes the list of its own command; g.sync() comes before the submission, as before that of all data.
GPU4FS_FN inline nvme::SubmissionEntry block_command(const NvmeLoad& load, u32 lane, u64 block) {
  nvme::SubmissionEntry entry{};
  entry.opcode = static_cast<u8>(load.writes ? nvme::IoOpcode::write : nvme::IoOpcode::read);
  entry.namespace_id = load.namespace_id;
  const u64 address = load.buffers_address + u64{lane} * load.block_bytes;
  if (load.block_bytes <= nvme::memory_page_bytes) {
    entry.data.prp.first = address;  // blocks are aligned to their size
  } else {
    nvme::ListPages list{};
    if (load.lists != nullptr) {
      const u64 offset = u64{lane} * nvme::memory_page_bytes;
      list = {load.lists + offset, load.lists_address + offset, 1};
    }
    entry.data = nvme::build_prp(Lane{}, list, 0, load.block_bytes,
                                 [&](u64 i) { return address + i * nvme::memory_page_bytes; });
  }
  const u32 logical_blocks = load.block_bytes / load.logical_block_bytes;
  const u64 first = block * logical_blocks;
  entry.dword10 = static_cast<u32>(first);
  entry.dword11 = static_cast<u32>(first >> 32);
  entry.dword12 = logical_blocks - 1;
  return entry;
}

namespace detail {

GPU4FS_FN inline u32 load_outcome(const u32* place) {
  return load<Order::acquire, Scope::engine>(place);
}

GPU4FS_FN inline void note_latency(const NvmeLoad& load, u32 lane, u32 round, u64 latency_ns) {
  if (load.latencies_ns == nullptr || round >= load.latencies_max) return;
  load.latencies_ns[u64{round} * load.lane_count + lane] = static_cast<u32>(minimum<u64>(latency_ns, ~0u));
}

// Tells the lane of the command how it has ended: 1 is success, 0 would be nothing yet.
GPU4FS_FN inline void note_outcome(const NvmeLoad& load, const nvme::Outcome& outcome) {
  const u32 answer = outcome.end == nvme::CommandEnd::answered ? outcome.status + 1 : ~0u;
  store<Order::release, Scope::engine>(&load.outcomes[outcome.cookie], answer);
}

// A short wait of a lane that began at `begin_ns`. Behind the deadline the lane gives the controller up, and so all
// lanes end.
GPU4FS_FN inline void wait_until_deadline(const NvmeLoad& load, nvme::ControllerState& controller, u64 begin_ns,
                                          u32 backoff_ns) {
  backoff(backoff_ns);
  if (now_monotonic_ns() - begin_ns > load.limit_ns) nvme::fail(controller, nvme::Failure::timed_out);
}

template <class Group>
GPU4FS_FN void finish_worker(Group g, const NvmeLoad& load, u64 commands) {
  on_leader(g, [&] {
    add<Scope::engine>(&load.counts->commands, commands);
    const u32 before = fetch_add<Order::acq_rel, Scope::engine>(&load.counts->finished, 1);
    if (before + 1 == load.worker_count) store<Order::release, Scope::engine>(load.stop, 1);
  });
}

struct EndedCommand {
  u64 block;
  u32 version;
  u32 batch;  // every n-th one is compared
  bool is_good;
};

// Behind a command of each rank: a read's bytes are compared, a write's version is noted.
template <class Group>
GPU4FS_FN void note_end(Group g, const NvmeLoad& load, const u8* buffer, const EndedCommand& ended) {
  u32 wrong = ended.is_good ? 0 : 1;
  if (load.writes) {
    load.versions[ended.block] = ended.version;
  } else if (ended.batch % load.compare_every == 0) {
    wrong += compare_blocks(g, buffer, ended.block, ended.version, load.block_bytes);
  }
  if (wrong != 0) add<Scope::engine>(&load.counts->faults, 1u);
}

}  // namespace detail

// How a worker's commands come to a queue: a policy has begin(g, round), which names the queue, submit() and poll().
// Here each worker has one queue, which it shares with others.
struct FixedQueues {
  const NvmeLoad& load;
  u32 worker;

  template <class Group>
  GPU4FS_FN nvme::VirtualQueue& begin(Group /*g*/, u32 /*round*/) {
    return load.queues[worker % load.queue_count];
  }
  template <class Group, class Visit, class Wait>
  GPU4FS_FN nvme::SubmitResult submit(Group g, nvme::VirtualQueue& queue, const nvme::RankCommand& command,
                                      Visit&& visit, Wait&& wait) {
    return nvme::submit(g, queue, command, visit, wait);
  }
  template <class Group, class Visit>
  GPU4FS_FN u32 poll(Group g, nvme::VirtualQueue& queue, Visit&& visit) {
    return nvme::poll(g, queue, visit);
  }
};

// The mapper names a queue for each round.
struct MappedQueues : FixedQueues {
  nvme::MappedQueue mapped{};

  template <class Group>
  GPU4FS_FN nvme::VirtualQueue& begin(Group g, u32 /*round*/) {
    mapped = nvme::map_queue(g, *load.mapper);
    return load.queues[mapped.queue];
  }
  template <class Group, class Visit, class Wait>
  GPU4FS_FN nvme::SubmitResult submit(Group g, nvme::VirtualQueue& queue, const nvme::RankCommand& command,
                                      Visit&& visit, Wait&& wait) {
    const nvme::SubmitResult result = nvme::submit(g, queue, command, visit, wait);
    nvme::rebalance(g, *load.mapper, mapped);
    return result;
  }
};

// The log and the background, on the same queues, in classes.
struct ClassQueues : FixedQueues {
  template <class Group, class Visit, class Wait>
  GPU4FS_FN nvme::SubmitResult submit(Group g, nvme::VirtualQueue& /*queue*/, const nvme::RankCommand& command,
                                      Visit&& visit, Wait&& wait) {
    const bool is_log = worker < load.log_workers;
    const nvme::ServiceClass service_class = is_log ? nvme::ServiceClass::log : nvme::ServiceClass::background;
    return nvme::submit_class(g, classes(), service_class, command, visit, wait);
  }
  template <class Group, class Visit>
  GPU4FS_FN u32 poll(Group g, nvme::VirtualQueue& /*queue*/, Visit&& visit) {
    return nvme::poll_classes(g, classes(), visit);
  }

 private:
  GPU4FS_FN nvme::ClassQueue& classes() { return load.classes[worker % load.queue_count]; }
};

// Collective. A worker's lanes submit to one queue at a time and wait for each other's commands.
template <class Group, class Policy>
GPU4FS_FN void run_shared(Group g, const NvmeLoad& load, u32 worker, Policy policy) {
  const u32 lane = worker * Group::size() + g.rank();
  u32* const outcome_place = &load.outcomes[lane];
  u8* const buffer = load.buffers + u64{lane} * load.block_bytes;
  const u64 begin_ns = g.broadcast(now_monotonic_ns());
  u64 commands = 0;
  for (u32 round = 0; g.broadcast(now_monotonic_ns()) - begin_ns < load.run_ns; ++round) {
    nvme::VirtualQueue& queue = policy.begin(g, round);
    const auto visit = [&](const nvme::Outcome& outcome) { detail::note_outcome(load, outcome); };
    const auto wait = [&] {
      detail::wait_until_deadline(load, *queue.controller, begin_ns, GPU4FS_DEVICE_CODE != 0 ? 20 : 1000);
    };
    const u64 block = choose_block(load, lane, round);
    const u32 version = load.versions[block] + (load.writes ? 1 : 0);
    if (load.writes) fill_blocks(g, buffer, block, version, load.block_bytes);
    const u64 submitted_ns = now_monotonic_ns();
    const nvme::SubmissionEntry entry = block_command(load, lane, block);
    g.sync();
    u64 ended_ns = 0;
    bool is_over = policy.submit(g, queue, {entry, lane}, visit, wait) != nvme::SubmitResult::submitted;
    while (!g.any(is_over)) {
      const bool is_done = detail::load_outcome(outcome_place) != 0;
      if (is_done && ended_ns == 0) ended_ns = now_monotonic_ns();
      if (g.all(is_done)) break;
      if (policy.poll(g, queue, visit) == 0) wait();
      is_over = nvme::failure_of(*queue.controller) != nvme::Failure::none;
    }
    const bool is_good = !is_over && detail::load_outcome(outcome_place) == 1;
    const bool is_noted = load.log_workers == 0 || worker < load.log_workers;
    if (is_noted) detail::note_latency(load, lane, round, ended_ns - submitted_ns);
    store<Order::relaxed, Scope::engine>(outcome_place, 0u);
    g.sync();
    // Workers compare in turn, not all in the same round.
    detail::note_end(g, load, buffer, {block, version, round + worker, is_good});
    if (g.any(!is_good)) break;
    commands += Group::size();
    g.sync();
  }
  detail::finish_worker(g, load, commands);
}

}  // namespace gpu4fs::bench
