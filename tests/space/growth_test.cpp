// The phases of a plan that changes the chunks of a pool: each command has a meaning in some of them, and a status in
// the others. An invalid plan is refused before anything depends on it.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "space/growth.hpp"
#include "space/space.hpp"
#include "support/space_fixture.hpp"

namespace gpu4fs::space::space_growth_test {
namespace {

using test::SpaceFixture;

constexpr u32 chunk_count = 4;
constexpr u32 last = chunk_count - 1;

class GrowthPhases : public ::testing::Test {
 protected:
  GrowthPhases() : plan_(std::make_unique<PoolGrowth>()) {
    EXPECT_EQ(pool_.load(1), Status::ok);
    std::memset(static_cast<void*>(plan_.get()), 0, sizeof(*plan_));
    fs().superblocks = superblocks_.data();
    fs().growth = plan_.get();
    fs().epoch_durable = 1;
    plan_nothing();
  }
  fs::FileSystem& fs() { return *pool_.fs; }
  raid::ChunkState& chunk(u32 index) { return fs().space.chunks[index]; }
  GrowthPhase phase() { return space::detail::growth_phase(fs()); }

  void plan_nothing() {
    plan_->device_count = 1;
    plan_->device_uuids[0][0] = 1;
    plan_->slot_count = plan_->chunk_count = chunk_count;
    plan_->added_count = plan_->erased_count = 0;
    plan_->joining = plan_->leaving = 0;
  }
  void plan_erasure(u32 index) {
    plan_nothing();
    ASSERT_EQ(freeze_chunk(fs(), index), Status::ok);
    plan_->erased_slots[plan_->erased_count++] = index;
    --plan_->chunk_count;
  }
  void plan_addition(u32 slot, const raid::ChunkState& added) {
    plan_nothing();
    plan_->added_slots[0] = slot;
    plan_->added[0] = added;
    plan_->added[0].presence = 0;
    plan_->added_count = 1;
  }
  // The answer to the current question.
  void take_up(bool is_written) { take_up_growth(fs(), growth_number(fs()), is_written); }
  void make_durable() {
    ASSERT_EQ(stage_growth(fs()), Status::ok);
    take_up(true);
    end_growth(fs());
    ASSERT_EQ(phase(), GrowthPhase::durable);
  }
  // The statuses of stage_growth(), admit_chunks() and withdraw_growth(), which change nothing; ok: not tried.
  void expect_refusals(Status staged, Status admitted, Status withdrawn) {
    const GrowthPhase before = phase();
    if (staged != Status::ok) {
      EXPECT_EQ(stage_growth(fs()), staged);
    }
    if (admitted != Status::ok) {
      EXPECT_EQ(admit_chunks(fs()), admitted);
    }
    if (withdrawn != Status::ok) {
      EXPECT_EQ(withdraw_growth(fs()), withdrawn);
    }
    EXPECT_EQ(phase(), before);
  }
  void expect_misfit(const char* what) {
    EXPECT_EQ(stage_growth(fs()), Status::invalid_argument) << what;
    EXPECT_EQ(phase(), GrowthPhase::none) << what;
  }

