// What VFIO needs of memory, as far as it can be decided without VFIO.
#include <gtest/gtest.h>

#include <stdexcept>

#include "nvme/vfio/vfio_memory.hpp"

namespace gpu4fs::nvme::test {
namespace {

constexpr u64 mib = 1 << 20;

TEST(VfioMemory, LiesInARange) {
  const TranslatedRange x86[] = {{0, 0xfedfffff}, {0xfef00000, 0x7fffffffff}};
  EXPECT_EQ(choose_bus_address(x86, 64 * mib), 2 * mib);
  EXPECT_EQ(choose_bus_address(x86, u64{8} << 30), 0xff000000u);
  EXPECT_EQ(choose_bus_address(x86, u64{1} << 39), 0u);
  EXPECT_EQ(choose_bus_address(x86, 0), 0u);

  const TranslatedRange small[] = {{3 * mib, 6 * mib - 1}};
  EXPECT_EQ(choose_bus_address(small, 2 * mib), 4 * mib);
  EXPECT_EQ(choose_bus_address(small, 2 * mib + 1), 0u);
  EXPECT_EQ(choose_bus_address({}, mib), 0u);

  const TranslatedRange top[] = {{~u64{0} - 4096, ~u64{0}}, {~u64{0} - 4 * mib + 1, ~u64{0}}};
  EXPECT_EQ(choose_bus_address(top, 4 * mib), ~u64{0} - 4 * mib + 1);
}

TEST(VfioMemory, TheLimitIsLookedAtBefore) {
  EXPECT_NO_THROW(check_locked_memory({false, 0, 0}, u64{1} << 40));
  EXPECT_NO_THROW(check_locked_memory({true, 8 * mib, 4 * mib}, 4 * mib));
  EXPECT_THROW(check_locked_memory({true, 8 * mib, 4 * mib}, 4 * mib + 1), std::runtime_error);
  EXPECT_THROW(check_locked_memory({true, 8 * mib, 9 * mib}, 1), std::runtime_error);
  try {
    check_locked_memory({true, 8 * mib, 0}, 16 * mib);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("16 MiB"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("8 MiB"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("ulimit -l"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace gpu4fs::nvme::test
