// Which requests become one operation of the medium.
#include "block/request_batch.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "base/limits.hpp"

namespace gpu4fs::test {
namespace {

using block::RequestBatch;
using block::RequestGroup;
using device::IoOperation;
using device::IoRequest;

constexpr u64 merge_pages = 4;

class RequestBatchFixture {
 public:
  // The number of the request is its slot. `memory_page`: an address that nobody uses.
  void add(IoOperation operation, u32 device, u64 page, u64 memory_page, u64 pages = 1) {
    const std::uintptr_t address = (1000 + memory_page) * page_size;
    void* const memory = device::moves_bytes(operation) ? reinterpret_cast<void*>(address) : nullptr;
    batch_.add(count_++, {operation, device, page * page_size, static_cast<u32>(pages * page_size), 0, memory});
  }
  // Slots of the next group, empty if there is none.
  std::vector<u32> next() {
    if (!batch_.next(&group_)) return {};
    return group_.slots;
  }
  const RequestGroup& group() const { return group_; }
  u64 size() const { return batch_.size(); }

 private:
  RequestBatch batch_{merge_pages * page_size};
  RequestGroup group_;
  u32 count_ = 0;
};

using Slots = std::vector<u32>;

TEST(RequestBatch, NeighboursBecomeOneOperation) {
  RequestBatchFixture fixture;
  fixture.add(IoOperation::read, 0, 11, 1);
  fixture.add(IoOperation::read, 0, 10, 0);
  fixture.add(IoOperation::read, 0, 12, 7);
  EXPECT_EQ(fixture.size(), 3u);
  EXPECT_EQ(fixture.next(), (Slots{1, 0, 2}));
  EXPECT_EQ(fixture.group().offset, 10 * page_size);
  EXPECT_EQ(fixture.group().length, 3 * page_size);
  // Memory that follows each other is one part.
  ASSERT_EQ(fixture.group().parts.size(), 2u);
  EXPECT_EQ(fixture.group().parts[0].iov_len, 2 * page_size);
  EXPECT_EQ(fixture.group().parts[1].iov_len, page_size);
  EXPECT_EQ(fixture.size(), 0u);
  EXPECT_EQ(fixture.next(), Slots{});
}

TEST(RequestBatch, GapsOverlapsOperationsAndDevicesDivide) {
  RequestBatchFixture fixture;
  fixture.add(IoOperation::read, 0, 10, 0);
  fixture.add(IoOperation::read, 0, 12, 1);
  fixture.add(IoOperation::write, 0, 11, 2);
  fixture.add(IoOperation::read, 1, 11, 3);
  fixture.add(IoOperation::read, 0, 12, 4);
  EXPECT_EQ(fixture.next(), Slots{0});
  EXPECT_EQ(fixture.next().size(), 1u) << "two reads of one page";
  EXPECT_EQ(fixture.next().size(), 1u);
  EXPECT_EQ(fixture.next(), Slots{2});
  EXPECT_EQ(fixture.next(), Slots{3});
}

TEST(RequestBatch, LengthIsLimited) {
  RequestBatchFixture fixture;
  for (u64 page = 0; page < 6; ++page) fixture.add(IoOperation::write, 0, page, page);
  fixture.add(IoOperation::write, 0, 6, 6, 9);
  EXPECT_EQ(fixture.next(), (Slots{0, 1, 2, 3}));
  EXPECT_EQ(fixture.next(), (Slots{4, 5}));
  EXPECT_EQ(fixture.next(), Slots{6}) << "a long one alone";
}

TEST(RequestBatch, FlushesOfADeviceAreOne) {
  RequestBatchFixture fixture;
  for (const u32 device : {0u, 1u, 0u}) fixture.add(IoOperation::flush, device, 0, 0, 0);
  EXPECT_EQ(fixture.next(), (Slots{0, 2}));
  EXPECT_EQ(fixture.next(), Slots{1});
}

TEST(RequestBatch, LaterRequestsDoNotOvertakeABatch) {
  RequestBatchFixture fixture;
  fixture.add(IoOperation::read, 0, 100, 0);
  fixture.add(IoOperation::read, 0, 200, 1);
  EXPECT_EQ(fixture.next(), Slots{0});
  fixture.add(IoOperation::read, 0, 1, 2);
  EXPECT_EQ(fixture.next(), Slots{1});
  EXPECT_EQ(fixture.next(), Slots{2});
}

}  // namespace
}  // namespace gpu4fs::test
