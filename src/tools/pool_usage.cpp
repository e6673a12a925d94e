#include "tools/pool_usage.hpp"

#include <algorithm>

#include "base/limits.hpp"
#include "format/log_format.hpp"
#include "pool/chunk_shape.hpp"
#include "pool/growth/growth_forecast.hpp"
#include "raid/levels/levels.hpp"
#include "space/reserve.hpp"

namespace gpu4fs::tools {
namespace {

struct PageCounts {
  u64 used;
  u64 free;      // with parities: in stripes, all of their region's, without a page in use
  u64 stranded;  // with parities: the others
};

PageCounts count_stripe_pages(const format::ChunkDescriptor& chunk, const std::vector<u8>& bitmap) {
  const u64 page_cost = pool::page_cost_of(chunk);
  const auto is_used = [&](u64 page) { return (bitmap[page / 8] >> (page % 8) & 1) != 0; };
  PageCounts counts{};
  for (u64 region = 0; region * pages_per_block_2m < chunk.size_bytes / page_size; ++region) {
    for (u64 stripe = 0; stripe < pages_per_block_2m / page_cost; ++stripe) {
      const u64 first = region * pages_per_block_2m + stripe * page_cost;
      u64 unused = 0;
      for (u64 page = first; page < first + page_cost; ++page) unused += is_used(page) ? 0 : 1;
      (unused == page_cost ? counts.free : counts.stranded) += unused;
    }
  }
  return counts;
}

PageCounts count_pages(const pool::OpenedPool& pool, const pool::OpenedChunk& chunk, u64 page_count) {
  const format::ChunkLayout layout = format::chunk_layout(page_count);
  u32 column = 0;
  while (column < chunk.descriptor.redundancy && !pool.devices[chunk.columns[column].device_index()].is_here())
    ++column;
  const pool::DeviceFile& file = pool.devices[chunk.columns[column].device_index()].file;
  const u64 area = chunk.columns[column].offset_bytes();
  format::BitmapSlotHeader newest{};
  u64 newest_page = layout.bitmap_a_page;
  for (const u64 page : {layout.bitmap_a_page, layout.bitmap_b_page}) {
    format::BitmapSlotHeader header{};
    file.read_at(area + page * page_size, &header, sizeof(header));
    if (header.magic != format::bitmap_slot_magic || header.epoch > pool.superblock.epoch) continue;
    if (header.epoch < newest.epoch) continue;
    newest = header;
    newest_page = page;
  }
  const u64 used = std::min(newest.set_count, page_count);
  if (pool::page_cost_of(chunk.descriptor) == 1) return {used, page_count - used, 0};
  std::vector<u8> bitmap(layout.bitmap_pages * page_size);
  file.read_at(area + (newest_page + 1) * page_size, bitmap.data(), bitmap.size());
  PageCounts counts = count_stripe_pages(chunk.descriptor, bitmap);
  counts.used = used;
  // Writes get them one by one, after a record of the log and while nothing is lost (space/partial_stripes.hpp).
  const bool all_here = std::all_of(pool.devices.begin(), pool.devices.end(), [](const pool::OpenedDevice& device) {
    return device.is_here() || device.state == pool::MemberState::removed;
  });
  if (!all_here || !format::has_log(pool.superblock)) counts.stranded = 0;
  return counts;
}

}  // namespace

std::vector<ChunkUsage> list_chunks(const pool::OpenedPool& pool) {
  std::vector<ChunkUsage> chunks;
  for (const pool::OpenedChunk& chunk : pool.chunks) {
    const u64 page_count = chunk.descriptor.size_bytes / page_size;
    const PageCounts pages = count_pages(pool, chunk, page_count);
    chunks.push_back(
        {chunk.descriptor.base_address, page_count, pages.used, pages.free, pages.stranded, chunk.descriptor.level,
         format::profile_of(chunk.descriptor), chunk.descriptor.flags,
         raid::with_level(chunk.descriptor.level,
                          [&](auto level) { return level.column_pages(raid::geometry_of(chunk.descriptor)); }),
         chunk.columns});
  }
  return chunks;
}

std::vector<ClassSum> sum_by_profile(const pool::OpenedPool& pool, const std::vector<ChunkUsage>& chunks) {
  const auto growth = pool::forecast_growth(pool, pool::FreeGranules(pool));
  std::vector<ClassSum> sums;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const ChunkUsage& chunk = chunks[i];
    auto sum =
        std::find_if(sums.begin(), sums.end(), [&](const ClassSum& other) { return other.profile == chunk.profile; });
    if (sum == sums.end()) {
      const u64 growable = growth[static_cast<u32>(chunk.profile) - 1].pages;
      sum = sums.insert(sum, {chunk.profile, 0, 0, 0, 0, 0, 0, 1, growable});
    }
    sum->flags |= chunk.flags;
    sum->chunk_count += 1;
    sum->page_count += chunk.page_count;
    sum->page_used += chunk.page_used;
    sum->page_free += chunk.page_free;
    sum->page_stranded += chunk.page_stranded;
    sum->page_cost = std::max<u64>(sum->page_cost, pool::page_cost_of(pool.chunks[i].descriptor));
  }
  return sums;
}

u64 available_pages(const ClassSum& sum, const ClassSum& metadata) {
  const bool shares = sum.profile == metadata.profile;
  const auto left_of = [](const ClassSum& of, bool has_metadata) {
    const u64 left = of.page_free + of.page_growable;
    return left - std::min(left, space::kept_back_pages(of.page_count + of.page_growable, of.page_cost, has_metadata));
  };
  return space::content_pages(
      {left_of(sum, shares), sum.page_stranded, sum.page_cost, left_of(metadata, true), metadata.page_cost, shares});
}

}  // namespace gpu4fs::tools
