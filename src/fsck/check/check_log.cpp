// Checks the operation log: which operations wait in it for the next mount, and whether it is complete.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "base/group.hpp"
#include "base/xxh3.hpp"
#include "fsck/check/check_context.hpp"
#include "pool/row_parities.hpp"
#include "raid/logged_pages.hpp"
#include "server/recovery/log_scan.hpp"

namespace gpu4fs::fsck::check {

namespace {

constexpr std::size_t doubtful_page_max = 8;

// Whether one digest can be chosen for each page so that they sum up to `wanted`.
bool can_sum_up(std::span<const std::set<u64>> pages, u64 wanted) {
  if (pages.empty()) return wanted == 0;
  const auto fits = [&](u64 digest) { return can_sum_up(pages.subspan(1), wanted - digest); };
  return std::any_of(pages.front().begin(), pages.front().end(), fits);
}

u64 digest_of(CheckContext& context, const PageBuffer* page, u64 address, u32 index) {
  const bool has_checksums = (context.pool.superblock.feature_incompatible & format::feature_data_checksums) != 0;
  return format::page_digest(has_checksums ? xxh3_page(Lane{}, page, address) : 0, index);
}

// If copies of a page differ, any of them may be the good one. As in a recovery, all copies of one column are tried, or
// any combination if there are few.
bool copies_fit(CheckContext& context, const format::LogExtent& extent, PageBuffer* page) {
  std::map<u32, std::pair<u64, u32>> by_copy;  // sum, pages that could be read
  u64 agreed = 0;
  std::vector<std::set<u64>> doubtful;
  for (u32 i = 0; i < extent.page_count; ++i) {
    const u64 address = extent.address + u64{i} * page_size;
    const std::optional<PagePlace> place = context.reader.locate(address);
    if (!place) return false;
    std::set<u64> digests;
    for (u32 copy = 0; copy < context.reader.copy_count(place->chunk); ++copy) {
      if (!context.reader.read_raw_copy(address, copy, page)) continue;
      const u64 digest = digest_of(context, page, address, i);
      by_copy[copy].first += digest;
      by_copy[copy].second += 1;
      digests.insert(digest);
    }
    if (digests.empty()) return false;
    if (digests.size() == 1) {
      agreed += *digests.begin();
    } else {
      doubtful.push_back(std::move(digests));
    }
  }
  for (const auto& [copy, found] : by_copy) {
    if (found.second == extent.page_count && found.first == extent.digest) return true;
  }
  return doubtful.size() <= doubtful_page_max && can_sum_up(doubtful, extent.digest - agreed);
}

// Pages of an extent in a chunk with parities, computed from the rest of their rows. Their stripes belong to the extent
// alone, so no other page is in the rows' parities.
class RowsOfExtent {
 public:
  RowsOfExtent(CheckContext& context, const format::LogExtent& extent, const PagePlace& first)
      : context_(context), extent_(extent), first_(first), chunk_(context.pool.chunks[first.chunk].descriptor) {}

  // Tries them as they are, then without one column, without two, up to as many as may be lost.
  bool fit() {
    if (first_.page + extent_.page_count > context_.reader.chunk_page_count(first_.chunk)) return false;
    if (fit_without(0)) return true;
    u64 tried = 0;
    for (u32 size = 1; size <= pool::parity_count_of(chunk_); ++size) {
      for (u64 lost = (u64{1} << size) - 1; lost != 0; lost = raid::detail::next_set(lost, chunk_.column_count)) {
        if (size > 1 && tried > raid::logged_pages_tried_max) return false;
        tried += extent_.page_count;
        if (fit_without(lost)) return true;
      }
    }
    return false;
  }

