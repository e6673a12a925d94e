// Transfers between engine memory and a device: announcements, bytes, errors. On a Lane and an emulated warp.
#include "device/transfer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.hpp"
#include "device/memory/mapped_file.hpp"
#include "device/stack/device_stack.hpp"
#include "device/stack/fault_layer.hpp"
#include "support/group_runner.hpp"
#include "support/on_all_groups.hpp"

namespace gpu4fs::device {
namespace {

using test::on_all_groups;

constexpr u64 medium_bytes = 16 * page_size;

struct RefusedRange {};

// What a stack was told, in order.
struct Announcement {
  enum Kind { may_read, read, may_write, written } kind;
  u64 offset;
  u64 length;
  bool operator==(const Announcement&) const = default;
};

class ListeningLayer : public StackLayer {
 public:
  explicit ListeningLayer(std::vector<Announcement>& heard) : heard_(heard) {}
  Status may_read(u64 offset, u64 length) override {
    hear(Announcement::may_read, offset, length);
    return Status::ok;
  }
  Status may_write(u64 offset, u64 length) override {
    hear(Announcement::may_write, offset, length);
    return Status::ok;
  }
  bool read(u64 offset, std::span<u8> bytes) override {
    hear(Announcement::read, offset, bytes.size());
    return false;
  }
  void write(std::vector<StackWrite>& writes) override {
    for (const StackWrite& write : writes) hear(Announcement::written, write.offset, write.bytes.size());
  }

 private:
  void hear(Announcement::Kind kind, u64 offset, u64 length) { heard_.push_back({kind, offset, length}); }

  std::vector<Announcement>& heard_;
};

std::vector<u8> random_bytes(u64 seed, u64 length) {
  std::vector<u8> bytes(length);
  test::fill_random(bytes.data(), length, seed);
  return bytes;
}

// A device with random content under a layer that listens and one with faults.
class ListenedDevice {
 public:
  explicit ListenedDevice(const std::string& faults = "")
      : stack_(std::make_shared<DeviceStack>(layers(faults))),
        file_(MappedFile::anonymous(medium_bytes, stack_)),
        device_(file_.device(0)),
        before_(random_bytes(77, medium_bytes)) {
    std::copy(before_.begin(), before_.end(), device_.base);
  }

  Device& device() { return device_; }
  std::vector<Announcement>& heard() { return heard_; }
  const std::vector<u8>& before() const { return before_; }
  std::vector<u8> content() const { return {device_.base, device_.base + medium_bytes}; }
  std::vector<u8> part(u64 offset, u64 length) const { return {device_.base + offset, device_.base + offset + length}; }

 private:
  std::vector<std::unique_ptr<StackLayer>> layers(const std::string& faults) {
    std::vector<std::unique_ptr<StackLayer>> layers;
    layers.push_back(std::make_unique<ListeningLayer>(heard_));
    if (!faults.empty()) layers.push_back(std::make_unique<FaultLayer>(parse_fault_rules(faults)));
    return layers;
  }

