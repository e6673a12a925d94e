// Orphans whose pages were freed by a commit before the checkpoint that a crash left: fsck accepts them, and a mount
// frees the rest.
#include <gtest/gtest.h>

#include "check/check_agreement.hpp"
#include "check/pool_image.hpp"
#include "fmt/format.h"
#include "fs/names/directory_leaf.hpp"

namespace gpu4fs::test::orphan_test {
namespace {

using fsck::CheckResult;
using fsck::FindingId;

u64 deep_directory = 0;
u64 spare_file = 0;  // with as many pages as the directories will have
u64 deep_spare_file = 0;

constexpr u64 emptied_pages = 5;
constexpr u64 deep_pages = 14;

// A long symbolic link and two directories wait to be freed.
void leave_orphans(bench::BenchClient& client, const PoolImage& image) {
  const u64 root = format::inode_number_root;
  const auto remove = [&](wire::Opcode opcode, const char* name) {
    return client.call(client.named(opcode, root, name), name).result;
  };
  spare_file = client.create(root, "spare");
  deep_spare_file = client.create(root, "deep spare");
  write_bytes(client, spare_file, 0, emptied_pages * page_size);
  write_bytes(client, deep_spare_file, 0, deep_pages * page_size);
  deep_directory = client.make_directory(root, "deep");
  EXPECT_EQ(remove(wire::Opcode::unlink, "symlink"), image.content().symlink) << "unlink names the orphan";
  EXPECT_EQ(remove(wire::Opcode::rmdir, "emptied"), image.content().emptied_directory);
  EXPECT_EQ(remove(wire::Opcode::rmdir, "deep"), deep_directory);
}

// Page `index` of an empty directory that was split once for each bit, always at its first leaf. Its tenth page is a
// node below the root, followed by its pages.
void write_split_page(u8* page, u64 index, u64 page_count) {
  constexpr u32 bits = format::directory_node_bits;
  const u64 node_page = bits + 1;
  std::memset(page, 0, page_size);
  const bool is_below = index > node_page;
  if (index == 0 || index == node_page) {
    const u32 level = index == 0 ? 0 : 1;
    const u64 end = index == 0 ? std::min(page_count, node_page + 1) : page_count;
    fs::node_create(Lane{}, page, level, 0, static_cast<u32>(end - 1));
    for (u64 leaf = index + 1, depth = 1; leaf + 1 < end; ++leaf, ++depth) {
      const u32 span = format::directory_node_slots >> depth;
      fs::node_fill(Lane{}, page, fs::NodeSpan{span, span}, static_cast<u32>(leaf));
    }
    return;
  }
  const u64 first = is_below ? node_page + 1 : 1;
  const u64 end = is_below ? page_count : std::min(page_count, node_page);
  const bool is_last = index + 1 == end && (is_below || page_count <= node_page);
  const u32 depth = static_cast<u32>(index - first + (is_last ? 0 : 1));
  const u32 level = is_below ? 1 : 0;
  const u64 prefix = is_last ? 0 : u64{1} << (64 - bits * level - depth);
  fs::leaf_create(Lane{}, page, {level, depth, prefix});
}

// Directories shrink when their names are removed, so a directory with several pages gets those of a file.
void split_directory(PoolImage& image, u64 directory, u64 file) {
  const format::Inode from = image.inode(file);
  const format::Inode old = image.inode(directory);
  const auto take_content = [](format::Inode& inode, const format::Inode& other) {
    std::memcpy(inode.slots, other.slots, sizeof(inode.slots));
    inode.height = other.height;
    inode.page_count = other.page_count;
    inode.size_bytes = other.size_bytes;
  };
  image.edit_inode(directory, [&](format::Inode& inode) { take_content(inode, from); });
  image.edit_inode(file, [&](format::Inode& inode) { take_content(inode, old); });
  const u64 page_count = from.size_bytes / page_size;
  for (u64 page = 0; page < page_count; ++page) {
    image.edit_page(image.file_page_address(directory, page),
                    [&](u8* bytes) { write_split_page(bytes, page, page_count); });
  }
}

class Orphans : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    image_ = new PoolImage(leave_orphans);
    split_directory(*image_, image_->content().emptied_directory, spare_file);
    split_directory(*image_, deep_directory, deep_spare_file);
    image_->keep();
  }
  static void TearDownTestSuite() {
    delete image_;
    image_ = nullptr;
  }
  void TearDown() override { image_->restore(); }

  u64 pages_of(u64 number) const { return (image_->inode(number).size_bytes + page_size - 1) / page_size; }

