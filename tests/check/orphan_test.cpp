// Orphans whose pages went in a commit before the checkpoint that a crash left: fsck calls them sound, and a mount
// frees what is left.
#include <gtest/gtest.h>

#include "check/check_agreement.hpp"
#include "check/pool_image.hpp"

namespace gpu4fs::test::orphan_test {
namespace {

using server::CheckResult;
using server::FindingId;

// A long symbolic link and a directory of several pages wait to be freed.
void leave_orphans(tools::BenchClient& client, const Content& content) {
  const u64 root = format::inode_number_root;
  const u64 symlink = client.call(client.named(format::Opcode::unlink, root, "symlink"), "unlink").result;
  const u64 directory = client.call(client.named(format::Opcode::rmdir, root, "emptied"), "rmdir").result;
  ASSERT_EQ(symlink, content.symlink) << "unlink names the orphan";
  ASSERT_EQ(directory, content.emptied_directory);
}

class Orphans : public testing::Test {
 protected:
  static void SetUpTestSuite() { image_ = new PoolImage(leave_orphans); }
  static void TearDownTestSuite() {
    delete image_;
    image_ = nullptr;
  }
  void TearDown() override { image_->restore(); }

  // As the commits of reclaim do, from the end: pages [kept, end) go, and their bits.
  void take_pages(u64 number, u64 kept) {
    const format::Inode inode = image_->inode(number);
    ASSERT_EQ(inode.height, 0u) << "no indirect blocks to go with them";
    std::vector<u64> addresses;
    for (u64 page = kept; page < inode.size_bytes / page_size + (inode.size_bytes % page_size != 0); ++page) {
      addresses.push_back(image_->file_page_address(number, page));
    }
    image_->edit_inode(number, [&](format::Inode& edited) {
      for (u64 i = 0; i < addresses.size(); ++i) edited.slots[kept + i] = format::BlockPointer::hole();
      edited.page_count -= addresses.size();
    });
    for (const u64 address : addresses) {
      std::optional<server::PagePlace> place;
      {
        const server::OpenedPool pool = image_->open();
        place = server::MediumReader(pool).locate(address);
      }
      ASSERT_TRUE(place);
      flip_bitmap_bit(*image_, place->chunk, place->page);
    }
    image_->edit_superblocks([&](format::Superblock& superblock) { superblock.page_used -= addresses.size(); });
  }

  void expect_sound(u64 orphan_count) {
    const CheckResult result = image_->check();
    EXPECT_EQ(result.findings.error_count(), 0u) << describe(result);
    EXPECT_EQ(result.orphans, orphan_count);
    expect_engines_agree(*image_, result);
  }

  void expect_mount_frees_them() {
    server::ServerOptions options;
    options.device_paths = image_->paths();
    options.engine = server::EngineChoice::cpu;
    options.worker_count = 1;
    options.commit_interval_s = 0;
    {
      server::PoolServer server(options);
      server.start();
      EXPECT_TRUE(server.stop());
    }
    const CheckResult result = image_->check();
    EXPECT_EQ(result.findings.kept().size(), 0u) << describe(result);
    EXPECT_EQ(result.orphans, 0u);
    EXPECT_EQ(image_->inode(content().symlink).mode, 0u);
    EXPECT_EQ(image_->inode(content().emptied_directory).mode, 0u);
  }
  const Content& content() const { return image_->content(); }

  static PoolImage* image_;
};
PoolImage* Orphans::image_ = nullptr;

TEST_F(Orphans, MayLackAnyOfTheirLastPages) {
  const u64 page_count = image_->inode(content().emptied_directory).page_count;
  ASSERT_GT(page_count, 2u);
  expect_sound(2);
  for (u64 kept = 0; kept < page_count; ++kept) {
    SCOPED_TRACE(kept);
    take_pages(content().emptied_directory, kept);
    take_pages(content().symlink, 0);
    expect_sound(2);
    expect_mount_frees_them();
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

// Pages beyond the end that an orphan says it has are damage as ever.
TEST_F(Orphans, PagesBehindTheSizeAreFound) {
  image_->edit_inode(content().emptied_directory, [](format::Inode& inode) { inode.size_bytes = page_size; });
  const CheckResult result = image_->check();
  EXPECT_EQ(result.findings.count(FindingId::inode_size), 1u) << describe(result);
  expect_engines_agree(*image_, result);
}

// Something else is damaged: what has no pages costs nothing and is in nobody's way.
TEST_F(Orphans, RepairGoesAroundThem) {
  for (const u64 kept : {0u, 2u}) {
    SCOPED_TRACE(kept);
    take_pages(content().emptied_directory, kept);
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

// The orphan bitmap was lost: what became of the directory is kept, with all that a directory needs.
TEST_F(Orphans, LostOnesAreWholeAgainAfterARepair) {
  take_pages(content().emptied_directory, 2);
  take_pages(content().symlink, 0);
  image_->edit_page(image_->file_page_address(format::inode_number_orphan_bitmap, 0),
                    [](u8* page) { std::memset(page, 0, page_size); });
  EXPECT_EQ(image_->check().findings.count(FindingId::inode_lost), 2u);
  std::string said;
  EXPECT_GT(image_->repair(false, &said).repair_count, 0u);
  const CheckResult result = image_->check();
  EXPECT_EQ(result.findings.error_count(), 0u) << describe(result) << "after\n" << said;
  EXPECT_EQ(result.orphans, 0u);
  EXPECT_EQ(image_->inode(content().symlink).mode, 0u) << "its target is lost";
  EXPECT_EQ(image_->inode(content().emptied_directory).link_count, 2u) << said;
}

}  // namespace
}  // namespace gpu4fs::test::orphan_test
