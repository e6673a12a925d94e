// The descriptors of an empty chunk have no meaning as long as it is known to be empty: damage to them is no finding.
// In all other cases the same damage is a finding.
#include <gtest/gtest.h>

#include "check/check_agreement.hpp"
#include "check/pool_image.hpp"

namespace gpu4fs::test::empty_chunk_test {
namespace {

using fsck::CheckResult;
using fsck::FindingId;

class EmptyChunk : public testing::Test {
 protected:
  static void SetUpTestSuite() { image_ = new PoolImage; }
  static void TearDownTestSuite() {
    delete image_;
    image_ = nullptr;
  }
  void SetUp() override {
    const u64 count = image_->open().chunks.size();
    while (chunk_ < count && image_->header_area(chunk_).header().set_count != 0) ++chunk_;
    ASSERT_LT(chunk_, count) << "no chunk is empty";
    device_ = image_->open().chunks[chunk_].columns[0].device_index();
  }
  void TearDown() override { image_->restore(); }

  // The table has an entry for the first page of descriptors, and the page does not match it.
  void break_descriptors() {
    HeaderImage area = image_->header_area(chunk_);
    image_->add_to_slot_sum(
        area.edit_descriptors(0, [](format::PageDescriptor* descriptors) { descriptors[0].checksum = 1; }));
    image_->flip_bit(device_, area.offset_of(area.descriptor_page(0)) + 100, 3);
  }
  void expect_descriptors_damaged(u64 count) {
    const CheckResult result = image_->check();
    EXPECT_EQ(result.findings.count(FindingId::descriptors_damaged), count) << describe(result);
    expect_engines_agree(*image_, result, true, true);
  }

  static PoolImage* image_;
  u32 chunk_ = 0;
  u32 device_ = 0;
};
PoolImage* EmptyChunk::image_ = nullptr;

TEST_F(EmptyChunk, WhatDescribesItIsNotLookedAt) {
  break_descriptors();
  const CheckResult result = image_->check();
  EXPECT_EQ(result.findings.kept().size(), 0u) << describe(result);
  expect_engines_agree(*image_, result, true, true);
  EXPECT_EQ(image_->repair(true).repair_count, 0u);
  image_->mount_once();
  EXPECT_EQ(image_->check().findings.kept().size(), 0u) << describe(image_->check());
}

TEST_F(EmptyChunk, WithAPageInUseItIs) {
  break_descriptors();
  flip_bitmap_bit(*image_, chunk_, 5);
  expect_descriptors_damaged(1);
}

// The remaining slots are not those of the superblock: this chunk's may be one of the outdated ones.
TEST_F(EmptyChunk, OneThatMayNotBeEmptyIs) {
  break_descriptors();
  const HeaderImage area = image_->header_area(chunk_);
  const std::vector<u8> zeros(page_size);
  image_->write(device_, area.offset_of(area.slot_page(area.slot() ^ 1)), zeros.data(), zeros.size());
  expect_descriptors_damaged(0);
  image_->add_to_slot_sum(1);
  const CheckResult result = image_->check();
  EXPECT_GT(result.findings.count(FindingId::superblock_count), 0u) << describe(result);
  EXPECT_EQ(result.findings.count(FindingId::descriptors_damaged), 1u) << describe(result);
}

// Its bitmap shows that it is empty.
TEST_F(EmptyChunk, ItsBitmapIs) {
  const BitmapSlotPlace slot = newest_bitmap(*image_, chunk_);
  image_->flip_bit(slot.device, slot.offset + page_size + 7, 1);
  const CheckResult result = image_->check();
  EXPECT_GT(result.findings.error_count(), 0u) << describe(result);
  expect_engines_agree(*image_, result, true, true);
}

}  // namespace
}  // namespace gpu4fs::test::empty_chunk_test
