#include <bit>

#include "base/check.hpp"
#include "base/xxh3_serial.hpp"
#include "server/repair/repair_context.hpp"

namespace gpu4fs::server::repair {

NewPages::NewPages(OpenedPool& pool, check::CheckContext& old_state, u64 epoch, bool writes)
    : pool_(pool), old_(old_state), epoch_(epoch), writes_(writes) {
  for (const check::ChunkUse& use : old_.chunks) claimed_.emplace_back(use.reached.size());
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

u64 NewPages::take() {
  for (; chunk_ < claimed_.size(); ++chunk_, page_ = 0) {
    const check::ChunkUse& use = old_.chunks[chunk_];
    for (; page_ < old_.reader.chunk_page_count(chunk_); ++page_) {
      if (check::test_bit(use.allocated, page_) || check::test_bit(use.reached, page_) ||
          check::test_bit(claimed_[chunk_], page_)) {
        continue;
      }
      check::set_bit(claimed_[chunk_], page_);
      return pool_.chunks[chunk_].descriptor.base_address + page_++ * page_size;
    }
  }
  throw PoolError(Status::no_space, "there are no free pages left to repair the pool with; it is unchanged");
}

u64 NewPages::add_unwritten() { return take(); }

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
  const format::ChunkLayout layout = format::chunk_layout(old_.reader.chunk_page_count(first.chunk));
  const OpenedChunk& chunk = pool_.chunks[first.chunk];
  for (u32 column = 0; column <= chunk.descriptor.redundancy; ++column) {
    pool_.devices[chunk.columns[column].device_index()].file.write_at(
        old_.reader.header_area_offset(first.chunk, layout.descriptors_page, column) +
            first.page * sizeof(descriptor),
        &descriptor, sizeof(descriptor));
  }
  return address;
}

u64 NewPages::page_used() const {
  u64 count = 0;
  for (const BitWords& words : claimed_) {
    for (const u64 word : words) count += static_cast<u64>(std::popcount(word));
  }
  return count;
}

}  // namespace gpu4fs::server::repair
