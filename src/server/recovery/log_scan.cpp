#include "server/recovery/log_scan.hpp"

#include <fmt/format.h>

#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"
#include "base/xxh3.hpp"
#include "engine/allocation_mode.hpp"
#include "engine/command_types.hpp"
#include "format/inode_format.hpp"
#include "fs/inode/inode.hpp"
#include "fs/map/map_types.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::server {
namespace {

using format::LogContent;
using format::LogOpcode;
using format::LogRecord;

constexpr u64 window_bytes = u64{256} << 10;  // fits into the processor's cache
static_assert(window_bytes >= 2 * format::log_record_bytes_max);

// A window over one device's log area.
class LogArea {
 public:
  LogArea(const pool::OpenedDevice& device, u64 capacity) : device_(device), capacity_(capacity) {}

  // The bytes from `place` on; *available: their number, at least a record's greatest length or up to the area's end.
  // Null: they cannot be read.
  const u8* at(u64 place, u64* available) {
    const u64 wanted = std::min<u64>(format::log_record_bytes_max, capacity_ - place);
    if (place < begin_ || place + wanted > begin_ + window_.size()) {
      begin_ = place;
      window_.resize(std::min(window_bytes, capacity_ - place));
      try {
        device_.file.read_at(device_.part.log_offset + place, window_.data(), window_.size());
      } catch (const pool::PoolError& error) {
        problem_ = error.what();
        window_.clear();
        return nullptr;
      }
    }
    *available = begin_ + window_.size() - place;
    return window_.data() + (place - begin_);
  }
  const std::string& problem() const { return problem_; }

