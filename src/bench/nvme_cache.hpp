// The load of the part `cache` of `gpu4fs bench nvme`: lanes that acquire and release pages of a page cache, on the
// queues of a drive. The table, its pins, loads and write-backs are the engine's (cache/), and each lane brings in its
// page itself, as device/staged/bring_in.hpp does.
//
// Pages have the content of bench/nvme_load.hpp. A page that is written gets another version. Guards keep readers and
// writers of a page's bytes apart, so all that are compared belong to one version. A lane whose guard is taken neither
// compares nor writes. Only a write-back waits for a guard, which a writer keeps while it stores.
//
// Lanes of a warp go ways of their own. While a lane has something that others wait for, it waits only for transfers,
// which it polls itself, and for a guard of a writer, who waits for nobody. Everybody ends at the load's deadline.
#pragma once

#include "bench/nvme_cache_kinds.hpp"
#include "bench/nvme_load.hpp"
#include "cache/cache_statistics.hpp"
#include "cache/flush_count.hpp"
#include "cache/pin.hpp"
#include "cache/write_back.hpp"

namespace gpu4fs::bench {

// Since the table was empty. All members are atomic.
struct CacheCounts {
  u64 operations[cache_kind_count];  // that count for the kind: is_measured()
  u64 hits;                          // acquisitions that have ended as a hit, of all phases
  u64 loads;                         // and as a load
};

// Plain data in engine memory.
struct CacheLoad {
  NvmeLoad io;  // its buffers are the frames, and its workers are lanes; nothing of it says what is written
  cache::Cache table;
  CachePhase phase;
  u64 cold_count;     // pages of the phase `cold`, a power of two
  u32 rounds_min;     // of a lane in phases that end by time
  u32* guards;        // by page: atomic; the number of readers, or guard_of_writer
  u32* latencies_ns;  // plus one; that of number n of a lane and kind is at (kind * max + n) * lane_count + lane
  u32 latencies_max;  // of a lane and kind
  CacheCounts* counts;
};

// In which phase acquisitions of this kind are measured.
GPU4FS_FN constexpr bool is_measured(CachePhase phase, CacheKind kind) {
  if (kind == CacheKind::cold) return phase == CachePhase::cold;
  return phase == (kind == CacheKind::write_back ? CachePhase::writes : CachePhase::reads);
}

namespace detail {

inline constexpr u32 guard_of_writer = 1u << 31;
inline constexpr u32 cache_device = 0;
// Of a lane that waits for a transfer or another lane, as in device/staged/bring_in.hpp.
inline constexpr u32 cache_backoff_ns = 1000;

// False: somebody writes the page.
GPU4FS_FN inline bool try_guard_to_read(const CacheLoad& load, u64 page) {
  u32* const guard = &load.guards[page];
  for (u32 seen = gpu4fs::load<Order::relaxed, Scope::engine>(guard); seen < guard_of_writer;) {
    if (compare_exchange<Order::acquire, Scope::engine>(guard, seen, seen + 1)) return true;
  }
  return false;
}
GPU4FS_FN inline bool try_guard_to_write(const CacheLoad& load, u64 page) {
  u32 nobody = 0;
  return compare_exchange<Order::acquire, Scope::engine>(&load.guards[page], nobody, guard_of_writer);
}
GPU4FS_FN inline void end_guard(const CacheLoad& load, u64 page, u32 kept) {
  fetch_sub<Order::release, Scope::engine>(&load.guards[page], kept);
}

// What a lane knows of its run.
struct CacheLane {
  const CacheLoad& load;
  u32 lane;
  u64 begin_ns;

