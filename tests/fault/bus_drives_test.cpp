// Pools on NVMe drives that gpu4fs drives itself: emulated controllers with registers, in place of drives behind VFIO.
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "growth/growing_pool.hpp"
#include "nvme/emulated/emulated_controller.hpp"
#include "nvme/held_drive.hpp"
#include "pool/pool_device_file.hpp"

namespace gpu4fs::test::bus_drives_test {
namespace {

constexpr u64 device_bytes = u64{24} << 20;
constexpr u64 block_count = 24;

// A drive on the bus. Its media outlive the times that it is open.
struct FakeDrive {
  std::vector<std::shared_ptr<nvme::Medium>> media;
  std::atomic<nvme::Misbehaviour> misbehaviour{nvme::Misbehaviour::none};
  std::string refusal;  // of the next openings
  u32 queues_max = 8;
  bool has_abort = true;
  std::atomic<u32> forgets{0};  // commands that move bytes, from now on
  std::atomic<u32> stops{0};    // how often it stops, at the next commands that move bytes, until it is reset
  int opened_count = 0;
  int wish = -1;                                   // while it is open
  nvme::EmulatedController* controller = nullptr;  // while it is open
  std::atomic<u64> mapped_count{0};
  std::string complaint;  // of the controllers before
};

// One less, if there is one.
bool take_one(std::atomic<u32>& count) {
  for (u32 left = count; left != 0;) {
    if (count.compare_exchange_strong(left, left - 1)) return true;
  }
  return false;
}

class FakeAccess final : public nvme::DriveAccess {
 public:
  explicit FakeAccess(FakeDrive& drive) : drive_(drive), bus_(u64{16} << 20) {
    nvme::EmulatedOptions options;
    for (u32 i = 0; i < drive.media.size(); ++i) options.namespaces.push_back({i + 1, drive.media[i]});
    options.in_random_order = true;
    options.queues_max = drive.queues_max;
    options.has_abort = drive.has_abort;
    options.misbehave = [&drive](const nvme::SubmissionEntry& entry) {
      const bool moves_bytes = entry.opcode == static_cast<u8>(nvme::IoOpcode::read) ||
                               entry.opcode == static_cast<u8>(nvme::IoOpcode::write);
      if (moves_bytes && take_one(drive.forgets)) return nvme::Misbehaviour::silence;
      if (moves_bytes && take_one(drive.stops)) return nvme::Misbehaviour::fatal;
      return drive.misbehaviour.load();
    };
    controller_ = std::make_unique<nvme::EmulatedController>(bus_, options);
    wish_ = ::eventfd(0, EFD_CLOEXEC);
    drive.wish = wish_;
    drive.controller = controller_.get();
    ++drive.opened_count;
  }
  ~FakeAccess() override {
    drive_.complaint += controller_->complaint();
    drive_.mapped_count = bus_.mapped_count();
    if (drive_.controller == controller_.get()) drive_.controller = nullptr;
    controller_.reset();
    ::close(wish_);
  }

  nvme::RegisterAccess& registers() override { return *controller_; }
  nvme::DmaMemory& memory() override { return bus_; }
  std::vector<nvme::TranslatedRange> free_bus_ranges() override {
    return {{u64{1} << 20, u64{1} << 23}, {u64{1} << 33, (u64{1} << 40) - 1}};
  }
  void map(void* pages, u64 bytes, u64 bus_address) override {
    bus_.map(static_cast<u8*>(pages), bytes, bus_address);
    drive_.mapped_count = bus_.mapped_count();
  }
  void unmap(u64 bus_address, u64) override {
    bus_.unmap(bus_address);
    drive_.mapped_count = bus_.mapped_count();
  }
  int removal_descriptor() const override { return wish_; }
  void release() override {
    controller_->stop_dma();
    controller_->remove();
  }

