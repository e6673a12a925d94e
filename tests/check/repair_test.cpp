// fsck --repair: what survives of a pool with several kinds of damage, and that an interrupted repair does no harm. The
// canaries test that each kind of damage can be repaired (check_pool_test.cpp).
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "check/pool_image.hpp"
#include "fmt/format.h"

namespace gpu4fs::test::repair_test {
namespace {

using fsck::CheckResult;
using fsck::FindingId;

std::string describe(const CheckResult& result) {
  std::string text;
  for (const fsck::Finding& finding : result.findings.kept()) {
    text += std::string(fsck::finding_kind(finding.id).id) + ": " + finding.place + ": " + finding.text + "\n";
  }
  return text;
}

// Everything that a user sees of a file.
struct FileState {
  u16 mode;
  u32 uid;
  u64 size_bytes;
  std::string content;  // except for directories
  bool operator==(const FileState&) const = default;
};

std::string content_of(fsck::MediumReader& reader, const format::Inode& inode) {
  if (inode.is_inline()) return {reinterpret_cast<const char*>(inode.inline_data()), inode.size_bytes};
  std::string content;
  const auto page = std::make_unique<fsck::PageBuffer>();
  for (u64 index = 0; index * page_size < inode.size_bytes; ++index) {
    format::BlockPointer pointer{};
    const u64 address = fsck::find_page(reader, inode, index, &pointer);
    if (address == 0 || pointer.is_unwritten()) continue;
    // For example of a damaged directory that became a file.
    if (reader.read_page(address, page.get()) != fsck::PageState::good) return content + "<damaged>";
    content += fmt::format("<{}>", index);
    content.append(reinterpret_cast<const char*>(page->bytes), page_size);
  }
  return content;
}

std::map<u64, FileState> read_files(const PoolImage& image) {
  std::map<u64, FileState> files;
  const pool::OpenedPool pool = image.open();
  fsck::MediumReader reader(pool);
  const u64 count = pool.superblock.inode_file.size_bytes / format::inode_size;
  for (u64 number = format::inode_number_first_free; number < count; ++number) {
    const format::Inode inode = fsck::read_inode(reader, number);
    if (inode.mode == 0) continue;
    const bool is_directory = (inode.mode & S_IFMT) == S_IFDIR;
    if (inode.size_bytes > u64{1} << 30) continue;  // the size was damaged: all holes
    files[number] = {inode.mode, inode.uid, is_directory ? 0 : inode.size_bytes,
                     is_directory ? "" : content_of(reader, inode)};
  }
  return files;
}

class RepairTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { image_ = new PoolImage; }
  static void TearDownTestSuite() {
    delete image_;
    image_ = nullptr;
  }
  void TearDown() override { image_->restore(); }
  const Content& content() const { return image_->content(); }

  // A few kinds of damage to the inodes in `victims` and to directories.
  void damage(std::mt19937_64& random, const std::vector<u64>& victims) {
    const u64 victim = victims[random() % victims.size()];
    switch (random() % 5) {
      case 0:
        image_->edit_inode(victim, [&](format::Inode& inode) {
          auto* bytes = reinterpret_cast<u8*>(&inode);
          for (u64 i = 0; i < 1 + random() % 8; ++i) bytes[random() % sizeof(inode)] = static_cast<u8>(random());
        });
        return;
      case 1:
        damage_page(random, true);
        return;
      case 2:
        damage_page(random, false);
        return;
      case 3: {
        const u64 other = image_->inode(victims[random() % victims.size()]).slots[random() % 2].raw;
        image_->edit_inode(victim, [&](format::Inode& inode) { inode.slots[random() % 7].raw = other; });
        return;
      }
      default:
        image_->edit_page(image_->file_page_address(format::inode_number_inode_bitmap, 0),
                          [&](u8* page) { page[random() % 32] ^= static_cast<u8>(1u << (random() % 8)); });
    }
  }

  // A page of a directory, with a checksum that fits, or not.
  void damage_page(std::mt19937_64& random, bool fits) {
    u64 address = directory_pages_[random() % directory_pages_.size()];
    if (fits) {
      image_->edit_page(address, [&](u8* page) {
        for (u64 i = 0; i < 1 + random() % 8; ++i) page[random() % page_size] = static_cast<u8>(random());
      });
      return;
    }
    fsck::PagePlace place{};
    {
      const pool::OpenedPool pool = image_->open();
      place = fsck::MediumReader(pool).locate(address).value();
    }
    image_->flip_bit(place.device, place.device_offset + random() % page_size, 3);
  }

  void find_directory_pages() {
    directory_pages_ = {image_->file_page_address(format::inode_number_root, 0)};
    for (u64 index = 0; index < 4; ++index) {
      directory_pages_.push_back(image_->file_page_address(content().directory, index));
    }
  }

