// The parities of a row while they are computed: in the registers of a warp, in a buffer of a Lane.
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

// Sums of pages; entry j is meant for parity j.
template <class Group, u32 count>
struct ParityPages {
  Vector16 chunks[count][page_chunk_rows];
};

template <u32 count>
struct ParityPages<Lane, count> {
  alignas(64) u64 words[count][page_size / 8];
};

namespace detail {

// Sixteen bytes at a time on a warp, eight on a Lane, whose compiler makes vectors of them.
template <class Group, class Visit>
GPU4FS_FN GPU4FS_FORCE_INLINE void for_each_part(Visit&& visit) {
  if constexpr (Group::size() == 1) {
    for (u32 i = 0; i < page_size / 8; ++i) visit(i);
  } else {
    GPU4FS_UNROLL
    for (u32 i = 0; i < page_chunk_rows; ++i) visit(i);
  }
}

template <class Group, u32 count>
GPU4FS_FN constexpr auto& part_of(ParityPages<Group, count>& sums, u32 j, u32 i) {
  if constexpr (Group::size() == 1) {
    return sums.words[j][i];
  } else {
    return sums.chunks[j][i];
  }
}

GPU4FS_FN constexpr u64 sum(u64 a, u64 b) { return a ^ b; }
GPU4FS_FN constexpr Vector16 sum(Vector16 a, Vector16 b) { return galois::add(a, b); }

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

template <class Group, u32 count>
GPU4FS_FN void clear_parities(Group, ParityPages<Group, count>& sums) {
  detail::for_each_part<Group>([&](u32 i) {
    for (u32 j = 0; j < count; ++j) detail::part_of(sums, j, i) = {};
  });
}

// A slot without a page, on the way down.
template <class Group, u32 count>
GPU4FS_FN void skip_slot(Group, ParityPages<Group, count>& sums) {
  detail::for_each_part<Group>([&](u32 i) {
    if constexpr (count > 1) detail::part_of(sums, 1, i) = detail::shifted<1>(detail::part_of(sums, 1, i));
    if constexpr (count > 2) detail::part_of(sums, 2, i) = detail::shifted<2>(detail::part_of(sums, 2, i));
  });
}

// The page of the next lower slot: each sum becomes 2^j times itself plus the page, if `adds` says so. After slots b - 1
// down to a the sums lack a factor of 2^(j * a).
template <class Group, u32 count>
GPU4FS_FN void add_lower_slot(Group, ParityPages<Group, count>& sums, const PageRegisters<Group>& page, bool adds = true) {
  if constexpr (Group::size() == 1) {
    if (!adds) return skip_slot(Group{}, sums);
    for (u32 i = 0; i < page_size / 8; ++i) {
      u64 word = 0;
      __builtin_memcpy(&word, page.page + 8 * u64{i}, 8);
      sums.words[0][i] ^= word;
      if constexpr (count > 1) sums.words[1][i] = detail::shifted<1>(sums.words[1][i]) ^ word;
      if constexpr (count > 2) sums.words[2][i] = detail::shifted<2>(sums.words[2][i]) ^ word;
    }
  } else {
    if (count == 1 && !adds) return;
    // No code of its own for pages that are skipped: loops over pages fill the instruction cache as it is.
    const u64 mask = adds ? ~u64{0} : 0;
    GPU4FS_UNROLL
    for (u32 i = 0; i < page_chunk_rows; ++i) {
      const Vector16 chunk{page.chunks[i].low & mask, page.chunks[i].high & mask};
      sums.chunks[0][i] = galois::add(sums.chunks[0][i], chunk);
      if constexpr (count > 1) sums.chunks[1][i] = galois::add(detail::shifted<1>(sums.chunks[1][i]), chunk);
      if constexpr (count > 2) sums.chunks[2][i] = galois::add(detail::shifted<2>(sums.chunks[2][i]), chunk);
    }
  }
}

namespace detail {

// A factor as the group multiplies by it.
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
    detail::for_each_part<Group>([&](u32 i) {
      detail::part_of(sums, j, i) = galois::scale(detail::part_of(sums, j, i), factor);
    });
  }
}

// sums[j] += page.
template <class Group, u32 count>
GPU4FS_FN void add_page(Group, ParityPages<Group, count>& sums, u32 j, const PageRegisters<Group>& page) {
  detail::for_each_part<Group>([&](u32 i) {
    if constexpr (Group::size() == 1) {
      u64 word = 0;
      __builtin_memcpy(&word, page.page + 8 * u64{i}, 8);
      sums.words[j][i] ^= word;
    } else {
      sums.chunks[j][i] = galois::add(sums.chunks[j][i], page.chunks[i]);
    }
  });
}

// sums[j] += factor * page.
template <class Group, u32 count>
GPU4FS_FN void add_scaled(Group g, ParityPages<Group, count>& sums, u32 j, const PageRegisters<Group>& page, u8 factor) {
  if (factor == 1) return add_page(g, sums, j, page);
  const auto by = detail::factor_of<Group>(factor);
  detail::for_each_part<Group>([&](u32 i) {
    if constexpr (Group::size() == 1) {
      u64 word = 0;
      __builtin_memcpy(&word, page.page + 8 * u64{i}, 8);
      sums.words[j][i] ^= galois::scale(word, by);
    } else {
      sums.chunks[j][i] = galois::add(sums.chunks[j][i], galois::scale(page.chunks[i], by));
    }
  });
}

// Sum j as a page that can be hashed and stored.
template <class Group, u32 count>
GPU4FS_FN PageRegisters<Group> parity_page(Group, const ParityPages<Group, count>& sums, u32 j) {
  PageRegisters<Group> page{};
  if constexpr (Group::size() == 1) {
    page.page = reinterpret_cast<const u8*>(sums.words[j]);
  } else {
    GPU4FS_UNROLL
    for (u32 i = 0; i < page_chunk_rows; ++i) page.chunks[i] = sums.chunks[j][i];
  }
  return page;
}

// Behind the loop over a row's pages, where calls cost nothing: once in the instruction cache for all that make pages.

// made += factor * sum j.
template <class Group, u32 count>
GPU4FS_FN GPU4FS_NOINLINE void add_scaled_sum(Group g, ParityPages<Group, 1>& made, const ParityPages<Group, count>& sums,
                                              u32 j, u8 factor) {
  add_scaled(g, made, 0, parity_page(g, sums, j), factor);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 hash_made_page(Group g, const ParityPages<Group, 1>& made, u64 seed) {
  return xxh3_registers(g, parity_page(g, made, 0), seed);
}

}  // namespace gpu4fs::raid
