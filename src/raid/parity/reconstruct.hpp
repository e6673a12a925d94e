// Computes a page from the others of its row.
//
// Missing are the page itself and all other pages of the row that cannot be read or do not match their checksums. The
// same number of parities recovers them. First all other pages are trusted, which takes one read of the row. If the
// result does not match its checksum, each other page is verified. Parities have no checksums, so every choice of them
// is tried. So no wrong byte is returned, as long as pages of this use have checksums.
//
// Uniform; under the row's lock. On no fast path except reads without one of the devices.
#pragma once

#include "base/mutant.hpp"
#include "base/xxh3.hpp"
#include "raid/damage.hpp"
#include "raid/parity/parity_pages.hpp"
#include "raid/parity/row.hpp"
#include "raid/pin_scope.hpp"

namespace gpu4fs::raid {
namespace detail {

// The leader's view of a row with missing pages.
struct Losses {
  Status status;
  u32 target;    // slot
  u32 parities;  // one bit for each that can be read
  u32 reserved;
  u64 included;  // slots whose bytes are in the parities
  u64 missing;   // slots that cannot be used; the target is one
};

// Announces reads of everything that may be useful.
GPU4FS_FN GPU4FS_NOINLINE inline Losses find_losses(const LogicalSpace& space, const RowView& view, u32 target) {
  Losses losses{};
  losses.target = target;
  losses.included = slots_in_parity(space, view);
  losses.missing = u64{1} << target | unverified_slots(space, view);
  if ((losses.included >> target & 1) == 0) losses.status = Status::checksum_mismatch;
  const ChunkState& chunk = space.chunks[view.chunk];
  for (u64 left = losses.included & ~losses.missing; left != 0; left &= left - 1) {
    const u32 slot = static_cast<u32>(count_trailing_zeros(left));
    const Status status = begin_copy_read(space, {view.chunk, 0, row_page(view, slot)}, 1, 0);
    if (status != Status::ok) losses.missing |= u64{1} << slot;
  }
  for (u32 j = 0; j < chunk.parity_count; ++j) {
    if (begin_parity_read(space, view, j) == Status::ok) losses.parities |= 1u << j;
  }
  return losses;
}

// The parities that are used, and their weights.
struct Recipe {
  u32 equation_count;  // 0: there are too few parities
  u32 powers[galois::equation_count_max];
  galois::Weights weights;
};

// The recipe number `choice`, from 0 on; equation_count 0: there is no such recipe.
GPU4FS_FN GPU4FS_NOINLINE inline Recipe make_recipe(const Losses& losses, u32 choice) {
  Recipe recipe{};
  const u32 count = popcount(losses.missing);
  if (count > galois::equation_count_max) return recipe;
  const u32 set = choose_parities(losses.parities, count, choice);
  if (set == 0) return recipe;
  u32 places[galois::equation_count_max] = {};
  u32 target_index = 0;
  u32 n = 0;
  for (u64 left = losses.missing; left != 0; left &= left - 1) {
    places[n] = static_cast<u32>(count_trailing_zeros(left));
    if (places[n] == losses.target) target_index = n;
    ++n;
  }
  for (u32 j = 0; j < galois::equation_count_max; ++j) {
    if ((set >> j & 1) != 0) recipe.powers[recipe.equation_count++] = j;
  }
  recipe.weights = galois::solve(recipe.powers, places, count, target_index);
  return recipe;
}

// The weight of an available slot's bytes in the result.
GPU4FS_FN GPU4FS_NOINLINE inline u8 weight_of_slot(const Recipe& recipe, u32 slot) {
  u8 weight = 0;
  for (u32 r = 0; r < recipe.equation_count; ++r) {
    weight ^= galois::multiply(recipe.weights.values[r], galois::power_of_two(recipe.powers[r] * slot));
  }
  return weight;
}

// Writes the target's bytes to `destination`, which is 16-byte aligned.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void combine_row(Group g, const LogicalSpace& space, const RowView& view,
                                           const Losses& losses, const Recipe& recipe, u8* destination) {
  SumPage<Group> sum;
  clear_sum(g, sum);
  for (u32 r = 0; r < recipe.equation_count; ++r) {
    add_scaled(g, sum, load_aligned_page(g, parity_memory(space, view, recipe.powers[r])), recipe.weights.values[r]);
  }
  for (u64 left = losses.included & ~losses.missing; left != 0; left &= left - 1) {
    const u32 slot = static_cast<u32>(count_trailing_zeros(left));
    const u8* memory = page_memory(space, {view.chunk, 0, row_page(view, slot)}, 0);
    add_scaled(g, sum, load_aligned_page(g, memory), weight_of_slot(recipe, slot));
  }
  store_page(g, sum_registers(g, sum), destination);
  g.sync();
}

// Adds slots that do not match their checksums to losses.missing.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void find_mismatched_slots(Group g, const LogicalSpace& space, const RowView& view,
                                                     Losses* losses) {
  const ChunkState& chunk = space.chunks[view.chunk];
  u64 found = losses->missing;
  for (u64 left = losses->included & ~losses->missing; left != 0; left &= left - 1) {
    const u32 slot = static_cast<u32>(count_trailing_zeros(left));
    const u64 page = row_page(view, slot);
    const u64 checksum = on_leader(g, [&] { return load_shared_16(&chunk.descriptors[page]).low; });
    const u8* memory = page_memory(space, {view.chunk, 0, page}, 0);
    if (xxh3_page(g, memory, chunk.base_address + page * page_size) != checksum) found |= u64{1} << slot;
  }
  losses->missing = found;
}

