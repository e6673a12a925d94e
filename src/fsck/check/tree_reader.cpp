#include "fsck/check/tree_reader.hpp"

#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "format/format_text.hpp"

namespace gpu4fs::fsck {

namespace {

constexpr u32 height_max = 5;

[[noreturn]] void fail(const std::string& place, const std::string& what) {
  throw pool::PoolError(Status::corrupt_structure, fmt::format("{}: {}", place, what));
}

}  // namespace

void read_verified(MediumReader& reader, u64 address, PageBuffer* page) {
  switch (reader.read_page(address, page)) {
    case PageState::good:
      return;
    case PageState::outside:
      fail(reader.place_text(address), "lies outside all chunks");
    case PageState::unreadable:
      fail(reader.place_text(address), "cannot be read");
    case PageState::damaged:
      fail(reader.place_text(address), "does not match its checksum");
  }
}

u64 find_page(MediumReader& reader, const format::Inode& inode, u64 index, format::BlockPointer* pointer) {
  *pointer = format::BlockPointer::hole();
  if (inode.is_inline() || inode.height > height_max) return 0;
  u32 level = inode.height;
  const u64 first = index >> (format::slot_shift * level);
  if (first >= format::inode_slot_count) return 0;
  *pointer = inode.slots[first];
  const auto page = std::make_unique<PageBuffer>();
  while (pointer->is_valid() && pointer->is_indirect()) {
    if (level == 0) fail("page " + std::to_string(index), "an indirect block at level 0");
    read_verified(reader, pointer->address(), page.get());
    --level;
    const u64 slot = (index >> (format::slot_shift * level)) % format::slots_per_block;
    std::memcpy(pointer, page->bytes + slot * sizeof(*pointer), sizeof(*pointer));
  }
  if (!pointer->is_well_formed()) fail("page " + std::to_string(index), format::to_text(*pointer));
  if (pointer->is_hole()) return 0;
  const u64 span = u64{1} << (format::slot_shift * level);
  return pointer->address() + index % span * page_size;
}

format::Inode read_inode(MediumReader& reader, u64 number) {
  const format::Inode& inode_file = reader.pool().superblock.inode_file;
  if (number == format::inode_number_inode_file) return inode_file;
  format::BlockPointer pointer{};
  const u64 address = find_page(reader, inode_file, number / format::inodes_per_page, &pointer);
  if (address == 0) {
    throw pool::PoolError(Status::not_found, fmt::format("inode {}: the inode file has no such page", number));
  }
  const auto page = std::make_unique<PageBuffer>();
  read_verified(reader, address, page.get());
  format::Inode inode{};
  std::memcpy(&inode, page->bytes + number % format::inodes_per_page * sizeof(inode), sizeof(inode));
  return inode;
}

}  // namespace gpu4fs::fsck
