// The pages of a run: where each of them is, and the announcements of a run whose pages are apart.
//
// In most runs page i follows page i - 1 in memory. In a spread run each page has an address of its own. On a warp
// every rank finds the address of the page of its own number before the first page is loaded, and the loop over the
// pages gets it by a shuffle. A Lane looks up a page when it needs it. So a spread run has at most as many pages as a
// warp has ranks.
//
// Uniform, unless something else is said.
#pragma once

#include "base/bits.hpp"
#include "base/group.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"
#include "raid/page_access.hpp"
#include "raid/stage_pages.hpp"

namespace gpu4fs::raid::detail {

// Pages that are planned together: one for each rank of a warp.
inline constexpr u32 run_page_max = warp_size;

GPU4FS_FN inline u32 first_copy(u32 copies) {
  GPU4FS_CHECK_NE(copies, 0u);
  return static_cast<u32>(count_trailing_zeros(u64{copies}));
}

GPU4FS_FN constexpr PageLocation page_behind(const PageLocation& first, u64 index) {
  return {first.chunk, 0, first.page + index};
}

// One copy of the pages of a run.
template <bool is_spread, class Group>
struct RunPages;

template <class Group>
struct RunPages<false, Group> {
  const u8* memory;  // of page 0

  GPU4FS_FN const u8* at(Group, u32 index) const { return memory + u64{index} * page_size; }
};

template <class Group>
struct RunPages<true, Group> {
  const LogicalSpace* space;
  PageLocation first;
  u32 copy;
  u64 own;  // of a warp: the rank's page

  // The pages in `wanted`, one bit each.
  GPU4FS_FN static RunPages make(Group g, const LogicalSpace& space, const PageLocation& first, u32 wanted, u32 copy) {
    RunPages pages{&space, first, copy, 0};
    if constexpr (Group::size() > 1) {
      if ((wanted >> g.rank() & 1) != 0) pages.own = reinterpret_cast<std::uintptr_t>(pages.find(g.rank()));
    }
    return pages;
  }
  GPU4FS_FN const u8* find(u32 index) const { return page_memory(*space, page_behind(first, index), copy); }
  GPU4FS_FN const u8* at(Group g, u32 index) const {
    const u32 known = GPU4FS_MUTANT(neighbour_page_read, index, 0u);
    const u64 distance = u64{index - known} * page_size;
    if constexpr (Group::size() > 1) {
      return reinterpret_cast<const u8*>(static_cast<std::uintptr_t>(g.shuffle(own, known % Group::size()))) + distance;
    } else {
      return find(known) + distance;
    }
  }
};

// Several copies of the pages of a run, which are written.
template <bool is_spread, class Group>
struct RunCopies;

// A rank of a warp has the first page of the copy of its own number.
template <class Group>
struct RunCopies<false, Group> {
  const LogicalSpace* space;
  PageLocation first;
  u64 own;

  GPU4FS_FN static RunCopies make(Group g, const LogicalSpace& space, const PageLocation& first, u32 /*count*/,
                                  u32 copies) {
    RunCopies memory{&space, first, 0};
    if constexpr (Group::size() > 1) {
      static_assert(copy_count_max <= Group::size());
      if ((copies >> g.rank() & 1) != 0) {
        memory.own = reinterpret_cast<std::uintptr_t>(page_memory(space, first, g.rank()));
      }
    }
    return memory;
  }
  GPU4FS_FN u8* at(Group g, u32 copy, u32 index) const {
    if constexpr (Group::size() > 1) {
      return reinterpret_cast<u8*>(static_cast<std::uintptr_t>(g.shuffle(own, copy))) + u64{index} * page_size;
    } else {
      return page_memory(*space, first, copy) + u64{index} * page_size;
    }
  }
};

// A rank of a warp has all copies of the page of its own number.
template <class Group>
struct RunCopies<true, Group> {
  const LogicalSpace* space;
  PageLocation first;
  u64 own[copy_count_max];