 private:
  FakeDrive& drive_;
  nvme::EmulatedBus bus_;
  std::unique_ptr<nvme::EmulatedController> controller_;
  int wish_;
};

// Drives 0000:00:00.0, 0000:01:00.0 and so on, in place of those of the machine.
class Machine {
 public:
  explicit Machine(u32 drive_count, u32 block_bytes = 4096, u32 namespace_count = 1, bool has_write_cache = true) {
    for (u32 i = 0; i < drive_count; ++i) {
      FakeDrive& drive = drives_[fmt::format("0000:{:02x}:00.0", i)];
      for (u32 k = 0; k < namespace_count; ++k) {
        drive.media.push_back(std::make_shared<nvme::Medium>(device_bytes / block_bytes, block_bytes, has_write_cache));
      }
    }
    before_ = nvme::exchange_drive_opener([this](const std::string& address) {
      const auto found = drives_.find(address);
      if (found == drives_.end()) throw nvme::DriveOpenError(Status::no_device, address + ": there is no such drive");
      FakeDrive& drive = found->second;
      if (!drive.refusal.empty()) {
        throw nvme::DriveOpenError(Status::invalid_argument, address + ": " + drive.refusal);
      }
      return std::make_unique<FakeAccess>(drive);
    });
  }
  ~Machine() {
    nvme::exchange_drive_opener(std::move(before_));
    for (const auto& [address, drive] : drives_) {
      EXPECT_EQ(drive.complaint, "") << address;
      EXPECT_EQ(drive.controller, nullptr) << address << " is open";
    }
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  FakeDrive& drive(u32 i) { return drives_.at(fmt::format("0000:{:02x}:00.0", i)); }
  static std::string name(u32 i) { return fmt::format("nvme:0000:{:02x}:00.0", i); }

 private:
  std::map<std::string, FakeDrive> drives_;
  nvme::DriveOpener before_;
};

void make(const std::vector<std::string>& devices, const std::string& profile = "raid1") {
  pool::MakePoolOptions options;
  options.device_paths = devices;
  options.size_bytes = device_bytes;
  options.chunk_size_bytes = u64{8} << 20;
  options.data_profile = options.metadata_profile = profile;
  pool::make_pool(options);
}

session::ServerOptions options_of(const std::vector<std::string>& devices) {
  session::ServerOptions options = GrowthMount::options(devices);
  options.device_access = session::DeviceAccess::direct;
  options.engine = session::EngineChoice::cpu;
  return options;
}

u64 failed_devices(GrowthMount& mount) {
  session::PoolHealth health;
  EXPECT_EQ(mount.server().open_inspector().health(&health), Status::ok);
  return health.record.failed_devices;
}

void write_blocks(GrowthMount& mount, u64 inode, u64 first, u64 end) {
  for (u64 block = first; block < end; ++block) {
    ASSERT_EQ(write_block(mount.files(), inode, block, 7 + block), Status::ok);
  }
  ASSERT_EQ(mount.files().simple(wire::Opcode::sync, 0, 0, 0).status, Status::ok);
}

void check_blocks(const std::vector<std::string>& devices, bool degraded = false) {
  session::ServerOptions options = options_of(devices);
  options.degraded = degraded;
  GrowthMount mount(options);
  EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "file"), block_count, 7));
  EXPECT_TRUE(mount.stop());
}

void use_pool(const std::vector<std::string>& devices, const std::string& profile = "raid1") {
  make(devices, profile);
  {
    GrowthMount mount(options_of(devices));
    const u64 inode = make_file(mount.files(), "file");
    ASSERT_NO_FATAL_FAILURE(write_blocks(mount, inode, 0, block_count));
    EXPECT_EQ(failed_devices(mount), 0u);
    EXPECT_TRUE(mount.stop());
  }
  EXPECT_EQ(find_problems(devices), "");
  check_blocks(devices);
}

TEST(BusDrives, APoolIsMadeMountedAndChecked) {
  for (const u32 block_bytes : {512u, 4096u}) {
    Machine machine(3, block_bytes);
    use_pool({Machine::name(0), Machine::name(1)});
    use_pool({Machine::name(2)}, "single");
    for (u32 i = 0; i < 3; ++i) EXPECT_EQ(machine.drive(i).mapped_count, 0u) << "the engine's memory is still reached";
  }
}

TEST(BusDrives, AReadOnlyMountChangesNothing) {
  Machine machine(1);
  const std::vector<std::string> devices{Machine::name(0)};
  use_pool(devices, "single");
  const auto content = [&] {
    std::vector<u8> bytes(device_bytes);
    machine.drive(0).media[0]->read(0, bytes.data(), device_bytes);
    return bytes;
  };
  const std::vector<u8> before = content();
  session::ServerOptions options = options_of(devices);
  options.read_only = true;
  {
    GrowthMount mount(options);
    EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "file"), block_count, 7));
    EXPECT_TRUE(mount.stop());
  }
  EXPECT_TRUE(content() == before);
  pool::DeviceFile file =
      pool::DeviceFile::open(devices[0], pool::DeviceFile::Access::read_only, pool::DeviceFile::Locking::lock);
  const u8 byte = 1;
  EXPECT_THROW(file.write_at(0, &byte, 1), pool::PoolError);
  EXPECT_TRUE(content() == before);
}

