// Scattered devices: no two pages are neighbours in memory as on the device, and no range of several pages is found.
#include "device/memory/scattered_pages.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "device/memory/mapped_file.hpp"
#include "device/memory/memory_device.hpp"
#include "device/stack/device_stack.hpp"

namespace gpu4fs::device::scattered_pages_test {
namespace {

TEST(ScatteredPages, AreAPermutationWithoutNeighbours) {
  for (const u64 count : {u64{1}, u64{2}, u64{63}, u64{64}, u64{65}, u64{66}, u64{127}, u64{128}, u64{200}}) {
    std::set<u64> places;
    for (u64 page = 0; page < count; ++page) {
      const u64 place = scattered_page(page, count);
      EXPECT_LT(place, count);
      EXPECT_TRUE(places.insert(place).second) << page << " of " << count;
      if (page + 1 < count) {
        EXPECT_NE(scattered_page(page + 1, count), place + 1) << page << " of " << count;
      }
    }
  }
}

class LookUps : public StackLayer {
 public:
  explicit LookUps(std::vector<u64>* offsets) : offsets_(offsets) {}
  void looked_up(u64 offset) override { offsets_->push_back(offset); }

 private:
  std::vector<u64>* offsets_;
};

struct RefusedRange {};

TEST(ScatteredPages, AreFoundOneByOne) {
  constexpr u64 count = 70;
  std::vector<u64> looked_up;
  std::vector<std::unique_ptr<StackLayer>> layers;
  layers.push_back(std::make_unique<LookUps>(&looked_up));
  DeviceStack stack(std::move(layers));
  const MappedFile file = MappedFile::anonymous(count * page_size);
  Device device = file.device(0);
  device.kind = DeviceKind::scattered;
  device.stack = &stack;
  EXPECT_EQ(memory_at(device, 0, page_size), file.base() + 63 * page_size);
  EXPECT_EQ(memory_at(device, 63 * page_size + 100, 28), file.base() + 100);
  EXPECT_EQ(memory_at(device, 69 * page_size, page_size), file.base() + 64 * page_size);
  EXPECT_EQ(looked_up, (std::vector<u64>{0, 63 * page_size + 100, 69 * page_size}));
  const auto previous = set_check_handler([](const CheckFailure&) { throw RefusedRange(); });
  EXPECT_THROW(memory_at(device, 5 * page_size, page_size + 1), RefusedRange);
  EXPECT_THROW(memory_at(device, 5 * page_size + 1, page_size), RefusedRange);
  EXPECT_THROW(memory_at(device, count * page_size, 1), RefusedRange);
  EXPECT_THROW(memory_at(device, ~u64{0} - 10, 2), RefusedRange);
  device.kind = static_cast<DeviceKind>(7);
  EXPECT_THROW(memory_at(device, 0, 1), RefusedRange);
  set_check_handler(previous);
}

}  // namespace
}  // namespace gpu4fs::device::scattered_pages_test
