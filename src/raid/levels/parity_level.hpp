// Levels `raid5`, `raid6` and `raid7`: one, two or three parities (thesis Lucka 2023, sections 2.2 and 4.4).
//
// A region of 512 logical pages (2 MiB) lies in rows. A row is page `r` of every column, in the part of the columns
// that belongs to the region. It holds up to k = columns - parities data pages and their parities. Parity j is the sum
// of 2^(j * slot) times the data pages of slots 0 to k - 1, in GF(2^8) (base/galois.hpp), as in ISA-L's
// gf_gen_rs_matrix.
//
// Logical pages are arranged stripe by stripe. A stripe is `unit` rows: first `unit` pages of slot 0, then those of
// slot 1, and so on. The unit is the stripe length, but the last stripe of a region has only the remaining rows, and
// its last rows may have fewer than k data pages. So no row belongs to two regions, and a write of a whole region
// covers whole rows. Empty places in the last rows are never used: fewer than k pages of 512.
//
// The columns move by one with each stripe, so all of them hold parities.
#pragma once

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"
#include "raid/levels/level_types.hpp"

namespace gpu4fs::raid {

// The place of a page in its row. Rows are numbered like the pages of a column.
struct RowPlace {
  u64 row;
  u32 slot;
  u32 reserved;
};

// Consecutive logical pages that fill whole rows.
struct Stripe {
  u64 index;  // in the chunk
  u64 first;  // page
  u64 page_count;
};

// Page of slot 0 of a row, and the distance to the page of the next slot.
struct ParityRow {
  u64 first;
  u32 step;
  u32 slot_count;  // slots that have pages
};

// Code that the levels have in common, for k = `slots` data pages in a row. Not inlined: kernels translate in many
// places.
namespace parity_layout {

inline constexpr u32 region_pages = static_cast<u32>(pages_per_block_2m);

// The stripes of a region.
struct Shape {
  u32 slots;       // k
  u32 rows;        // of a region
  u32 unit;        // rows of all stripes but the last
  u32 full_count;  // stripes with all their rows and pages
  u32 last_unit;   // rows of the stripe after them, 0: there is none
  u32 full_pages;  // of a full stripe
};
GPU4FS_FN constexpr Shape shape(const Geometry& geometry, u32 slots) {
  Shape s{};
  s.slots = slots;
  s.rows = (region_pages + slots - 1) / slots;
  s.unit = minimum(geometry.stripe_pages, s.rows);
  s.full_pages = s.unit * slots;
  s.full_count = region_pages / s.full_pages;
  s.last_unit = s.rows - s.full_count * s.unit;
  return s;
}
GPU4FS_FN constexpr u32 stripes_per_region(const Shape& s) {
  return s.full_count + (s.last_unit != 0 ? 1 : 0);
}

GPU4FS_FN GPU4FS_NOINLINE constexpr Stripe stripe_at(const Geometry& geometry, u32 slots, u64 index) {
  const Shape s = shape(geometry, slots);
  const u32 per_region = stripes_per_region(s);
  const u32 inside = static_cast<u32>(index % per_region);
  const u32 pages = inside < s.full_count ? s.full_pages : region_pages - s.full_count * s.full_pages;
  return {index, index / per_region * region_pages + u64{inside} * s.full_pages, pages};
}
GPU4FS_FN GPU4FS_NOINLINE constexpr Stripe stripe_of(const Geometry& geometry, u32 slots, u64 page) {
  const Shape s = shape(geometry, slots);
  const u32 inside = minimum(static_cast<u32>(page % region_pages) / s.full_pages, s.full_count);
  return stripe_at(geometry, slots, page / region_pages * stripes_per_region(s) + inside);
}

GPU4FS_FN GPU4FS_NOINLINE constexpr RowPlace row_of(const Geometry& geometry, u32 slots, u64 page) {
  const Shape s = shape(geometry, slots);
  const u32 inside = static_cast<u32>(page % region_pages);
  const u32 stripe = minimum(inside / s.full_pages, s.full_count);
  const u32 unit = stripe < s.full_count ? s.unit : s.last_unit;
  const u32 at = inside - stripe * s.full_pages;
  return {page / region_pages * s.rows + stripe * s.unit + at % unit, at / unit, 0};
}
GPU4FS_FN GPU4FS_NOINLINE constexpr ParityRow row_at(const Geometry& geometry, u32 slots, u64 row) {
  const Shape s = shape(geometry, slots);
  const u32 inside = static_cast<u32>(row % s.rows);
  const u32 stripe = minimum(inside / s.unit, s.full_count);
  const u32 begin = stripe * s.full_pages;
  const u32 at = inside - stripe * s.unit;
  const u64 first = row / s.rows * region_pages + begin + at;
  if (stripe < s.full_count) return {first, s.unit, s.slots};
  return {first, s.last_unit, (region_pages - begin - at + s.last_unit - 1) / s.last_unit};
}

// The column of a data slot or, from k on, of a parity.
GPU4FS_FN GPU4FS_NOINLINE constexpr u32 column_of(const Geometry& geometry, u32 slots, u64 row, u32 slot) {
  const Shape s = shape(geometry, slots);
  const u64 stripe =
      row / s.rows * stripes_per_region(s) + minimum(static_cast<u32>(row % s.rows) / s.unit, s.full_count);
  const u64 turned = GPU4FS_MUTANT(stripe_rotation_changed, slot + stripe, slot + 2 * stripe);
  return static_cast<u32>(turned % geometry.column_count);
}
GPU4FS_FN GPU4FS_NOINLINE constexpr u64 contiguous_pages(const Geometry& geometry, u32 slots, u64 page) {
  const Shape s = shape(geometry, slots);
  const u32 inside = static_cast<u32>(page % region_pages);
  const u32 stripe = minimum(inside / s.full_pages, s.full_count);
  const u32 unit = stripe < s.full_count ? s.unit : s.last_unit;
  const u32 at = inside - stripe * s.full_pages;
  return minimum(unit - at % unit, region_pages - inside);
}

}  // namespace parity_layout

template <format::RaidLevel level_value, u32 parities>
struct ParityLevel {
  static constexpr format::RaidLevel level = level_value;
  static constexpr u32 parity_count = parities;
  static constexpr u32 member_count_min = parities + 1;
  static constexpr u32 member_count_max = 64;
  static constexpr bool has_stripes = true;