// Each byte of a range that begins and ends inside of a block.
TEST(BusDrives, PartsOfBlocks) {
  for (const u32 block_bytes : {512u, 4096u}) {
    Machine machine(1, block_bytes);
    pool::DeviceFile file =
        pool::DeviceFile::open(Machine::name(0), pool::DeviceFile::Access::read_write, pool::DeviceFile::Locking::lock);
    std::vector<u8> expected(u64{64} << 10, 0x11);
    file.write_at(0, expected.data(), expected.size());
    for (const auto& [offset, length] :
         {std::pair<u64, u64>{1, 1}, {511, 2}, {4095, 9000}, {20000, 512}, {40960, 100}}) {
      std::vector<u8> part(length, static_cast<u8>(offset | 1));
      file.write_at(offset, part.data(), length);
      std::copy(part.begin(), part.end(), expected.begin() + static_cast<std::ptrdiff_t>(offset));
      std::vector<u8> found(length);
      file.read_at(offset, found.data(), length);
      EXPECT_TRUE(found == part) << offset;
    }
    std::vector<u8> found(expected.size());
    file.read_at(0, found.data(), found.size());
    EXPECT_TRUE(found == expected);
    EXPECT_THROW(file.read_at(device_bytes - 1, found.data(), 2), pool::PoolError);
    nvme::HeldDrive& held = *dynamic_cast<nvme::HeldNamespace&>(*file.drive()).drive();
    ASSERT_GT(held.engine_queue_count(), 0u);
    for (u32 i = 0; i < held.engine_queue_count(); ++i) {
      EXPECT_EQ(held.engine_queue(i).next_ticket, 0u) << "the host has used a queue of engines";
    }
    EXPECT_THROW(
        pool::DeviceFile::open(Machine::name(0), pool::DeviceFile::Access::read_write, pool::DeviceFile::Locking::lock),
        pool::DeviceInUse);
  }
}

TEST(BusDrives, TwoNamespacesOfADrive) {
  Machine machine(1, 4096, 2);
  use_pool({Machine::name(0), Machine::name(0) + "/2"});
}

TEST(BusDrives, AFileBesideADrive) {
  Machine machine(1);
  const GrowthFolder folder;
  use_pool({folder / "file", Machine::name(0)});
}

// How a drive is lost while it is used.
enum class Loss { vanishes, is_wanted, lies, is_reset };

void lose(Loss how) {
  Machine machine(2);
  const std::vector<std::string> devices{Machine::name(0), Machine::name(1)};
  make(devices);
  {
    GrowthMount mount(options_of(devices));
    const u64 inode = make_file(mount.files(), "file");
    ASSERT_NO_FATAL_FAILURE(write_blocks(mount, inode, 0, block_count / 2));
    FakeDrive& lost = machine.drive(1);
    const u64 one = 1;
    if (how == Loss::vanishes) lost.controller->remove();
    if (how == Loss::is_wanted) {
      ASSERT_EQ(::write(lost.wish, &one, sizeof(one)), ssize_t{sizeof(one)});
    }
    if (how == Loss::lies) lost.misbehaviour = nvme::Misbehaviour::unknown_id;
    if (how == Loss::is_reset) lost.controller->write_32(static_cast<u32>(nvme::Register::cc), 0);
    ASSERT_NO_FATAL_FAILURE(write_blocks(mount, inode, block_count / 2, block_count));
    while (failed_devices(mount) != 2) {
      ASSERT_EQ(write_block(mount.files(), inode, block_count - 1, 7 + block_count - 1), Status::ok);
      ASSERT_EQ(mount.files().simple(wire::Opcode::sync, 0, 0, 0).status, Status::ok);
    }
    EXPECT_FALSE(lost.controller->is_dma_allowed());
    EXPECT_TRUE(has_blocks(mount.files(), inode, block_count, 7));
    lost.misbehaviour = nvme::Misbehaviour::none;
    const std::string problem = mount.server().exchange().rebuild("1", 0);
    EXPECT_NE(problem.find("the drive has failed; unmount and mount the pool again"), std::string::npos) << problem;
    EXPECT_TRUE(mount.stop());
  }
  // It was away, and is filled again.
  session::ServerOptions options = options_of(devices);
  options.degraded = true;
  {
    GrowthMount mount(options);
    ASSERT_EQ(mount.server().exchange().rebuild("1", 0), "");
    while (mount.server().rebuilder().is_busy()) std::this_thread::yield();
    EXPECT_EQ(mount.server().rebuilder().report().state, maintenance::JobState::finished);
    EXPECT_TRUE(mount.stop());
  }
  EXPECT_EQ(find_problems(devices), "");
  machine.drive(0).complaint.clear();
  check_blocks({devices[1]}, true);
}

