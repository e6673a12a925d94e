// Requests of several ranks as one command of a drive (device/drives/shared_commands.hpp).
#include "device/drives/shared_commands.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "base/emulated_warp.hpp"
#include "device/staged/detached_io.hpp"
#include "device/staged/write_back.hpp"
#include "served_world.hpp"

namespace gpu4fs::nvme::shared_commands_test {
namespace {

using device::IoOperation;
using test::device_pages;
using test::DriveWorld;
using test::first_byte;
using test::has;
using test::patient_ns;
using test::ServedWorld;

constexpr u64 no_page = ~u64{0};

// Counts commands, and lets those fail that concern a page.
struct Commands {
  std::atomic<u32> reads{0};
  std::atomic<u32> writes{0};
  std::atomic<u64> bad_page{no_page};

  ServedWorld::Judge judge() {
    return [this](const SubmissionEntry& entry) -> std::optional<StatusCode> {
      const bool is_read = entry.opcode == static_cast<u8>(IoOpcode::read);
      if (!is_read && entry.opcode != static_cast<u8>(IoOpcode::write)) return StatusCode::success;
      ++(is_read ? reads : writes);
      const u64 behind = bad_page - entry.dword10;
      if (behind > (entry.dword12 & 0xffff)) return StatusCode::success;
      return is_read ? StatusCode::unrecovered_read_error : StatusCode::write_fault;
    };
  }
};

// The page of each rank; no_page: none. Returns how many loads or write-backs began.
u32 begin_all(DriveWorld& world, const std::vector<u64>& pages, IoOperation operation) {
  std::atomic<u32> begun{0};
  run_emulated_warp([&](EmulatedWarp g) {
    const u64 page = g.rank() < pages.size() ? pages[g.rank()] : no_page;
    const device::StagedPage wanted{page != no_page ? &world.device() : nullptr, page != no_page ? page : 0};
    const bool is_begun = operation == IoOperation::read
                              ? device::begin_detached_loads(g, *world.staged, wanted, static_cast<u32>(page))
                              : device::begin_detached_writes(g, *world.staged, wanted);
    if (is_begun) ++begun;
  });
  return begun;
}

// Who was told until nothing was in flight, in order.
std::vector<u32> told_owners(DriveWorld& world) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::vector<u32> told;
  while (world.in_flight() != 0) {
    for (const u32 owner : world.take_all()) told.push_back(owner);
    if (std::chrono::steady_clock::now() > limit) {
      ADD_FAILURE() << world.in_flight() << " requests do not end";
      break;
    }
    std::this_thread::yield();
  }
  std::sort(told.begin(), told.end());
  return told;
}

std::vector<u64> pages_from(u64 first, u32 count) {
  std::vector<u64> pages;
  // Neighbours are not in ranks beside each other.
  for (u32 rank = 0; rank < count; ++rank) pages.push_back(first + (rank * 5 + 3) % count);
  return pages;
}

TEST(SharedCommands, LoadsOfNeighboursAreOneCommand) {
  Commands commands;
  ServedWorld served(8, 2, 0, commands.judge());
  EXPECT_EQ(begin_all(served.world, pages_from(100, 32), IoOperation::read), 32u);
  std::vector<u32> told = told_owners(served.world);
  ASSERT_EQ(told.size(), 32u);
  for (u32 i = 0; i < 32; ++i) EXPECT_EQ(told[i], 100 + i);
  EXPECT_EQ(commands.reads, 1u);
  for (u64 page = 100; page < 132; ++page) EXPECT_EQ(served.world.read(page, first_byte(page)), Status::ok);
  EXPECT_EQ(commands.reads, 1u) << "all pages are in frames";
  EXPECT_FALSE(served.has_complaint());
}

TEST(SharedCommands, GapsSeparateCommands) {
  Commands commands;
  ServedWorld served(8, 2, 0, commands.judge());
  const std::vector<u64> pages{21, 10, no_page, 15, 11, 13, 40, 14, 22, no_page, 20, 23, device_pages - 1, 0};
  EXPECT_EQ(begin_all(served.world, pages, IoOperation::read), 12u);
  EXPECT_EQ(told_owners(served.world).size(), 12u);
  EXPECT_EQ(commands.reads, 6u) << "10 11, 13 14 15, 20 to 23, and three single pages";
  for (const u64 page : pages) {
    if (page == no_page) continue;
    EXPECT_EQ(served.world.read(page, first_byte(page)), Status::ok) << page;
  }
  EXPECT_FALSE(served.has_complaint());
}

TEST(SharedCommands, ADriveLimitsThePages) {
  Commands commands;
  ServedWorld served(8, 2, 0, commands.judge(), patient_ns, 8 * page_size);
  EXPECT_EQ(begin_all(served.world, pages_from(50, 29), IoOperation::read), 29u);
  EXPECT_EQ(told_owners(served.world).size(), 29u);
  EXPECT_EQ(commands.reads, 4u);
  for (u64 page = 50; page < 79; ++page) EXPECT_EQ(served.world.read(page, first_byte(page)), Status::ok);
  EXPECT_FALSE(served.has_complaint());
}

TEST(SharedCommands, WriteBacksShareThemToo) {
  Commands commands;
  ServedWorld served(2, 1, 0, commands.judge());
  for (u64 page = 200; page < 232; ++page) served.world.store(page, static_cast<u8>(page));
  EXPECT_EQ(begin_all(served.world, pages_from(200, 32), IoOperation::write), 32u);
  (void)told_owners(served.world);
  EXPECT_EQ(commands.writes, 1u);
  for (u64 page = 200; page < 232; ++page) EXPECT_TRUE(has(served.at(page), static_cast<u8>(page))) << page;
  EXPECT_TRUE(has(served.at(199), first_byte(199)) && has(served.at(232), first_byte(232)));
  EXPECT_FALSE(device::has_dirty_frames(*served.world.staged));
  EXPECT_FALSE(served.has_complaint());
}

TEST(SharedCommands, AFullQueueTakesThemOneByOne) {
  Commands commands;
  ServedWorld served(2, 2, 5, commands.judge());
  std::vector<u64> pages;
  for (u64 page = 0; page < 96; page += 3) pages.push_back(page + page % 2);
  EXPECT_EQ(begin_all(served.world, pages, IoOperation::read), 32u);
  EXPECT_EQ(told_owners(served.world).size(), 32u);
  for (const u64 page : pages) EXPECT_EQ(served.world.read(page, first_byte(page)), Status::ok) << page;
}

// Only the page is lost that the drive cannot read.
TEST(SharedCommands, AReadErrorIsThatOfItsPage) {
  Commands commands;
  ServedWorld served(8, 2, 0, commands.judge());
  commands.bad_page = 70;
  EXPECT_EQ(begin_all(served.world, pages_from(64, 16), IoOperation::read), 16u);
  EXPECT_EQ(told_owners(served.world).size(), 16u);
  EXPECT_EQ(commands.reads, 1u);
  EXPECT_EQ(begin_all(served.world, pages_from(64, 16), IoOperation::read), 16u) << "nothing is in a frame";
  EXPECT_EQ(told_owners(served.world).size(), 16u);
  EXPECT_EQ(commands.reads, 17u) << "each page has a command of its own after an error";
  for (u64 page = 64; page < 80; ++page) {
    EXPECT_EQ(served.world.read(page, first_byte(page)), page == 70 ? Status::medium_error : Status::ok) << page;
  }
  EXPECT_EQ(device::write_error_of(*served.world.staged, 0), Status::ok);
}

// A page that cannot be read takes nothing from pages that are elsewhere.
TEST(SharedCommands, OnlyTheNeighbourhoodOfAnErrorIsReadPageByPage) {
  constexpr u64 far = 3 * device::neighbourhood_pages;
  constexpr u64 border = 2 * device::neighbourhood_pages;
  static_assert(far + 32 < device_pages);
  Commands commands;
  ServedWorld served(8, 2, 0, commands.judge());
  commands.bad_page = border + 2;
  EXPECT_EQ(begin_all(served.world, pages_from(border - 8, 16), IoOperation::read), 16u);
  EXPECT_EQ(told_owners(served.world).size(), 16u);
  EXPECT_EQ(commands.reads, 1u);
  EXPECT_EQ(begin_all(served.world, pages_from(far, 32), IoOperation::read), 32u);
  EXPECT_EQ(told_owners(served.world).size(), 32u);
  EXPECT_EQ(commands.reads, 2u) << "pages elsewhere share a command";
  for (u64 page = far; page < far + 32; ++page) EXPECT_EQ(served.world.read(page, first_byte(page)), Status::ok);
  EXPECT_EQ(begin_all(served.world, pages_from(border - 8, 16), IoOperation::read), 16u);
  EXPECT_EQ(told_owners(served.world).size(), 16u);
  EXPECT_EQ(commands.reads, 18u) << "nobody knows on which side of the border the page is";
  for (u64 page = border - 8; page < border + 8; ++page) {
    EXPECT_EQ(served.world.read(page, first_byte(page)), page == border + 2 ? Status::medium_error : Status::ok);
  }
}

// What the drive has refused stays dirty until its own command fails.
TEST(SharedCommands, AWriteErrorIsThatOfItsPage) {
  Commands commands;
  ServedWorld served(8, 2, 0, commands.judge());
  for (u64 page = 300; page < 316; ++page) served.world.store(page, static_cast<u8>(page));
  commands.bad_page = 305;
  EXPECT_EQ(begin_all(served.world, pages_from(300, 16), IoOperation::write), 16u);
  (void)told_owners(served.world);
  EXPECT_EQ(commands.writes, 1u);
  EXPECT_EQ(device::write_error_of(*served.world.staged, 0), Status::ok) << "nobody knows which page it was";
  EXPECT_TRUE(device::has_dirty_frames(*served.world.staged));
  while (device::paused_devices(*served.world.staged, 1) != 0) std::this_thread::yield();
  EXPECT_EQ(begin_all(served.world, pages_from(300, 16), IoOperation::write), 16u) << "all pages are dirty";
  (void)told_owners(served.world);
  EXPECT_EQ(commands.writes, 17u);
  for (u64 page = 300; page < 316; ++page) {
    const u8 expected = page == 305 ? first_byte(page) : static_cast<u8>(page);
    EXPECT_TRUE(has(served.at(page), expected)) << page;
  }
  EXPECT_EQ(device::write_error_of(*served.world.staged, 0), Status::device_failed);
}

// All of a command's requests end when the drive does.
TEST(SharedCommands, ASilentDriveEndsThemAll) {
  constexpr u64 timeout_ns = 20000000;
  ServedWorld served(
      8, 2, 0, [](const SubmissionEntry&) { return std::optional<StatusCode>(); }, timeout_ns);
  EXPECT_EQ(begin_all(served.world, pages_from(10, 12), IoOperation::read), 12u);
  std::thread host([&] {
    while (served.failure() == Failure::none) std::this_thread::yield();
    store<Order::release, Scope::system>(&served.signal().is_quiet, 1u);
  });
  EXPECT_EQ(told_owners(served.world).size(), 12u);
  host.join();
  EXPECT_EQ(served.world.read(12, 0), Status::device_failed);
}

}  // namespace
}  // namespace gpu4fs::nvme::shared_commands_test