 private:
  const pool::OpenedDevice& device_;
  u64 capacity_;
  u64 begin_ = 0;
  std::vector<u8> window_;
  std::string problem_;
};

u64 checksum_of(const LogRecord& record, u64 length, u64 seed) {
  std::vector<u8> copy(length);
  std::memcpy(copy.data(), &record, length);
  std::memset(copy.data() + offsetof(LogRecord, checksum), 0, sizeof(record.checksum));
  return xxh3_64(copy.data(), length, seed);
}

std::vector<format::DevicePart> parts_of(const pool::OpenedPool& pool) {
  std::vector<format::DevicePart> parts;
  for (const pool::OpenedDevice& device : pool.devices) parts.push_back(device.part);
  return parts;
}

// The record of `lsn` from the first area that has it, or null.
const LogRecord* read_record(std::vector<LogArea>& areas, u64 capacity, u64 lsn, u64 seed) {
  std::size_t unreadable = 0;
  for (LogArea& area : areas) {
    u64 available = 0;
    const auto* record = reinterpret_cast<const LogRecord*>(area.at(lsn % capacity, &available));
    if (record == nullptr) ++unreadable;
    if (record == nullptr || record->lsn != lsn) continue;
    if (find_record_problem(*record, available, lsn, seed).empty()) return record;
  }
  if (unreadable == areas.size()) throw pool::PoolError(Status::io_error, areas.front().problem());
  return nullptr;
}

// Records after a gap are never replayed, but may show that records in the gap were acknowledged.
void look_behind(std::vector<LogArea>& areas, u64 seed, LogScan& scan) {
  for (u64 lsn = scan.end + format::log_record_granule; lsn < scan.start + scan.capacity;
       lsn += format::log_record_granule) {
    const LogRecord* record = read_record(areas, scan.capacity, lsn, seed);
    if (record != nullptr && record->opcode != LogOpcode::filler)
      scan.durable = std::max(scan.durable, record->durable_lsn);
  }
}

constexpr u32 mode_type_mask = 0170000;

// For a new inode.
std::string find_number_problem(const LogRecord& record) {
  const bool fits = record.number >= format::inode_number_first_free && record.number < fs::inode_number_max;
  if (!fits) return fmt::format("inode number {}", record.number);
  const bool is_generation = record.size != 0 && record.size <= ~u32{0};
  return is_generation ? "" : fmt::format("generation {:#x}", record.size);
}

// For records that create an inode.
std::string find_creation_problem(const LogRecord& record) {
  std::string problem = find_number_problem(record);
  if (!problem.empty()) return problem;
  const u32 type = record.mode & mode_type_mask;
  if (type != (record.mask & mode_type_mask)) return "two types of one inode";
  const bool fits = record.opcode == LogOpcode::mkdir     ? type == S_IFDIR
                    : record.opcode == LogOpcode::symlink ? type == S_IFLNK
                    : record.opcode == LogOpcode::tmpfile ? type == S_IFREG
                                                          : type != S_IFDIR && type != S_IFLNK && type != 0;
  return GPU4FS_MUTANT(record_type_ignored, fits, true) ? "" : fmt::format("mode {:o}", record.mode);
}

// For records that name pages.
std::string find_extent_problem(const LogRecord& record, const format::LogRecordLayout& layout) {
  const auto* extents = reinterpret_cast<const u8*>(&record) + layout.extents_offset;
  if (record.extent_count == 0 || record.extent_count > engine::command_extent_capacity) {
    return fmt::format("{} extents", record.extent_count);
  }
  u64 pages = 0;
  for (u32 i = 0; i < record.extent_count; ++i) {
    format::LogExtent extent;
    std::memcpy(&extent, extents + i * sizeof(extent), sizeof(extent));
    const bool unwritten = (extent.flags & format::log_extent_unwritten) != 0;
    if (extent.page_count == 0 || extent.page_count > pages_per_block_1g || extent.page != 0 ||
        extent.flags > format::log_extent_unwritten || unwritten != (record.opcode == LogOpcode::allocate)) {
      return fmt::format("extent {}", i);
    }
    pages += extent.page_count;
  }
  const bool fits =
      record.offset <= fs::file_size_max && record.size != 0 && record.size <= fs::file_size_max - record.offset;
  const u64 first = record.offset / page_size;
  if (!fits || GPU4FS_MUTANT(record_extents_ignored, divide_up(record.offset + record.size, page_size) - first != pages,
                             false)) {
    return "extents and size";
  }
  const bool whole = record.offset % page_size == 0 && record.size % page_size == 0;
  return whole || record.opcode != LogOpcode::allocate ? "" : "part of a page";
}

// For fallocate: every extent has its place inside the range, after the previous one.
std::string find_allocation_problem(const LogRecord& record, const format::LogRecordLayout& layout) {
  const bool fits =
      record.offset <= fs::file_size_max && record.size != 0 && record.size <= fs::file_size_max - record.offset;
  if (!fits) return "size";
  if (!engine::is_known_allocation(record.mode) || record.mask > format::log_allocate_part) return "mode";
  if (record.extent_count > engine::allocate_extent_max) return fmt::format("{} extents", record.extent_count);
  const auto* extents = reinterpret_cast<const u8*>(&record) + layout.extents_offset;
  const u64 pages = divide_up(record.offset + record.size, page_size) - record.offset / page_size;
  u64 behind = 0;
  for (u32 i = 0; i < record.extent_count; ++i) {
    format::LogExtent extent;
    std::memcpy(&extent, extents + i * sizeof(extent), sizeof(extent));
    if (extent.page_count == 0 || extent.page_count > pages_per_block_1g ||
        extent.flags != format::log_extent_unwritten || extent.page < behind || extent.page > pages ||
        extent.page_count > pages - extent.page) {
      return fmt::format("extent {}", i);
    }
    behind = extent.page + extent.page_count;
  }
  return "";
}

// For records of rows. Only the engine knows the shape of the row.
std::string find_row_problem(const LogRecord& record) {
  const u64 pages = record.data_length / page_size;
  const u64 written = popcount(record.number);
  const bool fits = record.offset % page_size == 0 && record.data_length % page_size == 0 && record.extent_count == 0 &&
                    record.name_length == 0 && record.second_name_length == 0 && written != 0 && pages > written &&
                    (record.number & ~record.second_inode) == 0;
  return fits ? "" : "row";
}

std::string find_argument_problem(const LogRecord& record, const format::LogRecordLayout& layout) {
  if (record.name_length > name_length_max || record.second_name_length > name_length_max) return "names";
  // The scan stops at a record of a kind that only a later version knows.
  const format::LogRow* row = format::find_log_row(record.opcode);
  if (row == nullptr) return "";
  if (!format::names_pages(row->content) && record.extent_count != 0) return "extents";
  switch (row->content) {
    case LogContent::creation:
      return find_creation_problem(record);
    case LogContent::renaming:
      return (record.mask & format::rename_whiteout) != 0 ? find_number_problem(record) : "";
    case LogContent::extents:
    case LogContent::unwritten:
      return find_extent_problem(record, layout);
    case LogContent::bytes:
      return record.size == record.data_length ? "" : "size";
    case LogContent::allocation:
      return find_allocation_problem(record, layout);
    case LogContent::row:
      return find_row_problem(record);
    case LogContent::attributes:
      return record.data_length == sizeof(format::AttributeRecord) ? "" : "size";
    case LogContent::filler:
    case LogContent::plain:
    case LogContent::size:
    case LogContent::range:
      break;
  }
  return "";
}

}  // namespace