TEST(BusDrives, ADriveThatIsPulledOutIsLost) {
  lose(Loss::vanishes);
}
TEST(BusDrives, ADriveThatTheSystemWantsBackIsLost) {
  lose(Loss::is_wanted);
}
TEST(BusDrives, ADriveThatLiesIsLost) {
  lose(Loss::lies);
}
TEST(BusDrives, ADriveThatWasResetIsLost) {
  lose(Loss::is_reset);
}

// How a drive fails that works again after an Abort, or after a reset.
enum class Fault { forgets_commands, forgets_and_ignores_aborts, stops };

// Blocks of the file are written while the drive fails, once.
void write_beside(Fault how, FakeDrive& drive, GrowthMount& mount, u64 inode, u64 first, u64 end) {
  if (how == Fault::stops) {
    drive.stops = 1;
  } else {
    // Each of them may need a reset, of which there are four.
    drive.forgets = how == Fault::forgets_commands ? 3 : 2;
  }
  for (u64 block = first; block < end; ++block) {
    EXPECT_EQ(write_block(mount.files(), inode, block, 7 + block), Status::ok);
  }
  EXPECT_EQ(mount.files().simple(wire::Opcode::sync, 0, 0, 0).status, Status::ok);
  EXPECT_EQ(drive.forgets, 0u);
  EXPECT_EQ(drive.stops, 0u);
}

void survive(Fault how, u32 namespace_count) {
  const bool has_two = namespace_count == 2;
  Machine machine(has_two ? 1 : 2, 4096, namespace_count, false);
  const std::vector<std::string> devices{Machine::name(0), has_two ? Machine::name(0) + "/2" : Machine::name(1)};
  make(devices);
  session::ServerOptions options = options_of(devices);
  options.drives.command_timeout_ns = 2000000000;
  FakeDrive& drive = machine.drive(0);
  drive.has_abort = how != Fault::forgets_and_ignores_aborts;
  {
    GrowthMount mount(options);
    const u64 inode = make_file(mount.files(), "file");
    ASSERT_NO_FATAL_FAILURE(write_blocks(mount, inode, 0, block_count / 2));
    const int opened_count = drive.opened_count;
    for (u64 first = block_count / 2; first < block_count; first += block_count / 4) {
      write_beside(how, drive, mount, inode, first, first + block_count / 4);
    }
    EXPECT_EQ(failed_devices(mount), 0u);
    EXPECT_TRUE(has_blocks(mount.files(), inode, block_count, 7));
    EXPECT_EQ(drive.controller->abort_count() != 0, how != Fault::stops);
    EXPECT_EQ(drive.opened_count, opened_count);
    EXPECT_TRUE(mount.stop());
  }
  EXPECT_EQ(find_problems(devices), "");
  check_blocks(devices);
}

TEST(BusDrives, LateCommandsAreAborted) {
  survive(Fault::forgets_commands, 1);
}
TEST(BusDrives, ADriveThatAnswersNoAbortIsReset) {
  survive(Fault::forgets_and_ignores_aborts, 1);
}
TEST(BusDrives, ADriveThatStopsIsReset) {
  survive(Fault::stops, 1);
}
TEST(BusDrives, BothNamespacesOfADriveSurviveItsReset) {
  survive(Fault::stops, 2);
}

TEST(BusDrives, DevicesComeAndGo) {
  Machine machine(3);
  const std::vector<std::string> devices{Machine::name(0), Machine::name(1)};
  make(devices);
  GrowthMount mount(options_of(devices));
  const u64 inode = make_file(mount.files(), "file");
  for (u32 round = 0; round < 3; ++round) {
    const u32 device = mount.server().grower().add_device(Machine::name(2), true);
    EXPECT_EQ(machine.drive(2).mapped_count, 1u);
    ASSERT_NO_FATAL_FAILURE(write_blocks(mount, inode, 8 * round, 8 * round + 8));
    nvme::EmulatedController* const used = machine.drive(2).controller;
    mount.server().grower().remove_device(device);
    EXPECT_FALSE(used->is_dma_allowed()) << "somebody else may take it";
  }
  EXPECT_TRUE(has_blocks(mount.files(), inode, block_count, 7));
  EXPECT_TRUE(mount.stop());
}

