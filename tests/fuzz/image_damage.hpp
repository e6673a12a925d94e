// Damage to a whole image: any structure of the format, with or without a recomputed checksum.
#pragma once

#include <algorithm>
#include <vector>

#include "base/xxh3_serial.hpp"
#include "fsck/check/attribute_tree.hpp"
#include "fsck/check/tree_reader.hpp"
#include "fuzz/damage.hpp"
#include "fuzz/pool_file.hpp"
#include "support/header_image.hpp"

namespace gpu4fs::fuzz {

class ImageDamage {
 public:
  // Examines the pool in the file.
  explicit ImageDamage(PoolFile& file) : file_(file) {
    const pool::OpenedPool pool = pool::open_pool({{file.path()}, true, false});
    superblock_ = pool.superblock;
    for (const pool::OpenedChunk& chunk : pool.chunks) chunks_.push_back({chunk.descriptor, chunk.columns[0]});
    fsck::MediumReader reader(pool);
    collect(reader, superblock_.inode_file, true);
    const u64 number_end = superblock_.inode_file.size_bytes / format::inode_size;
    for (u64 number = 1; number < number_end; ++number) {
      const format::Inode inode = fsck::read_inode(reader, number);
      if (inode.mode == 0) continue;
      const u32 type = inode.mode >> 12;
      collect(reader, inode, number < format::inode_number_first_free || type == 4);
      fsck::walk_attributes(inode, [&](const fsck::AttributeBlock& block, fsck::PageBuffer* content) {
        metadata_.push_back(block.pointer.address());
        if (block.level != 0) fsck::read_verified(reader, block.pointer.address(), content);
        return block.level != 0;
      });
    }
  }

  void apply(Input& input) {
    const u32 flags = input.byte();
    seals_ = flags % 8 != 7;
    for (u32 count = 1 + flags / 8 % 8; count > 0 && !input.empty(); --count) damage(input);
  }

 private:
  struct Chunk {
    format::ChunkDescriptor descriptor;
    format::ColumnAddress column;
    u64 page_count() const { return descriptor.size_bytes / page_size; }
    format::ChunkLayout layout() const { return format::chunk_layout(page_count()); }
    u64 header_offset(u64 page) const { return column.offset_bytes() + page * page_size; }
  };

  void collect(fsck::MediumReader& reader, const format::Inode& inode, bool is_metadata) {
    if (inode.is_inline()) return;
    for (const format::BlockPointer& slot : inode.slots) collect_slot(reader, slot, inode.height, is_metadata);
  }
  void collect_slot(fsck::MediumReader& reader, format::BlockPointer slot, u32 level, bool is_metadata) {
    if (!slot.is_valid()) return;
    if (slot.is_indirect()) {
      metadata_.push_back(slot.address());
      fsck::PageBuffer page;
      fsck::read_verified(reader, slot.address(), &page);
      for (u32 i = 0; i < format::slots_per_block; ++i) {
        format::BlockPointer next{};
        std::memcpy(&next, page.bytes + i * sizeof(next), sizeof(next));
        collect_slot(reader, next, level - 1, is_metadata);
      }
    } else if (is_metadata) {
      metadata_.push_back(slot.address());
    } else {
      data_.push_back(slot.address());
    }
  }

  void damage(Input& input) {
    const u32 place = input.byte();
    const Chunk& chunk = chunks_[place / 16 % chunks_.size()];
    const u64 superblock = pool::superblock_offset(superblock_.slot ^ (place / 16 % 8 == 7 ? 1u : 0u));
    switch (place % 16) {
      case 0:
        return sealed<format::Superblock>(input, superblock, superblock, 896);
      case 1:
        return sealed<format::ChunkTreeNode>(input, superblock_.device.tree_offset, 0, 192);
      case 2:
        return sealed<format::ChunkHeader>(input, chunk.header_offset(0), chunk.descriptor.base_address, 64);
      case 3:
        return bitmap(input, chunk);
      case 4:
        return bits(input, chunk);
      case 5:
        return page_descriptor(input, chunk);
      case 6:
        return raw(input, pick(input, data_), page_size, false);
      case 7:
        return raw_anywhere(input);
      default:
        return raw(input, pick(input, metadata_), input.byte() % 2 == 0 ? page_size : 512, true);
    }
  }
  static u64 pick(Input& input, const std::vector<u64>& addresses) {
    return addresses.empty() ? 0 : addresses[input.below(addresses.size())];
  }

