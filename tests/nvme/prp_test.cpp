// Data pointers against an emulated controller's own walk: the parts that it finds are the frames, in their order.
#include "device/nvme/prp.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "device/nvme/drive/data_walk.hpp"
#include "nvme/emulated/bus.hpp"
#include "support/on_all_groups.hpp"

namespace gpu4fs::nvme::test {
namespace {

using gpu4fs::test::on_all_groups;

constexpr u64 frame_max = 1200;

struct DataPart {
  u8* memory;
  u64 bytes;
};
struct FoundParts {
  StatusCode status;
  std::vector<DataPart> parts;
};
FoundParts find_parts(const EmulatedBus& bus, const SubmissionEntry& entry, u64 bytes) {
  FoundParts found{};
  found.status = walk_data(Lane{}, bus, entry, bytes, [&](u8* memory, u64 length) {
    found.parts.push_back({memory, length});
  });
  return found;
}

class DataPointers : public ::testing::Test {
 protected:
  DataPointers() : bus_(16 << 20), lists_(bus_.allocate(8 * page_size)), frames_(bus_.allocate(frame_max * page_size)) {
    std::mt19937_64 random(7);
    for (u64 i = 0; i < frame_max; ++i) places_.push_back(frames_.bus_address + i * page_size);
    std::shuffle(places_.begin(), places_.end(), random);
  }

  ListPages list(u32 page_count) const { return {lists_.memory, lists_.bus_address, page_count}; }
  void forget_lists() { std::memset(lists_.memory, 0xee, lists_.bytes); }

  // Empty: the walk finds bytes [offset, offset + bytes) of the row of frames.
  std::string compare(const FoundParts& walk, u64 offset, u64 bytes) const {
    if (walk.status != StatusCode::success) return "status " + std::to_string(static_cast<u32>(walk.status));
    u64 at = offset;
    for (const DataPart& part : walk.parts) {
      for (u64 done = 0; done < part.bytes;) {
        const u64 length = std::min(part.bytes - done, page_size - at % page_size);
        if (bus_.at(places_[at / page_size] + at % page_size, length) != part.memory + done) {
          return "wrong memory at byte " + std::to_string(at);
        }
        at += length;
        done += length;
      }
    }
    return at == offset + bytes ? "" : "wrong length";
  }

  EmulatedBus bus_;
  DmaBlock lists_;
  DmaBlock frames_;
  std::vector<u64> places_;
};

TEST_F(DataPointers, PrpEntriesNameTheFramesInOrder) {
  for (const u32 offset : {0u, 512u, 4092u}) {
    for (const u64 frames : {1, 2, 3, 4, 33, 34, 512, 513, 514, 515, 1023, 1024, 1025, 1026}) {
      for (const u64 missing : {u64{0}, u64{512}, u64{3584}}) {
        if (frames == 1 && missing + offset >= page_size) continue;
        const u64 bytes = frames * page_size - offset - missing;
        on_all_groups([&](auto g) {
          on_leader(g, [&] { forget_lists(); });
          SubmissionEntry entry{};
          entry.data = build_prp(g, list(prp_list_pages(frames)), offset, bytes, [&](u64 i) { return places_[i]; });
          g.sync();
          if (g.leader()) {
            EXPECT_EQ(compare(find_parts(bus_, entry, bytes), offset, bytes), "") << frames << " frames, " << offset;
          }
        });
      }
    }
  }
}

TEST_F(DataPointers, SglDescriptorsNameTheRangesInOrder) {
  for (const u32 count : {1u, 2u, 31u, 33u, 255u, 256u, 257u, 600u}) {
    on_all_groups([&](auto g) {
      on_leader(g, [&] { forget_lists(); });
      SubmissionEntry entry{};
      entry.flags = static_cast<u8>(DataPointerKind::sgl);
      const auto range = [&](u32 i) { return BusRange{places_[i], static_cast<u32>(page_size)}; };
      entry.data = build_sgl(g, list(sgl_list_pages(count)), count, range);
      g.sync();
      if (g.leader()) {
        EXPECT_EQ(compare(find_parts(bus_, entry, count * page_size), 0, count * page_size), "") << count;
        EXPECT_NE(find_parts(bus_, entry, count * page_size + 1).status, StatusCode::success);
      }
    });
  }
}

TEST_F(DataPointers, TheWalkRefusesWhatIsNotOnTheBus) {
  SubmissionEntry entry{};
  entry.data.prp.first = 4096;
  EXPECT_EQ(find_parts(bus_, entry, 512).status, StatusCode::data_transfer_error);
  entry.data.prp.first = places_[0] + 2;
  EXPECT_EQ(find_parts(bus_, entry, 512).status, StatusCode::invalid_prp_offset);
  entry.data.prp.first = places_[0];
  entry.data.prp.second = places_[1] + 512;
  EXPECT_EQ(find_parts(bus_, entry, 8192).status, StatusCode::invalid_prp_offset);
  entry.data.prp.second = 4096;
  EXPECT_EQ(find_parts(bus_, entry, 3 * 4096).status, StatusCode::data_transfer_error);
  // A list of segments that never ends.
  const SglDescriptor again{lists_.bus_address, 16, {}, SglType::segment};
  std::memcpy(lists_.memory, &again, sizeof(again));
  SubmissionEntry endless{};
  endless.flags = static_cast<u8>(DataPointerKind::sgl);
  endless.data.sgl = again;
  EXPECT_EQ(find_parts(bus_, endless, 512).status, StatusCode::invalid_field);
  entry.flags = 0xc0;
  EXPECT_EQ(find_parts(bus_, entry, 512).status, StatusCode::invalid_field);
}

}  // namespace
}  // namespace gpu4fs::nvme::test
