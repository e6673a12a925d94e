#include "pool/logical_space/granule_map.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "pool/chunk_shape.hpp"
#include "pool/pool_error.hpp"
#include "raid/levels/levels.hpp"
#include "raid/raid_types.hpp"

namespace gpu4fs::pool {
namespace {

// Pages of a chunk are counted in 30 bits.
constexpr u64 chunk_page_count_max = u64{1} << 30;

struct ColumnExtent {
  u32 device;
  u32 chunk;
  u64 begin;
  u64 end;
};

[[noreturn]] void refuse_pool(const std::string& what) {
  throw PoolError(Status::corrupt_structure, what);
}

[[noreturn]] void refuse_chunk(u64 chunk, const std::string& what) {
  refuse_pool("chunk " + std::to_string(chunk) + " of the pool: " + what);
}

void require(bool holds, u64 chunk, const char* what) {
  if (!holds) refuse_chunk(chunk, what);
}

void validate_descriptor(const format::ChunkDescriptor& d, u64 index, u64 chunk_size) {
  require(d.size_bytes != 0 && d.size_bytes % chunk_size == 0, index, "its size is not a multiple of the granule");
  if (const char* problem = find_shape_problem(d)) refuse_chunk(index, problem);
  require((d.flags & ~u32{format::chunk_flag_known}) == 0, index, "it has unknown flags");
  require(d.base_address != 0 && d.base_address % chunk_size == 0, index,
          "its base address is not a multiple of the granule");
  const u64 space_end = format::logical_granule_max * chunk_size;
  require(d.size_bytes <= space_end && d.base_address <= space_end - d.size_bytes, index,
          "it lies beyond the logical space");
  require(d.size_bytes / page_size <= chunk_page_count_max, index, "it is too large");
}

void validate_column(format::ColumnAddress column, u64 index, u64 bytes, const std::vector<device::Device>& devices) {
  require(column.device_index() < devices.size(), index, "a column is on a device that the pool does not have");
  const u64 offset = column.offset_bytes();
  const u64 device_bytes = devices[column.device_index()].size_bytes;
  require(offset >= format::layout_area_offset, index, "a column lies in the superblock area");
  require(offset % format::physical_granule_bytes == 0, index, "a column is not aligned to 64 KiB");
  require(bytes <= device_bytes && offset <= device_bytes - bytes, index, "a column ends beyond its device");
}

void require_disjoint(std::vector<ColumnExtent> columns) {
  std::sort(columns.begin(), columns.end(), [](const ColumnExtent& a, const ColumnExtent& b) {
    return std::pair(a.device, a.begin) < std::pair(b.device, b.begin);
  });
  for (std::size_t i = 1; i < columns.size(); ++i) {
    if (columns[i].device == columns[i - 1].device && columns[i].begin < columns[i - 1].end) {
      refuse_chunk(columns[i].chunk, "a column overlaps one of chunk " + std::to_string(columns[i - 1].chunk));
    }
  }
}

void validate_superblock(const format::Superblock& superblock, u64 chunk_count,
                         const std::vector<device::Device>& devices) {
  const u64 chunk_size = superblock.chunk_size_bytes;
  if (!is_power_of_two(chunk_size) || chunk_size < format::chunk_size_min || chunk_size > format::chunk_size_max) {
    refuse_pool("the pool's granule of " + std::to_string(chunk_size) + " bytes is out of range");
  }
  if (devices.empty() || devices.size() > device_count_max || devices.size() != superblock.device_count) {
    refuse_pool("the pool has " + std::to_string(superblock.device_count) + " devices, " +
                std::to_string(devices.size()) + " were given");
  }
  if (chunk_count == 0 || chunk_count > format::logical_granule_max || chunk_count != superblock.chunk_count) {
    refuse_pool("the pool has " + std::to_string(superblock.chunk_count) + " chunks, its chunk tree " +
                std::to_string(chunk_count));
  }
}

}  // namespace

std::vector<u32> map_granules(const format::Superblock& superblock, const std::vector<device::Device>& devices,
                              const std::vector<OpenedChunk>& chunks) {
  validate_superblock(superblock, chunks.size(), devices);
  const u64 chunk_size = superblock.chunk_size_bytes;
  u64 end = 0;
  u64 page_total = 0;
  std::vector<ColumnExtent> columns;
  for (u32 i = 0; i < chunks.size(); ++i) {
    const format::ChunkDescriptor& d = chunks[i].descriptor;
    validate_descriptor(d, i, chunk_size);
    require(chunks[i].columns.size() == d.column_count, i, "columns are missing from its descriptor");
    const u64 bytes = raid::column_length(d);
    u64 devices_used = 0;
    for (const format::ColumnAddress column : chunks[i].columns) {
      validate_column(column, i, bytes, devices);
      const bool is_physical = (d.flags & format::chunk_flag_physical) != 0;
      require(!is_physical || column.device_index() == d.physical_device, i,
              "it lies on another device than it should");
      const u64 device_bit = u64{1} << column.device_index();
      require((devices_used & device_bit) == 0, i, "two of its columns are on one device");
      devices_used |= device_bit;
      columns.push_back({column.device_index(), i, column.offset_bytes(), column.offset_bytes() + bytes});
    }
    end = std::max(end, d.base_address + d.size_bytes);
    page_total += d.size_bytes / page_size;
  }
  require_disjoint(std::move(columns));
  if (page_total != superblock.page_total) {
    refuse_pool("the chunks have " + std::to_string(page_total) + " pages, the superblock says " +
                std::to_string(superblock.page_total));
  }
  std::vector<u32> granules(end / chunk_size, raid::no_chunk);
  for (u32 i = 0; i < chunks.size(); ++i) {
    const format::ChunkDescriptor& d = chunks[i].descriptor;
    for (u64 granule = d.base_address / chunk_size; granule < (d.base_address + d.size_bytes) / chunk_size; ++granule) {
      require(granules[granule] == raid::no_chunk, i, "it overlaps another chunk in logical space");
      granules[granule] = i;
    }
  }
  return granules;
}

}  // namespace gpu4fs::pool