  SpaceFixture pool_{{.chunks_per_device = chunk_count}};
  std::unique_ptr<PoolGrowth> plan_;
  std::vector<format::Superblock> superblocks_{1};
};

TEST_F(GrowthPhases, EachCommandIsAnsweredInEachPhase) {
  expect_refusals(Status::ok, Status::not_found, Status::ok);
  EXPECT_EQ(withdraw_growth(fs()), Status::ok) << "there is nothing";
  plan_erasure(last);
  ASSERT_EQ(stage_growth(fs()), Status::ok);
  expect_refusals(Status::busy, Status::busy, Status::ok);
  EXPECT_TRUE(is_being_deleted(fs(), last));
  EXPECT_FALSE(is_being_deleted(fs(), 0));
  ASSERT_EQ(withdraw_growth(fs()), Status::ok);
  EXPECT_FALSE(is_being_deleted(fs(), last));
  take_up(true);
  EXPECT_EQ(phase(), GrowthPhase::none) << "withdrawn while the server was asked";
  ASSERT_EQ(stage_growth(fs()), Status::ok);
  take_up(false);
  expect_refusals(Status::ok, Status::stale, Status::ok);
  ASSERT_EQ(stage_growth(fs()), Status::ok) << "after a refusal";
  take_up(true);
  expect_refusals(Status::busy, Status::busy, Status::busy);
  end_growth(fs());
  expect_refusals(Status::busy, Status::ok, Status::busy);
  EXPECT_FALSE(raid::is_erased(chunk(last)));
  ASSERT_EQ(admit_chunks(fs()), Status::ok);
  EXPECT_TRUE(raid::is_erased(chunk(last)));
  EXPECT_EQ(admit_chunks(fs()), Status::not_found) << "once";
  EXPECT_EQ(stage_growth(fs()), Status::not_found) << "the chunk is gone";
  EXPECT_EQ(withdraw_growth(fs()), Status::ok);
}

TEST_F(GrowthPhases, AnAnswerIsOfThePlanThatTheServerWasAskedAbout) {
  plan_erasure(last);
  plan_->number = 7;
  ASSERT_EQ(stage_growth(fs()), Status::ok);
  const u32 asked = growth_number(fs());
  ASSERT_EQ(withdraw_growth(fs()), Status::ok);
  plan_erasure(last - 1);
  plan_->number = 8;
  ASSERT_EQ(stage_growth(fs()), Status::ok);
  for (const bool is_written : {false, true}) {
    take_up_growth(fs(), asked, is_written);
    EXPECT_EQ(phase(), GrowthPhase::staged) << "the next checkpoint asks about this one";
    EXPECT_EQ(joining_devices(fs()), 0u);
  }
  take_up_growth(fs(), growth_number(fs()), true);
  end_growth(fs());
  ASSERT_EQ(admit_chunks(fs()), Status::ok);
  EXPECT_TRUE(raid::is_erased(chunk(last - 1)));
  EXPECT_FALSE(raid::is_erased(chunk(last)));
}

TEST_F(GrowthPhases, PagesAreApartFromTheFirstDeviceOnThatIsNotMemory) {
  plan_->devices[0] = fs().space.devices[0];
  detail::install_joining_device(fs(), *plan_, 0);
  EXPECT_EQ(fs().space.pages_apart, 0u);
  plan_->devices[0].kind = device::DeviceKind::scattered;
  detail::install_joining_device(fs(), *plan_, 0);
  EXPECT_EQ(fs().space.pages_apart, 1u);
}

TEST_F(GrowthPhases, APlaceIsUsedAgainByAnother) {
  const raid::ChunkState image = chunk(last);
  const u32 generation = image.generation;
  plan_erasure(last);
  make_durable();
  ASSERT_EQ(admit_chunks(fs()), Status::ok);
  plan_addition(last, image);
  make_durable();
  ASSERT_EQ(admit_chunks(fs()), Status::ok);
  EXPECT_FALSE(raid::is_erased(chunk(last)));
  EXPECT_NE(chunk(last).generation, generation);
  EXPECT_EQ(chunk(0).generation, generation) << "the others are the same";
  EXPECT_EQ(fs().space.granule_to_chunk[image.base_address >> fs().space.granule_shift], last);
  EXPECT_EQ(admit_chunks(fs()), Status::not_found);
}

TEST_F(GrowthPhases, WhatDoesNotFitIsRefused) {
  const raid::ChunkState image = chunk(last);
  plan_addition(last, image);
  expect_misfit("the place is taken");
  plan_erasure(last);
  plan_->erased_slots[plan_->erased_count++] = last;
  expect_misfit("deleted twice");
  plan_nothing();
  plan_->joining = 2;
  expect_misfit("a device beyond the last");
  ASSERT_EQ(unfreeze_chunk(fs(), last), Status::ok);
  plan_erasure(last);
  make_durable();
  ASSERT_EQ(admit_chunks(fs()), Status::ok);
  plan_addition(last, image);
  plan_->added[0].base_address = chunk(0).base_address;
  expect_misfit("addresses of another chunk");
  plan_->added[0].base_address = image.base_address + page_size;
  expect_misfit("not of whole granules");
  plan_->added[0].base_address = ~u64{0} << fs().space.granule_shift;
  expect_misfit("addresses beyond the table");
  plan_->added[0] = plan_->added[1] = image;
  plan_->added_slots[1] = last;
  plan_->added_count = 2;
  expect_misfit("the same place twice");
  plan_->added_count = 1;
  EXPECT_EQ(stage_growth(fs()), Status::ok) << "once it fits";
}

}  // namespace
}  // namespace gpu4fs::space::space_growth_test