  // Edits the slots of the pages of a directory: those of the inode or, with an unlucky seed, of an indirect block.
  void edit_slots(u64 number, const std::function<void(format::BlockPointer*)>& change) {
    const format::Inode inode = image_->inode(number);
    ASSERT_LE(inode.height, 1u);
    if (inode.height == 0) return image_->edit_inode(number, [&](format::Inode& edited) { change(edited.slots); });
    ASSERT_LE(pages_of(number), format::slots_per_block);
    image_->edit_page(inode.slots[0].address(),
                      [&](u8* page) { change(reinterpret_cast<format::BlockPointer*>(page)); });
  }

  // Like the commits of reclaim, from the end: removes pages [kept, end), their bits, and an indirect block without
  // pages.
  void take_pages(u64 number, u64 kept) {
    const format::Inode inode = image_->inode(number);
    std::vector<u64> addresses;
    for (u64 page = kept; page < pages_of(number); ++page) {
      addresses.push_back(image_->file_page_address(number, page));
    }
    edit_slots(number, [&](format::BlockPointer* slots) {
      for (u64 i = 0; i < addresses.size(); ++i) slots[kept + i] = format::BlockPointer::hole();
    });
    const bool block_goes = inode.height == 1 && kept == 0;
    image_->edit_inode(number, [&](format::Inode& edited) {
      if (block_goes) edited.slots[0] = format::BlockPointer::hole();
      edited.page_count -= addresses.size() + (block_goes ? 1 : 0);
    });
    if (block_goes) addresses.push_back(inode.slots[0].address());
    for (const u64 address : addresses) {
      std::optional<fsck::PagePlace> place;
      {
        const pool::OpenedPool pool = image_->open();
        place = fsck::MediumReader(pool).locate(address);
      }
      ASSERT_TRUE(place);
      flip_bitmap_bit(*image_, place->chunk, place->page);
    }
    image_->edit_superblocks([&](format::Superblock& superblock) { superblock.page_used -= addresses.size(); });
  }

  void expect_sound(bool by_warps) {
    const CheckResult result = image_->check();
    EXPECT_EQ(result.findings.error_count(), 0u) << describe(result);
    EXPECT_EQ(result.orphans, 3u);
    expect_engines_agree(*image_, result, true, by_warps);
  }

  void expect_mount_frees_them() {
    image_->mount_once();
    const CheckResult result = image_->check();
    EXPECT_EQ(result.findings.kept().size(), 0u) << describe(result);
    EXPECT_EQ(result.orphans, 0u);
    EXPECT_EQ(image_->inode(content().symlink).mode, 0u);
    EXPECT_EQ(image_->inode(content().emptied_directory).mode, 0u);
    EXPECT_EQ(image_->inode(deep_directory).mode, 0u);
  }
  const Content& content() const { return image_->content(); }

  static PoolImage* image_;
};
PoolImage* Orphans::image_ = nullptr;

TEST_F(Orphans, MayLackAnyOfTheirLastPages) {
  ASSERT_GT(pages_of(content().emptied_directory), 2u);
  ASSERT_GT(pages_of(deep_directory), 9u) << "split once for each bit, and then deeper";
  expect_sound(false);
  for (const u64 number : {content().emptied_directory, deep_directory}) {
    for (u64 kept = 0; kept < pages_of(number); ++kept) {
      SCOPED_TRACE(fmt::format("inode {} keeps {} pages", number, kept));
      take_pages(number, kept);
      take_pages(content().symlink, 0);
      expect_sound(kept % 5 == 0);
      expect_mount_frees_them();
      image_->restore();
    }
  }
}

// When the later node is removed, nothing leads to the first leaf; it is read nevertheless.
TEST_F(Orphans, PagesThatNothingLeadsToAnyMoreAreVerified) {
  const u64 size = pages_of(deep_directory);
  u32 found = 0;
  for (u64 page = 1; page < size; ++page) {
    const u64 address = image_->file_page_address(deep_directory, page);
    take_pages(deep_directory, page + 1);
    std::optional<fsck::PagePlace> place;
    {
      const pool::OpenedPool pool = image_->open();
      place = fsck::MediumReader(pool).locate(address);
    }
    image_->flip_bit(place->device, place->device_offset + 100, 1);
    const CheckResult result = image_->check();
    EXPECT_EQ(result.findings.count(FindingId::page_checksum), 1u) << page << "\n" << describe(result);
    expect_engines_agree(*image_, result);
    found += result.findings.count(FindingId::page_checksum) == 1;
    image_->restore();
  }
  EXPECT_EQ(found, size - 1);
}

