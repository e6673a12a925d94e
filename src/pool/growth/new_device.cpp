#include "pool/growth/new_device.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "base/random.hpp"
#include "format/log_format.hpp"
#include "pool/pool_foreign.hpp"
#include "pool/pool_layout.hpp"

namespace gpu4fs::pool {

namespace {

DeviceFile open_new(const OpenedPool& pool, const std::string& path, bool force) {
  const device::DeviceSpec spec = parse_device(path);
  if (spec.is_null()) throw PoolError(Status::invalid_argument, path + ": keeps nothing; it cannot join a pool");
  const DeviceFile unlocked = DeviceFile::open_joining(path);
  for (const OpenedDevice& member : pool.devices) {
    if (member.is_here() && member.file.is_same_file(unlocked)) {
      throw PoolError(Status::exists, fmt::format("{}: is a member of the pool", path));
    }
  }
  DeviceFile file = DeviceFile::open(path, DeviceFile::Access::read_write, DeviceFile::Locking::lock);
  const std::string content = describe_content(file);
  if (!content.empty() && !force) {
    throw PoolError(Status::exists, fmt::format("{}: holds {}; it is overwritten only by force", path, content));
  }
  return file;
}

format::DevicePart part_of_new(const OpenedPool& pool, u32 index, const std::string& path, u64 size_bytes) {
  const format::Superblock& superblock = pool.superblock;
  u64 tree_pages = 0;
  u64 log_bytes = superblock.log_capacity;
  for (const OpenedDevice& device : pool.devices) {
    if (!device.is_here()) continue;
    tree_pages = std::max(tree_pages, device.part.tree_pages);
    if (superblock.log_capacity == 0) log_bytes = std::max(log_bytes, device.part.log_bytes);
  }
  format::DevicePart part = device_layout(align_down(size_bytes, page_size), tree_pages, log_bytes);
  const u64 column_bytes = format::chunk_layout(superblock.chunk_size_bytes / page_size).header_pages * page_size +
                           superblock.chunk_size_bytes;
  if (part.chunk_area_granules < column_bytes / format::physical_granule_bytes) {
    throw PoolError(Status::no_space,
                    fmt::format("{}: {} bytes are too small for a member of this pool", path, size_bytes));
  }
  part.device_index = index;
  std::memcpy(part.device_uuid, random_uuid().bytes, sizeof(part.device_uuid));
  return part;
}

}  // namespace

NewDevice prepare_new_device(const OpenedPool& pool, u32 index, const std::string& path, bool force) {
  if (index >= device_count_max) {
    throw PoolError(Status::invalid_argument, fmt::format("a pool has {} devices at most", device_count_max));
  }
  DeviceFile file = open_new(pool, path, force);
  const format::DevicePart part = part_of_new(pool, index, path, file.size_bytes());
  if (file.is_regular()) file.reserve_range(0, part.chunk_area_offset);
  file.zero_range(0, format::layout_area_offset);
  file.clear_end();
  file.zero_range(part.chunk_map_offset, 2 * (1 + part.chunk_map_pages) * page_size);
  file.flush();
  const int descriptor = ::fcntl(file.fd(), F_DUPFD_CLOEXEC, 3);
  if (descriptor < 0) throw PoolError(Status::io_error, fmt::format("{}: {}", path, std::strerror(errno)));
  try {
    const std::string name = file.path();
    const auto stack = file.stack();
    const auto drive = file.drive();
    device::MappedFile mapped =
        device::MappedFile::adopt(descriptor, name, {.read_only = false, .lock = true, .stack = stack, .drive = drive});
    if (mapped.grows_with_use()) {
      mapped.reserve_range(0, part.chunk_area_offset);
    } else {
      mapped.reserve_blocks();
    }
    return {OpenedDevice{std::move(file), part, true}, std::move(mapped)};
  } catch (const device::DeviceError& error) {
    throw PoolError(error.error_number() == ENOSPC ? Status::no_space : Status::io_error, error.what());
  }
}

}  // namespace gpu4fs::pool
