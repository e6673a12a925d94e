// An emulated controller with the driver on it, and random operations with an oracle.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "nvme/block_io.hpp"
#include "nvme/emulated/emulated_controller.hpp"

namespace gpu4fs::nvme::test {

// So long that a loaded machine answers meanwhile.
inline constexpr u64 patient_ns = 60000000000;

struct DriveOptions {
  EmulatedOptions emulated;
  ControllerOptions controller;
};

inline std::shared_ptr<Medium> medium_of(u64 bytes, u32 block_bytes, bool has_cache) {
  return std::make_shared<Medium>(bytes / block_bytes, block_bytes, has_cache);
}

class EmulatedDrive {
 public:
  explicit EmulatedDrive(const DriveOptions& options)
      : bus_(24 << 20),
        emulated_(bus_, options.emulated),
        controller_(emulated_, bus_, options.controller),
        session_(controller_) {}

  EmulatedBus& bus() { return bus_; }
  EmulatedController& emulated() { return emulated_; }
  Controller& controller() { return controller_; }
  ControllerSession& session() { return session_; }

 private:
  EmulatedBus bus_;
  EmulatedController emulated_;
  Controller controller_;
  ControllerSession session_;
};

// Random operations of one thread in its own part of a namespace. What it reads is what it wrote.
class RandomOperations {
 public:
  RandomOperations(BlockIo& io, u64 offset, u64 length, u32 seed)
      : io_(io), begin_(offset), expected_(length), random_(seed) {
    // Nothing is known of the medium's bytes before.
    std::vector<u8> zeros(length);
    EXPECT_EQ(io_.write(begin_, zeros), Status::ok);
  }

  void run(u32 count) {
    for (u32 i = 0; i < count && !::testing::Test::HasFailure(); ++i) one();
  }
  void check_all() {
    std::vector<u8> found(expected_.size());
    EXPECT_EQ(io_.read(begin_, found), Status::ok);
    EXPECT_TRUE(found == expected_);
  }
  const std::vector<u8>& expected() const { return expected_; }

 private:
  void one() {
    const u64 block = io_.info().block_bytes;
    const u64 blocks = expected_.size() / block;
    const u64 count = 1 + random_() % std::min<u64>(random_() % 8 == 0 ? 100 : 8, blocks);
    const u64 offset = random_() % (blocks - count + 1) * block;
    const u64 length = count * block;
    std::span<u8> part(expected_.data() + offset, length);
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2: {
        std::vector<u8> found(length);
        EXPECT_EQ(io_.read(begin_ + offset, found), Status::ok);
        EXPECT_TRUE(std::equal(found.begin(), found.end(), part.begin())) << "offset " << begin_ + offset;
        break;
      }
      case 3:
        EXPECT_EQ(io_.flush(), Status::ok);
        break;
      case 4:
        EXPECT_EQ(io_.write_zeroes(begin_ + offset, length, random_() % 2 == 0), Status::ok);
        std::fill(part.begin(), part.end(), u8{0});
        break;
      case 5: {
        const BlockIo::Range ranges[] = {{begin_ + offset, block}, {begin_ + offset, length}};
        EXPECT_EQ(io_.deallocate(ranges), Status::ok);
        // Whether it reads as zeros is the controller's choice, so it is written again.
        std::fill(part.begin(), part.end(), static_cast<u8>(random_()));
        EXPECT_EQ(io_.write(begin_ + offset, part), Status::ok);
        break;
      }
      default:
        for (u8& byte : part) byte = static_cast<u8>(random_());
        EXPECT_EQ(io_.write(begin_ + offset, part, random_() % 4 == 0), Status::ok);
    }
  }

  BlockIo& io_;
  u64 begin_;
  std::vector<u8> expected_;
  std::mt19937 random_;
};

}  // namespace gpu4fs::nvme::test
