#include "device/memory/file_blocks.hpp"

#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace gpu4fs::device {
namespace {

constexpr u32 extents_of_call = 256;

// A fiemap with room for this many extents behind it, which lie without a gap.
constexpr u64 list_bytes = sizeof(fiemap) + extents_of_call * sizeof(fiemap_extent);

}  // namespace

FileBlocks FileBlocks::find(int descriptor, u64 offset, u64 length) {
  FileBlocks blocks;
  if (blocks.list_extents(descriptor, offset, length)) return blocks;
  blocks.extents_.clear();
  blocks.is_exact_ = false;
  blocks.find_data(descriptor, offset, length);
  return blocks;
}

// False: the file system does not do it.
bool FileBlocks::list_extents(int descriptor, u64 offset, u64 length) {
  const u64 end = offset + length;
  std::vector<u64> memory(list_bytes / sizeof(u64));
  auto* const list = reinterpret_cast<fiemap*>(memory.data());
  for (u64 at = offset; at < end;) {
    std::fill(memory.begin(), memory.end(), u64{0});
    list->fm_start = at;
    list->fm_length = end - at;
    list->fm_extent_count = extents_of_call;
    if (::ioctl(descriptor, FS_IOC_FIEMAP, list) != 0) {
      if (errno == EINTR) continue;
      return false;
    }
    if (list->fm_mapped_extents == 0) return true;
    for (u32 i = 0; i < list->fm_mapped_extents; ++i) {
      const fiemap_extent& extent = list->fm_extents[i];
      add(std::max<u64>(extent.fe_logical, offset), std::min<u64>(extent.fe_logical + extent.fe_length, end));
      if ((extent.fe_flags & FIEMAP_EXTENT_LAST) != 0) return true;
    }
    const fiemap_extent& last = list->fm_extents[list->fm_mapped_extents - 1];
    if (last.fe_logical + last.fe_length <= at) return false;
    at = last.fe_logical + last.fe_length;
  }
  return true;
}

void FileBlocks::find_data(int descriptor, u64 offset, u64 length) {
  const u64 end = offset + length;
  for (u64 at = offset; at < end;) {
    const off_t data = ::lseek(descriptor, static_cast<off_t>(at), SEEK_DATA);
    if (data < 0 || static_cast<u64>(data) >= end) return;
    const off_t hole = ::lseek(descriptor, data, SEEK_HOLE);
    if (hole <= data) return;
    at = std::min<u64>(static_cast<u64>(hole), end);
    add(static_cast<u64>(data), at);
  }
}

void FileBlocks::add(u64 begin, u64 end) {
  if (begin >= end) return;
  if (!extents_.empty() && begin <= extents_.back().end) {
    extents_.back().end = std::max(extents_.back().end, end);
  } else {
    extents_.push_back({begin, end});
  }
}

u64 FileBlocks::missing_bytes(u64 offset, u64 length) const {
  const u64 end = offset + length;
  u64 missing = length;
  auto extent = std::upper_bound(extents_.begin(), extents_.end(), offset,
                                 [](u64 place, const Extent& one) { return place < one.end; });
  for (; extent != extents_.end() && extent->begin < end; ++extent) {
    missing -= std::min(extent->end, end) - std::max(extent->begin, offset);
  }
  return missing;
}

}  // namespace gpu4fs::device