std::string find_record_problem(const LogRecord& record, u64 available, u64 lsn, u64 seed) {
  if (available < format::log_record_granule) return "cut short";
  if (record.lsn != lsn) return fmt::format("LSN {:#x}", record.lsn);
  const u32 length = record.length;
  if (length < format::log_record_granule || length % format::log_record_granule != 0 ||
      length > format::log_record_bytes_max || length > available) {
    return fmt::format("{} bytes", length);
  }
  const bool is_filler = record.opcode == LogOpcode::filler;
  if (!is_filler && length < sizeof(LogRecord)) return fmt::format("{} bytes", length);
  const u64 hashed = is_filler ? u64{format::log_record_granule} : length;
  if (GPU4FS_MUTANT(record_checksum_ignored, checksum_of(record, hashed, seed ^ lsn) != record.checksum, false)) {
    return "checksum";
  }
  if (is_filler) return "";
  if (record.data_length > length || record.extent_count > length / sizeof(format::LogExtent)) return "lengths";
  const format::LogRecordLayout layout = format::log_record_layout(u32{record.name_length} + record.second_name_length,
                                                                   record.data_length, record.extent_count);
  if (GPU4FS_MUTANT(record_lengths_ignored, layout.length != length, false)) return "lengths do not add up";
  if (record.flags != 0 || record.reserved != 0) return "reserved bytes";
  if (GPU4FS_MUTANT(record_order_ignored, record.durable_lsn > lsn, false)) return "LSNs out of order";
  if (GPU4FS_MUTANT(record_time_ignored, !format::is_time(record.time), false)) {
    return fmt::format("time stamp {:#x}", record.time);
  }
  return find_argument_problem(record, layout);
}

LogScan scan_log(const pool::OpenedPool& pool) {
  LogScan scan;
  scan.start = scan.end = pool.superblock.log_start;
  if (!format::has_log(pool.superblock)) return scan;
  const u32 replicas = pool.superblock.tree_replica_count;
  scan.capacity = format::log_capacity(pool.superblock, parts_of(pool).data());
  if (scan.capacity == 0) return scan;
  std::vector<LogArea> areas;
  for (u32 i = 0; i < replicas; ++i) {
    if (pool.devices[i].is_here()) areas.emplace_back(pool.devices[i], scan.capacity);
  }
  const u64 seed = pool.superblock.log_seed;
  while (scan.end - scan.start < scan.capacity) {
    const LogRecord* record = read_record(areas, scan.capacity, scan.end, seed);
    if (record == nullptr || record->length > scan.capacity - (scan.end - scan.start)) break;
    scan.end += record->length;
    if (record->opcode == LogOpcode::filler) continue;
    if (!format::is_log_opcode(record->opcode)) {
      throw pool::PoolError(Status::not_supported,
                            fmt::format("the operation log has a record of unknown kind {} at {:#x}",
                                        static_cast<unsigned>(record->opcode), record->lsn));
    }
    scan.durable = std::max(scan.durable, record->durable_lsn);
    scan.positions.push_back(scan.bytes.size());
    const u8* bytes = reinterpret_cast<const u8*>(record);
    scan.bytes.insert(scan.bytes.end(), bytes, bytes + record->length);
  }
  if (GPU4FS_MUTANT(log_gap_not_searched, pool.superblock.clean == 0, false)) look_behind(areas, seed, scan);
  return scan;
}

}  // namespace gpu4fs::server
