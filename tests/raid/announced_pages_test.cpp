// The test support that compares accesses to scattered devices with announcements: each kind of mistake is noticed.
// And the flag of a space with such devices.
#include "support/announced_pages.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "device/memory/memory_device.hpp"
#include "support/space_fixture.hpp"

namespace gpu4fs::raid::announced_pages_test {
namespace {

class Announced : public ::testing::Test {
 protected:
  Announced() { EXPECT_EQ(pool_.load(1), Status::ok); }
  device::Device& device() { return pool_.fs->space.devices[0]; }
  u8* memory(u64 page) { return device::memory_at(device(), page * page_size, page_size); }
  // What was noted since the last call.
  std::string problem() {
    const std::vector<std::string> problems = pool_.scattered()->problems_of(0);
    return problems.empty() ? "" : problems[0];
  }

  test::SpaceFixture pool_{{.kind = device::DeviceKind::scattered}};
};

TEST_F(Announced, PagesAreFoundAndTheirParts) {
  EXPECT_EQ(device::begin_read(device(), 5 * page_size, page_size), Status::ok);
  EXPECT_EQ(memory(5), pool_.scattered()->pages(0).memory(5 * page_size));
  EXPECT_EQ(device::memory_at(device(), 5 * page_size + 64, 32), memory(5) + 64);
  EXPECT_EQ(problem(), "");
}

TEST_F(Announced, EachMistakeIsNoticed) {
  memory(5);
  EXPECT_EQ(problem(), "looked up and not announced: page 5");
  EXPECT_EQ(device::begin_read(device(), 5 * page_size, page_size), Status::ok);
  EXPECT_EQ(problem(), "");
  memory(5);
  EXPECT_EQ(problem(), "looked up and not announced: page 5") << "the announcement was one of another call";
  (void)device::begin_read(device(), 5 * page_size, 2 * page_size);
  EXPECT_EQ(problem(), "not one page: read: page 5");
  (void)device::begin_read(device(), 5 * page_size, page_size);
  memory(5)[9] ^= 1;
  EXPECT_EQ(problem(), "changed and not announced: page 5");
  EXPECT_EQ(device::begin_write(device(), 5 * page_size, page_size), Status::ok);
  memory(5)[9] ^= 1;
  EXPECT_EQ(problem(), "announced and not ended: page 5");
  device::end_write(device(), 5 * page_size, page_size);
  EXPECT_EQ(problem(), "ended and not announced: page 5");
  EXPECT_EQ(device::begin_write(device(), 5 * page_size, page_size), Status::ok);
  device::end_write(device(), 5 * page_size, page_size);
  memory(5)[9] ^= 1;
  EXPECT_EQ(problem(), "changed and not announced: page 5") << "after the end";
}

TEST_F(Announced, OnlyPagesThatAreReadKeepTheirContent) {
  u8* const page = pool_.page_at(0, 5 * page_size);
  page[0] = 1;
  EXPECT_EQ(device::begin_read(device(), 5 * page_size, page_size), Status::ok);
  EXPECT_EQ(device::begin_write(device(), 5 * page_size, page_size), Status::ok);
  EXPECT_EQ(page[0], 1);
  device::end_write(device(), 5 * page_size, page_size);
  EXPECT_EQ(problem(), "");
  EXPECT_EQ(device::begin_write(device(), 5 * page_size, page_size), Status::ok);
  EXPECT_NE(page[0], 1);
  device::end_write(device(), 5 * page_size, page_size);
  EXPECT_EQ(problem(), "");
}

// Of a space: if any of its devices is not a memory device, pages are apart.
TEST(PagesApartFlag, FollowsTheDevices) {
  test::SpaceFixture pool({.device_count = 3});
  for (u32 scattered = 0; scattered < 8; ++scattered) {
    for (u32 d = 0; d < 3; ++d) {
      const bool is_memory = (scattered >> d & 1) == 0;
      pool.devices[d].kind = is_memory ? device::DeviceKind::memory : device::DeviceKind::scattered;
    }
    test::HeapAllocator allocator;
    const LogicalSpace space = pool::build_logical_space(allocator, pool.superblock, pool.devices, pool.chunks, true);
    EXPECT_EQ(space.pages_apart, scattered != 0 ? 1u : 0u);
    EXPECT_EQ(space.stacked, 0u);
    EXPECT_EQ(is_plain(space), scattered == 0);
    EXPECT_EQ(is_stacked(space), false);
  }
}

}  // namespace
}  // namespace gpu4fs::raid::announced_pages_test
