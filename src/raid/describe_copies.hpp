// Descriptors for pages of which only the sum of their digests is known, from any good copies.
//
// A log record names pages and the sum of their digests (format/log_format.hpp). So the sum shows that a copy is
// damaged, but not which one. Pages whose copies agree leave no choice. If copies differ, every combination of the
// copies of a few pages is tried. Good pages are written over the other copies. Pages that are good on one column, or
// without some columns, have already been tried (raid/logged_pages.hpp).
#pragma once

#include "base/group.hpp"
#include "base/xxh3.hpp"
#include "format/log_format.hpp"
#include "raid/page_io.hpp"

namespace gpu4fs::raid {
namespace detail {

inline constexpr u32 doubtful_page_max = 8;

// The checksums of a page's copies; bit i of `readable`: copy i could be read.
struct CopyChecksums {
  u32 readable;
  u64 checksums[copy_count_max];
};

struct DoubtfulPage {
  u32 page;
  u32 chosen;  // the chosen copy
  CopyChecksums copies;
};

// The search for copies of the pages [0, page_count) that sum up to a digest.
struct DigestSearch {
  u64 agreed;          // sum over the pages whose copies agree
  u32 doubtful_count;  // more than doubtful_page_max: too many to try
  u32 has_lost_page;   // no copy of a page could be read
  DoubtfulPage doubtful[doubtful_page_max];
};

GPU4FS_FN inline void add_to_search(DigestSearch& search, u32 page, const CopyChecksums& copies) {
  if (copies.readable == 0) {
    search.has_lost_page = 1;
    return;
  }
  const u32 first = static_cast<u32>(count_trailing_zeros(u64{copies.readable}));
  bool agree = true;
  for (u32 copy = 0; copy < copy_count_max; ++copy) {
    if ((copies.readable >> copy & 1) == 0) continue;
    agree = agree && copies.checksums[copy] == copies.checksums[first];
  }
  if (agree) {
    search.agreed += format::page_digest(copies.checksums[first], page);
    return;
  }
  if (search.doubtful_count < doubtful_page_max) search.doubtful[search.doubtful_count] = {page, first, copies};
  ++search.doubtful_count;
}

// The next combination of copies of the doubtful pages; false after the last one.
GPU4FS_FN inline bool next_combination(DigestSearch& search) {
  for (u32 i = 0; i < search.doubtful_count; ++i) {
    DoubtfulPage& page = search.doubtful[i];
    const u64 left = u64{page.copies.readable} >> (page.chosen + 1);
    if (left != 0) {
      page.chosen += 1 + static_cast<u32>(count_trailing_zeros(left));
      return true;
    }
    page.chosen = static_cast<u32>(count_trailing_zeros(u64{page.copies.readable}));
  }
  return false;
}

// True if some choice of copies of the doubtful pages brings the sum to `digest`; it is then chosen.
GPU4FS_FN inline bool find_choice(DigestSearch& search, u64 digest) {
  if (search.has_lost_page != 0 || search.doubtful_count > doubtful_page_max) return false;
  do {
    u64 sum = search.agreed;
    for (u32 i = 0; i < search.doubtful_count; ++i) {
      const DoubtfulPage& page = search.doubtful[i];
      sum += format::page_digest(page.copies.checksums[page.chosen], page.page);
    }
    if (sum == digest) return true;
  } while (next_combination(search));
  return false;
}

template <class Group>
GPU4FS_FN CopyChecksums hash_copies(Group g, const LogicalSpace& space, const PageLocation& location) {
  const ChunkState& chunk = space.chunks[location.chunk];
  const u64 address = chunk.base_address + location.page * page_size;
  CopyChecksums copies{};
  for (u32 copy = 0; copy < chunk.copy_count; ++copy) {
    const CopyPlan plan = on_leader(g, [&] { return plan_copy(space, location, copy); });
    if (plan.status != Status::ok) continue;
    copies.readable |= 1u << copy;
    copies.checksums[copy] = xxh3_page(g, plan.memory, address);
  }
  return copies;
}

// For a page without a choice.
inline constexpr u32 any_readable = copy_count_max;

// Gives the page the descriptor of copy `chosen` (any_readable: of the first readable copy), and writes this copy's
// bytes over copies that differ.
template <class Group>
GPU4FS_FN Status describe_as_copy(Group g, LogicalSpace& space, u64 address, u32 chosen) {
  const WritePlan plan = on_leader(g, [&] { return plan_description(space, address); });
  if (plan.status != Status::ok) return plan.status;
  const PinScope pins(g, space);
  const CopyChecksums copies = hash_copies(g, space, plan.location);
  if (chosen == any_readable && copies.readable != 0) {
    chosen = static_cast<u32>(count_trailing_zeros(u64{copies.readable}));
  }
  if (chosen == any_readable || (copies.readable >> chosen & 1) == 0) return Status::medium_error;
  const u64 checksum = copies.checksums[chosen];
  on_leader(g, [&] { put_descriptor(space, plan, checksum); });
  const u8* good = page_memory(space, plan.location, chosen);
  for (u32 copy = 0; copy < space.chunks[plan.location.chunk].copy_count; ++copy) {
    const bool is_good = (copies.readable >> copy & 1) != 0 && copies.checksums[copy] == checksum;
    if (!is_good) repair_copy(g, space, plan.location, copy, good);
  }
  return Status::ok;
}

}  // namespace detail

// Gives the pages at [address, address + page_count), of one chunk, descriptors that sum up to `digest`, if no single
// column yields them because of `reason`. Status: checksum_mismatch if no choice of copies does; `reason` in chunks
// without copies; the errors of write_page(). Uniform.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status describe_from_copies(Group g, LogicalSpace& space, u64 address, u32 page_count,
                                                      u64 digest, Status reason) {
  const detail::WritePlan first = on_leader(g, [&] { return detail::plan_description(space, address); });
  if (first.status != Status::ok) return first.status;
  if (space.chunks[first.location.chunk].copy_count == 1) return reason;
  if (!detail::has_other_copies(space, first.location, reason)) return reason;
  detail::DigestSearch search{};
  for (u32 page = 0; page < page_count; ++page) {
    const PinScope pins(g, space);
    const detail::WritePlan plan =
        on_leader(g, [&] { return detail::plan_description(space, address + u64{page} * page_size); });
    if (plan.status != Status::ok) return plan.status;
    if (plan.location.chunk != first.location.chunk) return Status::corrupt_structure;
    detail::add_to_search(search, page, detail::hash_copies(g, space, plan.location));
  }
  if (!detail::find_choice(search, digest)) return Status::checksum_mismatch;
  u32 doubtful = 0;
  for (u32 page = 0; page < page_count; ++page) {
    u32 chosen = detail::any_readable;
    if (doubtful < search.doubtful_count && search.doubtful[doubtful].page == page) {
      chosen = search.doubtful[doubtful].chosen;
      ++doubtful;
    }
    GPU4FS_TRY(detail::describe_as_copy(g, space, address + u64{page} * page_size, chosen));
  }
  g.sync();
  return Status::ok;
}

}  // namespace gpu4fs::raid