// The properties that a page must have.
struct ExpectedPage {
  u64 address;
  u64 checksum;
  bool verifies;  // pages of this use have a checksum
};

// Tries the parities in turn until the result matches. False: no result does.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool try_parities(Group g, const LogicalSpace& space, const RowView& view,
                                            const Losses& losses, ExpectedPage expected, u8* destination) {
  for (u32 choice = 0;; ++choice) {
    const Recipe recipe = on_leader(g, [&] { return make_recipe(losses, choice); });
    if (recipe.equation_count == 0) return false;
    combine_row(g, space, view, losses, recipe, destination);
    const auto matches = [&] { return xxh3_page(g, destination, expected.address) == expected.checksum; };
    if (!expected.verifies || GPU4FS_MUTANT(reconstruction_unverified, matches(), true)) return true;
  }
}

}  // namespace detail

// Computes the page at `location`, whose own bytes cannot be used for `reason`, into `destination` (4096 bytes of
// engine memory, 16-byte aligned). `verifies`: pages of this use have a checksum. Status: `reason` if too little of the
// row is left.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status reconstruct_page(Group g, const LogicalSpace& space, const PageLocation& location,
                                                  bool verifies, Status reason, u8* destination) {
  const ChunkState& chunk = space.chunks[location.chunk];
  GPU4FS_CHECK_GT(chunk.parity_count, 0u);
  GPU4FS_CHECK(destination != nullptr);
  GPU4FS_CHECK(is_aligned(destination, 16));
  const PinScope pins(g, space);
  const u64 address = chunk.base_address + location.page * page_size;
  const RowPlace place = on_leader(g, [&] { return row_place(chunk, location.page); });
  const RowView view = on_leader(g, [&] { return row_view(space, location.chunk, place.row); });
  detail::Losses losses = on_leader(g, [&] {
    row_lock(space, view).lock();
    return detail::find_losses(space, view, place.slot);
  });
  const u64 checksum = on_leader(g, [&] { return load_shared_16(&chunk.descriptors[location.page]).low; });
  const detail::ExpectedPage expected{address, checksum, verifies};
  bool found = false;
  if (losses.status == Status::ok) {
    found = detail::try_parities(g, space, view, losses, expected, destination);
    if (!found && space.data_checksums != 0) {
      const u64 before = losses.missing;
      detail::find_mismatched_slots(g, space, view, &losses);
      if (losses.missing != before) {
        found = detail::try_parities(g, space, view, losses, expected, destination);
      }
    }
  }
  g.sync();
  on_leader(g, [&] {
    row_lock(space, view).unlock();
    if (found) add<Scope::engine>(&space.parity->reconstructed_count, u64{1});
  });
  return found ? Status::ok : reason;
}

}  // namespace gpu4fs::raid
