#include "fsck/check/medium_reader.hpp"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "base/group.hpp"
#include "base/xxh3.hpp"
#include "pool/row_parities.hpp"
#include "raid/levels/levels.hpp"

namespace gpu4fs::fsck {

namespace {

const u8* map_memory_device(const pool::DeviceFile& file) {
  struct statfs medium {};
  if (file.stack() != nullptr) return nullptr;  // its layers must see the reads
  if (file.drive() != nullptr) return nullptr;  // its file has no bytes
  if (::fstatfs(file.fd(), &medium) != 0 || static_cast<unsigned long>(medium.f_type) != TMPFS_MAGIC) return nullptr;
  void* mapping = ::mmap(nullptr, file.size_bytes(), PROT_READ, MAP_SHARED, file.fd(), 0);
  return mapping == MAP_FAILED ? nullptr : static_cast<const u8*>(mapping);
}

}  // namespace

MediumReader::MediumReader(const pool::OpenedPool& pool, std::shared_ptr<HeaderReader> headers)
    : pool_(pool),
      headers_(std::move(headers)),
      cached_keys_(cache_slots, ~u64{0}),
      cache_(std::make_unique_for_overwrite<CachedDescriptors[]>(cache_slots)) {
  for (const pool::OpenedDevice& device : pool.devices) mappings_.push_back(map_memory_device(device.file));
}

MediumReader::~MediumReader() {
  for (std::size_t i = 0; i < mappings_.size(); ++i) {
    if (mappings_[i] != nullptr) ::munmap(const_cast<u8*>(mappings_[i]), pool_.devices[i].file.size_bytes());
  }
}

void MediumReader::read_device(u32 device, u64 offset, void* to, u64 length) const {
  const pool::DeviceFile& file = pool_.devices[device].file;
  if (mappings_[device] == nullptr || offset + length > file.size_bytes()) {
    file.read_at(offset, to, length);
  } else {
    std::memcpy(to, mappings_[device] + offset, length);
  }
}

u64 MediumReader::chunk_page_count(u32 chunk) const {
  return pool_.chunks[chunk].descriptor.size_bytes / page_size;
}

u32 MediumReader::copy_count(u32 chunk) const {
  const format::ChunkDescriptor& descriptor = pool_.chunks[chunk].descriptor;
  return raid::with_level(descriptor.level, [&](auto level) { return level.copies(descriptor.column_count); });
}

const pool::DeviceFile& MediumReader::chunk_device(u32 chunk, u32 column) const {
  return pool_.devices[pool_.chunks[chunk].columns[column].device_index()].file;
}

bool MediumReader::is_here(u32 chunk, u32 column) const {
  return pool_.devices[pool_.chunks[chunk].columns[column].device_index()].is_here();
}

u64 MediumReader::header_area_offset(u32 chunk, u64 page, u32 column) const {
  return pool_.chunks[chunk].columns[column].offset_bytes() + page * page_size;
}

const std::shared_ptr<HeaderReader>& MediumReader::headers() {
  if (headers_ == nullptr) headers_ = std::make_shared<HeaderReader>(pool_);
  return headers_;
}

std::optional<PagePlace> MediumReader::locate(u64 address, u32 copy) const {
  const auto& chunks = pool_.chunks;
  const auto after =
      std::upper_bound(chunks.begin(), chunks.end(), address,
                       [](u64 value, const pool::OpenedChunk& chunk) { return value < chunk.descriptor.base_address; });
  if (after == chunks.begin() || address % page_size != 0) return std::nullopt;
  const auto chunk = static_cast<u32>(after - chunks.begin() - 1);
  const format::ChunkDescriptor& descriptor = chunks[chunk].descriptor;
  if (address - descriptor.base_address >= descriptor.size_bytes) return std::nullopt;
  const u64 page = (address - descriptor.base_address) / page_size;
  const u64 header_pages = format::chunk_layout(chunk_page_count(chunk)).header_pages;
  const raid::PagePlace place = raid::with_level(
      descriptor.level, [&](auto level) { return level.map(raid::geometry_of(descriptor), page, copy); });
  return PagePlace{chunk, page, chunks[chunk].columns[place.column].device_index(),
                   header_area_offset(chunk, header_pages + place.page, place.column)};
}

std::string MediumReader::place_text(u64 address) const {
  const std::optional<PagePlace> place = locate(address);
  if (!place) return fmt::format("logical {:#x}", address);
  return fmt::format("{} offset {:#x} (logical {:#x})", pool_.devices[place->device].file.path(), place->device_offset,
                     address);
}

void MediumReader::read_descriptor(const PagePlace& place, format::PageDescriptor* descriptor) {
  const u64 index = place.page / format::descriptors_per_page;
  const u64 key = (u64{place.chunk} << 32) | index;
  const u64 slot = (key * 0x9e3779b97f4a7c15ull >> 40) % cache_slots;
  CachedDescriptors& cached = cache_[slot];
  if (cached_keys_[slot] != key) {
    cached_keys_[slot] = key;
    (void)headers()->find_descriptors(place.chunk, index, cached.descriptors);
  }
  *descriptor = cached.descriptors[place.page % format::descriptors_per_page];
}

bool MediumReader::read_raw(const PagePlace& place, u64 count, PageBuffer* pages) {
  GPU4FS_CHECK_LE(place.page + count, chunk_page_count(place.chunk));
  const format::ChunkDescriptor& descriptor = pool_.chunks[place.chunk].descriptor;
  try {
    for (u64 done = 0; done < count;) {
      const u64 page = place.page + done;
      const u64 together = raid::with_level(
          descriptor.level, [&](auto level) { return level.contiguous_pages(raid::geometry_of(descriptor), page); });
      const u64 here = std::min(together, count - done);
      PagePlace from = *locate(descriptor.base_address + page * page_size);
      for (u32 copy = 1; copy < copy_count(place.chunk) && !pool_.devices[from.device].is_here(); ++copy) {
        from = *locate(descriptor.base_address + page * page_size, copy);
      }
      read_device(from.device, from.device_offset, pages + done, here * page_size);
      done += here;
    }
  } catch (const pool::PoolError&) {
    return false;
  }
  return true;
}

bool MediumReader::read_raw_copy(u64 address, u32 copy, PageBuffer* page) {
  const std::optional<PagePlace> place = locate(address, copy);
  if (!place) return false;
  try {
    read_device(place->device, place->device_offset, page, page_size);
  } catch (const pool::PoolError&) {
    return false;
  }
  return true;
}

bool MediumReader::read_column(u32 chunk, u32 column, u64 page, PageBuffer* to) {
  const u64 header_pages = format::chunk_layout(chunk_page_count(chunk)).header_pages;
  try {
    read_device(pool_.chunks[chunk].columns[column].device_index(),
                header_area_offset(chunk, header_pages + page, column), to, page_size);
  } catch (const pool::PoolError&) {
    return false;
  }
  return true;
}

PageState MediumReader::read_copy(u64 address, u32 copy, PageBuffer* page) {
  const std::optional<PagePlace> place = locate(address, copy);
  if (!place) return PageState::outside;
  format::PageDescriptor descriptor{};
  if (!read_raw_copy(address, copy, page)) return PageState::unreadable;
  read_descriptor(*place, &descriptor);
  return xxh3_page(Lane{}, page, address) == descriptor.checksum ? PageState::good : PageState::damaged;
}

PageState MediumReader::read_page(u64 address, PageBuffer* page) {
  const std::optional<PagePlace> place = locate(address);
  if (!place) return PageState::outside;
  PageState state = PageState::unreadable;
  for (u32 copy = 0; copy < copy_count(place->chunk); ++copy) {
    if (!pool_.devices[locate(address, copy)->device].is_here()) continue;
    state = read_copy(address, copy, page);
    if (state == PageState::good) break;
  }
  if (state != PageState::good && read_from_row(*place, page)) return PageState::good;
  return state;
}

bool MediumReader::read_from_row(const PagePlace& place, PageBuffer* page) {
  const format::ChunkDescriptor& chunk = pool_.chunks[place.chunk].descriptor;
  if (pool::parity_count_of(chunk) == 0) return false;
  const pool::RowOfPages row = pool::row_of_page(chunk, place.page);
  std::vector<PageBuffer> buffers(row.columns.size());
  std::vector<const u8*> slots(row.pages.size(), nullptr);
  std::vector<const u8*> parities(pool::parity_count_of(chunk), nullptr);
  u64 included = 0;
  for (u32 slot = 0; slot < slots.size(); ++slot) {
    const u64 address = chunk.base_address + row.pages[slot] * page_size;
    format::PageDescriptor descriptor{};
    read_descriptor(*locate(address), &descriptor);
    if ((descriptor.flags & format::page_flag_known) == 0) continue;
    included |= u64{1} << slot;
    // The state of unverified pages is unknown: they count as missing, which is right for zeros too.
    if ((descriptor.flags & format::page_flag_unverified) != 0) continue;
    if (slot != row.slot && read_copy(address, 0, &buffers[slot]) == PageState::good) {
      slots[slot] = buffers[slot].bytes;
    }
  }
  for (u32 j = 0; j < parities.size(); ++j) {
    PageBuffer* buffer = &buffers[row.data_slots + j];
    if (read_column(place.chunk, row.columns[row.data_slots + j], row.row, buffer)) parities[j] = buffer->bytes;
  }
  format::PageDescriptor descriptor{};
  read_descriptor(place, &descriptor);
  const u64 address = chunk.base_address + place.page * page_size;
  PageBuffer made;
  const bool found = pool::reconstruct_slot(row.slot, included, slots, parities, made.bytes,
                                            [&] { return xxh3_page(Lane{}, &made, address) == descriptor.checksum; });
  if (found) *page = made;
  return found;
}

}  // namespace gpu4fs::fsck