  GPU4FS_FN static RunCopies make(Group g, const LogicalSpace& space, const PageLocation& first, u32 count,
                                  u32 copies) {
    RunCopies memory{&space, first, {}};
    if constexpr (Group::size() > 1) {
      const bool has_page = g.rank() < count;
      GPU4FS_UNROLL
      for (u32 copy = 0; copy < copy_count_max; ++copy) {
        if (!has_page || (copies >> copy & 1) == 0) continue;
        memory.own[copy] = reinterpret_cast<std::uintptr_t>(page_memory(space, page_behind(first, g.rank()), copy));
      }
    }
    return memory;
  }
  GPU4FS_FN u8* at(Group g, u32 copy, u32 index) const {
    const u32 known = GPU4FS_MUTANT(neighbour_page_written, index, 0u);
    const u64 distance = u64{index - known} * page_size;
    if constexpr (Group::size() > 1) {
      // Constant indexes, so the values stay in registers.
      u64 mine = own[0];
      GPU4FS_UNROLL
      for (u32 other = 1; other < copy_count_max; ++other) mine = copy == other ? own[other] : mine;
      return reinterpret_cast<u8*>(static_cast<std::uintptr_t>(g.shuffle(mine, known % Group::size()))) + distance;
    } else {
      return page_memory(*space, page_behind(first, known), copy) + distance;
    }
  }
};

// The answers to announcements of the pages of a run.
struct RunAnswer {
  u32 refused;    // pages, one bit each
  Status status;  // of the first one
};

// Calls begin(index) for the pages of `wanted`, one bit each, each on its rank.
template <class Group, class Begin>
GPU4FS_FN RunAnswer begin_each_page(Group g, u32 wanted, Begin&& begin) {
  RunAnswer answer{0, Status::ok};
  Status own = Status::ok;  // of a Lane: of the first one that is refused
  for (u32 base = 0; base < run_page_max; base += Group::size()) {
    const u32 index = base + g.rank();
    Status status = Status::ok;
    if ((wanted >> index & 1) != 0) status = begin(index);
    if (own == Status::ok) own = status;
    answer.refused |= g.ballot(status != Status::ok) << base;
  }
  if (answer.refused != 0) {
    answer.status = g.shuffle(own, count_trailing_zeros(u64{answer.refused}) % Group::size());
  }
  g.sync();
  return answer;
}

// Calls visit(index) for the pages of `wanted`, each on its rank, after all ranks have arrived.
template <class Group, class Visit>
GPU4FS_FN void for_each_page(Group g, u32 wanted, Visit&& visit) {
  g.sync();
  for (u32 index = g.rank(); index < run_page_max; index += Group::size()) {
    if ((wanted >> index & 1) != 0) visit(index);
  }
  g.sync();
}

// Pages that have to be loaded are on their way together before the first is waited for.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void begin_run_loads(Group g, const LogicalSpace& space, const PageLocation& first,
                                               u32 wanted, u32 copy) {
  if (!stages_pages(space)) return;
  bool begun = false;
  for (u32 base = 0; base < run_page_max; base += Group::size()) {
    const u32 index = base + g.rank();
    const device::StagedPage page = (wanted >> index & 1) != 0
                                        ? staged_page(space, page_place(space, page_behind(first, index), copy))
                                        : device::StagedPage{nullptr, 0};
    begun |= device::begin_detached_loads(g, *space.staged, page, device::no_io_owner);
  }
  if (begun) ring_staged(space);
}

// Announces reads of the pages of `wanted`, which are apart.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE RunAnswer begin_run_read(Group g, const LogicalSpace& space, const PageLocation& first,
                                                   u32 wanted, u32 copy) {
  begin_run_loads(g, space, first, wanted, copy);
  return begin_each_page(g, GPU4FS_MUTANT(run_read_unannounced, wanted, wanted & (wanted - 1)),
                         [&](u32 index) { return begin_copy_read(space, page_behind(first, index), 1, copy); });
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void end_run_write(Group g, const LogicalSpace& space, const PageLocation& first,
                                             u32 wanted) {
  for_each_page(g, GPU4FS_MUTANT(run_write_not_ended, wanted, wanted & (wanted - 1)),
                [&](u32 index) { end_page_write(space, page_behind(first, index), 1); });
}

// Announces writes of `count` pages, which are apart, in all remaining copies. Only the pages before the first one that
// is refused are announced afterwards.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE RunAnswer begin_run_write(Group g, const LogicalSpace& space, const PageLocation& first,
                                                    u32 count) {
  const u32 all = static_cast<u32>(low_bits(count));
  const RunAnswer answer =
      begin_each_page(g, all, [&](u32 index) { return begin_page_write(space, page_behind(first, index), 1); });
  if (answer.refused == 0) return answer;
  const u32 behind = ~static_cast<u32>(low_bits(count_trailing_zeros(u64{answer.refused})));
  for_each_page(g, GPU4FS_MUTANT(run_write_not_undone, all & behind & ~answer.refused, 0u),
                [&](u32 index) { cancel_page_write(space, page_behind(first, index), 1); });
  return answer;
}

}  // namespace gpu4fs::raid::detail