TEST_F(Orphans, MayNotLackOthers) {
  for (const u64 number : {content().emptied_directory, deep_directory}) {
    SCOPED_TRACE(number);
    edit_slots(number, [](format::BlockPointer* slots) { slots[1] = format::BlockPointer::hole(); });
    image_->edit_inode(number, [](format::Inode& inode) { inode.page_count -= 1; });
    const CheckResult result = image_->check();
    EXPECT_EQ(result.findings.count(FindingId::inode_size), 1u) << describe(result);
    expect_engines_agree(*image_, result);
    image_->restore();
  }
}

TEST_F(Orphans, OthersMayNot) {
  for (const u64 number : {content().symlink, content().emptied_directory}) {
    SCOPED_TRACE(number);
    take_pages(number, 0);
    image_->edit_inode(number, [](format::Inode& inode) { inode.link_count = 1; });
    const CheckResult result = image_->check();
    EXPECT_EQ(result.findings.count(FindingId::inode_size), 1u) << describe(result);
    expect_engines_agree(*image_, result);
    image_->restore();
  }
}

// Pages of an orphan beyond its recorded end are damage as usual.
TEST_F(Orphans, PagesBehindTheSizeAreFound) {
  image_->edit_inode(content().emptied_directory, [](format::Inode& inode) { inode.size_bytes = page_size; });
  const CheckResult result = image_->check();
  EXPECT_EQ(result.findings.count(FindingId::inode_size), 1u) << describe(result);
  expect_engines_agree(*image_, result);
}

// Something else is damaged: orphans without pages lose nothing and do not disturb the repair.
TEST_F(Orphans, RepairGoesAroundThem) {
  for (const u64 kept : {0u, 2u}) {
    SCOPED_TRACE(kept);
    take_pages(content().emptied_directory, kept);
    take_pages(deep_directory, kept * 5);
    take_pages(content().symlink, 0);
    image_->edit_inode(content().plain_file, [](format::Inode& inode) { inode.link_count += 1; });
    EXPECT_EQ(image_->check().findings.error_count(), 1u) << describe(image_->check());
    std::string said;
    EXPECT_GT(image_->repair(false, &said).repair_count, 0u);
    const CheckResult result = image_->check();
    EXPECT_EQ(result.findings.error_count(), 0u) << describe(result) << "after\n" << said;
    EXPECT_EQ(image_->repair().repair_count, 0u);
    expect_mount_frees_them();
    image_->restore();
  }
}

// Only the last leaf of an alleged orphan is left, and it has the only name of a file.
TEST_F(Orphans, FilesOfADamagedOneAreSaved) {
  const u64 number = content().directory;
  const u64 page_count = pages_of(number);
  edit_slots(number, [&](format::BlockPointer* slots) {
    for (u64 page = 0; page + 1 < page_count; ++page) slots[page] = format::BlockPointer::hole();
  });
  image_->edit_inode(number, [](format::Inode& inode) { inode.link_count = 0; });
  EXPECT_GT(image_->check().findings.error_count(), 0u);
  std::string said;
  EXPECT_GT(image_->repair(false, &said).repair_count, 0u);
  const CheckResult result = image_->check();
  EXPECT_EQ(result.findings.error_count(), 0u) << describe(result) << "after\n" << said;
  EXPECT_EQ(image_->repair().repair_count, 0u);
}

// The orphan bitmap was lost: the rest of the directory is kept, with everything that a directory needs.
TEST_F(Orphans, LostOnesAreWholeAgainAfterARepair) {
  take_pages(content().emptied_directory, 2);
  take_pages(content().symlink, 0);
  image_->edit_page(image_->file_page_address(format::inode_number_orphan_bitmap, 0),
                    [](u8* page) { std::memset(page, 0, page_size); });
  EXPECT_EQ(image_->check().findings.count(FindingId::inode_lost), 3u);
  std::string said;
  EXPECT_GT(image_->repair(false, &said).repair_count, 0u);
  const CheckResult result = image_->check();
  EXPECT_EQ(result.findings.error_count(), 0u) << describe(result) << "after\n" << said;
  EXPECT_EQ(result.orphans, 0u);
  EXPECT_EQ(image_->inode(content().symlink).mode, 0u) << "its target is lost";
  EXPECT_EQ(image_->inode(content().emptied_directory).link_count, 2u) << said;
  EXPECT_EQ(image_->inode(deep_directory).link_count, 2u) << said;
}

}  // namespace
}  // namespace gpu4fs::test::orphan_test
