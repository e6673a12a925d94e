// Canaries of fsck: a pool as the engine leaves it is clean, and damage to every kind of structure is reported. If the
// damage changes the meaning and not only the bytes, the report has the matching id.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/bits.hpp"
#include "check/check_agreement.hpp"
#include "check/pool_image.hpp"

namespace gpu4fs::test::check_pool_test {
namespace {

using fsck::CheckResult;
using fsck::FindingId;

// One image for all tests; each damages it and restores it.
class CheckPoolTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { image_ = new PoolImage; }
  static void TearDownTestSuite() {
    delete image_;
    image_ = nullptr;
  }
  void TearDown() override {
    image_->restore();
    const CheckResult result = image_->check();
    ASSERT_EQ(result.findings.error_count(), 0u) << describe(result);
  }
  void expect(FindingId id) {
    const CheckResult result = image_->check();
    EXPECT_GT(result.findings.count(id), 0u) << fsck::finding_kind(id).id << " is missing:\n" << describe(result);
    EXPECT_GT(result.findings.error_count(), 0u);
    expect_engines_agree(*image_, result);
    if (id != FindingId::pool_unusable) expect_repair();
  }
  // The damage can be repaired, and the engine mounts the result.
  void expect_repair() {
    std::string said;
    EXPECT_GT(image_->repair(true, &said).repair_count, 0u);
    said.clear();
    const fsck::RepairResult repaired = image_->repair(false, &said);
    EXPECT_GT(repaired.repair_count, 0u);
    const CheckResult result = image_->check();
    EXPECT_EQ(result.findings.error_count(), 0u) << describe(result) << "after\n" << said;
    EXPECT_EQ(image_->repair().repair_count, 0u);
    image_->mount_once();
    EXPECT_EQ(image_->check().findings.error_count(), 0u) << describe(image_->check()) << "after\n" << said;
  }
  const Content& content() const { return image_->content(); }
  // The workers of an engine have pages of their own for new inodes, so not each page has one left.
  u64 free_number() const {
    const u64 end = align_up(content().attribute_file + 1, u64{format::inodes_per_page});
    u64 number = format::inode_number_first_free;
    while (number < end && image_->inode(number).mode != 0) ++number;
    EXPECT_LT(number, end) << "all inodes are in use";
    return number;
  }