template <class Call>
std::string refusal_of(Status status, Call&& call) {
  try {
    call();
  } catch (const pool::PoolError& error) {
    EXPECT_EQ(error.status(), status) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "it was not refused";
  return "";
}

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(BusDrives, WhatCannotBeUsedIsRefusedBeforeAnythingIsWritten) {
  Machine machine(2);
  const std::vector<std::string> devices{Machine::name(0), Machine::name(1)};
  machine.drive(1).refusal = "gpu4fs nvme take";
  EXPECT_SAYS(refusal_of(Status::invalid_argument, [&] { make(devices); }), "0000:01:00.0: gpu4fs nvme take");
  std::vector<u8> found(device_bytes);
  machine.drive(0).media[0]->read(0, found.data(), device_bytes);
  EXPECT_EQ(std::count(found.begin(), found.end(), u8{0}), static_cast<i64>(device_bytes));
  machine.drive(1).refusal.clear();
  EXPECT_SAYS(refusal_of(Status::no_device, [&] { make({"nvme:0000:77:00.0"}); }), "0000:77:00.0: there is no");
  EXPECT_SAYS(refusal_of(Status::io_error, [&] { make({Machine::name(0) + "/3"}); }), "nvme:0000:00:00.0/3: ");
  EXPECT_SAYS(refusal_of(Status::invalid_argument, [&] { make({devices[0], devices[0] + "/1"}); }), "the same device");
  for (const char* const name : {"nvme:00:00.0", "nvme:0000:00:00.0/0", "nvme:0000:00:00.0/x", "nvme:0000:00:00.8",
                                 "nvme:0000:00:00.0/", "nvme:", "record=/tmp/log:nvme:0000:00:00.0"}) {
    EXPECT_SAYS(refusal_of(Status::invalid_argument, [&] { make({name}); }), std::string("device '") + name);
  }
  make(devices);
  session::ServerOptions options = options_of(devices);
  options.device_access = session::DeviceAccess::mapped;
  EXPECT_SAYS(refusal_of(Status::io_error, [&] { GrowthMount mount(options); }), devices[0]);
  options = options_of(devices);
  options.engine = session::EngineChoice::cuda;
  EXPECT_SAYS(refusal_of(Status::gpu_error, [&] { GrowthMount mount(options); }), "engine=cuda: ");
  machine.drive(0).queues_max = 1;
  EXPECT_SAYS(refusal_of(Status::io_error, [&] { GrowthMount mount(options_of(devices)); }), "two are needed");
}

TEST(BusDrives, APoolWithoutDrivesGetsNone) {
  Machine machine(1);
  const GrowthFolder folder;
  const std::vector<std::string> files{folder / "a", folder / "b"};
  make(files);
  GrowthMount mount(options_of(files));
  EXPECT_SAYS(
      refusal_of(Status::not_supported, [&] { (void)mount.server().grower().add_device(Machine::name(0), true); }),
      Machine::name(0));
  EXPECT_SAYS(mount.server().exchange().replace("1", Machine::name(0), true, 0), Machine::name(0));
  std::vector<u8> found(device_bytes);
  machine.drive(0).media[0]->read(0, found.data(), device_bytes);
  EXPECT_EQ(std::count(found.begin(), found.end(), u8{0}), static_cast<i64>(device_bytes));
  EXPECT_EQ(failed_devices(mount), 0u);
  EXPECT_TRUE(mount.stop());
}

TEST(BusDrives, ListsOfDevices) {
  const std::vector<std::string> parts = pool::split_device_list("nvme:0000:00:00.0:/dev/sda:nvme:0000:01:00.0/2:b");
  EXPECT_EQ(parts, (std::vector<std::string>{"nvme:0000:00:00.0", "/dev/sda", "nvme:0000:01:00.0/2", "b"}));
  EXPECT_EQ(pool::absolute_device_path("nvme:0000:0A:00.0/1"), "nvme:0000:0a:00.0");
  EXPECT_EQ(pool::parse_device("./nvme:x").path, "./nvme:x");
}

}  // namespace
}  // namespace gpu4fs::test::bus_drives_test
