#include "session/thin_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "device/memory/file_blocks.hpp"
#include "pool/chunk_reach.hpp"
#include "pool/pool_error.hpp"
#include "pool/region_ranges.hpp"

namespace gpu4fs::session {
namespace {

using BlocksOfFiles = std::vector<std::optional<device::FileBlocks>>;  // none: the file is not thin

bool is_thin(const device::MappedFile& file) {
  return file.medium() == device::MediumKind::file && file.grows_with_use() && !file.is_mapped();
}

BlocksOfFiles find_blocks(const std::vector<device::MappedFile>& files) {
  BlocksOfFiles blocks(files.size());
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (is_thin(files[i])) blocks[i] = device::FileBlocks::find(files[i].descriptor(), 0, files[i].size_bytes());
  }
  return blocks;
}

// Whether the engine reaches the chunk's pages, and asks only for blocks.
bool needs_only_blocks(const pool::OpenedChunk& chunk, const std::vector<device::MappedFile>& files, bool maps_all) {
  // A region that is a part of one is never given back or taken as a whole.
  if ((chunk.descriptor.size_bytes / page_size) % pages_per_block_2m != 0) return false;
  bool has_thin = false;
  for (const format::ColumnAddress column : chunk.columns) {
    const device::MappedFile& file = files[column.device_index()];
    if (file.is_absent()) continue;
    has_thin |= is_thin(file);
    if (file.is_mapped() && (!maps_all || file.grows_with_use())) return false;
    if (!file.is_mapped() && file.grows_with_use() && !is_thin(file)) return false;
  }
  return has_thin;
}

std::vector<u64> unbacked_of(const pool::OpenedChunk& chunk, const BlocksOfFiles& blocks) {
  const u64 region_count = divide_up(chunk.descriptor.size_bytes / page_size, u64{pages_per_block_2m});
  std::vector<u64> words(divide_up(region_count, u64{64}));
  const u64 header = pool::header_area_bytes(chunk.descriptor);
  const auto lacks = [&](const format::ColumnAddress column, u64 offset, u64 length) {
    const std::optional<device::FileBlocks>& known = blocks[column.device_index()];
    return known && !known->has_all(column.offset_bytes() + offset, length);
  };
  const bool lacks_header = std::any_of(chunk.columns.begin(), chunk.columns.end(),
                                        [&](const format::ColumnAddress column) { return lacks(column, 0, header); });
  for (u64 region = 0; region < region_count; ++region) {
    const std::vector<pool::ColumnRange> ranges = pool::ranges_of_regions(chunk.descriptor, region, 1);
    const bool lacks_some =
        lacks_header || std::any_of(ranges.begin(), ranges.end(), [&](const pool::ColumnRange& range) {
          return lacks(chunk.columns[range.column], header + range.offset, range.length);
        });
    if (lacks_some) words[region / 64] |= u64{1} << (region % 64);
  }
  return words;
}

}  // namespace

void reserve_whole_file(const device::MappedFile& file, bool may_be_thin) {
  try {
    file.reserve_blocks();
  } catch (const device::DeviceError& error) {
    if (error.error_number() != ENOSPC) throw;
    const u64 missing = file.missing_bytes(0, file.size_bytes());
    const u64 room = file.room_bytes();
    throw pool::PoolError(
        Status::no_space,
        fmt::format(
            "{}: its file system has {} bytes left, and {} bytes of the file have no blocks yet. Free {} bytes, "
            "or mount with '-o {}': then the file gets blocks when they are needed. '-o ro' needs none.",
            file.path(), room, missing, missing - std::min(missing, room),
            may_be_thin ? "discard" : "discard,access=direct"));
  }
}

std::vector<std::vector<u64>> find_unbacked_regions(const pool::OpenedPool& pool,
                                                    const std::vector<device::MappedFile>& files, bool maps_all) {
  if (std::none_of(files.begin(), files.end(), is_thin)) return {};
  const BlocksOfFiles blocks = find_blocks(files);
  std::vector<std::vector<u64>> unbacked(pool.chunks.size());
  for (std::size_t i = 0; i < pool.chunks.size(); ++i) {
    const pool::OpenedChunk& chunk = pool.chunks[i];
    if (!chunk.is_erased() && needs_only_blocks(chunk, files, maps_all)) unbacked[i] = unbacked_of(chunk, blocks);
  }
  return unbacked;
}

}  // namespace gpu4fs::session
