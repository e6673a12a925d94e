// The parities of a row while they are computed: in the registers of a warp, or in a buffer of a Lane.
//
// Collective; nothing here synchronises memory.
#pragma once

#include "base/copy.hpp"
#include "base/galois.hpp"
#include "base/group.hpp"
#include "base/page_registers.hpp"
#include "base/xxh3.hpp"

namespace gpu4fs::raid {

inline constexpr u32 parity_count_max = galois::equation_count_max;

// A sum of pages.
template <class Group>
struct SumPage {
  Vector16 chunks[page_chunk_rows];
};

template <>
struct SumPage<Lane> {
  alignas(64) u64 words[page_size / 8];
};

// Entry j is for parity j; a single entry may be for another parity.
template <class Group, u32 count>
struct ParityPages {
  SumPage<Group> pages[count];
};

namespace detail {

// Sixteen bytes at a time on a warp, eight on a Lane, for which the compiler generates vector code.
template <class Group, class Visit>
GPU4FS_FN GPU4FS_FORCE_INLINE void for_each_part(Visit&& visit) {
  if constexpr (Group::size() == 1) {
    for (u32 i = 0; i < page_size / 8; ++i) visit(i);
  } else {
    GPU4FS_UNROLL
    for (u32 i = 0; i < page_chunk_rows; ++i) visit(i);
  }
}

template <class Group>
GPU4FS_FN constexpr auto& part_of(SumPage<Group>& sum, u32 i) {
  if constexpr (Group::size() == 1) {
    return sum.words[i];
  } else {
    return sum.chunks[i];
  }
}

GPU4FS_FN constexpr u64 sum(u64 a, u64 b) {
  return a ^ b;
}
GPU4FS_FN constexpr Vector16 sum(Vector16 a, Vector16 b) {
  return galois::add(a, b);
}

// 2^j times.
template <u32 j, class Part>
GPU4FS_FN constexpr Part shifted(Part part) {
  if constexpr (j > 0) {
    return shifted<j - 1>(galois::twice(part));
  } else {
    return part;
  }
}

}  // namespace detail

template <class Group>
GPU4FS_FN void clear_sum(Group, SumPage<Group>& sum) {
  detail::for_each_part<Group>([&](u32 i) { detail::part_of(sum, i) = {}; });
}

template <class Group, u32 count>
GPU4FS_FN void clear_parities(Group g, ParityPages<Group, count>& sums) {
  GPU4FS_UNROLL
  for (u32 j = 0; j < count; ++j) clear_sum(g, sums.pages[j]);
}

// A slot without a page, in the loop from the highest slot down.
template <class Group, u32 count>
GPU4FS_FN void skip_slot(Group, ParityPages<Group, count>& sums) {
  detail::for_each_part<Group>([&](u32 i) {
    if constexpr (count > 1) detail::part_of(sums.pages[1], i) = detail::shifted<1>(detail::part_of(sums.pages[1], i));
    if constexpr (count > 2) detail::part_of(sums.pages[2], i) = detail::shifted<2>(detail::part_of(sums.pages[2], i));
  });
}

// The page of the next lower slot: each sum becomes 2^j times itself plus, if `adds`, the page. After slots b - 1 down
// to a, the sums lack a factor of 2^(j * a). A single sum may be for parity `first`.
template <class Group, u32 count>
GPU4FS_FN void add_lower_slot(Group g, ParityPages<Group, count>& sums, const PageRegisters<Group>& page,
                              bool adds = true, u32 first = 0) {
  if constexpr (count == 1) {
    for (u32 power = 0; power < first; ++power) {
      detail::for_each_part<Group>(
          [&](u32 i) { detail::part_of(sums.pages[0], i) = galois::twice(detail::part_of(sums.pages[0], i)); });
    }
  }
  if constexpr (Group::size() == 1) {
    if (!adds) return skip_slot(g, sums);
    for (u32 i = 0; i < page_size / 8; ++i) {
      u64 word = 0;
      __builtin_memcpy(&word, page.page + 8 * u64{i}, 8);
      sums.pages[0].words[i] ^= word;
      if constexpr (count > 1) sums.pages[1].words[i] = detail::shifted<1>(sums.pages[1].words[i]) ^ word;
      if constexpr (count > 2) sums.pages[2].words[i] = detail::shifted<2>(sums.pages[2].words[i]) ^ word;
    }
  } else {
    if (count == 1 && !adds) return;
    // Skipped pages have no code of their own: loops over pages fill the instruction cache already.
    const u64 mask = adds ? ~u64{0} : 0;
    GPU4FS_UNROLL
    for (u32 i = 0; i < page_chunk_rows; ++i) {
      const Vector16 chunk{page.chunks[i].low & mask, page.chunks[i].high & mask};
      sums.pages[0].chunks[i] = galois::add(sums.pages[0].chunks[i], chunk);
      if constexpr (count > 1)
        sums.pages[1].chunks[i] = galois::add(detail::shifted<1>(sums.pages[1].chunks[i]), chunk);
      if constexpr (count > 2)
        sums.pages[2].chunks[i] = galois::add(detail::shifted<2>(sums.pages[2].chunks[i]), chunk);
    }
  }
}

namespace detail {

// A factor in the form in which the group multiplies by it.
template <class Group>
GPU4FS_FN auto factor_of(u8 factor) {
  if constexpr (Group::size() == 1) {
    return factor;
  } else {
    return galois::make_multiplier(factor);
  }
}

}  // namespace detail

// sums[j] becomes 2^(j * slot) times itself.
template <class Group, u32 count>
GPU4FS_FN GPU4FS_NOINLINE void raise_to_slot(Group, ParityPages<Group, count>& sums, u32 slot) {
  if (slot == 0) return;
  for (u32 j = 1; j < count; ++j) {
    const auto factor = detail::factor_of<Group>(galois::power_of_two(j * slot));
    detail::for_each_part<Group>(
        [&](u32 i) { detail::part_of(sums.pages[j], i) = galois::scale(detail::part_of(sums.pages[j], i), factor); });
  }
}

// sum += page.
template <class Group>
GPU4FS_FN void add_page(Group, SumPage<Group>& sum, const PageRegisters<Group>& page) {
  detail::for_each_part<Group>([&](u32 i) {
    if constexpr (Group::size() == 1) {
      u64 word = 0;
      __builtin_memcpy(&word, page.page + 8 * u64{i}, 8);
      sum.words[i] ^= word;
    } else {
      sum.chunks[i] = galois::add(sum.chunks[i], page.chunks[i]);
    }
  });
}

// sum += factor * page.
template <class Group>
GPU4FS_FN void add_scaled(Group g, SumPage<Group>& sum, const PageRegisters<Group>& page, u8 factor) {
  if (factor == 1) return add_page(g, sum, page);
  const auto by = detail::factor_of<Group>(factor);
  detail::for_each_part<Group>([&](u32 i) {
    if constexpr (Group::size() == 1) {
      u64 word = 0;
      __builtin_memcpy(&word, page.page + 8 * u64{i}, 8);
      sum.words[i] ^= galois::scale(word, by);
    } else {
      sum.chunks[i] = galois::add(sum.chunks[i], galois::scale(page.chunks[i], by));
    }
  });
}

// A sum as a page that can be hashed and stored.
template <class Group>
GPU4FS_FN PageRegisters<Group> sum_registers(Group, const SumPage<Group>& sum) {
  PageRegisters<Group> page{};
  if constexpr (Group::size() == 1) {
    page.page = reinterpret_cast<const u8*>(sum.words);
  } else {
    GPU4FS_UNROLL
    for (u32 i = 0; i < page_chunk_rows; ++i) page.chunks[i] = sum.chunks[i];
  }
  return page;
}

template <class Group, u32 count>
GPU4FS_FN PageRegisters<Group> parity_page(Group g, const ParityPages<Group, count>& sums, u32 j) {
  return sum_registers(g, sums.pages[j]);
}

// The set number `choice`, from 0 on, of `count` of the available parities, the lowest ones first; 0 if there is no
// such set.
GPU4FS_FN GPU4FS_NOINLINE inline u32 choose_parities(u32 available, u32 count, u32 choice) {
  for (u32 set = 1; set < 1u << parity_count_max; ++set) {
    if ((set & ~available) == 0 && popcount(u64{set}) == count && choice-- == 0) return set;
  }
  return 0;
}

// Pages as sums of sums: byte j is the weight of sum j.
using SumWeights = u32;
static_assert(parity_count_max <= sizeof(SumWeights));

GPU4FS_FN constexpr SumWeights weight_of_sum(u32 j, u8 weight) {
  return SumWeights{weight} << (8 * j);
}

// Runs after the loop over a row's pages, where calls are cheap. One copy in the instruction cache serves all callers
// that compute pages.
namespace detail {

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void combine_sums(Group g, SumPage<Group>& made, const SumPage<Group>* sums,
                                            SumWeights weights) {
  clear_sum(g, made);
  for (u32 j = 0; weights != 0; ++j, weights >>= 8) {
    if ((weights & 0xff) != 0) add_scaled(g, made, sum_registers(g, sums[j]), static_cast<u8>(weights & 0xff));
  }
}

}  // namespace detail

// The weighted sum of `sums`. The result is one of them or `made`.
template <class Group>
GPU4FS_FN const SumPage<Group>& weighted_sum(Group g, SumPage<Group>& made, const SumPage<Group>* sums,
                                             SumWeights weights) {
  GPU4FS_CHECK_NE(weights, 0u);
  const u32 lowest = count_trailing_zeros(u64{weights});
  if (weights == 1u << lowest && lowest % 8 == 0) return sums[lowest / 8];
  detail::combine_sums(g, made, sums, weights);
  return made;
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 hash_sum(Group g, const SumPage<Group>& sum, u64 seed) {
  return xxh3_registers(g, sum_registers(g, sum), seed);
}

}  // namespace gpu4fs::raid
