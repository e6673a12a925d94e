// A small file system without an engine whose metadata pages an input damages on the medium. Checksums are recomputed,
// so the damage reaches the code that interprets the pages.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/handlers/namespace_common.hpp"
#include "fuzz/damage.hpp"
#include "fuzz/fuzz_target.hpp"
#include "support/header_image.hpp"
#include "support/small_file_system.hpp"

namespace gpu4fs::fuzz {

using test::DeviceImages;
using test::SmallFileSystem;
using test::SmallPoolOptions;

inline SmallPoolOptions small_options() {
  SmallPoolOptions options;
  options.frame_count = 512;
  options.staging_count = 256;
  return options;
}

// Whether a status may be the answer to damage: control codes for a lack of room, and all that report damage.
inline bool is_answer(Status status) {
  return !is_wait(status) && status != Status::again && status != Status::busy;
}
inline Status answered(Status status) {
  if (!is_answer(status)) fail(status_name(status));
  return status;
}

class SmallWorld {
 public:
  // `fill` creates the content, which inputs damage.
  template <class Fill>
  explicit SmallWorld(Fill&& fill) {
    SmallFileSystem small(small_options());
    fill(small);
    GPU4FS_CHECK_OK(small.checkpoint(Lane{}));
    for (u32 i = 0; i < small.fs().pages.frame_count; ++i) {
      const fs::Frame& frame = small.fs().pages.frames[i];
      if (frame.state == fs::frame_valid) pages_.push_back({frame.key, frame.address});
    }
    const auto before = [](const MetadataPage& a, const MetadataPage& b) {
      if (a.key.inode != b.key.inode) return a.key.inode > b.key.inode;
      return a.key.level_and_index < b.key.level_and_index;
    };
    std::sort(pages_.begin(), pages_.end(), before);
    images_ = small.images();
  }

  u64 page_count() const { return pages_.size(); }

  // The images with as many changed pages as the input's next byte says.
  DeviceImages damaged(Input& input) const {
    DeviceImages images = images_;
    const SmallPoolOptions options = small_options();
    const u64 chunk_pages = test::small_pool::chunk_pages(options);
    for (u32 count = input.byte() % 12; count > 0 && !input.empty(); --count) {
      const u64 address = pages_[input.below(pages_.size())].address;
      const u32 chunk = static_cast<u32>(address / options.chunk_bytes - 1);
      const u64 page = address % options.chunk_bytes / page_size;
      const format::ChunkLayout layout = format::chunk_layout(chunk_pages);
      const u64 column = test::small_pool::column_offset(options, chunk);
      auto& bytes = images[0].pages[column + (layout.header_pages + page) * page_size];
      const u32 range = input.byte() % 4;
      const u64 begin = range == 3 ? page_size / 2 : 0;
      change_bytes(input, bytes.data() + begin, range == 0 ? page_size : range == 1 ? 32 : page_size / 2);
      const u64 checksum = xxh3_64(bytes.data(), page_size, address);
      test::DeviceImage& device = images[0];
      const auto read = [&](u64 offset, void* to, u64 length) {
        std::memcpy(to, device.page(align_down(offset, page_size)).data() + offset % page_size, length);
      };
      const auto write = [&](u64 offset, const void* from, u64 length) { device.write(offset, from, length); };
      test::HeaderImage area({read, write}, column, test::small_pool::chunk_base(options, chunk), chunk_pages);
      test::small_pool::add_to_slot_sum(images, area.write_checksum(page, checksum));
    }
    return images;
  }

 private:
  struct MetadataPage {
    fs::PageKey key;
    u64 address;
  };
  std::vector<MetadataPage> pages_;
  DeviceImages images_;
};

}  // namespace gpu4fs::fuzz