  static PoolImage* image_;
  std::vector<u64> directory_pages_;
};
PoolImage* RepairTest::image_ = nullptr;

TEST_F(RepairTest, RandomDamageLeavesTheOtherFilesAsTheyWere) {
  find_directory_pages();
  const std::map<u64, FileState> before = read_files(*image_);
  const std::vector<u64> victims = {content().plain_file, content().sparse_file, content().attribute_file,
                                    content().directory, content().subdirectory};
  for (u64 seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const u64 damage_count = 1 + random() % 6;
    for (u64 i = 0; i < damage_count; ++i) {
      try {
        damage(random, victims);
      } catch (const pool::PoolError&) {
        // The structure to be damaged is no longer found.
      }
    }
    std::string said;
    image_->repair(false, &said);
    const CheckResult after = image_->check();
    const u64 content_errors = after.findings.count(FindingId::page_checksum);
    ASSERT_EQ(after.findings.error_count(), content_errors) << describe(after) << "after\n" << said;
    const std::map<u64, FileState> files = read_files(*image_);
    for (const auto& [number, state] : before) {
      if (std::find(victims.begin(), victims.end(), number) != victims.end()) continue;
      ASSERT_TRUE(files.contains(number)) << number << "\n" << said;
      ASSERT_TRUE(files.at(number) == state) << number << "\n" << said;
    }
    image_->restore();
  }
}

// Each file that has lost its name is in lost+found.
TEST_F(RepairTest, FilesOfALostDirectoryAreKept) {
  image_->edit_inode(content().directory, [](format::Inode& inode) { inode = format::Inode{}; });
  const std::map<u64, FileState> before = read_files(*image_);
  image_->repair();
  ASSERT_EQ(image_->check().findings.error_count(), 0u) << describe(image_->check());
  const std::map<u64, FileState> after = read_files(*image_);
  for (const auto& [number, state] : before) EXPECT_TRUE(after.at(number) == state) << number;
  const CheckResult result = image_->check();
  EXPECT_EQ(result.directories, 4u) << "root, subdirectory, emptied, lost+found";
}

TEST_F(RepairTest, DryRunChangesNothing) {
  image_->edit_inode(content().plain_file, [](format::Inode& inode) { inode.link_count = 9; });
  const CheckResult before = image_->check();
  std::string said;
  EXPECT_GT(image_->repair(true, &said).repair_count, 0u);
  EXPECT_NE(said.find("1 links instead of 9"), std::string::npos) << said;
  EXPECT_EQ(describe(image_->check()), describe(before));
}

TEST_F(RepairTest, SecondOwnerOfAPageGetsACopy) {
  const format::Inode sparse = image_->inode(content().sparse_file);
  const std::map<u64, FileState> before = read_files(*image_);
  image_->edit_inode(content().plain_file, [&](format::Inode& inode) {
    inode.height = sparse.height;
    std::copy(std::begin(sparse.slots), std::end(sparse.slots), std::begin(inode.slots));
  });
  image_->repair();
  ASSERT_EQ(image_->check().findings.error_count(), 0u) << describe(image_->check());
  EXPECT_TRUE(read_files(*image_).at(content().sparse_file) == before.at(content().sparse_file));
  EXPECT_NE(image_->inode(content().plain_file).slots[0].raw, image_->inode(content().sparse_file).slots[0].raw);
}

// After the greatest generation they restart: a freed number does not get that of a number that was never used, and
// inode 0 gets the latest one.
TEST_F(RepairTest, GenerationsGoRound) {
  constexpr u32 greatest = ~u32{0};
  image_->edit_inode(content().plain_file, [&](format::Inode& inode) {
    inode.mode = 0170644;
    inode.generation = greatest;
  });
  image_->edit_inode(content().sparse_file, [](format::Inode& inode) { inode.generation = 500; });
  image_->edit_superblocks([&](format::Superblock& superblock) { superblock.inode_file.generation = greatest - 1; });
  image_->repair();
  ASSERT_EQ(image_->check().findings.error_count(), 0u) << describe(image_->check());
  const format::Inode freed = image_->inode(content().plain_file);
  EXPECT_EQ(freed.mode, 0u);
  EXPECT_EQ(freed.generation, format::generation_after(greatest, 0));
  EXPECT_NE(freed.generation, 0u);
  EXPECT_EQ(image_->open().superblock.inode_file.generation, 500u);
}

// The n-th write of a repair fails, and nothing more is written: the pool is either damaged as before or repaired.
TEST_F(RepairTest, EndInTheMiddleCostsNothing) {
  find_directory_pages();
  u32 failures = 0;
  for (u32 device = 0; device < 2; ++device) {
    for (u32 nth = 1; nth < 60; ++nth) {
      SCOPED_TRACE(fmt::format("device {}, write {}", device, nth));
      image_->edit_page(directory_pages_[1], [](u8* page) { page[2048] = 0xff; });
      image_->edit_inode(content().plain_file, [](format::Inode& inode) { inode.link_count = 9; });
      const u64 errors = image_->check().findings.error_count();
      ASSERT_GT(errors, 0u);
      fsck::RepairOptions options;
      options.device_paths = image_->paths();
      options.device_paths[device] = fmt::format("fault=write-error#{}:{}", nth, image_->paths()[device]);
      bool failed = false;
      try {
        fsck::repair_pool(options);
      } catch (const pool::PoolError&) {
        failed = true;
        ++failures;
      }
      const CheckResult middle = image_->check();
      EXPECT_TRUE(middle.findings.error_count() == 0 || middle.findings.error_count() == errors) << describe(middle);
      EXPECT_TRUE(failed || middle.findings.error_count() == 0) << describe(middle);
      image_->repair();
      EXPECT_EQ(image_->check().findings.error_count(), 0u) << describe(image_->check());
      image_->restore();
      if (!failed) break;
    }
  }
  EXPECT_GT(failures, 20u);
}

TEST_F(RepairTest, PoolInUseIsRefused) {
  image_->edit_inode(content().plain_file, [](format::Inode& inode) { inode.link_count = 9; });
  pool::OpenPoolOptions open;
  open.device_paths = image_->paths();
  const pool::OpenedPool pool = pool::open_pool(open);
  EXPECT_THROW(image_->repair(), pool::PoolError);
}

}  // namespace
}  // namespace gpu4fs::test::repair_test
