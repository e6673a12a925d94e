// The drive that groups execute, with the driver on its queues: random commands with an oracle, commands that cannot
// be, latencies, batches from their end, and the deadline.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/emulated_warp.hpp"
#include "device/nvme/classes.hpp"
#include "device/nvme/drive/connected_queues.hpp"
#include "device/nvme/drive/service.hpp"
#include "device/nvme/prp.hpp"
#include "device/nvme/submit.hpp"
#include "support/on_all_groups.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::nvme::test {
namespace {

using gpu4fs::test::on_all_groups;
using gpu4fs::test::scaled;

constexpr u64 window_address = u64{0x7500} << 32;
constexpr u64 space_bytes = 1 << 20;
constexpr u64 service_limit_ns = 60000000000;

struct FreeMemory {
  void operator()(u8* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<u8, FreeMemory>;
Memory zeroed(u64 bytes) {
  u8* const memory = static_cast<u8*>(std::aligned_alloc(page_size, align_up(bytes, page_size)));
  if (memory == nullptr) std::abort();
  std::memset(memory, 0, bytes);
  return Memory(memory);
}

struct DriveShape {
  u32 queue_count = 1;
  u32 depth = 16;
  u32 worker_count = 1;
  u64 latency_ns = 0;
  u64 limit_ns = service_limit_ns;
  bool reverses_batches = false;
  bool by_lanes = false;  // workers are lanes, and warps otherwise
};

// Namespace 1 has blocks of 512 bytes, namespace 2 of 4 KiB. Workers serve until the end of this object.
class RunningDrive {
 public:
  RunningDrive(const DriveShape& shape, u64 bus_bytes)
      : bus_(zeroed(bus_bytes)), media_{zeroed(space_bytes), zeroed(space_bytes)} {
    queues_ = zeroed(lay_out_queues(nullptr, shape.queue_count, shape.depth).bytes);
    set_ = lay_out_queues(queues_.get(), shape.queue_count, shape.depth);
    MemoryDrive drive{};
    // The second window is half of the bus, so addresses are looked up.
    drive.memory.windows[0] = {window_address, bus_bytes / 2, bus_.get()};
    drive.memory.windows[1] = {window_address + bus_bytes / 2, bus_bytes / 2, bus_.get() + bus_bytes / 2};
    drive.memory.window_count = 2;
    drive.namespaces[0] = {{1, 512, space_bytes / 512}, media_[0].get()};
    drive.namespaces[1] = {{2, 4096, space_bytes / 4096}, media_[1].get()};
    drive.namespace_count = 2;
    drive.io_limits = {u64{64} << 10, true, true};
    drive.latency_ns = shape.latency_ns;
    drive.reverses_batches = shape.reverses_batches;
    place_drive(set_, drive);
    for (u32 i = 0; i < shape.queue_count; ++i) connect_queue(set_, i);
    const u64 end_ns = now_monotonic_ns() + shape.limit_ns;
    host_ = std::thread([this, shape, end_ns] {
      if (shape.by_lanes) {
        run_drive(Lane{}, *set_.drive, 0, 1, end_ns);
      } else {
        run_emulated_warps(shape.worker_count, [&](EmulatedWarp g, u32 worker) {
          run_drive(g, *set_.drive, worker, shape.worker_count, end_ns);
        });
      }
      is_over_ = true;
    });
  }
  ~RunningDrive() {
    store<Order::release, Scope::engine>(&set_.drive->is_stopping, 1);
    host_.join();
    EXPECT_EQ(failure_of(*set_.controller), Failure::none);
  }

  VirtualQueue& queue(u32 index) { return set_.queues[index]; }
  MemoryDrive& drive() { return *set_.drive; }
  DriveComplaint complaint() {
    return static_cast<DriveComplaint>(load<Order::relaxed, Scope::engine>(&set_.drive->complaint));
  }
  u8* memory() { return bus_.get(); }
  u8* medium(u32 id) { return media_[id - 1].get(); }
  bool is_over() const { return is_over_; }

 private:
  Memory bus_;
  Memory media_[2];
  Memory queues_;
  ConnectedQueues set_{};
  std::atomic<bool> is_over_{false};
  std::thread host_;
};

// One command of the whole group; its status.
template <class Group>
u32 execute(Group g, VirtualQueue& queue, const SubmissionEntry& entry) {
  const auto status = std::make_unique<u32>(~0u);  // atomic accesses to a stack are not allowed
  const auto visit = [&](const Outcome& outcome) {
    u32* const place = reinterpret_cast<u32*>(outcome.cookie);
    store<Order::release, Scope::engine>(place, outcome.status);
  };
  const u64 cookie = g.broadcast(reinterpret_cast<u64>(status.get()));
  const auto wait = [] { backoff(1000); };
  EXPECT_NE(submit(g, queue, {entry, cookie, g.leader()}, visit, wait), SubmitResult::failed);
  while (g.broadcast(load<Order::acquire, Scope::engine>(status.get())) == ~0u) {
    if (poll(g, queue, visit) == 0) wait();
  }
  return g.broadcast(*status);
}

SubmissionEntry block_command(IoOpcode opcode, u32 id, u64 first, u32 count) {
  SubmissionEntry entry{};
  entry.opcode = static_cast<u8>(opcode);
  entry.namespace_id = id;
  entry.dword10 = static_cast<u32>(first);
  entry.dword11 = static_cast<u32>(first >> 32);
  entry.dword12 = count - 1;
  return entry;
}

// Page 0 is the list, data begins at page 1.
template <class Group>
void random_commands(Group g, RunningDrive& drive, u32 id, u32 block_bytes, u32 count) {
  static std::vector<u8> expected;
  on_leader(g, [&] { expected.assign(space_bytes, 0); });
  std::mt19937 random(id);  // in step on all ranks
  u8* const data = drive.memory() + page_size;
  const ListPages list{drive.memory(), window_address, 1};
  for (u32 i = 0; i < count; ++i) {
    const u32 blocks = 1 + random() % std::min(random() % 8 == 0 ? 65536 / block_bytes : 4, 65536 / block_bytes);
    const u64 first = random() % (space_bytes / block_bytes - blocks + 1);
    const u64 bytes = u64{blocks} * block_bytes;
    // Dwords; most are pages.
    const u32 offset = random() % 4 == 0 ? random() % 1024 * 4 : 0;
    const u32 choice = random() % 8;
    const u8 fill = static_cast<u8>(random());
    const IoOpcode opcode = choice < 4 ? IoOpcode::read : choice < 7 ? IoOpcode::write : IoOpcode::write_zeroes;
    SubmissionEntry entry = block_command(opcode, id, first, blocks);
    entry.data = build_prp(g, list, offset, bytes, [&](u64 frame) { return window_address + (1 + frame) * page_size; });
    u8* const at = expected.data() + first * block_bytes;
    on_leader(g, [&] {
      for (u64 k = 0; k < bytes; ++k) data[offset + k] = static_cast<u8>(fill + k * 7);
      if (opcode == IoOpcode::write) std::memcpy(at, data + offset, bytes);
      if (opcode == IoOpcode::write_zeroes) std::memset(at, 0, bytes);
    });
    EXPECT_EQ(execute(g, drive.queue(i % drive.drive().queue_count), entry), 0u);
    if (opcode == IoOpcode::read && g.leader()) {
      EXPECT_EQ(std::memcmp(data + offset, at, bytes), 0);
    }
  }
  g.sync();
  if (g.leader()) {
    EXPECT_EQ(std::memcmp(drive.medium(id), expected.data(), space_bytes), 0);
  }
}

TEST(MemoryDrive, RandomCommandsOfBothFormats) {
  for (const bool by_lanes : {false, true}) {
    on_all_groups([&](auto g) {
      static RunningDrive* drive;
      on_leader(g, [&] {
        DriveShape shape;
        shape.queue_count = 2;
        shape.by_lanes = by_lanes;
        drive = new RunningDrive(shape, 128 << 10);
      });
      random_commands(g, *drive, 1, 512, scaled(300));
      random_commands(g, *drive, 2, 4096, scaled(300));
      on_leader(g, [&] {
        EXPECT_EQ(drive->complaint(), DriveComplaint::none);
        delete drive;
      });
    });
  }
}

TEST(MemoryDrive, CommandsThatCannotBe) {
  RunningDrive drive({}, 256 << 10);
  const auto status = [&](const SubmissionEntry& entry) {
    return static_cast<StatusCode>(execute(Lane{}, drive.queue(0), entry));
  };
  SubmissionEntry entry = block_command(IoOpcode::read, 2, space_bytes / 4096 - 1, 1);
  entry.data.prp.first = window_address;
  EXPECT_EQ(status(entry), StatusCode::success);
  entry.dword10 += 1;
  EXPECT_EQ(status(entry), StatusCode::lba_out_of_range);
  entry.dword11 = ~0u;
  EXPECT_EQ(status(entry), StatusCode::lba_out_of_range);
  entry = block_command(IoOpcode::write, 3, 0, 1);
  EXPECT_EQ(status(entry), StatusCode::invalid_namespace);
  entry = block_command(static_cast<IoOpcode>(0x7f), 1, 0, 1);
  EXPECT_EQ(status(entry), StatusCode::invalid_opcode);
  EXPECT_EQ(drive.complaint(), DriveComplaint::none);
  entry = block_command(IoOpcode::read, 1, 0, 129);
  entry.data.prp.first = window_address;
  EXPECT_EQ(status(entry), StatusCode::invalid_field);
  EXPECT_EQ(drive.complaint(), DriveComplaint::transfer_too_long);
  // Behind the end of the bus, and over the border of its windows.
  drive.drive().complaint = 0;
  for (const u64 address :
       {window_address + (256 << 10), window_address - 512, u64{0}, window_address + (128 << 10) - 256}) {
    entry = block_command(IoOpcode::read, 1, 0, 1);
    entry.data.prp.first = address;
    EXPECT_EQ(status(entry), StatusCode::data_transfer_error) << address;
    EXPECT_EQ(drive.complaint(), DriveComplaint::data_pointer_astray);
  }
  EXPECT_EQ(status(block_command(IoOpcode::flush, namespace_id_all, 0, 1)), StatusCode::success);
}

TEST(MemoryDrive, DeallocatedRangesReadAsZeros) {
  RunningDrive drive({}, 64 << 10);
  std::memset(drive.medium(1), 1, space_bytes);
  const DatasetRange ranges[] = {{0, 2, 1}, {0, 1, 7}};
  std::memcpy(drive.memory(), ranges, sizeof(ranges));
  SubmissionEntry entry{};
  entry.opcode = static_cast<u8>(IoOpcode::dataset_management);
  entry.namespace_id = 1;
  entry.dword10 = 1;
  entry.dword11 = dataset_deallocate;
  entry.data.prp.first = window_address;
  EXPECT_EQ(execute(Lane{}, drive.queue(0), entry), 0u);
  for (u32 block = 0; block < 16; ++block) {
    EXPECT_EQ(drive.medium(1)[block * 512 + 511], block == 1 || block == 2 || block == 7 ? 0 : 1) << block;
  }
  // One range outside: nothing is deallocated.
  const DatasetRange outside[] = {{0, 1, 9}, {0, 2, space_bytes / 512 - 1}};
  std::memcpy(drive.memory(), outside, sizeof(outside));
  EXPECT_EQ(static_cast<StatusCode>(execute(Lane{}, drive.queue(0), entry)), StatusCode::lba_out_of_range);
  EXPECT_EQ(drive.medium(1)[9 * 512], 1);
}

// Warps share queues of depth eight, served by several workers each, which complete batches from their end.
TEST(MemoryDrive, ManyLanesAndSeveralWorkersOnAQueue) {
  constexpr u32 warp_count = 3;
  constexpr u32 lane_count = warp_count * warp_size;
  DriveShape shape;
  shape.queue_count = 2;
  shape.depth = 8;
  shape.worker_count = 3;
  shape.reverses_batches = true;
  RunningDrive drive(shape, lane_count * page_size);
  std::vector<u32> outcomes(lane_count);
  const u32 rounds = scaled(40);
  run_emulated_warps(warp_count, [&](EmulatedWarp g, u32 warp) {
    const u32 lane = warp * warp_size + g.rank();
    VirtualQueue& queue = drive.queue(warp % 2);
    u8* const data = drive.memory() + lane * page_size;
    const auto visit = [&](const Outcome& outcome) {
      fetch_add<Order::release, Scope::engine>(&outcomes[outcome.cookie], 1 + outcome.status);
    };
    const auto wait = [] { backoff(1000); };
    for (u32 round = 0; round < rounds; ++round) {
      const IoOpcode opcode = round % 2 == 0 ? IoOpcode::write : IoOpcode::read;
      SubmissionEntry entry = block_command(opcode, 2, lane, 1);
      entry.data.prp.first = window_address + lane * page_size;
      std::memset(data, static_cast<int>(opcode == IoOpcode::write ? lane + round : 0), page_size);
      EXPECT_EQ(submit(g, queue, {entry, lane}, visit, wait), SubmitResult::submitted);
      while (g.any(load<Order::acquire, Scope::engine>(&outcomes[lane]) == 0)) {
        if (poll(g, queue, visit) == 0) wait();
      }
      EXPECT_EQ(outcomes[lane], 1u);
      const u8 wanted = static_cast<u8>(opcode == IoOpcode::write ? lane + round : lane + round - 1);
      EXPECT_TRUE(data[0] == wanted && std::memcmp(data, data + 1, page_size - 1) == 0);
      store<Order::relaxed, Scope::engine>(&outcomes[lane], 0u);
      g.sync();
    }
  });
  EXPECT_EQ(drive.complaint(), DriveComplaint::none);
  EXPECT_EQ((load<Order::relaxed, Scope::engine>(&drive.drive().completed_count)), u64{rounds} * lane_count);
}

// Warps of the background, whose commands are more than their share, and lanes of the log on one queue.
TEST(MemoryDrive, ClassesShareAQueue) {
  DriveShape shape;
  shape.depth = 16;
  shape.worker_count = 2;
  shape.reverses_batches = true;
  constexpr u32 lane_count = 2 * warp_size + 2;
  RunningDrive drive(shape, 2 * lane_count * page_size);
  ClassQueue classes;
  place_classes(classes, &drive.queue(0), {{2, 0, 1, 1}});
  EXPECT_EQ(classes.gates[3].share, 3u);
  std::vector<u32> outcomes(lane_count);
  const u32 rounds = scaled(40);
  const auto work = [&](auto g, u32 first_lane, ServiceClass service_class) {
    const u32 lane = first_lane + g.rank();
    const auto visit = [&](const Outcome& outcome) {
      EXPECT_EQ(outcome.service_class, outcome.cookie < 2 ? 0u : 3u);
      fetch_add<Order::release, Scope::engine>(&outcomes[outcome.cookie], 1 + outcome.status);
    };
    const auto wait = [] { backoff(1000); };
    for (u32 round = 0; round < rounds; ++round) {
      SubmissionEntry entry = block_command(IoOpcode::write, 2, lane, 1);
      entry.data.prp.first = window_address + lane * page_size;
      std::memset(drive.memory() + lane * page_size, static_cast<int>(lane + round), page_size);
      EXPECT_EQ(submit_class(g, classes, service_class, {entry, lane}, visit, wait), SubmitResult::submitted);
      while (g.any(load<Order::acquire, Scope::engine>(&outcomes[lane]) == 0)) {
        if (poll_classes(g, classes, visit) == 0) wait();
      }
      EXPECT_EQ(outcomes[lane], 1u);
      EXPECT_EQ(drive.medium(2)[lane * page_size + 77], static_cast<u8>(lane + round));
      store<Order::relaxed, Scope::engine>(&outcomes[lane], 0u);
      g.sync();
    }
  };
  std::thread log_lanes[2];
  for (u32 i = 0; i < 2; ++i) log_lanes[i] = std::thread([&, i] { work(Lane{}, i, ServiceClass::log); });
  run_emulated_warps(2, [&](EmulatedWarp g, u32 warp) { work(g, 2 + warp * warp_size, ServiceClass::background); });
  for (std::thread& lane : log_lanes) lane.join();
  for (const ClassGate& gate : classes.gates) EXPECT_EQ(gate.next_ticket, gate.ended);
  EXPECT_EQ(classes.gates[0].ended, 2 * rounds);
  EXPECT_EQ(classes.gates[3].ended, 2 * warp_size * rounds);
}

TEST(MemoryDrive, NoCommandIsEarly) {
  DriveShape shape;
  shape.latency_ns = 3000000;
  RunningDrive drive(shape, 64 << 10);
  for (u32 i = 0; i < 5; ++i) {
    SubmissionEntry entry = block_command(IoOpcode::read, 1, i, 1);
    entry.data.prp.first = window_address;
    const u64 begin_ns = now_monotonic_ns();
    EXPECT_EQ(execute(Lane{}, drive.queue(0), entry), 0u);
    EXPECT_GE(now_monotonic_ns() - begin_ns, shape.latency_ns);
  }
}

// Nobody stops it.
TEST(MemoryDrive, EndsAtItsDeadline) {
  DriveShape shape;
  shape.limit_ns = 20000000;
  shape.worker_count = 2;
  RunningDrive drive(shape, 64 << 10);
  while (!drive.is_over()) std::this_thread::yield();
  EXPECT_EQ(drive.drive().is_stopping, 0u);
}

TEST(MemoryDrive, DoorbellsThatCannotBeAreNoticed) {
  RunningDrive drive({}, 64 << 10);
  ring_doorbell(drive.queue(0).submission_doorbell, 16);
  while (drive.complaint() == DriveComplaint::none) std::this_thread::yield();
  EXPECT_EQ(drive.complaint(), DriveComplaint::impossible_doorbell);
  EXPECT_EQ((load<Order::relaxed, Scope::engine>(&drive.drive().completed_count)), 0u);
}

// A group takes no more commands at once than it may, so that others have work too.
TEST(MemoryDrive, BatchesHaveALimit) {
  for (const u32 batch_max : {0u, 1u, 3u}) {
    const Memory memory = zeroed(lay_out_queues(nullptr, 1, 16).bytes);
    const Memory medium = zeroed(page_size);
    const Memory buffer = zeroed(page_size);
    const ConnectedQueues set = lay_out_queues(memory.get(), 1, 16);
    MemoryDrive drive{};
    drive.memory.windows[0] = {window_address, page_size, buffer.get()};
    drive.memory.window_count = 1;
    drive.namespaces[0] = {{1, 512, page_size / 512}, medium.get()};
    drive.namespace_count = 1;
    drive.batch_max = batch_max;
    place_drive(set, drive);
    connect_queue(set, 0);
    SubmissionEntry entry{};
    entry.opcode = static_cast<u8>(IoOpcode::read);
    entry.namespace_id = 1;
    entry.data.prp.first = window_address;
    for (u32 i = 0; i < 8; ++i) const_cast<SubmissionEntry&>(set.drive_queues[0].submissions[i]) = entry;
    ring_doorbell(set.queues[0].submission_doorbell, 8);
    std::vector<u32> counts;
    run_emulated_warp([&](EmulatedWarp g) {
      for (u32 left = 8; left != 0;) {
        const u32 count = serve_queue(g, *set.drive, set.drive_queues[0]);
        if (g.leader()) counts.push_back(count);
        if (count == 0) break;
        left -= count;
      }
    });
    const std::vector<u32> expected = batch_max == 0   ? std::vector<u32>{8}
                                      : batch_max == 1 ? std::vector<u32>(8, 1)
                                                       : std::vector<u32>{3, 3, 2};
    EXPECT_EQ(counts, expected);
    EXPECT_EQ(set.drive->complaint, 0u);
  }
}

}  // namespace
}  // namespace gpu4fs::nvme::test
