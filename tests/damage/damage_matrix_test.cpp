// The matrix of damaged sectors (damage_pool.hpp): each sector outside the logical space in turn, and pairs of them on
// different devices if the level allows two.
//
// Environment:
//   GPU4FS_DAMAGE_ALL   1: every sector and many pairs; otherwise a sample
//   GPU4FS_DAMAGE_SEED  of the choice, default 0
#include <gtest/gtest.h>

#include <cstdio>

#include "damage/damage_pool.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::damage_matrix_test {
namespace {

CrashPoolShape shape_of(const char* profile, u32 devices, u32 stripe_bytes = 0) {
  return {devices, profile, stripe_bytes, u64{20} << 20};
}

bool is_complete() {
  return number_from("GPU4FS_DAMAGE_ALL", 0) != 0;
}
u64 seed() {
  return number_from("GPU4FS_DAMAGE_SEED", 0);
}

// `area`: nullptr for all of them.
void explore_sectors(DamagePool& pool, const char* area = nullptr) {
  std::vector<DamageSector> sectors;
  for (const DamageSector& sector : pool.sectors()) {
    if (area == nullptr || sector.area == area) sectors.push_back(sector);
  }
  const u64 step = is_complete() ? 1 : std::max<u64>(1, sectors.size() / scaled(45));
  u64 count = 0;
  for (std::size_t i = seed() % step; i < sectors.size() && !::testing::Test::HasFailure(); i += step) {
    const std::vector<DamageSector> damaged{sectors[i]};
    EXPECT_EQ(pool.explore(damaged, i), "") << DamagePool::text_of(damaged);
    ++count;
  }
  std::printf("%llu of %zu sectors\n", static_cast<unsigned long long>(count), sectors.size());
}

void explore_mirrored(const CrashPoolShape& shape) {
  DamagePool pool(shape);
  explore_sectors(pool);
}

// On a single device a damaged acknowledged record cannot be distinguished from the log's end if it is the last one. So
// with waiting operations only the chunks are damaged.
void explore_alone(const CrashPoolShape& shape) {
  DamagePool pool(shape, false);
  explore_sectors(pool);
  DamagePool with_log(shape);
  explore_sectors(with_log, "header area");
}

void explore_pairs(const CrashPoolShape& shape) {
  DamagePool pool(shape);
  ASSERT_GE(pool.redundancy(), 2u);
  Sequence random(seed() + 3);
  const u32 count = is_complete() ? 2000 : scaled(25);
  for (u32 i = 0; i < count && !::testing::Test::HasFailure(); ++i) {
    const DamageSector& first = pool.sectors()[random.next() % pool.sectors().size()];
    const DamageSector* second = nullptr;
    do {
      second = &pool.sectors()[random.next() % pool.sectors().size()];
    } while (second->device == first.device);
    const std::vector<DamageSector> damaged{first, *second};
    EXPECT_EQ(pool.explore(damaged, random.next()), "") << DamagePool::text_of(damaged);
  }
}

TEST(DamageMatrix, ASectorOfASingleDevice) {
  explore_alone(shape_of("single", 1));
}
TEST(DamageMatrix, ASectorOfTwoDevicesWithoutRedundancy) {
  explore_alone(shape_of("raid0", 2, 65536));
}
TEST(DamageMatrix, ASectorOfAMirror) {
  explore_mirrored(shape_of("raid1", 2));
}
TEST(DamageMatrix, ASectorWithAParity) {
  explore_mirrored(shape_of("raid5", 3, 4096));
}
TEST(DamageMatrix, ASectorWithThreeParities) {
  explore_mirrored(shape_of("raid7", 4, 4096));
}
TEST(DamageMatrix, TwoSectorsOfThreeCopies) {
  explore_pairs(shape_of("raid1c3", 3));
}
TEST(DamageMatrix, TwoSectorsWithTwoParities) {
  explore_pairs(shape_of("raid6", 4, 4096));
}

// The same sector of the header areas of both devices: its content is lost, and this is noticed.
TEST(DamageMatrix, DamageOfAllCopiesIsNoticed) {
  DamagePool pool(shape_of("raid1", 2));
  std::vector<DamageSector> areas[2];
  for (const DamageSector& sector : pool.sectors()) {
    if (sector.area == "header area") areas[sector.device].push_back(sector);
  }
  ASSERT_EQ(areas[0].size(), areas[1].size());
  u64 noticed = 0;
  for (std::size_t i = 0; i < areas[0].size(); i += 8) {
    if (!pool.explore({areas[0][i], areas[1][i]}, 2 * i).empty()) ++noticed;
  }
  EXPECT_GT(noticed, 3u);
}

}  // namespace
}  // namespace gpu4fs::test::damage_matrix_test
