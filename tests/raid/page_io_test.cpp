// Pages of the logical space: written data is read back, damaged data is not returned. Oracle for checksums: libxxhash.
#include "raid/page_io.hpp"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "raid/page_run_io.hpp"
#include "support/group_runner.hpp"
#include "support/level_shapes.hpp"
#include "support/on_all_groups.hpp"
#include "support/space_fixture.hpp"

namespace gpu4fs::raid {
namespace {

using test::fill_random;
using test::on_all_groups;
using test::SpaceFixture;

constexpr u32 page_bytes = static_cast<u32>(page_size);

// A pool with some allocated pages. The parameter is the kind of its devices.
class PageIo : public ::testing::TestWithParam<device::DeviceKind> {
 protected:
  explicit PageIo(const test::SpaceOptions& options = {.device_count = 2, .chunks_per_device = 2, .kind = GetParam()})
      : pool_(options) {
    EXPECT_EQ(pool_.load(1), Status::ok);
    fs::Operation op = pool_.operation();
    EXPECT_EQ(space::reserve_pages(*pool_.fs, op, 64), Status::ok);
    while (op.pages_reserved > 0) {
      const Extent run = space::allocate_run(Lane{}, *pool_.fs, op, 7, 1);
      for (u32 i = 0; i < run.page_count; ++i) addresses_.push_back(run.address + i * page_size);
    }
  }

  LogicalSpace& space() { return pool_.fs->space; }

  u8* medium(u64 address) {
    PageLocation location;
    EXPECT_EQ(find_page(space(), address, &location), Status::ok);
    return pool_.page_at(location);
  }
  format::PageDescriptor& descriptor(u64 address) {
    PageLocation location;
    EXPECT_EQ(find_page(space(), address, &location), Status::ok);
    return space().chunks[location.chunk].descriptors[location.page];
  }
  std::vector<u8> random_page(u64 seed) {
    std::vector<u8> page(page_bytes);
    fill_random(page.data(), page_bytes, seed);
    return page;
  }
  void write(u64 address, const std::vector<u8>& page) {
    ASSERT_EQ(write_page(Lane{}, space(), address, page.data()), Status::ok);
  }

