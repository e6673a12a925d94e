// Repairs by a scrub of a mounted pool with redundancy: every copy and every parity of durable data on a device. All of
// one device is damaged at once, then all of the next one; the scrub restores each on the medium.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "raid/repair_pages.hpp"
#include "support/file_client.hpp"
#include "support/group_runner.hpp"
#include "support/test_pool.hpp"
#include "wire/health_format.hpp"

namespace gpu4fs::test::scrub_repairs_test {
namespace {

struct Shape {
  const char* profile;
  u32 device_count;
  bool is_staged = wants_staged_devices();
};

class ScrubRepairs : public ::testing::TestWithParam<Shape> {
 protected:
  struct Place {
    u32 device;
    u64 offset;
    std::vector<u8> bytes;
  };

  ScrubRepairs() : pool_(options()) {
    {
      const auto session = pool_.open_session();
      FileClient client(*session);
      for (u32 i = 0; i < 4; ++i) make_file(client, i);
    }
    EXPECT_EQ(pool_.checkpoint(), Status::ok);
    find_places();
  }

  static TestPoolOptions options() {
    TestPoolOptions options;
    options.profile = GetParam().profile;
    options.device_count = GetParam().device_count;
    options.is_staged = GetParam().is_staged;
    return options;
  }
  static void make_file(FileClient& client, u32 index) {
    FileOperation op;
    op.opcode = wire::Opcode::create;
    op.inode = format::inode_number_root;
    op.name = fmt::format("file{}", index);
    op.mode = 0644;
    const client::Reply made = client.call(op);
    EXPECT_EQ(made.status, Status::ok);
    op.opcode = wire::Opcode::write;
    op.inode = made.result;
    op.length = 30 * page_size + 100 * index;
    std::vector<u8> bytes(op.length);
    fill_random(bytes.data(), bytes.size(), index + 1);
    EXPECT_EQ(client.call(op, bytes).result, op.length);
  }

  raid::LogicalSpace& space() { return pool_.engine()->fs.space; }
  u8* memory(const Place& place) { return space().devices[place.device].base + place.offset; }
  void add_place(const raid::DevicePlace& at) {
    const u8* bytes = space().devices[at.device].base + at.offset;
    places_.push_back({at.device, at.offset, {bytes, bytes + page_size}});
  }
  // Copies of durable pages, and parities of rows that have some.
  void find_places() {
    for (u32 c = 0; c < space().chunk_count; ++c) {
      const raid::ChunkState& chunk = space().chunks[c];
      for (u64 page = 0; page < chunk.page_count; ++page) {
        const raid::PageLocation location{c, 0, page};
        if (!raid::page_is_settled(space(), location)) continue;
        for (u32 copy = 0; copy < chunk.copy_count; ++copy) add_place(raid::page_place(space(), location, copy));
        if (chunk.parity_count == 0) continue;
        const raid::RowView view = raid::row_view(space(), c, raid::row_place(chunk, page).row);
        const u64 first = static_cast<u64>(count_trailing_zeros(raid::slots_in_parity(space(), view)));
        if (raid::row_place(chunk, page).slot != first) continue;  // once for each row
        for (u32 j = 0; j < chunk.parity_count; ++j) add_place(raid::parity_place(space(), view, j));
      }
    }
    EXPECT_GT(places_.size(), 100u * 2);
  }
  // How many are damaged now.
  u32 damage(u32 device) {
    u32 count = 0;
    for (const Place& place : places_) {
      if (place.device != device) continue;
      memory(place)[count % page_size] ^= 0x41;
      ++count;
    }
    return count;
  }
  void scrub() {
    for (u32 c = 0; c < space().chunk_count; ++c) {
      wire::Command command{};
      command.opcode = wire::Opcode::scrub;
      command.inode = c;
      const u64 pages = space().chunks[c].page_count;
      constexpr u64 most = page_size * 8;  // a bit a page, in a page
      for (command.offset = 0; command.offset < pages; command.offset += command.length) {
        command.length = std::min(most, pages - command.offset);
        const std::vector<u8> zeros(divide_up(command.length, u64{64}) * 8);
        const ring::Completion done = pool_.call_internal(command, zeros.data(), zeros.size());
        EXPECT_EQ(done.status, Status::ok) << status_name(done.status);
        EXPECT_EQ(done.result >> 32, 0u) << "pages that were not repaired";
      }
    }
  }

  TestPool pool_;
  std::vector<Place> places_;
};

TEST_P(ScrubRepairs, AllThatADeviceHas) {
  for (u32 device = 0; device < GetParam().device_count; ++device) {
    const u32 damaged = damage(device);
    EXPECT_GT(damaged, 10u);
    scrub();
    // What was repaired may be in frames.
    EXPECT_EQ(pool_.checkpoint(), Status::ok);
    u32 left = 0;
    for (const Place& place : places_) left += std::memcmp(memory(place), place.bytes.data(), page_size) != 0 ? 1 : 0;
    EXPECT_EQ(left, 0u) << "of " << damaged << " on device " << device;
  }
  pool_.unmount();
  EXPECT_EQ(pool_.check().findings.error_count(), 0u) << findings_text(pool_.check());
}

INSTANTIATE_TEST_SUITE_P(Shapes, ScrubRepairs,
                         ::testing::Values(Shape{"raid1", 2}, Shape{"raid1c3", 3}, Shape{"raid5", 3}, Shape{"raid6", 4},
                                           Shape{"raid7", 5}),
                         [](const auto& parameter) { return std::string(parameter.param.profile); });
INSTANTIATE_TEST_SUITE_P(StagedShapes, ScrubRepairs,
                         ::testing::Values(Shape{"raid1", 2, true}, Shape{"raid6", 4, true}),
                         [](const auto& parameter) { return std::string(parameter.param.profile); });

}  // namespace
}  // namespace gpu4fs::test::scrub_repairs_test
