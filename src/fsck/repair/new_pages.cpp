#include <bit>
#include <cstring>

#include "base/check.hpp"
#include "base/xxh3_serial.hpp"
#include "fsck/repair/repair_context.hpp"
#include "pool/row_parities.hpp"
#include "raid/levels/levels.hpp"

namespace gpu4fs::fsck::repair {

NewPages::NewPages(pool::OpenedPool& pool, check::CheckContext& old_state, u64 epoch, bool writes)
    : pool_(pool), old_(old_state), epoch_(epoch), writes_(writes) {
  for (const check::ChunkUse& use : old_.chunks) claimed_.emplace_back(use.reached.size());
  descriptors_.resize(claimed_.size());
}

bool NewPages::claim(u64 address, u64 count) {
  const std::optional<PagePlace> place = old_.reader.locate(address);
  GPU4FS_CHECK(place.has_value());
  GPU4FS_CHECK_LE(place->page + count, old_.reader.chunk_page_count(place->chunk));
  BitWords& claimed = claimed_[place->chunk];
  for (u64 page = place->page; page < place->page + count; ++page) {
    if (check::test_bit(claimed, page)) return false;
  }
  for (u64 page = place->page; page < place->page + count; ++page) check::set_bit(claimed, page);
  return true;
}

void NewPages::release(u64 address) {
  const PagePlace place = old_.reader.locate(address).value();
  GPU4FS_CHECK(check::test_bit(claimed_[place.chunk], place.page));
  claimed_[place.chunk][place.page / 64] &= ~(u64{1} << (place.page % 64));
}

// Rows on which the old state depends stay unchanged.
bool NewPages::is_in_free_stripe(u32 chunk, u64 page) const {
  const format::ChunkDescriptor& descriptor = pool_.chunks[chunk].descriptor;
  if (pool::parity_count_of(descriptor) == 0) return true;
  const raid::Stripe stripe = raid::with_parity_level(
      descriptor.level, [&](auto level) { return level.stripe_of(raid::geometry_of(descriptor), page); });
  const check::ChunkUse& use = old_.chunks[chunk];
  for (u64 other = stripe.first; other < stripe.first + stripe.page_count; ++other) {
    if (check::test_bit(use.allocated, other) || check::test_bit(use.reached, other)) return false;
  }
  return true;
}

// They are written with the bitmap (write_medium()), to places that the old state does not name.
void NewPages::put_descriptor(u32 chunk, u64 page, const format::PageDescriptor& descriptor) {
  const u64 index = page / format::descriptors_per_page;
  const auto [found, is_new] = descriptors_[chunk].try_emplace(index);
  if (is_new) (void)old_.reader.headers()->find_descriptors(chunk, index, &found->second);
  std::memcpy(found->second.bytes + page % format::descriptors_per_page * sizeof(descriptor), &descriptor,
              sizeof(descriptor));
}

// The parities of the row of a page that was just added. They sum up the pages that this repair has written there;
// other pages of the row are in no parity.
void NewPages::write_parities(u32 chunk, u64 page) {
  const pool::OpenedChunk& opened = pool_.chunks[chunk];
  const pool::RowOfPages row = pool::row_of_page(opened.descriptor, page);
  std::vector<PageBuffer> buffers(row.pages.size());
  std::vector<const u8*> slots(row.pages.size(), nullptr);
  for (u32 slot = 0; slot < slots.size(); ++slot) {
    const u64 address = opened.descriptor.base_address + row.pages[slot] * page_size;
    if (written_.count(address) == 0) {
      put_descriptor(chunk, row.pages[slot], {});
      continue;
    }
    const PagePlace place = old_.reader.locate(address).value();
    pool_.devices[place.device].file.read_at(place.device_offset, &buffers[slot], page_size);
    slots[slot] = buffers[slot].bytes;
  }
  const std::vector<std::vector<u8>> parities = pool::compute_parities(pool::parity_count_of(opened.descriptor), slots);
  const u64 header_pages = format::chunk_layout(old_.reader.chunk_page_count(chunk)).header_pages;
  for (u32 j = 0; j < parities.size(); ++j) {
    const u32 column = row.columns[row.data_slots + j];
    pool_.devices[opened.columns[column].device_index()].file.write_at(
        old_.reader.header_area_offset(chunk, header_pages + row.row, column), parities[j].data(), page_size);
  }
}

u64 NewPages::take() {
  for (;; chunk_ = 0, page_ = 0, took_metadata_chunks_ = true) {
    for (; chunk_ < claimed_.size(); ++chunk_, page_ = 0) {
      const bool is_for_metadata = (pool_.chunks[chunk_].descriptor.flags & format::chunk_flag_metadata) != 0;
      if (is_for_metadata == took_metadata_chunks_) continue;
      const check::ChunkUse& use = old_.chunks[chunk_];
      for (; page_ < old_.reader.chunk_page_count(chunk_); ++page_) {
        if (check::test_bit(use.allocated, page_) || check::test_bit(use.reached, page_) ||
            check::test_bit(claimed_[chunk_], page_) || !is_in_free_stripe(chunk_, page_)) {
          continue;
        }
        check::set_bit(claimed_[chunk_], page_);
        return pool_.chunks[chunk_].descriptor.base_address + page_++ * page_size;
      }
    }
    if (took_metadata_chunks_) break;
  }
  throw pool::PoolError(Status::no_space, "there are no free pages left to repair the pool with; it is unchanged");
}

u64 NewPages::add_unwritten() {
  return take();
}

u64 NewPages::add(const void* content) {
  const u64 address = take();
  if (!writes_) return address;
  format::PageDescriptor descriptor{};
  descriptor.checksum = xxh3_64(content, page_size, address);
  descriptor.birth_epoch = static_cast<u32>(epoch_);
  const PagePlace first = old_.reader.locate(address).value();
  for (u32 copy = 0; copy < old_.reader.copy_count(first.chunk); ++copy) {
    const PagePlace place = old_.reader.locate(address, copy).value();
    pool_.devices[place.device].file.write_at(place.device_offset, content, page_size);
  }
  if (pool::parity_count_of(pool_.chunks[first.chunk].descriptor) != 0) {
    descriptor.flags = format::page_flag_in_parity;
    written_.insert(address);
    write_parities(first.chunk, first.page);
  }
  put_descriptor(first.chunk, first.page, descriptor);
  return address;
}

u64 NewPages::page_used() const {
  u64 count = 0;
  for (const BitWords& words : claimed_) {
    for (const u64 word : words) count += static_cast<u64>(std::popcount(word));
  }
  return count;
}

}  // namespace gpu4fs::fsck::repair