  template <class T>
  void sealed(Input& input, u64 offset, u64 seed, u64 range) {
    T structure = file_.read_as<T>(offset);
    u8 bytes[page_size];
    std::memcpy(bytes, &structure, page_size);
    change_bytes(input, bytes, input.byte() % 8 == 0 ? page_size : range);
    std::memcpy(&structure, bytes, page_size);
    if (seals_) pool::seal(structure, seed);
    file_.write(offset, &structure, page_size);
  }
  test::HeaderImage header_area(const Chunk& chunk) {
    return test::HeaderImage({[this](u64 offset, void* to, u64 length) { file_.read(offset, to, length); },
                              [this](u64 offset, const void* from, u64 length) { file_.write(offset, from, length); }},
                             chunk.column.offset_bytes(), chunk.descriptor.base_address, chunk.page_count(),
                             superblock_.epoch);
  }
  // Changes the superblock's counts like damage to a header area with valid checksums.
  void add_to_superblock(u64 slot_sum, u64 page_used) {
    auto superblock = file_.read_as<format::Superblock>(pool::superblock_offset(superblock_.slot));
    superblock.slot_sum += slot_sum;
    superblock.page_used += page_used;
    pool::seal(superblock, pool::superblock_offset(superblock_.slot));
    file_.write(pool::superblock_offset(superblock_.slot), &superblock, page_size);
  }
  void bitmap(Input& input, const Chunk& chunk) {
    const u32 slot = input.byte() % 2;
    const u64 page = slot == 0 ? chunk.layout().bitmap_a_page : chunk.layout().bitmap_b_page;
    const u64 offset = chunk.header_offset(page);
    const u64 before = file_.read_as<format::BitmapSlotHeader>(offset).checksum;
    sealed<format::BitmapSlotHeader>(input, offset, chunk.descriptor.base_address ^ slot, 64);
    if (!seals_ || header_area(chunk).slot() != slot) return;
    add_to_superblock(file_.read_as<format::BitmapSlotHeader>(offset).checksum - before, 0);
  }
  // False bits, with all counts and checksums of the slot and the superblock right.
  void bits(Input& input, const Chunk& chunk) {
    test::HeaderImage area = header_area(chunk);
    const format::BitmapSlotHeader before = area.header();
    if (before.magic != format::bitmap_slot_magic) return;
    std::vector<u8> bitmap = area.bitmap();
    change_bytes(input, bitmap.data(), std::min<u64>(chunk.page_count() / 8, bitmap.size()));
    const u64 change = area.write_bitmap(bitmap);
    add_to_superblock(change, area.header().set_count - before.set_count);
  }
  void page_descriptor(Input& input, const Chunk& chunk) {
    test::HeaderImage area = header_area(chunk);
    const u64 index = input.byte() % area.layout().descriptor_pages;
    u8 bytes[page_size];
    const u64 offset = area.offset_of(area.descriptor_page(index));
    file_.read(offset, bytes, page_size);
    change_bytes(input, bytes, page_size);
    if (!seals_) return file_.write(offset, bytes, page_size);
    const u64 change =
        area.edit_descriptors(index, [&](format::PageDescriptor* page) { std::memcpy(page, bytes, page_size); });
    add_to_superblock(change, 0);
  }
  // A page in logical space.
  void raw(Input& input, u64 address, u64 range, bool makes_checksum) {
    for (const Chunk& chunk : chunks_) {
      const u64 inside = address - chunk.descriptor.base_address;
      if (address < chunk.descriptor.base_address || inside >= chunk.descriptor.size_bytes) continue;
      const u64 page = inside / page_size;
      u8 bytes[page_size];
      const u64 offset = chunk.header_offset(chunk.layout().header_pages + page);
      file_.read(offset, bytes, page_size);
      change_bytes(input, bytes, range);
      file_.write(offset, bytes, page_size);
      if (!makes_checksum || !seals_) return;
      add_to_superblock(header_area(chunk).write_checksum(page, xxh3_64(bytes, page_size, address)), 0);
    }
  }
  void raw_anywhere(Input& input) {
    u8 bytes[page_size];
    const u64 offset = input.number(2) % (pool_file_bytes / page_size) * page_size;
    file_.read(offset, bytes, page_size);
    change_bytes(input, bytes, page_size);
    file_.write(offset, bytes, page_size);
  }

  PoolFile& file_;
  format::Superblock superblock_{};
  std::vector<Chunk> chunks_;
  std::vector<u64> metadata_;
  std::vector<u64> data_;
  bool seals_ = true;
};

}  // namespace gpu4fs::fuzz
