// The operation log: what waits in it for the next mount, and whether all of it is there.
#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "base/group.hpp"
#include "base/xxh3.hpp"
#include "server/check/check_context.hpp"
#include "server/recovery/log_scan.hpp"

namespace gpu4fs::server::check {

namespace {

// What has no content of its own on the medium counts as fitting.
bool extent_fits(CheckContext& context, const format::LogExtent& extent, PageBuffer* page) {
  if ((extent.flags & format::log_extent_unwritten) != 0) return true;
  u64 digest = 0;
  for (u32 i = 0; i < extent.page_count; ++i) {
    const u64 address = extent.address + u64{i} * page_size;
    const std::optional<PagePlace> place = context.reader.locate(address);
    if (!place || !context.reader.read_raw(*place, 1, page)) return false;
    const bool has_checksums =
        (context.pool.superblock.feature_incompatible & format::feature_data_checksums) != 0;
    digest += format::page_digest(has_checksums ? xxh3_page(Lane{}, page, address) : 0, i);
  }
  return digest == extent.digest;
}

bool pages_fit(CheckContext& context, const format::LogRecord& record, PageBuffer* page) {
  const format::LogRecordLayout layout = format::log_record_layout(
      u32{record.name_length} + record.second_name_length, record.data_length, record.extent_count);
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
  LogScan scan;
  try {
    scan = scan_log(context.pool);
  } catch (const PoolError& error) {
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
    context.add(FindingId::log_waiting, place,
                fmt::format("{} operations, {} bytes, up to sequence number {:#x}", result.log_records,
                            result.log_bytes, end));
  }
  if (scan.durable > end) {
    context.add(FindingId::log_damaged, place,
                fmt::format("it ends at {:#x}, and what was acknowledged at {:#x}", end, scan.durable));
  }
}

}  // namespace gpu4fs::server::check
