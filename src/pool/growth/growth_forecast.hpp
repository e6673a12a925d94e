// Which chunks could still be created in space that belongs to none. Host only.
#pragma once

#include <array>
#include <vector>

#include "format/chunk_format.hpp"
#include "pool/growth/free_granules.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::pool {

// The form of a class's next chunk: like the newest one, and with parities not wider than the widest one, because
// reservations of pages are calculated with the longest stripe.
struct ChunkForm {
  format::ChunkDescriptor like;
  u32 columns_wanted;
  u32 columns_least;
  bool may_lie_on(u32 device) const {
    return (like.flags & format::chunk_flag_physical) == 0 || like.physical_device == device;
  }
};
// Of class `page_class` (raid/logical_space_build.hpp), of which the pool has chunks.
ChunkForm form_of_class(const OpenedPool& pool, u32 page_class);

// A chunk of that form with this many columns, without a place.
format::ChunkDescriptor describe_grown(const ChunkForm& form, u32 column_count, u64 chunk_size_bytes);

// Granules of the device that each column of the chunk takes.
u64 granules_per_column(const format::ChunkDescriptor& descriptor);

struct GrowthLimits {
  u64 chunks = ~u64{0};
  u64 granules = ~u64{0};   // of logical space
  u64 avoided_devices = 0;  // one bit for each device that gets no columns
};

struct GrowthForecast {
  u64 chunks;
  u64 pages;  // that can be allocated
};

// By class: the pages that it could get if no other class got any. If metadata has chunks of its own, the space of one
// of them is left to it as long as there is any.
std::array<GrowthForecast, format::profile_max> forecast_growth(const OpenedPool& pool, const FreeGranules& free,
                                                                const GrowthLimits& limits = {});

}  // namespace gpu4fs::pool