  SpaceFixture pool_;
  std::vector<u64> addresses_;
};

class PageIoWithoutDataChecksums : public PageIo {
 protected:
  PageIoWithoutDataChecksums() : PageIo({.data_checksums = false, .kind = GetParam()}) {}
};

TEST_P(PageIo, round_trip_from_any_alignment_to_any_alignment) {
  std::vector<u8> source(page_bytes + 64), destination(page_bytes + 96);
  u64 round = 0;
  on_all_groups([&](auto g) {
    for (u32 shift = 0; shift < 34; shift += g.size() == 1 ? 1 : 3) {
      const u32 other = (shift * 7 + 5) % 33;
      on_leader(g, [&] {
        fill_random(source.data(), source.size(), ++round);
        std::memset(destination.data(), 0xee, destination.size());
      });
      const u64 address = addresses_[shift % addresses_.size()];
      EXPECT_EQ(write_page(g, space(), address, source.data() + shift), Status::ok);
      EXPECT_EQ(read_page(g, space(), address, destination.data() + 32 + other), Status::ok);
      on_leader(g, [&] {
        EXPECT_EQ(std::memcmp(destination.data() + 32 + other, source.data() + shift, page_bytes), 0);
        EXPECT_EQ(destination[31 + other], 0xee);
        EXPECT_EQ(destination[32 + other + page_bytes], 0xee);
        const u64 expected = XXH3_64bits_withSeed(source.data() + shift, page_bytes, address);
        EXPECT_EQ(descriptor(address).checksum, expected);
        EXPECT_EQ(descriptor(address).birth_epoch, 2u);
        EXPECT_EQ(descriptor(address).flags, 0u);
      });
    }
  });
}

TEST_P(PageIo, ranges_are_cut_out_of_a_verified_page) {
  const u64 address = addresses_[3];
  const std::vector<u8> page = random_page(1);
  write(address, page);
  std::vector<u8> destination(page_bytes + 64);
  on_all_groups([&](auto g) {
    test::Sequence random(17);
    for (u32 round = 0; round < (g.size() == 1 ? 500 : 25); ++round) {
      const u32 from = static_cast<u32>(random.next() % (page_bytes + 1));
      const u32 to = from + static_cast<u32>(random.next() % (page_bytes + 1 - from));
      const u32 shift = 16 + static_cast<u32>(random.next() % 17);
      on_leader(g, [&] { std::memset(destination.data(), 0xee, destination.size()); });
      EXPECT_EQ(read_page_range(g, space(), address, {from, to}, destination.data() + shift), Status::ok);
      on_leader(g, [&] {
        EXPECT_EQ(std::memcmp(destination.data() + shift, page.data() + from, to - from), 0) << from << " " << to;
        EXPECT_EQ(destination[shift - 1], 0xee);
        EXPECT_EQ(destination[shift + to - from], 0xee);
      });
    }
  });
}

TEST_P(PageIo, flipped_byte_is_never_given_out) {
  const u64 address = addresses_[5];
  write(address, random_page(2));
  std::vector<u8> destination(page_bytes, 0xee);
  const std::vector<u8> untouched = destination;
  const std::vector<u8> zeros(page_bytes);
  on_all_groups([&](auto g) {
    for (u32 i = 0; i < page_bytes; i += g.size() == 1 ? 1 : 509) {
      on_leader(g, [&] { medium(address)[i] ^= 1u << (i % 8); });
      EXPECT_EQ(read_page(g, space(), address, destination.data()), Status::checksum_mismatch) << i;
      on_leader(g, [&] {
        // A lane has zeroed what it had copied.
        EXPECT_TRUE(destination == untouched || destination == zeros);
        destination = untouched;
      });
      EXPECT_EQ(read_page_range(g, space(), address, {1, 2}, destination.data()), Status::checksum_mismatch) << i;
      on_leader(g, [&] {
        EXPECT_EQ(destination, untouched);
        medium(address)[i] ^= 1u << (i % 8);
      });
    }
    EXPECT_EQ(read_page_range(g, space(), address, {9, 9}, destination.data()), Status::ok);
    on_leader(g, [&] { EXPECT_EQ(destination, untouched); });
  });
}

TEST_P(PageIo, misdirected_and_lost_writes_are_detected) {
  const u64 right = addresses_[0];
  const u64 wrong = addresses_[1];
  write(right, random_page(3));
  write(wrong, random_page(4));
  const std::vector<u8> old(medium(right), medium(right) + page_bytes);
  std::vector<u8> destination(page_bytes);
  on_all_groups([&](auto g) {
    // Page and checksum arrive together at another address.
    on_leader(g, [&] {
      std::memcpy(medium(wrong), medium(right), page_bytes);
      descriptor(wrong) = descriptor(right);
    });
    EXPECT_EQ(read_page(g, space(), wrong, destination.data()), Status::checksum_mismatch);
    EXPECT_EQ(read_page(g, space(), right, destination.data()), Status::ok);
    // The descriptor says that the page was rewritten, but the medium still has the old bytes.
    on_leader(g, [&] {
      write(right, random_page(5));
      std::memcpy(medium(right), old.data(), page_bytes);
    });
    EXPECT_EQ(read_page(g, space(), right, destination.data()), Status::checksum_mismatch);
    on_leader(g, [&] { write(right, old); });
  });
}

TEST_P(PageIo, merged_write_equals_the_merge_in_memory) {
  std::vector<u8> source(page_bytes + 64), result(page_bytes);
  on_all_groups([&](auto g) {
    test::Sequence random(23);
    for (u32 round = 0; round < (g.size() == 1 ? 600 : 40); ++round) {
      const u32 from = static_cast<u32>(random.next() % (page_bytes + 1));
      const u32 to = round % 9 == 0 ? page_bytes : from + static_cast<u32>(random.next() % (page_bytes + 1 - from));
      const u32 shift = static_cast<u32>(random.next() % 33);
      const u64 old_address = addresses_[round % 8];
      const u64 address = round % 3 == 0 ? old_address : addresses_[8 + round % 8];
      const bool from_zeros = round % 5 == 1;
      const bool zeros = round % 7 == 2;
      const u64 seed = random.next();
      std::vector<u8> expected(page_bytes);
      on_leader(g, [&] {
        write(old_address, random_page(seed));
        fill_random(source.data(), source.size(), seed + 1);
      });
      if (!from_zeros) std::memcpy(expected.data(), medium(old_address), page_bytes);
      if (zeros) std::memset(expected.data() + from, 0, to - from);
      if (!zeros) std::memcpy(expected.data() + from, source.data() + shift, to - from);
      g.sync();
      const u64 old = from_zeros ? no_address : old_address;
      const u8* const bytes = zeros ? nullptr : source.data() + shift;
      EXPECT_EQ(write_page_merged(g, space(), {address, old, {from, to}, bytes}), Status::ok);
      EXPECT_EQ(read_page(g, space(), address, result.data()), Status::ok);
      on_leader(g, [&] {
        EXPECT_EQ(result, expected) << from << " " << to << " " << shift;
        EXPECT_EQ(descriptor(address).checksum, XXH3_64bits_withSeed(expected.data(), page_bytes, address));
      });
    }
  });
}

TEST_P(PageIo, merging_with_a_damaged_page_fails_and_keeps_it) {
  const u64 old_address = addresses_[2];
  const std::vector<u8> source = random_page(6);
  on_all_groups([&](auto g) {
    on_leader(g, [&] {
      write(old_address, random_page(7));
      medium(old_address)[4095] ^= 1;
    });
    const u64 checksum = on_leader(g, [&] { return descriptor(old_address).checksum; });
    EXPECT_EQ(write_page_merged(g, space(), {addresses_[9], old_address, {0, 100}, source.data()}),
              Status::checksum_mismatch);
    EXPECT_EQ(write_page_merged(g, space(), {old_address, old_address, {0, 100}, source.data()}),
              Status::checksum_mismatch);
    EXPECT_EQ(on_leader(g, [&] { return descriptor(old_address).checksum; }), checksum);
    // If the page is replaced as a whole, the damage does not matter.
    EXPECT_EQ(write_page_merged(g, space(), {old_address, old_address, {0, page_bytes}, source.data()}), Status::ok);
  });
  EXPECT_EQ(std::memcmp(medium(old_address), source.data(), page_bytes), 0);
}

TEST_P(PageIo, source_that_changes_meanwhile_leaves_a_consistent_page) {
  if (GPU4FS_TSAN) GTEST_SKIP() << "the race is what this test is about";
  std::vector<u8> source = random_page(8);
  std::vector<u8> destination(page_bytes);
  std::atomic<bool> stop{false};
  std::thread client([&] {
    for (u8 value = 0; !stop.load(std::memory_order_relaxed); ++value) {
      volatile u8* bytes = source.data();
      for (u32 i = 0; i < page_bytes; i += 61) bytes[i] = value;
    }
  });
  for (u32 round = 0; round < 2000; ++round) {
    const u64 address = addresses_[round % addresses_.size()];
    ASSERT_EQ(write_page(Lane{}, space(), address, source.data()), Status::ok);
    ASSERT_EQ(read_page(Lane{}, space(), address, destination.data()), Status::ok) << round;
    ASSERT_EQ(write_page_merged(Lane{}, space(), {address, address, {5, 4000}, source.data()}), Status::ok);
    ASSERT_EQ(read_page(Lane{}, space(), address, destination.data()), Status::ok) << round;
  }
  stop = true;
  client.join();
}

TEST_P(PageIo, write_marks_the_descriptor_page_dirty) {
  ChunkState& chunk = space().chunks[0];
  const u64 page = 300;
  const u64 address = chunk.base_address + page * page_size;
  chunk.bitmaps.busy[page / 64] |= u64{1} << (page % 64);
  chunk.descriptor_dirty[0] = 0;
  write(address, random_page(9));
  EXPECT_EQ(chunk.descriptor_dirty[0], u64{1} << (page / format::descriptors_per_page));
}

TEST_P(PageIo, checkpoint_writes_belong_to_its_epoch) {
  const u64 address = addresses_[0];
  space::commit_extent(Lane{}, *pool_.fs, Extent{address, 1, 0});
  ASSERT_EQ(pool_.checkpoint(2), Status::ok);
  write(address, random_page(10));
  EXPECT_EQ(descriptor(address).birth_epoch, 2u);
  write(addresses_[1], random_page(10));
  EXPECT_EQ(descriptor(addresses_[1]).birth_epoch, 3u);
}

// Two damaged maps may name one page, and one of them may have freed it.
TEST_P(PageIo, a_free_page_is_not_written) {
  const u64 free_address = space().chunks[3].base_address + space().chunks[3].size_bytes - page_size;
  const std::vector<u8> page = random_page(11);
  on_all_groups([&](auto g) {
    EXPECT_EQ(write_page(g, space(), free_address, page.data()), Status::corrupt_structure);
    EXPECT_EQ(write_page_merged(g, space(), {free_address, no_address, {1, 2}, page.data()}),
              Status::corrupt_structure);
    EXPECT_EQ(write_pages(g, space(), free_address, 1, page.data(), PageUse::data), Status::corrupt_structure);
  });
}

TEST_P(PageIo, bad_addresses_are_answers) {
  std::vector<u8> buffer(page_bytes);
  const u64 end = space().granule_count << space().granule_shift;
  on_all_groups([&](auto g) {
    for (const u64 address : {u64{0}, u64{page_size}, addresses_[0] + 1, end, end + page_size, ~u64{0} & ~u64{0xfff}}) {
      EXPECT_EQ(read_page(g, space(), address, buffer.data()), Status::corrupt_structure) << address;
      EXPECT_EQ(write_page(g, space(), address, buffer.data()), Status::corrupt_structure) << address;
      EXPECT_EQ(write_page_merged(g, space(), {addresses_[0], address == 0 ? end : address, {1, 2}, buffer.data()}),
                Status::corrupt_structure);
    }
  });
}

TEST_P(PageIo, chunk_out_of_reach_is_named) {
  u32 chunk = no_chunk;
  ASSERT_EQ(chunk_of(space(), addresses_[0], &chunk), Status::ok);
  space().chunks[chunk].presence &= ~chunk_accessible;
  std::vector<u8> buffer(page_bytes);
  on_all_groups([&](auto g) {
    EXPECT_EQ(read_page(g, space(), addresses_[0], buffer.data()), Status::chunk_not_mapped);
    EXPECT_EQ(write_page(g, space(), addresses_[0], buffer.data()), Status::chunk_not_mapped);
  });
  fs::Operation op = pool_.operation();
  EXPECT_EQ(space::check_accessible(*pool_.fs, op, addresses_[0]), Status::chunk_not_mapped);
  EXPECT_EQ(op.wanted_chunk, chunk);
  space().chunks[chunk].presence = chunk_accessible;
  EXPECT_EQ(read_page(Lane{}, space(), addresses_[0], buffer.data()), Status::device_failed);
}

TEST_P(PageIoWithoutDataChecksums, only_metadata_is_verified) {
  const std::vector<u8> page = random_page(12);
  std::vector<u8> result(page_bytes);
  on_all_groups([&](auto g) {
    EXPECT_EQ(write_page(g, space(), addresses_[0], page.data(), PageUse::data), Status::ok);
    EXPECT_EQ(write_page(g, space(), addresses_[1], page.data(), PageUse::metadata), Status::ok);
    on_leader(g, [&] {
      EXPECT_EQ(descriptor(addresses_[0]).checksum, 0u);
      medium(addresses_[0])[8] ^= 1;
      medium(addresses_[1])[8] ^= 1;
    });
    EXPECT_EQ(read_page(g, space(), addresses_[0], result.data(), PageUse::data), Status::ok);
    EXPECT_EQ(read_page(g, space(), addresses_[1], result.data(), PageUse::metadata), Status::checksum_mismatch);
    EXPECT_EQ(write_page_merged(g, space(), {addresses_[0], addresses_[0], {8, 9}, page.data() + 8, PageUse::data}),
              Status::ok);
    EXPECT_EQ(read_page(g, space(), addresses_[0], result.data(), PageUse::data), Status::ok);
    on_leader(g, [&] { EXPECT_EQ(result, page); });
  });
}

const auto kinds =
    ::testing::Values(device::DeviceKind::memory, device::DeviceKind::scattered, device::DeviceKind::staged);
std::string name_of(const ::testing::TestParamInfo<device::DeviceKind>& parameter) {
  return test::name_of(parameter.param);
}
INSTANTIATE_TEST_SUITE_P(Devices, PageIo, kinds, name_of);
INSTANTIATE_TEST_SUITE_P(Devices, PageIoWithoutDataChecksums, kinds, name_of);

}  // namespace
}  // namespace gpu4fs::raid
