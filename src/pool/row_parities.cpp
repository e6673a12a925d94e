#include "pool/row_parities.hpp"

#include <cstring>

#include "base/check.hpp"
#include "raid/levels/levels.hpp"
#include "raid/parity/parity_pages.hpp"
#include "raid/parity/reconstruct.hpp"

namespace gpu4fs::pool {

u32 parity_count_of(const format::ChunkDescriptor& chunk) {
  return raid::with_level(chunk.level, [](auto level) -> u32 { return level.parity_count; });
}

RowOfPages row_of_page(const format::ChunkDescriptor& chunk, u64 page) {
  const raid::Geometry geometry = raid::geometry_of(chunk);
  return raid::with_parity_level(chunk.level, [&](auto level) {
    const raid::RowPlace place = level.row_of(geometry, page);
    const auto row = level.row_at(geometry, place.row);
    RowOfPages found{place.row, place.slot, {}, {}, level.data_columns(geometry.column_count)};
    for (u32 slot = 0; slot < row.slot_count; ++slot) found.pages.push_back(row.first + u64{slot} * row.step);
    for (u32 slot = 0; slot < geometry.column_count; ++slot) {
      found.columns.push_back(level.column_of(geometry, place.row, slot));
    }
    return found;
  });
}

std::vector<std::vector<u8>> compute_parities(u32 parity_count, const std::vector<const u8*>& slots) {
  GPU4FS_CHECK_LE(parity_count, raid::parity_count_max);
  const std::vector<u8> zeros(page_size);
  raid::ParityPages<Lane, raid::parity_count_max> sums;
  raid::clear_parities(Lane{}, sums);
  for (std::size_t slot = slots.size(); slot-- > 0;) {
    raid::add_lower_slot(Lane{}, sums, load_page(Lane{}, slots[slot] != nullptr ? slots[slot] : zeros.data()));
  }
  std::vector<std::vector<u8>> parities;
  for (u32 j = 0; j < parity_count; ++j) {
    const u8* bytes = reinterpret_cast<const u8*>(sums.pages[j].words);
    parities.emplace_back(bytes, bytes + page_size);
  }
  return parities;
}

bool reconstruct_slot(u32 target, u64 included, const std::vector<const u8*>& slots,
                      const std::vector<const u8*>& parities, u8* page, const std::function<bool()>& accepts) {
  raid::detail::Losses losses{};
  losses.target = target;
  losses.included = included;
  losses.missing = u64{1} << target;
  if ((included >> target & 1) == 0) return false;
  for (u32 slot = 0; slot < slots.size(); ++slot) {
    if ((included >> slot & 1) != 0 && slots[slot] == nullptr) losses.missing |= u64{1} << slot;
  }
  for (u32 j = 0; j < parities.size(); ++j) losses.parities |= parities[j] != nullptr ? 1u << j : 0;
  for (u32 choice = 0;; ++choice) {
    const raid::detail::Recipe recipe = raid::detail::make_recipe(losses, choice);
    if (recipe.equation_count == 0) return false;
    raid::SumPage<Lane> sum;
    raid::clear_sum(Lane{}, sum);
    for (u32 r = 0; r < recipe.equation_count; ++r) {
      raid::add_scaled(Lane{}, sum, load_page(Lane{}, parities[recipe.powers[r]]), recipe.weights.values[r]);
    }
    for (u32 slot = 0; slot < slots.size(); ++slot) {
      if ((losses.included & ~losses.missing & u64{1} << slot) == 0) continue;
      raid::add_scaled(Lane{}, sum, load_page(Lane{}, slots[slot]), raid::detail::weight_of_slot(recipe, slot));
    }
    std::memcpy(page, sum.words, page_size);
    if (accepts()) return true;
  }
}

}  // namespace gpu4fs::pool