  std::vector<Announcement> heard_;
  std::shared_ptr<DeviceStack> stack_;
  MappedFile file_;
  Device device_;
  std::vector<u8> before_;
};

struct Range {
  u64 offset;
  u64 length;
};
const Range ranges[] = {{0, page_size},
                        {page_size, 3 * page_size},
                        {64, 192},
                        {1, 1},
                        {4095, 2},
                        {17, 15},
                        {8192 + 3, 16},
                        {4097, 4095},
                        {5, 2 * page_size + 9},
                        {medium_bytes - 1, 1},
                        {medium_bytes, 0}};
constexpr u64 margin = 40;

TEST(Transfer, AReadIsAnnouncedOnceAndArrivesExactly) {
  for (const Range& range : ranges) {
    ListenedDevice listened;
    std::vector<u8> destination(range.length + 2 * margin);
    on_all_groups([&](auto g) {
      on_leader(g, [&] {
        listened.heard().clear();
        destination.assign(destination.size(), 0xee);
      });
      EXPECT_EQ(read_range(g, listened.device(), range.offset, range.length, destination.data() + margin), Status::ok);
      // Every rank sees all of it.
      EXPECT_TRUE(std::equal(destination.begin() + margin, destination.end() - margin,
                             listened.before().begin() + static_cast<i64>(range.offset)));
      EXPECT_TRUE(std::all_of(destination.begin(), destination.begin() + margin, [](u8 b) { return b == 0xee; }));
      EXPECT_TRUE(std::all_of(destination.end() - margin, destination.end(), [](u8 b) { return b == 0xee; }));
      g.sync();
      on_leader(g, [&] {
        const std::vector<Announcement> expected = {{Announcement::may_read, range.offset, range.length},
                                                    {Announcement::read, range.offset, range.length}};
        EXPECT_EQ(listened.heard(), expected) << range.offset << "+" << range.length;
      });
    });
    EXPECT_EQ(listened.content(), listened.before());
  }
}

TEST(Transfer, AWriteIsAnnouncedOnceAndChangesNothingElse) {
  for (const Range& range : ranges) {
    const std::vector<u8> source = random_bytes(range.offset + range.length, range.length + 3);
    on_all_groups([&](auto g) {
      std::unique_ptr<ListenedDevice> made;
      ListenedDevice& listened = *on_leader(g, [&] {
        made = std::make_unique<ListenedDevice>();
        return made.get();
      });
      EXPECT_EQ(write_range(g, listened.device(), range.offset, source.data() + 3, range.length), Status::ok);
      on_leader(g, [&] {
        std::vector<u8> expected = listened.before();
        std::copy(source.begin() + 3, source.end(), expected.begin() + static_cast<i64>(range.offset));
        EXPECT_EQ(listened.content(), expected) << range.offset << "+" << range.length;
        const std::vector<Announcement> announced = {{Announcement::may_write, range.offset, range.length},
                                                     {Announcement::written, range.offset, range.length}};
        EXPECT_EQ(listened.heard(), announced);
      });
    });
  }
}

// Where each page of a scattered device is found separately.
TEST(Transfer, RangesOfScatteredPagesArePutTogether) {
  const MappedFile file = MappedFile::anonymous(medium_bytes);
  Device device = file.device(0);
  device.kind = DeviceKind::scattered;
  for (const Range& range : ranges) {
    const std::vector<u8> content = random_bytes(range.offset + 1, medium_bytes);
    for (u64 at = 0; at < medium_bytes; at += page_size) {
      std::copy_n(content.data() + at, page_size, memory_at(device, at, page_size));
    }
    std::vector<u8> seen(range.length);
    const std::vector<u8> source = random_bytes(range.length + 5, range.length);
    on_all_groups([&](auto g) {
      EXPECT_EQ(read_range(g, device, range.offset, range.length, seen.data()), Status::ok);
      on_leader(g, [&] {
        EXPECT_TRUE(std::equal(seen.begin(), seen.end(), content.begin() + static_cast<i64>(range.offset)) ||
                    seen == source);
      });
      EXPECT_EQ(write_range(g, device, range.offset, source.data(), range.length), Status::ok);
    });
    std::vector<u8> expected = content;
    std::copy(source.begin(), source.end(), expected.begin() + static_cast<i64>(range.offset));
    for (u64 at = 0; at < medium_bytes; at += page_size) {
      EXPECT_EQ(std::memcmp(memory_at(device, at, page_size), expected.data() + at, page_size), 0) << at;
    }
  }
}

// The ranks store parts of the source right before the transfer.
TEST(Transfer, WhatAnyRankStoredIsWritten) {
  ListenedDevice listened;
  std::vector<u8> source(page_size);
  on_all_groups([&](auto g) {
    for (u64 round = 0; round < 20; ++round) {
      const u8 value = static_cast<u8>(round + 100);
      for (u64 i = g.rank(); i < page_size; i += g.size()) source[page_size - 1 - i] = value;
      EXPECT_EQ(write_range(g, listened.device(), page_size, source.data(), page_size), Status::ok);
      EXPECT_EQ(listened.part(page_size, page_size), std::vector<u8>(page_size, value));
      g.sync();
    }
  });
}

TEST(Transfer, WhatCannotBeReadLeavesTheDestination) {
  ListenedDevice listened("read-error@8192+64");
  std::vector<u8> destination(page_size, 0x11);
  on_all_groups([&](auto g) {
    EXPECT_EQ(read_range(g, listened.device(), 8192, page_size, destination.data()), Status::medium_error);
    EXPECT_EQ(read_range(g, listened.device(), 8192 + 63, 1, destination.data()), Status::medium_error);
    EXPECT_EQ(destination, std::vector<u8>(page_size, 0x11));
    EXPECT_EQ(read_range(g, listened.device(), 8192 + 64, 1, destination.data()), Status::ok);
    g.sync();
    on_leader(g, [&] { destination[0] = 0x11; });
  });
}

TEST(Transfer, ARefusedWriteStoresNothingAndHasNoEnd) {
  ListenedDevice listened("write-error@100+1");
  const std::vector<u8> source = random_bytes(3, page_size);
  on_all_groups([&](auto g) {
    on_leader(g, [&] { listened.heard().clear(); });
    EXPECT_EQ(write_range(g, listened.device(), 64, source.data(), 64), Status::device_failed);
    on_leader(g, [&] {
      EXPECT_EQ(listened.content(), listened.before());
      const std::vector<Announcement> announced = {{Announcement::may_write, 64, 64}};
      EXPECT_EQ(listened.heard(), announced);
    });
  });
  EXPECT_EQ(write_range(Lane{}, listened.device(), 128, source.data(), 64), Status::ok);
  EXPECT_EQ(listened.part(128, 64), std::vector<u8>(source.begin(), source.begin() + 64));
}

// Faults change the medium when the read is announced, so what arrives is what is on the medium afterwards.
TEST(Transfer, DecayArrivesInTheDestination) {
  ListenedDevice listened("decay=1");
  std::vector<u8> destination(100);
  for (u32 round = 0; round < 10; ++round) {
    ASSERT_EQ(read_range(Lane{}, listened.device(), 1000, 100, destination.data()), Status::ok);
    EXPECT_EQ(destination, listened.part(1000, 100));
  }
  EXPECT_NE(listened.content(), listened.before());
}

TEST(Transfer, ALostWriteLeavesTheMedium) {
  ListenedDevice listened("lost#1");
  const std::vector<u8> source = random_bytes(4, 200);
  EXPECT_EQ(write_range(Lane{}, listened.device(), 30, source.data(), 200), Status::ok);
  EXPECT_EQ(listened.content(), listened.before());
}

TEST(Transfer, TheUseOfADeviceDecides) {
  ListenedDevice listened;
  std::vector<u8> bytes(64, 0x22);
  on_all_groups([&](auto g) {
    on_leader(g, [&] {
      listened.heard().clear();
      listened.device().failed = device_failed_for_good;
    });
    EXPECT_EQ(read_range(g, listened.device(), 0, 64, bytes.data()), Status::device_failed);
    EXPECT_EQ(write_range(g, listened.device(), 0, bytes.data(), 64), Status::device_failed);
    on_leader(g, [&] {
      EXPECT_TRUE(listened.heard().empty());
      EXPECT_EQ(listened.part(0, 64), std::vector<u8>(listened.before().begin(), listened.before().begin() + 64));
      listened.device().failed = device_rebuilding;
    });
    EXPECT_EQ(read_range(g, listened.device(), 64, 64, bytes.data()), Status::device_failed);
    EXPECT_EQ(write_range(g, listened.device(), 64, bytes.data(), 64), Status::ok);
    EXPECT_EQ(listened.part(64, 64), std::vector<u8>(64, 0x22));
    g.sync();
  });
}

TEST(Transfer, RangesOutsideFailACheck) {
  const MappedFile file = MappedFile::anonymous(4 * page_size);
  Device device = file.device(0);
  std::vector<u8> bytes(2 * page_size);
  const CheckHandler previous = set_check_handler([](const CheckFailure&) { throw RefusedRange{}; });
  EXPECT_THROW((void)read_range(Lane{}, device, 3 * page_size, page_size + 1, bytes.data()), RefusedRange);
  EXPECT_THROW((void)write_range(Lane{}, device, 3 * page_size + 1, bytes.data(), page_size), RefusedRange);
  EXPECT_THROW((void)write_range(Lane{}, device, ~u64{0}, bytes.data(), 2), RefusedRange);
  device.kind = static_cast<DeviceKind>(77);
  EXPECT_THROW((void)read_range(Lane{}, device, 0, 1, bytes.data()), RefusedRange);
  EXPECT_THROW((void)write_range(Lane{}, device, 0, bytes.data(), 1), RefusedRange);
  set_check_handler(previous);
}

}  // namespace
}  // namespace gpu4fs::device