  GPU4FS_FN nvme::ControllerState& controller() const { return *load.io.queues[0].controller; }
  GPU4FS_FN bool is_over() const { return nvme::failure_of(controller()) != nvme::Failure::none; }
  GPU4FS_FN void wait() const { wait_until_deadline(load.io, controller(), begin_ns, cache_backoff_ns); }
};

// Moves a page between its place on the medium and a frame. False: it was not moved. A lane that waits for room has no
// place of the queue, so others get on (nvme::submit() would give it a ticket first).
GPU4FS_FN GPU4FS_NOINLINE inline bool move_page(const CacheLane& own, nvme::IoOpcode opcode, u64 page, u32 line) {
  const NvmeLoad& io = own.load.io;
  u32* const outcome_place = &io.outcomes[own.lane];
  const auto visit = [&](const nvme::Outcome& outcome) { note_outcome(io, outcome); };
  const nvme::MappedQueue mapped = nvme::map_queue(Lane{}, *io.mapper);
  nvme::VirtualQueue& queue = io.queues[mapped.queue];
  const auto poll_or_wait = [&] {
    if (nvme::poll(Lane{}, queue, visit) == 0) own.wait();
  };
  nvme::SubmissionEntry entry = block_command(io, line, page);
  entry.opcode = static_cast<u8>(opcode);
  nvme::SubmitResult submitted = nvme::SubmitResult::no_room;
  while (submitted == nvme::SubmitResult::no_room) {
    submitted = nvme::try_submit(Lane{}, queue, {entry, own.lane});
    if (submitted == nvme::SubmitResult::no_room) poll_or_wait();
  }
  nvme::rebalance(Lane{}, *io.mapper, mapped);
  while (load_outcome(outcome_place) == 0 && !own.is_over()) poll_or_wait();
  const bool is_good = load_outcome(outcome_place) == 1;
  store<Order::relaxed, Scope::engine>(outcome_place, 0u);
  return is_good;
}

// Writes the line back if it is dirty and nobody else does. False: it could not be written.
GPU4FS_FN inline bool write_line_back(const CacheLane& own, u32 line) {
  const cache::WriteBack taken = cache::begin_write_back(own.load.table, line);
  if (taken.line == cache::no_line) return true;
  const u64 page = taken.key.page;
  while (!try_guard_to_read(own.load, page)) backoff(cache_backoff_ns);
  const bool is_good = move_page(own, nvme::IoOpcode::write, page, line);
  end_guard(own.load, page, 1);
  cache::finish_write_back(own.load.table, line, is_good);
  return is_good;
}

struct AcquiredPage {
  u32 line;  // pinned; no_line: the run is over
  CacheKind kind;
  u64 ended_ns;
};

// Pins the page. The time is taken here, before the lane meets others of its warp again.
GPU4FS_FN inline AcquiredPage acquire_page(const CacheLane& own, u64 page, cache::PinMode mode) {
  const cache::Cache& table = own.load.table;
  CacheKind kind = own.load.phase == CachePhase::cold ? CacheKind::cold : CacheKind::miss;
  for (bool has_waited = false; !own.is_over(); has_waited = true) {
    const cache::PinResult pinned = cache::pin(Lane{}, table, {cache_device, page}, mode);
    switch (pinned.outcome) {
      case cache::PinOutcome::hit: {
        const u64 ended_ns = now_monotonic_ns();
        return {pinned.line, has_waited ? CacheKind::loading : CacheKind::hit, ended_ns};
      }
      case cache::PinOutcome::must_load: {
        const bool is_good = move_page(own, nvme::IoOpcode::read, page, pinned.line);
        cache::finish_load(table, pinned.line, is_good);
        const u64 ended_ns = now_monotonic_ns();
        return {is_good ? pinned.line : cache::no_line, kind, ended_ns};
      }
      case cache::PinOutcome::must_write_back:
        kind = CacheKind::write_back;
        if (!write_line_back(own, pinned.line)) return {cache::no_line, kind, 0};
        break;
      default:
        own.wait();
        break;
    }
  }
  return {cache::no_line, kind, 0};
}

// The number of wrong 16 bytes of a page that this lane has pinned.
GPU4FS_FN inline u32 compare_page(const CacheLoad& load, u64 page, u32 line) {
  if (!try_guard_to_read(load, page)) return 0;
  const u32 version = gpu4fs::load<Order::relaxed, Scope::engine>(&load.io.versions[page]);
  const u32 wrong = compare_blocks(Lane{}, cache::frame_of(load.table, line), page, version, page_size);
  end_guard(load, page, 1);
  return wrong;
}

// The next version of a page that this lane has pinned.
GPU4FS_FN inline void write_page(const CacheLoad& load, u64 page, u32 line) {
  if (!try_guard_to_write(load, page)) return;
  const u32 version = gpu4fs::load<Order::relaxed, Scope::engine>(&load.io.versions[page]) + 1;
  fill_blocks(Lane{}, cache::frame_of(load.table, line), page, version, page_size);
  store<Order::relaxed, Scope::engine>(&load.io.versions[page], version);
  end_guard(load, page, guard_of_writer);
  cache::mark_dirty(load.table, line);
}

// What a lane has counted.
struct LaneCounts {
  u32 operations[cache_kind_count];
  u64 hits;
  u64 loads;
};

GPU4FS_FN inline void note_acquired(const CacheLane& own, LaneCounts& counts, CacheKind kind, u64 latency_ns) {
  const CacheLoad& load = own.load;
  const bool is_hit = kind == CacheKind::hit || kind == CacheKind::loading;
  counts.hits += is_hit ? 1 : 0;
  counts.loads += is_hit ? 0 : 1;
  if (!is_measured(load.phase, kind)) return;
  const u32 index = static_cast<u32>(kind);
  u32 number = 0;
  // Constant indices, so the counts stay in registers.
  GPU4FS_UNROLL
  for (u32 i = 0; i < cache_kind_count; ++i) {
    if (i == index) number = counts.operations[i]++;
  }
  if (number >= load.latencies_max) return;
  const u64 place = (u64{index} * load.latencies_max + number) * load.io.lane_count + own.lane;
  load.latencies_ns[place] = static_cast<u32>(minimum<u64>(latency_ns + 1, ~0u));
}

struct ChosenPage {
  u64 page;
  bool is_present;  // false: the phase has no page left for this lane
  bool writes;
};

GPU4FS_FN inline ChosenPage choose_page(const CacheLane& own, u32 round) {
  const NvmeLoad& io = own.load.io;
  const CachePhase phase = own.load.phase;
  if (phase == CachePhase::cold || phase == CachePhase::fill) {
    const u64 count = phase == CachePhase::cold ? own.load.cold_count : io.block_count;
    const u64 number = own.lane + u64{round} * io.lane_count;
    return {spread_number(number, count), number < count, false};
  }
  // Another row of random numbers for each phase, and for what is done with the page.
  const u32 salted = round | static_cast<u32>(phase) << 28;
  const bool writes = phase == CachePhase::writes && (choose_block(io, own.lane, ~salted) & 1) != 0;
  const bool is_present = round < own.load.rounds_min || now_monotonic_ns() - own.begin_ns < io.run_ns;
  return {choose_block(io, own.lane, salted), is_present, writes};
}

// Acquires and releases pages until the phase ends. False: a fault.
GPU4FS_FN inline bool use_pages(const CacheLane& own, LaneCounts& counts) {
  const CacheLoad& load = own.load;
  u32 wrong = 0;
  for (u32 round = 0; wrong == 0; ++round) {
    const ChosenPage chosen = choose_page(own, round);
    if (!chosen.is_present) return true;
    const u64 asked_ns = now_monotonic_ns();
    const AcquiredPage acquired =
        acquire_page(own, chosen.page, chosen.writes ? cache::PinMode::modify : cache::PinMode::read);
    if (acquired.line == cache::no_line) return false;
    note_acquired(own, counts, acquired.kind, acquired.ended_ns - asked_ns);
    // Warps compare in turn, not all in the same round.
    if ((round + own.lane / warp_size) % load.io.compare_every == 0)
      wrong = compare_page(load, chosen.page, acquired.line);
    if (chosen.writes) write_page(load, chosen.page, acquired.line);
    cache::unpin(load.table, acquired.line);
  }
  return false;
}

// Writes the dirty pages of this lane's sets back. False: a fault.
GPU4FS_FN inline bool flush_sets(const CacheLane& own) {
  const cache::Cache& table = own.load.table;
  for (u32 set = own.lane; set < table.set_count; set += own.load.io.lane_count) {
    for (u32 i = 0; i < table.set_size; ++i) {
      if (!write_line_back(own, set * table.set_size + i)) return false;
    }
  }
  return true;
}

}  // namespace detail

// One lane of io.lane_count, which is the number of workers too. Ends with the phase, and at the deadline.
GPU4FS_FN inline void run_cache(const CacheLoad& load, u32 lane) {
  const detail::CacheLane own{load, lane, now_monotonic_ns()};
  detail::LaneCounts counts{};
  const bool is_good = load.phase == CachePhase::flush ? detail::flush_sets(own) : detail::use_pages(own, counts);
  if (!is_good) add<Scope::engine>(&load.io.counts->faults, 1u);
  GPU4FS_UNROLL
  for (u32 i = 0; i < cache_kind_count; ++i) {
    add<Scope::engine>(&load.counts->operations[i], u64{counts.operations[i]});
  }
  add<Scope::engine>(&load.counts->hits, counts.hits);
  add<Scope::engine>(&load.counts->loads, counts.loads);
  detail::finish_worker(Lane{}, load.io, 1);
}

// Collective, behind a phase: what the lanes have seen is what the table has counted, and kinds are what their phases
// promise. Behind the last phase no page is dirty; then check_medium() compares the medium.
template <class Group>
GPU4FS_FN void check_cache(Group g, const CacheLoad& load) {
  const cache::CacheStatistics found = cache::read_statistics(g, load.table);
  on_leader(g, [&] {
    const bool is_cold = load.phase == CachePhase::cold;
    const bool has_written = load.phase == CachePhase::writes || load.phase == CachePhase::flush;
    const bool are_kinds_right = found.cold_misses == (is_cold ? load.cold_count : u64{load.table.line_count}) &&
                                 (!is_cold || found.misses == 0) && (has_written || found.dirty_misses == 0);
    const bool are_counts_right =
        found.hits == load.counts->hits && found.cold_misses + found.misses == load.counts->loads;
    const bool is_clean =
        load.phase != CachePhase::flush || cache::dirty_line_count(load.table, detail::cache_device) == 0;
    if (!are_kinds_right || !are_counts_right || !is_clean) add<Scope::engine>(&load.io.counts->faults, 1u);
  });
}

}  // namespace gpu4fs::bench
