// Controllers that lie. Whatever they do, the driver comes back with an answer, touches nothing outside of its memory,
// and goes on with other controllers.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>

#include "nvme/emulated_drive.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::nvme::test {
namespace {

using gpu4fs::test::scaled;

DriveOptions hostile_options(u32 seed) {
  DriveOptions options;
  options.emulated.namespaces = {{1, medium_of(1 << 20, 512, seed % 2 == 0)}};
  options.emulated.in_random_order = true;
  options.emulated.seed = seed;
  options.controller.queue_depth = 2u << seed % 5;
  options.controller.command_timeout_ns = 20000000;
  options.controller.abort_timeout_ns = 20000000;
  options.controller.admin_timeout_ns = patient_ns;
  options.controller.ready_timeout_ns_max = 200000000;
  return options;
}

// Threads that write and read until they get an error, at most for some operations. Every answer is allowed but one
// that nobody defined.
void use(BlockIo& io, u32 operations) {
  std::vector<std::thread> threads;
  for (u32 i = 0; i < 3; ++i) {
    threads.emplace_back([&io, operations, i] {
      std::vector<u8> bytes(4096);
      for (u32 k = 0; k < operations; ++k) {
        const Status status = k % 2 == 0 ? io.write(i * 4096, bytes) : io.read(i * 4096, bytes);
        if (status == Status::device_failed) return;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(HostileController, EachKindOfLieIsSurvived) {
  const std::map<Misbehaviour, Failure> certain = {
      {Misbehaviour::twice, Failure::unknown_command},   {Misbehaviour::impossible_head, Failure::impossible_head},
      {Misbehaviour::wrong_queue, Failure::wrong_queue}, {Misbehaviour::vanishes, Failure::absent},
      {Misbehaviour::silence, Failure::timed_out},
  };
  for (u32 kind = 1; kind < misbehaviour_count; ++kind) {
    DriveOptions options = hostile_options(kind);
    options.emulated.misbehave = [kind](const SubmissionEntry&) { return static_cast<Misbehaviour>(kind); };
    EmulatedDrive drive(options);
    BlockIo io(drive.session(), drive.bus(), 1);
    use(io, 4);
    EXPECT_NE(drive.session().lost_because(), Failure::none) << kind;
    const auto found = certain.find(static_cast<Misbehaviour>(kind));
    if (found != certain.end()) {
      EXPECT_EQ(drive.session().lost_because(), found->second) << kind;
    }
    EXPECT_EQ(drive.emulated().complaint(), "") << kind;
  }
}

TEST(HostileController, LiesAtRandom) {
  u32 lost_count = 0;
  for (u32 seed = 1; seed <= scaled(40); ++seed) {
    DriveOptions options = hostile_options(seed);
    auto random = std::make_shared<std::mt19937>(seed);
    options.emulated.misbehave = [random](const SubmissionEntry&) {
      const u32 number = static_cast<u32>((*random)());
      return number % 16 != 0 ? Misbehaviour::none : static_cast<Misbehaviour>(number / 16 % misbehaviour_count);
    };
    EmulatedDrive drive(options);
    BlockIo io(drive.session(), drive.bus(), 1);
    use(io, 60);
    if (drive.session().lost_because() != Failure::none) ++lost_count;
    EXPECT_EQ(drive.emulated().complaint(), "") << seed;
  }
  EXPECT_GT(lost_count, 0u);
}

TEST(HostileController, NonsenseInIdentify) {
  u32 refused = 0;
  u32 unusable = 0;
  for (u32 seed = 1; seed <= scaled(400); ++seed) {
    DriveOptions options = hostile_options(seed);
    options.controller.command_timeout_ns = patient_ns;
    auto random = std::make_shared<std::mt19937>(seed);
    options.emulated.falsify = [random](IdentifySelect, u8* data) {
      for (u32 i = (*random)() % 400; i > 0; --i) data[(*random)() % 700] = static_cast<u8>((*random)());
    };
    try {
      EmulatedDrive drive(options);
      const ControllerInfo& info = drive.controller().info();
      EXPECT_GE(info.transfer_bytes_max, 4096u);
      EXPECT_LE(info.transfer_bytes_max, u64{1} << 20);
      for (const NamespaceInfo& space : drive.controller().namespaces()) {
        if (!space.unusable_because.empty()) {
          ++unusable;
          EXPECT_THROW(BlockIo(drive.session(), drive.bus(), space.id), ControllerError);
          continue;
        }
        EXPECT_TRUE(space.block_bytes == 512 || space.block_bytes == 4096);
        EXPECT_LE(space.block_count, (u64{1} << 56) / space.block_bytes);
        EXPECT_GT(space.block_count, 0u);
      }
    } catch (const ControllerError& error) {
      ++refused;
      EXPECT_NE(std::string(error.what()), "");
    }
  }
  EXPECT_GT(refused, 0u);
  EXPECT_GT(unusable, 0u);
}

TEST(HostileController, NonsenseInCapabilities) {
  for (u32 bit = 0; bit < 64; ++bit) {
    DriveOptions options = hostile_options(3);
    options.controller.command_timeout_ns = 100000000;
    options.controller.admin_timeout_ns = 50000000;
    options.emulated.capabilities_flipped = u64{1} << bit;
    try {
      EmulatedDrive drive(options);
      BlockIo io(drive.session(), drive.bus(), 1);
      use(io, 4);
    } catch (const ControllerError& error) {
      EXPECT_NE(error.failure(), Failure::none);
    }
  }
}

// What a good controller says is taken, so the refusals above are about the nonsense.
TEST(HostileController, GoodDataIsTaken) {
  DriveOptions options = hostile_options(4);
  options.controller.command_timeout_ns = patient_ns;
  EmulatedDrive drive(options);
  EXPECT_EQ(drive.controller().info().model, "Emulated controller");
  EXPECT_EQ(drive.controller().info().transfer_bytes_max, 4096u << 5);
  EXPECT_TRUE(drive.controller().info().has_write_cache);
  ASSERT_EQ(drive.controller().namespaces().size(), 1u);
  EXPECT_EQ(drive.controller().namespaces()[0].unusable_because, "");
  EXPECT_EQ(drive.controller().namespaces()[0].block_count, 2048u);
}

}  // namespace
}  // namespace gpu4fs::nvme::test