 private:
  bool fit_without(u64 lost) {
    u64 digest = 0;
    for (u32 i = 0; i < extent_.page_count; ++i) {
      PageBuffer page;
      const pool::RowOfPages row = pool::row_of_page(chunk_, first_.page + i);
      if (!read_column(row, row.slot, lost, &page) && !make_slot(row, lost, &page)) return false;
      digest += digest_of(context_, &page, extent_.address + u64{i} * page_size, i);
    }
    return digest == extent_.digest;
  }
  bool read_column(const pool::RowOfPages& row, u32 slot, u64 lost, PageBuffer* page) {
    const u32 column = row.columns[slot];
    return (lost >> column & 1) == 0 && context_.reader.read_column(first_.chunk, column, row.row, page);
  }
  bool make_slot(const pool::RowOfPages& row, u64 lost, PageBuffer* page) {
    std::vector<PageBuffer> buffers(row.columns.size());
    std::vector<const u8*> slots(row.pages.size(), nullptr);
    std::vector<const u8*> parities(pool::parity_count_of(chunk_), nullptr);
    u64 included = 0;
    for (u32 slot = 0; slot < slots.size(); ++slot) {
      if (row.pages[slot] - first_.page >= extent_.page_count) continue;
      included |= u64{1} << slot;
      if (slot != row.slot && read_column(row, slot, lost, &buffers[slot])) slots[slot] = buffers[slot].bytes;
    }
    for (u32 j = 0; j < parities.size(); ++j) {
      const u32 slot = row.data_slots + j;
      if (read_column(row, slot, lost, &buffers[slot])) parities[j] = buffers[slot].bytes;
    }
    return pool::reconstruct_slot(row.slot, included, slots, parities, page->bytes, [] { return true; });
  }

  CheckContext& context_;
  const format::LogExtent& extent_;
  PagePlace first_;
  const format::ChunkDescriptor& chunk_;
};

// Pages without content of their own on the medium count as fitting.
bool extent_fits(CheckContext& context, const format::LogExtent& extent, PageBuffer* page) {
  if ((extent.flags & format::log_extent_unwritten) != 0) return true;
  const std::optional<PagePlace> first = context.reader.locate(extent.address);
  if (!first) return false;
  if (pool::parity_count_of(context.pool.chunks[first->chunk].descriptor) == 0)
    return copies_fit(context, extent, page);
  return RowsOfExtent(context, extent, *first).fit();
}

bool pages_fit(CheckContext& context, const format::LogRecord& record, PageBuffer* page) {
  const format::LogRecordLayout layout = format::log_record_layout(u32{record.name_length} + record.second_name_length,
                                                                   record.data_length, record.extent_count);
  const auto* extents = reinterpret_cast<const u8*>(&record) + layout.extents_offset;
  for (u32 i = 0; i < record.extent_count; ++i) {
    format::LogExtent extent{};
    std::memcpy(&extent, extents + i * sizeof(extent), sizeof(extent));
    if (!extent_fits(context, extent, page)) return false;
  }
  return true;
}

}  // namespace

void check_log(CheckContext& context) {
  const std::string place = fmt::format("operation log of {}", context.pool.devices.front().file.path());
  server::LogScan scan;
  try {
    scan = server::scan_log(context.pool);
  } catch (const pool::PoolError& error) {
    context.add(FindingId::log_damaged, place, error.what());
    return;
  }
  CheckResult& result = context.result;
  const auto page = std::make_unique<PageBuffer>();
  u64 end = scan.end;
  for (u64 i = 0; i < scan.record_count(); ++i) {
    const format::LogRecord& record = scan.record(i);
    if (!pages_fit(context, record, page.get())) {
      end = record.lsn;
      break;
    }
    ++result.log_records;
  }
  result.log_bytes = end - scan.start;
  result.log_end = end;
  if (result.log_records > 0) {
    context.add(
        FindingId::log_waiting, place,
        fmt::format("{} operations, {} bytes, up to sequence number {:#x}", result.log_records, result.log_bytes, end));
  }
  if (scan.durable > end) {
    context.add(FindingId::log_damaged, place,
                fmt::format("it ends at {:#x}, and what was acknowledged at {:#x}", end, scan.durable));
  }
}

}  // namespace gpu4fs::fsck::check
