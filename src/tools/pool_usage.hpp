// The usage of a pool's chunks according to its newest checkpoint. Host only.
#pragma once

#include <vector>

#include "pool/pool_open.hpp"

namespace gpu4fs::tools {

struct ChunkUsage {
  u64 base_address;
  u64 page_count;
  u64 page_used;      // according to the current bitmap slot; 0 if there is none
  u64 page_free;      // those of the others that can be allocated: with parities, of stripes that are completely free
  u64 page_stranded;  // those of other stripes that writes of file data can get
  format::RaidLevel level;
  format::Profile profile;
  u32 flags;         // format::ChunkFlags
  u64 column_pages;  // data pages of each column
  std::vector<format::ColumnAddress> columns;
};

std::vector<ChunkUsage> list_chunks(const pool::OpenedPool& pool);

// Of all chunks of a profile.
struct ClassSum {
  format::Profile profile;
  u32 flags;  // of all its chunks
  u64 chunk_count;
  u64 page_count;
  u64 page_used;
  u64 page_free;
  u64 page_stranded;
  u64 page_cost;      // the cost of reserving a page (raid/raid_types.hpp)
  u64 page_growable;  // of chunks that could still be created if no other profile got any
};
std::vector<ClassSum> sum_by_profile(const pool::OpenedPool& pool, const std::vector<ChunkUsage>& chunks);

// For content of files of the profile, including possible growth, as statfs of a mounted pool reports it. `metadata`:
// the profile of metadata, which may be the same.
u64 available_pages(const ClassSum& sum, const ClassSum& metadata);

}  // namespace gpu4fs::tools