  static PoolImage* image_;
};
PoolImage* CheckPoolTest::image_ = nullptr;

TEST_F(CheckPoolTest, CleanPoolHasNoFinding) {
  const CheckResult result = image_->check();
  EXPECT_EQ(result.findings.kept().size(), 0u) << describe(result);
  expect_engines_agree(*image_, result);
  EXPECT_EQ(result.directories, 4u);
  // Three directories, the long names, plain, sparse, inline, two names of one file, symlink,
  // with-attribute.
  EXPECT_EQ(result.names, 3 + long_name_count + 7);
  EXPECT_EQ(result.inodes, result.names - 1);
  EXPECT_EQ(result.pages_used, image_->open().superblock.page_used);
}

TEST_F(CheckPoolTest, EveryFlippedBitOfAPageInUseIsFound) {
  std::vector<u64> addresses;
  {
    const pool::OpenedPool pool = image_->open();
    const fsck::MediumReader reader(pool);
    for (u32 chunk = 0; chunk < pool.chunks.size(); ++chunk) {
      const u64 pages = reader.chunk_page_count(chunk);
      const format::ChunkLayout layout = format::chunk_layout(pages);
      format::BitmapSlotHeader headers[2];
      u64 best = 0;
      for (u32 slot = 0; slot < 2; ++slot) {
        const u64 page = slot == 0 ? layout.bitmap_a_page : layout.bitmap_b_page;
        reader.chunk_device(chunk).read_at(reader.header_area_offset(chunk, page), &headers[slot], page_size);
        if (headers[slot].epoch > headers[best].epoch) best = slot;
      }
      std::vector<u8> bits(layout.bitmap_pages * page_size);
      const u64 page = (best == 0 ? layout.bitmap_a_page : layout.bitmap_b_page) + 1;
      reader.chunk_device(chunk).read_at(reader.header_area_offset(chunk, page), bits.data(), bits.size());
      for (u64 i = 0; i < pages; ++i) {
        if ((bits[i / 8] >> (i % 8)) & 1)
          addresses.push_back(pool.chunks[chunk].descriptor.base_address + i * page_size);
      }
    }
  }
  ASSERT_GT(addresses.size(), 700u);
  std::mt19937_64 random(20);
  for (int round = 0; round < 100; ++round) {
    const u64 address = addresses[random() % addresses.size()];
    fsck::PagePlace place{};
    {
      const pool::OpenedPool pool = image_->open();
      place = fsck::MediumReader(pool).locate(address).value();
    }
    const u64 offset = place.device_offset + random() % page_size;
    const u32 bit = static_cast<u32>(random() % 8);
    image_->flip_bit(place.device, offset, bit);
    const CheckResult result = image_->check();
    EXPECT_GT(result.findings.count(FindingId::page_checksum), 0u) << "page " << address << "\n" << describe(result);
    if (round % 25 == 0) expect_engines_agree(*image_, result);
    image_->flip_bit(place.device, offset, bit);
  }
}

TEST_F(CheckPoolTest, DataIsOnlyVerifiedWhenAsked) {
  const u64 address = image_->file_page_address(content().plain_file, 5);
  fsck::PagePlace place{};
  {
    const pool::OpenedPool pool = image_->open();
    place = fsck::MediumReader(pool).locate(address).value();
  }
  image_->flip_bit(place.device, place.device_offset + 77, 1);
  EXPECT_EQ(image_->check(false).findings.error_count(), 0u);
  const CheckResult result = image_->check(true);
  ASSERT_EQ(result.findings.error_count(), 1u);
  expect_engines_agree(*image_, result);
  EXPECT_NE(result.findings.kept()[0].text.find("bytes from 20480"), std::string::npos) << describe(result);
}

TEST_F(CheckPoolTest, SuperblockSlots) {
  for (const u64 offset : {format::superblock_offset_a, format::superblock_offset_b}) {
    image_->flip_bit(1, offset + 200, 3);
    // The newest one, or the previous one: a crash leaves the same state, and nothing shows which it was.
    const CheckResult result = image_->check();
    EXPECT_EQ(result.findings.count(FindingId::superblock_torn), 1u) << describe(result);
    EXPECT_EQ(result.findings.error_count(), 1u) << describe(result);
    image_->restore();
  }
  image_->flip_bit(0, format::superblock_offset_a + 30, 0);
  image_->flip_bit(0, format::superblock_offset_b + 30, 0);
  expect(FindingId::pool_unusable);
}

TEST_F(CheckPoolTest, SuperblockCounts) {
  image_->edit_superblocks([](format::Superblock& superblock) { superblock.inode_used += 1; });
  expect(FindingId::superblock_count);
  image_->restore();
  image_->edit_superblocks([](format::Superblock& superblock) { superblock.page_used -= 1; });
  expect(FindingId::superblock_count);
}

TEST_F(CheckPoolTest, ChunkTreeReplica) {
  const u64 offset = image_->open().devices[1].part.tree_offset;
  image_->flip_bit(1, offset + 100, 2);
  expect(FindingId::tree_node_damaged);
}

TEST_F(CheckPoolTest, ChunkMap) {
  const u64 offset = image_->open().devices[0].part.chunk_map_offset;
  image_->flip_bit(0, offset + page_size, 0);
  expect(FindingId::chunk_map_damaged);
  image_->restore();
  // The same with right checksums.
  std::vector<u8> bitmap(image_->open().devices[0].part.chunk_map_pages * page_size);
  format::BitmapSlotHeader header{};
  image_->read(0, offset, &header, sizeof(header));
  image_->read(0, offset + page_size, bitmap.data(), bitmap.size());
  bitmap[0] ^= 1;
  header.set_count -= 1;
  header.bitmap_checksum = xxh3_64(bitmap.data(), bitmap.size(), header.base_address);
  pool::seal(header, header.base_address ^ header.slot);
  image_->write(0, offset, &header, sizeof(header));
  image_->write(0, offset + page_size, bitmap.data(), bitmap.size());
  expect(FindingId::chunk_map_damaged);
}

// The last free page of the chunk.
u64 last_free_page(PoolImage& image) {
  const BitmapSlotPlace place = newest_bitmap(image, 0);
  std::vector<u8> bitmap(place.bytes);
  image.read(place.device, place.offset + page_size, bitmap.data(), bitmap.size());
  const pool::OpenedPool pool = image.open();
  u64 page = pool.chunks[0].descriptor.size_bytes / page_size - 1;
  while (page > 0 && ((bitmap[page / 8] >> (page % 8)) & 1) != 0) --page;
  return page;
}

TEST_F(CheckPoolTest, ChunkHeaderAndBitmap) {
  const BitmapSlotPlace place = newest_bitmap(*image_, 0);
  const u64 header_offset = image_->open().chunks[0].columns[0].offset_bytes();
  image_->flip_bit(place.device, header_offset + 24, 1);
  expect(FindingId::chunk_header_damaged);
  image_->restore();
  image_->flip_bit(place.device, place.offset + page_size + 3, 1);
  EXPECT_GT(image_->check().findings.error_count(), 0u);  // the older slot is the current one
}

TEST_F(CheckPoolTest, BitmapAgainstReachablePages) {
  const u64 free_page = last_free_page(*image_);
  ASSERT_NE(free_page, 0u);
  u64 used_page = 0;
  {
    const pool::OpenedPool pool = image_->open();
    const u64 base = pool.chunks[0].descriptor.base_address;
    const u64 size = pool.chunks[0].descriptor.size_bytes;
    for (u64 index = 0; index < 768; ++index) {
      const u64 address = image_->file_page_address(content().plain_file, index);
      if (address >= base && address < base + size) used_page = (address - base) / page_size;
    }
    if (used_page == 0) used_page = (image_->inode_page_address(1) - base) / page_size;
  }
  flip_bitmap_bit(*image_, 0, used_page);
  expect(FindingId::page_not_allocated);
  image_->restore();
  flip_bitmap_bit(*image_, 0, free_page);
  expect(FindingId::page_leaked);
}

TEST_F(CheckPoolTest, InodeFields) {
  struct Damage {
    FindingId id;
    std::function<void(format::Inode&)> change;
  };
  const Damage damages[] = {
      {FindingId::link_count, [](format::Inode& inode) { inode.link_count += 1; }},
      {FindingId::inode_page_count, [](format::Inode& inode) { inode.page_count += 1; }},
      {FindingId::inode_reserved, [](format::Inode& inode) { inode.reserved[28] = 1; }},
      {FindingId::inode_field, [](format::Inode& inode) { inode.version = 2; }},
      {FindingId::inode_field, [](format::Inode& inode) { inode.flags |= 1u << 31; }},
      {FindingId::inode_field, [](format::Inode& inode) { inode.mode |= S_IFMT; }},
      {FindingId::inode_field, [](format::Inode& inode) { inode.change_time |= (1u << 30) - 1; }},
      {FindingId::inode_size, [](format::Inode& inode) { inode.size_bytes = ~u64{0}; }},
      {FindingId::pointer_malformed,
       [](format::Inode& inode) { inode.slots[0].raw |= format::BlockPointer::reserved_bit; }},
      {FindingId::pointer_malformed, [](format::Inode& inode) { inode.slots[6].raw = 1; }},
      {FindingId::page_outside,
       [](format::Inode& inode) {
         inode.attributes = format::BlockPointer::data(u64{1} << 50, format::BlockSize::page_4k);
       }},
      {FindingId::directory_type, [](format::Inode& inode) { inode.mode = S_IFLNK | 0777; }},
      {FindingId::directory_target, [](format::Inode& inode) { inode = format::Inode{}; }},
      {FindingId::inode_bitmap, [](format::Inode& inode) { inode = format::Inode{}; }},
      {FindingId::page_leaked, [](format::Inode& inode) { inode = format::Inode{}; }},
  };
  for (const Damage& damage : damages) {
    image_->edit_inode(content().plain_file, damage.change);
    expect(damage.id);
    image_->restore();
  }
  // A size beyond the reach of any map is invalid.
  image_->edit_inode(content().plain_file, [](format::Inode& inode) { inode.size_bytes = u64{1} << 60; });
  expect(FindingId::inode_size);
  image_->restore();
  // Inline content has no map; its height must be valid nevertheless.
  image_->edit_inode(content().inline_file, [](format::Inode& inode) { inode.height = 6; });
  expect(FindingId::inode_field);
}

TEST_F(CheckPoolTest, SymbolicLinks) {
  image_->edit_inode(content().symlink, [](format::Inode& inode) {
    inode.slots[0] = format::BlockPointer::unwritten(inode.slots[0].address(), format::BlockSize::page_4k);
  });
  expect(FindingId::pointer_malformed);
  image_->restore();
  image_->edit_inode(content().symlink, [](format::Inode& inode) { std::swap(inode.slots[0], inode.slots[1]); });
  expect(FindingId::inode_size);
}

TEST_F(CheckPoolTest, HeightOfTheOrphanBitmap) {
  // Without pages any height would be valid.
  image_->edit_inode(format::inode_number_orphan_bitmap, [](format::Inode& inode) {
    inode.slots[0] = {};
    inode.page_count = 0;
    inode.height = 3;
  });
  expect(FindingId::inode_field);
}

TEST_F(CheckPoolTest, FlagsOfUsers) {
  constexpr u32 flags = format::inode_flag_append_only | format::inode_flag_no_dump;
  const u64 number = content().plain_file;
  image_->edit_inode(number, [](format::Inode& inode) { inode.flags |= flags; });
  const CheckResult result = image_->check();
  EXPECT_EQ(result.findings.error_count(), 0u) << describe(result);
  expect_engines_agree(*image_, result);
  image_->edit_inode(number, [](format::Inode& inode) { inode.page_count += 1; });
  expect(FindingId::inode_page_count);
  EXPECT_EQ(image_->inode(number).flags, flags) << "a repair keeps them";
  image_->restore();
  // The pool's own files have no attributes.
  image_->edit_inode(format::inode_number_inode_bitmap,
                     [](format::Inode& inode) { inode.flags |= format::inode_flag_immutable; });
  const CheckResult own = image_->check();
  EXPECT_EQ(own.findings.count(FindingId::inode_field), 1u) << describe(own);
  expect_engines_agree(*image_, own);
}

TEST_F(CheckPoolTest, PagesUsedTwice) {
  const format::BlockPointer other{image_->inode(content().sparse_file).slots[0].raw};
  image_->edit_inode(content().plain_file, [&](format::Inode& inode) {
    inode.height = image_->inode(content().sparse_file).height;
    inode.slots[0] = other;
  });
  expect(FindingId::page_used_twice);
}

TEST_F(CheckPoolTest, FreeInodeWithContent) {
  image_->edit_inode(free_number(), [](format::Inode& inode) { inode.size_bytes = 1; });
  expect(FindingId::inode_reserved);
}

TEST_F(CheckPoolTest, InodeWithoutName) {
  image_->edit_inode(free_number(), [](format::Inode& inode) {
    inode.version = 1;
    inode.mode = S_IFREG | 0600;
  });
  expect(FindingId::inode_lost);
}

TEST_F(CheckPoolTest, Bitmaps) {
  image_->edit_page(image_->file_page_address(format::inode_number_inode_bitmap, 0), [](u8* page) { page[100] ^= 1; });
  expect(FindingId::inode_bitmap);
  image_->restore();
  image_->edit_page(image_->file_page_address(format::inode_number_orphan_bitmap, 0), [&](u8* page) {
    const u64 number = content().plain_file;
    page[number / 8] = static_cast<u8>(page[number / 8] | (1u << (number % 8)));
  });
  expect(FindingId::orphan_bitmap);
}

TEST_F(CheckPoolTest, Attributes) {
  const u64 address = image_->inode(content().attribute_file).attributes.address();
  image_->edit_page(address, [](u8* page) {
    page[sizeof(format::AttributePageHeader) + sizeof(format::AttributeEntry) + 9 + 4] ^= 1;  // in the value
  });
  expect(FindingId::attribute_page);
  image_->restore();
  // An access list with wrong content and the right hash.
  image_->edit_page(address, [](u8* page) {
    const std::string name = "system.posix_acl_access";
    format::AttributePageHeader header{};
    std::memcpy(&header, page, sizeof(header));
    const format::AttributeEntry entry{28, 0, static_cast<u8>(name.size()), 0, 0};
    u8* place = page + header.used_bytes;
    std::memset(place, 0, sizeof(entry) + name.size() + 28);
    std::memcpy(place, &entry, sizeof(entry));
    std::memcpy(place + sizeof(entry), name.data(), name.size());
    const u32 hash = static_cast<u32>(xxh3_64(place + sizeof(entry) + name.size(), 28, 0));
    std::memcpy(place + offsetof(format::AttributeEntry, value_hash), &hash, sizeof(hash));
    header.entry_count += 1;
    header.used_bytes =
        static_cast<u16>(header.used_bytes + ((sizeof(entry) + name.size() + 28 + 7) & ~std::size_t{7}));
    std::memcpy(page, &header, sizeof(header));
  });
  expect(FindingId::attribute_page);
}

TEST_F(CheckPoolTest, DirectoryInode) {
  image_->edit_inode(content().directory, [](format::Inode& inode) { inode.entry_count += 1; });
  expect(FindingId::directory_count);
  image_->restore();
  image_->edit_inode(content().subdirectory, [](format::Inode& inode) { inode.parent_or_device = 1; });
  expect(FindingId::directory_parent);
  image_->restore();
  image_->edit_inode(content().directory, [](format::Inode& inode) { inode.link_count = 2; });
  expect(FindingId::link_count);
}

format::DirectorySlot read_slot(const u8* page, u32 index) {
  format::DirectorySlot slot{};
  std::memcpy(&slot, page + format::directory_leaf_slots_offset + index * sizeof(slot), sizeof(slot));
  return slot;
}
void write_slot(u8* page, u32 index, const format::DirectorySlot& slot) {
  std::memcpy(page + format::directory_leaf_slots_offset + index * sizeof(slot), &slot, sizeof(slot));
}

TEST_F(CheckPoolTest, DirectoryLeaf) {
  // The root directory is a single leaf.
  const u64 address = image_->file_page_address(format::inode_number_root, 0);
  struct Damage {
    FindingId id;
    std::function<void(u8*)> change;
  };
  const Damage damages[] = {
      {FindingId::directory_order,
       [](u8* page) {
         const format::DirectorySlot first = read_slot(page, 0);
         write_slot(page, 0, read_slot(page, 1));
         write_slot(page, 1, first);
       }},
      {FindingId::directory_hash, [](u8* page) { page[read_slot(page, 0).entry_offset + 8] ^= 1; }},
      {FindingId::directory_name, [](u8* page) { page[read_slot(page, 0).entry_offset + 8] = '/'; }},
      {FindingId::directory_target, [](u8* page) { page[read_slot(page, 0).entry_offset + 3] ^= 1; }},
      {FindingId::directory_target,
       [](u8* page) {
         const u64 reserved = 2;
         std::memcpy(page + read_slot(page, 0).entry_offset, &reserved, sizeof(reserved));
       }},
      {FindingId::directory_type,
       [](u8* page) {
         format::DirectorySlot slot = read_slot(page, 0);
         slot.type ^= 2;
         write_slot(page, 0, slot);
       }},
      {FindingId::directory_page, [](u8* page) { page[0] ^= 1; }},
      {FindingId::directory_page, [](u8* page) { page[7] = 1; }},
      {FindingId::directory_page,
       [](u8* page) {
         format::DirectorySlot slot = read_slot(page, 0);
         slot.entry_offset = 0;
         write_slot(page, 0, slot);
       }},
      {FindingId::directory_page, [](u8* page) { page[12] ^= 8; }},
  };
  for (const Damage& damage : damages) {
    image_->edit_page(address, damage.change);
    expect(damage.id);
    image_->restore();
  }
}

TEST_F(CheckPoolTest, DirectoryNode) {
  const u64 address = image_->file_page_address(content().directory, 0);
  const auto change_child = [&](u32 slot, u32 child) {
    image_->edit_page(address, [&](u8* page) {
      u32 magic = 0;
      std::memcpy(&magic, page, sizeof(magic));
      ASSERT_EQ(magic, format::directory_node_magic);
      std::memcpy(page + format::directory_node_children_offset + slot * sizeof(child), &child, sizeof(child));
    });
  };
  change_child(3, 0);
  expect(FindingId::directory_page);
  image_->restore();
  change_child(511, 100000);
  expect(FindingId::directory_page);
}

// Chunks by number of which a page is allocated.
std::vector<bool> chunks_in_use(PoolImage& image) {
  std::vector<bool> in_use;
  const u64 count = image.open().chunks.size();
  for (u32 chunk = 0; chunk < count; ++chunk) {
    format::BitmapSlotHeader header{};
    const BitmapSlotPlace place = newest_bitmap(image, chunk);
    image.read(place.device, place.offset, &header, sizeof(header));
    in_use.push_back(header.set_count != 0);
  }
  return in_use;
}

// Memory of a chunk that a GPU can reach is allocated completely, so a check requests only chunks with content.
TEST_F(CheckPoolTest, ChunksWithoutPagesStayOutOfTheEnginesReach) {
  const std::vector<bool> in_use = chunks_in_use(*image_);
  const auto used = static_cast<u64>(std::count(in_use.begin(), in_use.end(), true));
  ASSERT_LT(used, in_use.size());
  EXPECT_EQ(image_->check_by(fsck::CheckEngine::cpu).chunks_mapped, used);
  // Damage leads into one of them: this one is checked as well, and no other.
  const auto empty = static_cast<std::size_t>(std::find(in_use.begin(), in_use.end(), false) - in_use.begin());
  const u64 address = image_->open().chunks[empty].descriptor.base_address + 5 * page_size;
  const format::BlockPointer pointers[] = {format::BlockPointer::indirect(address),
                                           format::BlockPointer::data(address, format::BlockSize::page_4k)};
  for (const format::BlockPointer pointer : pointers) {
    const u64 number = pointer.is_indirect() ? content().sparse_file : content().directory;
    image_->edit_inode(number, [&](format::Inode& inode) { inode.slots[0] = pointer; });
    const CheckResult result = image_->check();
    EXPECT_EQ(result.findings.count(FindingId::page_not_allocated), 1u) << describe(result);
    expect_engines_agree(*image_, result, true, true);
    EXPECT_EQ(image_->check_by(fsck::CheckEngine::cpu).chunks_mapped, used + 1);
    image_->restore();
  }
}

// By chunk and region of 512 pages: whether a page of it is allocated.
std::vector<std::vector<bool>> regions_in_use(PoolImage& image) {
  std::vector<std::vector<bool>> in_use;
  const pool::OpenedPool pool = image.open();
  for (u32 chunk = 0; chunk < pool.chunks.size(); ++chunk) {
    const u64 pages = pool.chunks[chunk].descriptor.size_bytes / page_size;
    std::vector<u8> bitmap(pages / 8);
    const BitmapSlotPlace place = newest_bitmap(image, chunk);
    image.read(place.device, place.offset + page_size, bitmap.data(), bitmap.size());
    in_use.emplace_back();
    for (u64 first = 0; first < bitmap.size(); first += 64) {
      const u8* const begin = bitmap.data() + first;
      in_use.back().push_back(std::any_of(begin, begin + 64, [](u8 byte) { return byte != 0; }));
    }
  }
  return in_use;
}

// The free parts of chunks with content stay out of reach too; they may have no memory at all.
TEST_F(CheckPoolTest, RegionsWithoutPagesStayOutOfTheEnginesReach) {
  const std::vector<std::vector<bool>> in_use = regions_in_use(*image_);
  u64 used = 0;
  std::size_t chunk = in_use.size();
  for (std::size_t i = 0; i < in_use.size(); ++i) {
    const auto count = std::count(in_use[i].begin(), in_use[i].end(), true);
    used += static_cast<u64>(count);
    if (count != 0 && static_cast<std::size_t>(count) != in_use[i].size()) chunk = i;
  }
  ASSERT_LT(chunk, in_use.size());
  EXPECT_EQ(image_->check_by(fsck::CheckEngine::cpu).regions_mapped, used);
  // Damage leads into one of them: its chunk is checked as a whole, and the findings are those of the host.
  const auto region =
      static_cast<u64>(std::find(in_use[chunk].begin(), in_use[chunk].end(), false) - in_use[chunk].begin());
  const u64 address = image_->open().chunks[chunk].descriptor.base_address + (region * 512 + 5) * page_size;
  const auto of_chunk = static_cast<u64>(std::count(in_use[chunk].begin(), in_use[chunk].end(), true));
  const format::BlockPointer pointers[] = {format::BlockPointer::indirect(address),
                                           format::BlockPointer::data(address, format::BlockSize::page_4k)};
  for (const format::BlockPointer pointer : pointers) {
    const u64 number = pointer.is_indirect() ? content().sparse_file : content().directory;
    image_->edit_inode(number, [&](format::Inode& inode) { inode.slots[0] = pointer; });
    const CheckResult result = image_->check();
    EXPECT_EQ(result.findings.count(FindingId::page_not_allocated), 1u) << describe(result);
    expect_engines_agree(*image_, result, true, true);
    EXPECT_EQ(image_->check_by(fsck::CheckEngine::cpu).regions_mapped, used - of_chunk + in_use[chunk].size());
    image_->restore();
  }
}

TEST_F(CheckPoolTest, DirectoryLoop) {
  // The entry of `subdirectory` becomes an entry of `directory`, which then contains itself.
  const u64 root_leaf = image_->file_page_address(format::inode_number_root, 0);
  image_->edit_page(root_leaf, [&](u8* page) {
    format::DirectoryPageHeader header{};
    std::memcpy(&header, page, sizeof(header));
    for (u32 i = 0; i < header.entry_count; ++i) {
      u64 target = 0;
      u8* place = page + read_slot(page, i).entry_offset;
      std::memcpy(&target, place, sizeof(target));
      if (target == content().directory) target = content().subdirectory;
      std::memcpy(place, &target, sizeof(target));
    }
  });
  const CheckResult result = image_->check();
  EXPECT_GT(result.findings.count(FindingId::directory_parent) + result.findings.count(FindingId::inode_lost), 1u)
      << describe(result);
  expect_engines_agree(*image_, result);
}

TEST_F(CheckPoolTest, HostileBytesEndInAnAnswer) {
  // Random changes of metadata with right checksums must neither crash nor hang the checker.
  std::mt19937_64 random(7);
  const u64 addresses[] = {image_->inode_page_address(1),
                           image_->inode_page_address(content().plain_file),
                           image_->file_page_address(format::inode_number_root, 0),
                           image_->file_page_address(content().directory, 0),
                           image_->file_page_address(content().directory, 1),
                           image_->inode(content().attribute_file).attributes.address()};
  for (int round = 0; round < 150; ++round) {
    image_->edit_page(addresses[random() % std::size(addresses)], [&](u8* page) {
      const u64 change_count = 1 + random() % 16;
      for (u64 i = 0; i < change_count; ++i) page[random() % page_size] = static_cast<u8>(random());
    });
    const CheckResult result = image_->check(false);
    if (round % 8 == 0) expect_engines_agree(*image_, result, false);
    if (round % 10 == 9) image_->restore();
  }
}

}  // namespace
}  // namespace gpu4fs::test::check_pool_test
