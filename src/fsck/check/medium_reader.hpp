// Pages of an opened pool by logical address, read directly from the devices. Host only; for fsck and dump.
//
// This class translates addresses and reads bitmaps and descriptors itself, from the chunk list of OpenedPool. If a
// page has several copies, it returns the first good one; the same holds for each page of descriptors
// (fsck/check/header_reader.hpp).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"
#include "format/chunk_format.hpp"
#include "fsck/check/header_reader.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::fsck {

enum class PageState : u8 { good, outside, unreadable, damaged };

// The place of a copy of a logical page.
struct PagePlace {
  u32 chunk;  // index in OpenedPool::chunks
  u64 page;   // in the chunk
  u32 device;
  u64 device_offset;
};

struct alignas(page_size) PageBuffer {
  u8 bytes[page_size];
};

class MediumReader {
 public:
  // `pool` outlives the reader. `headers`: those of another reader of the pool; nullptr: they are read when they are
  // needed.
  explicit MediumReader(const pool::OpenedPool& pool, std::shared_ptr<HeaderReader> headers = nullptr);
  ~MediumReader();
  MediumReader(const MediumReader&) = delete;
  MediumReader& operator=(const MediumReader&) = delete;

  const pool::OpenedPool& pool() const { return pool_; }
  u64 chunk_page_count(u32 chunk) const;
  u32 copy_count(u32 chunk) const;
  // Device offset of a page of the chunk's header area.
  u64 header_area_offset(u32 chunk, u64 page, u32 column = 0) const;
  const pool::DeviceFile& chunk_device(u32 chunk, u32 column = 0) const;
  // Whether the column's device is present.
  bool is_here(u32 chunk, u32 column) const;
  const std::shared_ptr<HeaderReader>& headers();

  // No value if the address is in no chunk.
  std::optional<PagePlace> locate(u64 address, u32 copy = 0) const;
  // "path offset 0x... (logical 0x...)", for any address.
  std::string place_text(u64 address) const;

  // A descriptor from a page that no column has is marked (format::page_flag_unverified).
  void read_descriptor(const PagePlace& place, format::PageDescriptor* descriptor);
  // Reads and verifies one page, from the first good copy or from the rest of its row. `damaged` leaves the content in
  // `page`.
  PageState read_page(u64 address, PageBuffer* page);
  // One copy of it.
  PageState read_copy(u64 address, u32 copy, PageBuffer* page);
  // One copy of it, regardless of its checksum; false if its device cannot read it.
  bool read_raw_copy(u64 address, u32 copy, PageBuffer* page);
  // Any page of a column after its header area; false if its device cannot read it.
  bool read_column(u32 chunk, u32 column, u64 page, PageBuffer* to);
  // Reads `count` pages of one chunk, their first copies, without verifying them.
  bool read_raw(const PagePlace& place, u64 count, PageBuffer* pages);

 private:
  struct CachedDescriptors {
    format::PageDescriptor descriptors[format::descriptors_per_page];
  };
  static constexpr u64 cache_slots = 1024;

  // Computes the page from the rest of its row; false: too little of that is good.
  bool read_from_row(const PagePlace& place, PageBuffer* page);
  void read_device(u32 device, u64 offset, void* to, u64 length) const;

  const pool::OpenedPool& pool_;
  std::shared_ptr<HeaderReader> headers_;
  std::vector<u64> cached_keys_;  // by slot; kept separately, so a small pool touches few pages of the cache
  std::unique_ptr<CachedDescriptors[]> cache_;
  // Of devices in memory, where a read through the mapping cannot fail and saves a call for each page; otherwise null.
  std::vector<const u8*> mappings_;
};

}  // namespace gpu4fs::fsck