  GPU4FS_FN static constexpr u32 redundancy(u32 /*column_count*/) { return parities; }
  GPU4FS_FN static constexpr u32 copies(u32 /*column_count*/) { return 1; }
  GPU4FS_FN static constexpr u32 data_columns(u32 column_count) { return column_count - parities; }

  GPU4FS_FN static constexpr u32 stripes_per_region(const Geometry& geometry) {
    return parity_layout::stripes_per_region(parity_layout::shape(geometry, slots(geometry)));
  }
  GPU4FS_FN static constexpr Stripe stripe_at(const Geometry& geometry, u64 index) {
    return parity_layout::stripe_at(geometry, slots(geometry), index);
  }
  GPU4FS_FN static constexpr Stripe stripe_of(const Geometry& geometry, u64 page) {
    return parity_layout::stripe_of(geometry, slots(geometry), page);
  }
  GPU4FS_FN static constexpr RowPlace row_of(const Geometry& geometry, u64 page) {
    return parity_layout::row_of(geometry, slots(geometry), page);
  }
  GPU4FS_FN static constexpr ParityRow row_at(const Geometry& geometry, u64 row) {
    return parity_layout::row_at(geometry, slots(geometry), row);
  }
  GPU4FS_FN static constexpr u32 column_of(const Geometry& geometry, u64 row, u32 slot) {
    return parity_layout::column_of(geometry, slots(geometry), row, slot);
  }
  GPU4FS_FN static constexpr PagePlace map(const Geometry& geometry, u64 page, u32 /*copy*/) {
    const RowPlace place = row_of(geometry, page);
    return {column_of(geometry, place.row, place.slot), 0, place.row};
  }
  GPU4FS_FN static constexpr u64 contiguous_pages(const Geometry& geometry, u64 page) {
    return parity_layout::contiguous_pages(geometry, slots(geometry), page);
  }
  GPU4FS_FN static constexpr u64 column_pages(const Geometry& geometry) {
    return geometry.page_count / parity_layout::region_pages * parity_layout::shape(geometry, slots(geometry)).rows;
  }

 private:
  GPU4FS_FN static constexpr u32 slots(const Geometry& geometry) { return geometry.column_count - parities; }
};

using Raid5Level = ParityLevel<format::RaidLevel::raid5, 1>;
using Raid6Level = ParityLevel<format::RaidLevel::raid6, 2>;
using Raid7Level = ParityLevel<format::RaidLevel::raid7, 3>;

}  // namespace gpu4fs::raid
